"""Building tile IR by calling the language directly, without a front end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.ir.builder import IRBuilder, use_emitter
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.types import DTYPES, tile_type


class Kernel:
    """An open block: makes arguments, and shows what has been emitted."""

    def __init__(self, builder: IRBuilder):
        self.builder = builder

    def tile(self, dtype: str, *shape: int) -> tl.tensor:
        """A run-time value of the type; ``*float32`` is a pointer."""
        element = tl.pointer_type(DTYPES[dtype[1:]]) if dtype[0] == "*" else DTYPES[dtype]
        return tl.tensor(Value(tile_type(element, shape)))

    @property
    def ops(self) -> list[Op]:
        return self.builder.block.ops

    @property
    def names(self) -> list[str]:
        """Mnemonics of what was emitted, with the kind where there is one."""
        return [getattr(getattr(op, "kind", None), "value", op.mnemonic) for op in self.ops]


@contextmanager
def kernel(wide: bool = False) -> Iterator[Kernel]:
    """A block under construction with the current emitter set."""
    builder = IRBuilder(Block(), wide=wide)
    with use_emitter(builder):
        yield Kernel(builder)


@contextmanager
def refused(reason: str, hint: str = "") -> Iterator[None]:
    """The body raises a CompilationError whose reason and hint contain these words."""
    with pytest.raises(CompilationError) as caught:
        yield
    assert reason in caught.value.reason
    assert hint in caught.value.hint
