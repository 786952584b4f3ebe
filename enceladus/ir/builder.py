"""Emitters: where primitive operations go.

The language's builtins check, promote and broadcast, and then call :func:`emit` with a primitive
operation. What happens to it depends on the current emitter, the one piece of ambient state:

* :class:`IRBuilder` appends it to a block (compilation);
* ``interpreter.NumpyEmitter`` computes it at once on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from enceladus.errors import Location
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.types import DType, int32, int64


class Emitter(Protocol):
    """What the language needs from its surroundings."""

    #: Where in the user's source the next operation comes from (``None``: unknown).
    location: Location | None
    #: The type of program ids, ranges and grid sizes: int32, or int64 in the wide variant.
    index_dtype: DType
    #: Number of SIMD groups of the program.
    num_warps: int

    def emit(self, op: Op) -> tuple[Value, ...]:
        """Perform or record ``op`` and return its results."""
        ...


_current: ContextVar[Emitter | None] = ContextVar("enceladus_emitter", default=None)


def current_emitter() -> Emitter | None:
    """The emitter in force, or ``None`` outside any kernel."""
    return _current.get()


@contextmanager
def use_emitter(emitter: Emitter) -> Iterator[None]:
    """Make ``emitter`` the current one inside a ``with`` block."""
    token = _current.set(emitter)
    try:
        yield
    finally:
        _current.reset(token)


class IRBuilder:
    """Appends operations to the current block."""

    __slots__ = ("block", "index_dtype", "location", "num_warps")

    def __init__(self, block: Block, wide: bool = False, num_warps: int = 4):
        self.block = block
        self.location: Location | None = None
        self.index_dtype = int64 if wide else int32
        self.num_warps = num_warps

    def emit(self, op: Op) -> tuple[Value, ...]:
        op.loc = self.location
        op.results = tuple(Value(t, op) for t in op.result_types())
        self.block.ops.append(op)
        return op.results

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Append to ``block`` within a ``with`` block, then return to the present one."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer
