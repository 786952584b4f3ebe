"""From the output of a kernel that updates an array atomically to the array's new contents.

What the words of the output mean is told in ``passes.updates``. All is lazy and element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from enceladus.codegen.kernel import ArrayParameter
from enceladus.mlx_bridge.dtypes import TO_MLX
from enceladus.mlx_bridge.fresh import FreshArray

#: Takes the output and the value of the argument; gives the new contents.
Finish = Callable[[mx.array, Any], mx.array]

_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}
_SIGN = 0x80000000


def finish(parameter: ArrayParameter, as_mlx: Callable[[Any], mx.array], negative_zero: bool) -> Finish:
    """How an output of atomic updates becomes the new contents.

    ``as_mlx`` makes an MLX array of an argument. ``negative_zero``: the words started at -0.0, which added
    to a number changes nothing, not even the sign of a zero.
    """
    return partial(_finish, parameter.update, TO_MLX[parameter.dtype], as_mlx, negative_zero)


def starts_from_zero(update: str, fresh: FreshArray) -> bool:
    """Whether the words of a fresh array already are its contents, but for the type."""
    return update in ("add", "or", "xor", "difference") and not fresh.fill and fresh.fill_text != "-0.0"


def _finish(
    update: str,
    dtype: mx.Dtype,
    as_mlx: Callable[[Any], mx.array],
    negative_zero: bool,
    words: mx.array,
    argument: Any,
) -> mx.array:
    if isinstance(argument, FreshArray) and starts_from_zero(update, argument):
        return words.astype(dtype) if update == "add" else _bits(words, dtype)
    old = as_mlx(argument)
    match update:
        case "add" if mx.issubdtype(dtype, mx.floating):
            total = (old + words).astype(dtype)  # 16-bit elements add up in float32
            return total if negative_zero else mx.where(words == 0, old, total)
        case "add":
            return old + words.astype(dtype)
        case "or":
            return old | _bits(words, dtype)
        case "and":
            return old & ~_bits(words, dtype)
        case "xor":
            return old ^ _bits(words, dtype)
        case "difference":
            unsigned = _UNSIGNED[dtype.size]
            return (old.view(unsigned) ^ words.astype(unsigned)).view(dtype)
    is_maximum = update == "max"
    if mx.issubdtype(dtype, mx.floating):
        return _extreme_float(words, old, is_maximum)
    found = words if is_maximum else ~words
    if mx.issubdtype(dtype, mx.signedinteger):
        found = (found ^ mx.array(_SIGN, mx.uint32)).view(mx.int32)
    wide = old.astype(found.dtype)  # where nothing was updated, ``found`` is in no narrow type
    return (mx.maximum(wide, found) if is_maximum else mx.minimum(wide, found)).astype(dtype)


def _bits(words: mx.array, dtype: mx.Dtype) -> mx.array:
    """The low bits of words as elements."""
    return words.astype(_UNSIGNED[dtype.size]).view(dtype)


def _extreme_float(words: mx.array, old: mx.array, is_maximum: bool) -> mx.array:
    """Old numbers, or those of the keys where they are larger (smaller); 0 is the key of NaN."""
    sign = mx.array(_SIGN, mx.uint32)
    wide = old.astype(mx.float32)
    pattern = wide.view(mx.uint32)
    order = mx.where(pattern >= sign, ~pattern, pattern | sign)
    before = mx.where(mx.isnan(wide), mx.array(0, mx.uint32), order if is_maximum else ~order)
    found = words if is_maximum else ~words
    number = mx.where(found >= sign, found ^ sign, ~found).view(mx.float32)
    return mx.where(words > before, number.astype(old.dtype), old)
