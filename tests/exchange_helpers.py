"""Combine blocks, and operations of ``ir.exchange`` built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from enceladus.interpreter.arrays import NUMPY_DTYPES
from enceladus.ir import ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.exchange import Reduce, Scan
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DType, Kind, bfloat16, int1, tile_type

#: Emits operations on scalars ``(builder, a_1 … a_n, b_1 … b_n)`` and returns what the block yields.
Combine = Callable[..., Sequence[Value]]

FLOAT_KINDS = (
    BinaryKind.ADD,
    BinaryKind.MUL,
    *(getattr(BinaryKind, n) for n in ("MIN", "MAX", "MIN_NAN", "MAX_NAN")),
)
INTEGER_KINDS = (*FLOAT_KINDS, BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR)


def value(dtype: DType, shape: tuple[int, ...] = ()) -> Value:
    return Value(tile_type(dtype, shape))


def combine_block(dtypes: Sequence[DType], combine: Combine) -> Block:
    arguments = tuple(Value(tile_type(d)) for d in (*dtypes, *dtypes))
    block = Block(arguments)
    builder = IRBuilder(block)
    builder.emit(ops.Yield(tuple(combine(builder, *arguments))))
    return block


def single(kind: BinaryKind, dtype: DType) -> Block:
    """One operation."""
    return combine_block([dtype], lambda b, x, y: b.emit(ops.Binary(kind, x, y)))


def disguised(kind: BinaryKind, dtype: DType) -> Block:
    """One operation that does not look like one: the general way has to be taken."""

    def combine(b: IRBuilder, x: Value, y: Value) -> Sequence[Value]:
        (result,) = b.emit(ops.Binary(kind, x, y))
        return b.emit(ops.Hint(result))

    return combine_block([dtype], combine)


def affine(b: IRBuilder, m1: Value, c1: Value, m2: Value, c2: Value) -> Sequence[Value]:
    """``x → m2·(m1·x + c1) + c2``: associative, not commutative."""
    (product,) = b.emit(ops.Binary(BinaryKind.MUL, m2, m1))
    (moved,) = b.emit(ops.Binary(BinaryKind.MUL, m2, c1))
    (total,) = b.emit(ops.Binary(BinaryKind.ADD, moved, c2))
    return product, total


def affine_fold(m: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inclusive prefixes of ``affine`` along the last axis."""
    m, c = m.copy(), c.copy()
    for i in range(1, m.shape[-1]):
        c[..., i] = m[..., i] * c[..., i - 1] + c[..., i]
        m[..., i] = m[..., i] * m[..., i - 1]
    return m, c


def argmax(b: IRBuilder, x: Value, i: Value, y: Value, j: Value) -> Sequence[Value]:
    """The larger value and its index; of equal values the smaller index. A branch, as users write it."""
    (greater,) = b.emit(ops.Compare(CompareKind.GT, x, y))
    (equal,) = b.emit(ops.Compare(CompareKind.EQ, x, y))
    (before,) = b.emit(ops.Compare(CompareKind.LT, i, j))
    (tie,) = b.emit(ops.Binary(BinaryKind.AND, equal, before))
    (first,) = b.emit(ops.Binary(BinaryKind.OR, greater, tie))
    sides = Block(ops=[]), Block(ops=[])
    for side, results in zip(sides, ((x, i), (y, j)), strict=True):
        with b.inside(side):
            b.emit(ops.Yield(results))
    return b.emit(ops.If(first, *sides))


def extreme(largest: bool, dtype: DType) -> Combine:
    """``argmax`` (or argmin) without a branch, where any number beats NaN, as the language writes it."""

    def combine(b: IRBuilder, x: Value, i: Value, y: Value, j: Value) -> Sequence[Value]:
        def emit(op: Op) -> Value:
            return b.emit(op)[0]

        better = emit(ops.Compare(CompareKind.GT if largest else CompareKind.LT, x, y))
        equal = emit(ops.Compare(CompareKind.EQ, y, x))
        if dtype.kind is Kind.FLOAT:
            nan_x, nan_y = (emit(ops.Unary(UnaryKind.ISNAN, v)) for v in (x, y))
            only = emit(ops.Binary(BinaryKind.AND, emit(ops.Unary(UnaryKind.NOT, nan_x)), nan_y))
            better = emit(ops.Binary(BinaryKind.OR, better, only))
            equal = emit(ops.Binary(BinaryKind.OR, emit(ops.Binary(BinaryKind.AND, nan_y, nan_x)), equal))
        tie = emit(ops.Binary(BinaryKind.AND, equal, emit(ops.Compare(CompareKind.LT, i, j))))
        left = emit(ops.Binary(BinaryKind.OR, better, tie))
        return emit(ops.Select(left, x, y)), emit(ops.Select(left, i, j))

    return combine


def last(b: IRBuilder, x: Value, y: Value) -> Sequence[Value]:
    return (y,)


def reduce_op(inputs: Sequence[Value], axis: int, block: Block) -> Reduce:
    return Reduce(tuple(inputs), axis, block)


def scan_op(inputs: Sequence[Value], axis: int, block: Block, reverse: bool = False) -> Scan:
    return Scan(tuple(inputs), axis, reverse, block)


def numbers(dtype: DType, shape: tuple[int, ...], seed: int = 0, special: bool = False) -> np.ndarray:
    """Random numbers whose sums and short products are exact; with ``special``, some NaN and infinities."""
    rng = np.random.default_rng(seed)
    if dtype is int1:
        return rng.random(shape) < 0.5
    if dtype.kind is not Kind.FLOAT:
        return rng.integers(dtype.minimum, dtype.maximum, shape, NUMPY_DTYPES[dtype], endpoint=True)
    x = rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], shape)
    if special:
        x = np.where(rng.random(shape) < 0.2, np.nan, x)
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.inf, -np.inf], shape), x)
        if x.ndim:
            x[..., :1, :] = np.nan  # a line of nothing else
    return x.astype(np.float32).astype(NUMPY_DTYPES[dtype])


def kinds_of(dtype: DType) -> tuple[BinaryKind, ...]:
    return FLOAT_KINDS if dtype.kind is Kind.FLOAT else INTEGER_KINDS


def indices(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """int32: the index along ``axis``."""
    lines = np.arange(shape[axis], dtype=np.int32).reshape(-1, *(1,) * (len(shape) - 1 - axis))
    return np.ascontiguousarray(np.broadcast_to(lines, shape))


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal types, shapes and elements; NaN equals NaN."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if got.dtype == NUMPY_DTYPES[bfloat16]:
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected)
