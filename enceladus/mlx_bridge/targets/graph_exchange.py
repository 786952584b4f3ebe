"""Reductions, scans, changes of shape, gathers and sorting in the graph engine.

Tiles have the program axis first, and each dimension is full or 1 (see ``graph``). A dimension along which
elements meet must be full; the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from enceladus.errors import InternalError
from enceladus.interpreter import combine
from enceladus.interpreter.exchange import wrap_index
from enceladus.interpreter.semantics import evaluate, evaluate_all
from enceladus.ir.core import Op, Value
from enceladus.ir.exchange import Gather, Histogram, Join, Pick, Reduce, Reshape, Scan, Sort, Transpose
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import DType, Kind, float32, int1
from enceladus.mlx_bridge.targets import graph_arithmetic as arithmetic
from enceladus.mlx_bridge.targets.graph_memory import Data, target_index, to_mlx

if TYPE_CHECKING:
    from enceladus.mlx_bridge.targets.graph import Evaluator

AlongAxis = Callable[[mx.array, int], mx.array]

MLX = combine.Arrays(
    apply=arithmetic.perform,
    choose=lambda condition, a, b: mx.where(to_mlx(condition), to_mlx(a), to_mlx(b)),
    concatenate=lambda tiles, axis: mx.concatenate([to_mlx(x) for x in tiles], axis),
    broadcast_to=lambda x, shape: mx.broadcast_to(to_mlx(x), shape),
)


def _full(self: Evaluator, value: Value, axes: Iterable[int] | None = None) -> Data:
    """A tile with the given dimensions (default: all of the tile's) at their full size."""
    data = self.values[value]
    shape = list(data.shape)
    tile = value.type.shape
    for axis in range(len(tile)) if axes is None else axes:
        shape[1 + axis] = tile[axis]
    if tuple(shape) == data.shape:
        return data
    return np.broadcast_to(data, shape) if isinstance(data, np.ndarray) else mx.broadcast_to(data, shape)


def _are_known(tiles: Iterable[Data]) -> bool:
    return not any(isinstance(x, mx.array) for x in tiles)


def _evaluate(op: Op, *operands: Data) -> np.ndarray:
    result = evaluate(op, *operands)  # type: ignore[arg-type]
    assert isinstance(result, np.ndarray)
    return result


# --------------------------------------------------------------------------- reductions, scans


def _sum(x: mx.array, axis: int) -> mx.array:
    return mx.sum(x, axis).astype(x.dtype)  # MLX widens small integers


def _product(x: mx.array, axis: int) -> mx.array:
    return mx.prod(x, axis).astype(x.dtype)


def _parity(x: mx.array, axis: int) -> mx.array:
    return (mx.sum(x, axis) & mx.array(1, mx.int32)).astype(mx.bool_)


def _number(extreme: AlongAxis, worst: float) -> AlongAxis:
    """``extreme`` of the numbers; NaN only where there are none."""

    def function(x: mx.array, axis: int) -> mx.array:
        is_nan = mx.isnan(x)
        found = extreme(mx.where(is_nan, mx.array(worst, x.dtype), x), axis)
        return mx.where(mx.all(is_nan, axis), mx.array(float("nan"), x.dtype), found)

    return function


_FLOAT_REDUCTIONS: dict[BinaryKind, AlongAxis] = {
    BinaryKind.MIN: _number(mx.min, float("inf")),
    BinaryKind.MAX: _number(mx.max, float("-inf")),
    BinaryKind.MIN_NAN: mx.min,
    BinaryKind.MAX_NAN: mx.max,
}
#: MLX would add up 16-bit floats one by one in their type; the general way is a tree.
_FLOAT32_REDUCTIONS: dict[BinaryKind, AlongAxis] = {
    BinaryKind.ADD: mx.sum,
    BinaryKind.MUL: mx.prod,
    **_FLOAT_REDUCTIONS,
}
_INTEGER_REDUCTIONS: dict[BinaryKind, AlongAxis] = {
    BinaryKind.ADD: _sum,
    BinaryKind.MUL: _product,
    BinaryKind.MIN: mx.min,
    BinaryKind.MAX: mx.max,
    BinaryKind.MIN_NAN: mx.min,
    BinaryKind.MAX_NAN: mx.max,
}
_BOOL_REDUCTIONS: dict[BinaryKind, AlongAxis] = {
    **dict.fromkeys((BinaryKind.ADD, BinaryKind.XOR), _parity),
    **dict.fromkeys((BinaryKind.MUL, BinaryKind.AND, BinaryKind.MIN, BinaryKind.MIN_NAN), mx.all),
    **dict.fromkeys((BinaryKind.OR, BinaryKind.MAX, BinaryKind.MAX_NAN), mx.any),
}


def _reduction(kind: BinaryKind, dtype: DType) -> AlongAxis | None:
    if dtype is int1:
        return _BOOL_REDUCTIONS.get(kind)
    if dtype.kind is not Kind.FLOAT:
        return _INTEGER_REDUCTIONS.get(kind)
    return (_FLOAT32_REDUCTIONS if dtype is float32 else _FLOAT_REDUCTIONS).get(kind)


def reduce(self: Evaluator, op: Reduce) -> None:
    tiles = [_full(self, v, (op.axis,)) for v in op.inputs]
    if _are_known(tiles):
        results: Sequence[Any] = evaluate_all(op, *tiles)  # type: ignore[arg-type]
    else:
        axis = 1 + op.axis
        results = (
            _native_reduction(op, tiles, axis)
            or _extreme_with_index(op, tiles, axis)
            or combine.reduce(op, _in_one_shape(tiles), axis, MLX)
        )
    self.values.update(zip(op.results, results, strict=True))


def _native_reduction(op: Reduce, tiles: list[Data], axis: int) -> list[mx.array] | None:
    """By MLX's reductions, where each input has one."""
    kinds = combine.single_kinds(op)
    if kinds is None:
        return None
    found = [_reduction(kind, v.type.dtype) for kind, v in zip(kinds, op.inputs, strict=True)]
    results = [f(to_mlx(x), axis) for f, x in zip(found, tiles, strict=True) if f is not None]
    return results if len(results) == len(tiles) else None


def _extreme_with_index(op: Reduce, tiles: list[Data], axis: int) -> list[mx.array] | None:
    """By MLX's ``argmax`` or ``argmin``, which give the first of equal elements: where the index ascends."""
    largest = combine.extreme_with_index(op)
    if largest is None or not isinstance(tiles[1], np.ndarray) or (np.diff(tiles[1], axis=axis) <= 0).any():
        return None
    value, index = map(to_mlx, tiles)
    keys = value
    if op.inputs[0].type.dtype.kind is Kind.FLOAT:
        keys = arithmetic.order_keys(
            value + mx.array(0, value.dtype), largest
        )  # -0 + 0 is 0: zeros are equal
    where = (mx.argmax if largest else mx.argmin)(keys, axis, keepdims=True)
    return [mx.take_along_axis(x, where, axis).squeeze(axis) for x in (value, index)]


def scan(self: Evaluator, op: Scan) -> None:
    tiles = [_full(self, v, (op.axis,)) for v in op.inputs]
    axis = 1 + op.axis
    if _are_known(tiles):
        results: Sequence[Any] = evaluate_all(op, *tiles)  # type: ignore[arg-type]
    elif combine.single_kinds(op) == [BinaryKind.ADD] and _has_native_sums(op.inputs[0].type.dtype):
        results = [mx.cumsum(to_mlx(tiles[0]), axis, reverse=op.reverse)]
    else:  # MLX's other scans have no derivative, or differ on NaN
        results = combine.scan(op, _in_one_shape(tiles), axis, MLX)
    self.values.update(zip(op.results, results, strict=True))


def _has_native_sums(dtype: DType) -> bool:
    return dtype is float32 or (dtype.kind is not Kind.FLOAT and dtype is not int1)


def _in_one_shape(tiles: list[Data]) -> list[mx.array]:
    shape = np.broadcast_shapes(*(x.shape for x in tiles))
    return [mx.broadcast_to(to_mlx(x), shape) for x in tiles]


# --------------------------------------------------------------------------------------- shape


def transpose(self: Evaluator, op: Transpose) -> Data:
    return self.values[op.value].transpose((0, *(1 + k for k in op.order)))


def reshape(self: Evaluator, op: Reshape) -> Data:
    data = _full(self, op.value)
    return data.reshape((data.shape[0], *op.shape))


def join(self: Evaluator, op: Join) -> Data:
    tiles = [self.values[op.first], self.values[op.second]]
    if _are_known(tiles):
        return _evaluate(op, *tiles)
    return mx.stack(_in_one_shape(tiles), axis=-1)


def pick(self: Evaluator, op: Pick) -> Data:
    data = self.values[op.value]
    return data[..., 0 if data.shape[-1] == 1 else op.index]


def gather(self: Evaluator, op: Gather) -> Data:
    source, index = _full(self, op.source, (op.axis,)), self.values[op.index]
    if _are_known((source, index)):
        return _evaluate(op, source, index)
    axis = 1 + op.axis
    size = source.shape[axis]
    if isinstance(index, np.ndarray):
        wrapped = mx.array(wrap_index(index, size).astype(np.int32))
    elif size & (size - 1):
        raise InternalError(f"a tile of {size} elements along an axis")
    else:  # the low bits are the remainder, of negative numbers too
        wrapped = (index.astype(mx.int64) & mx.array(size - 1, mx.int64)).astype(mx.int32)
    return mx.take_along_axis(to_mlx(source), wrapped, axis)


# -------------------------------------------------------------------------- sorting, counting


def sort(self: Evaluator, op: Sort) -> Data:
    data = _full(self, op.value, (len(op.value.type.shape) - 1,))
    if isinstance(data, np.ndarray):
        return _evaluate(op, data)
    ordered = mx.sort(data, -1)  # NaN last
    return ordered[..., ::-1] if op.descending else ordered


def histogram(self: Evaluator, op: Histogram) -> Data:
    data, mask = _full(self, op.value), self.operand(op.mask)
    operands = (data,) if mask is None else (data, mask)
    if _are_known(operands):
        return _evaluate(op, *operands)
    bins = target_index(data, mask, op.bins)
    programs, count = bins.shape
    rows = np.arange(programs, dtype=np.int32)[:, None] * np.int32(op.bins + 1)
    index = (to_mlx(bins) + mx.array(rows)).reshape(-1)
    counts = mx.zeros((programs * (op.bins + 1),), mx.int32)
    counts = counts.at[index].add(mx.ones((programs * count,), mx.int32))
    return counts.reshape(programs, op.bins + 1)[:, : op.bins]
