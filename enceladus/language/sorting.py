"""Builtins that put elements in order or count them, and ``softmax``."""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.exchange import Histogram, Pick, Sort
from enceladus.ir.ops import Binary, BinaryKind, Unary, UnaryKind
from enceladus.ir.types import float32, int1, int32, uint8
from enceladus.language import reductions, semantic
from enceladus.language.builtin import builtin, require_int
from enceladus.language.creation import as_shape
from enceladus.language.shapes import require_axis, require_numbers, reshaped, transposed
from enceladus.language.tensor import raw, tensor, tensor_method


def _sorted(name: str, x: Any, dim: Any, descending: bool) -> Value:
    value = require_numbers(name, "x", x)
    rank = len(value.type.shape)
    axis = require_axis(name, "dim", -1 if dim is None else dim, rank)
    if axis != rank - 1:
        raise CompilationError(
            f"{name} works along the last dimension, not {axis} of {rank}",
            "move that dimension last with tl.permute, and back after",
        )
    dtype = value.type.dtype
    if dtype is int1:
        return semantic.cast(semantic.emit(Sort(semantic.cast(value, uint8), descending)), int1)
    return semantic.emit(Sort(value, descending))


@tensor_method
@builtin
def sort(x: Any, dim: Any = None, descending: Any = False) -> tensor:
    """``x`` in ascending (or ``descending``) order along its last dimension.

    NaN counts as larger than any number. Source: Triton's ``tl.sort``.
    """
    return tensor(_sorted("tl.sort", x, dim, reductions.require_flag("tl.sort", "descending", descending)))


@tensor_method
@builtin
def topk(x: Any, k: Any, dim: Any = None) -> tensor:
    """The ``k`` largest elements along the last dimension, largest first; ``k`` is a power of two.

    NaN counts as larger than any number. Source: Triton's ``tl.topk``.
    """
    count = require_int("tl.topk", "k", k)
    size = (1, *require_numbers("tl.topk", "x", x).type.shape)[-1]
    if count < 1 or count & (count - 1):
        raise CompilationError(
            f"tl.topk: `k` must be a power of two, got {count}",
            "ask for the next power of two and mask the rest" if count > 0 else "use 1 or more",
        )
    value = _sorted("tl.topk", x, dim, True)
    if count > size:
        raise CompilationError(f"tl.topk: `k` is {count}, but the dimension has {size}", "use a smaller `k`")
    if count == size:
        return tensor(value)
    shape = value.type.shape
    rank = len(shape)
    parts = reshaped(value, (*shape[:-1], size // count, count))
    return tensor(semantic.emit(Pick(transposed(parts, (*range(rank - 1), rank, rank - 1)), 0)))


@tensor_method
@builtin
def histogram(input: Any, num_bins: Any, mask: Any = None) -> tensor:
    """How many elements of a 1-D integer tile are 0, 1, …, ``num_bins`` - 1: int32, shape ``(num_bins,)``.

    Elements outside that range, or where ``mask`` (int1) is false, are not counted. Source: Triton's
    ``tl.histogram``.
    """
    value = require_numbers("tl.histogram", "input", input)
    (bins,) = as_shape("tl.histogram", require_int("tl.histogram", "num_bins", num_bins))
    if len(value.type.shape) != 1:
        raise CompilationError(
            f"tl.histogram needs a 1-D tile, got shape {value.type.shape}", "flatten it with tl.ravel"
        )
    if value.type.dtype.is_floating():
        raise CompilationError(
            f"tl.histogram counts integers, not {value.type.dtype}",
            "compute the bin and cast: `.to(tl.int32)`",
        )
    if value.type.dtype is int1:
        value = semantic.cast(value, int32)
    guard: Value | None = None
    if mask is not None and mask is not True:
        test = semantic.truth(raw(mask), "tl.histogram: mask")
        guard = semantic.broadcast_to(test, value.type.shape, "tl.histogram: mask")
    return tensor(semantic.emit(Histogram(value, bins, guard)))


@tensor_method
@builtin
def softmax(x: Any, dim: Any = None, keep_dims: Any = False, ieee_rounding: Any = False) -> tensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``dim`` (by default 0); the shape of ``x``.

    16-bit floats compute in float32 and round once. ``keep_dims`` and ``ieee_rounding`` are accepted: the
    shape always stays, and the division is correctly rounded. Source: Triton's ``tl.softmax``.
    """
    value = require_numbers("tl.softmax", "x", x)
    dtype = value.type.dtype
    if not dtype.is_floating():
        raise CompilationError(f"tl.softmax needs floats, not {dtype}", "cast first: `.to(tl.float32)`")
    axis = require_axis("tl.softmax", "dim", 0 if dim is None else dim, len(value.type.shape))
    value = semantic.cast(value, float32)
    shape = value.type.shape
    largest = reductions.max(tensor(value), axis, keep_dims=True)
    shifted = semantic.emit(Binary(BinaryKind.SUB, value, semantic.broadcast_to(largest.value, shape)))
    powers = semantic.emit(Unary(UnaryKind.EXP, shifted))
    total = reductions.sum(tensor(powers), axis, keep_dims=True)
    result = semantic.emit(Binary(BinaryKind.DIV, powers, semantic.broadcast_to(total.value, shape)))
    return tensor(semantic.cast(result, dtype))
