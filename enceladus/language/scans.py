"""Builtins that give every prefix of a tile along an axis.

Types are those of the reductions: 16-bit floats compute in float32 and are rounded back once an element;
integers below 32 bits become int32 or uint32.
"""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.exchange import Scan
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import int1
from enceladus.language import semantic
from enceladus.language.builtin import builtin
from enceladus.language.combine import binary_block, combine_block, takes_functions
from enceladus.language.creation import require_dtype
from enceladus.language.reductions import accumulator, require_flag, result_of, tiles_of
from enceladus.language.shapes import require_axis, require_numbers
from enceladus.language.tensor import tensor, tensor_method


def _cumulative(name: str, kind: BinaryKind, input: Any, axis: Any, reverse: Any, dtype: Any) -> tensor:
    value = require_numbers(name, "input", input)
    if dtype is None:
        result = result_of(value.type.dtype)
    else:
        result = require_dtype(name, dtype)
        if result is int1:
            raise CompilationError(f"{name}: `dtype` int1 cannot hold a result", "use tl.int32")
        value = semantic.cast(value, result)
    place = require_axis(name, "axis", axis, len(value.type.shape))
    wide = accumulator(value.type.dtype)
    value = semantic.cast(value, wide)
    backwards = require_flag(name, "reverse", reverse)
    scanned = semantic.emit(Scan((value,), place, backwards, binary_block(kind, wide)))
    return tensor(semantic.cast(scanned, result))


@tensor_method
@builtin
def cumsum(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """Running sums along ``axis``, from its end if ``reverse``. ``dtype`` converts the elements before.

    Source: Triton's ``tl.cumsum``.
    """
    return _cumulative("tl.cumsum", BinaryKind.ADD, input, axis, reverse, dtype)


@tensor_method
@builtin
def cumprod(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """Running products along ``axis``: see :func:`cumsum`. Source: Triton's ``tl.cumprod``."""
    return _cumulative("tl.cumprod", BinaryKind.MUL, input, axis, reverse, dtype)


@takes_functions
@tensor_method
@builtin
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """Every element combined with all before it along ``axis``, by a function under ``@enceladus.jit``.

    ``input`` and ``combine_fn`` are those of ``tl.reduce``. With ``reverse`` every element is combined with
    all *after* it, and ``a`` is the combination of the later ones.
    Source: Triton's ``tl.associative_scan``.
    """
    values, several = tiles_of("tl.associative_scan", input)
    place = require_axis("tl.associative_scan", "axis", axis, len(values[0].type.shape))
    backwards = require_flag("tl.associative_scan", "reverse", reverse)
    block = combine_block("tl.associative_scan", combine_fn, [v.type.dtype for v in values])
    results = semantic.perform(Scan(values, place, backwards, block))
    return tuple(map(tensor, results)) if several else tensor(results[0])
