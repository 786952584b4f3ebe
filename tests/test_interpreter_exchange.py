"""Reductions, scans, shapes, sorting, histograms and atomics in NumPy, against plain NumPy and loops."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enceladus.errors import CompilationError, InternalError
from enceladus.interpreter import arithmetic
from enceladus.interpreter.arrays import NUMPY_DTYPES, BoundArray, Pointers
from enceladus.interpreter.evaluate import evaluate_function
from enceladus.interpreter.program import OutOfBoundsError
from enceladus.interpreter.semantics import evaluate, evaluate_all
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.ir.types import (
    DTYPES,
    DType,
    bfloat16,
    float16,
    float32,
    int1,
    int8,
    int32,
    int64,
    pointer_type,
    tile_type,
    uint8,
    uint32,
    uint64,
)
from tests import exchange_helpers as build
from tests.graph_helpers import Kernel

SHAPES_AND_AXES = [((1,), 0), ((8,), 0), ((4, 8), 0), ((4, 8), 1), ((2, 4, 2), 1), ((1, 16), 0)]
LEADING: list[tuple[int, ...]] = [(), (3,)]


def scalar_fold(kind: BinaryKind, x: np.ndarray, dtype: DType, axis: int) -> np.ndarray:
    """Element after element, by the scalar operation."""
    with np.errstate(all="ignore"):
        lines = np.moveaxis(x, axis, 0)
        return fold(lambda a, b: arithmetic.binary(kind, a, b, dtype), lines)


def prefixes(kind: BinaryKind, x: np.ndarray, dtype: DType, axis: int, reverse: bool) -> np.ndarray:
    x = np.flip(x, axis) if reverse else x
    lines = [scalar_fold(kind, x.take(range(i + 1), axis), dtype, axis) for i in range(x.shape[axis])]
    result = np.stack(lines, axis)
    return np.flip(result, axis) if reverse else result


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("make", [build.single, build.disguised])
def test_reductions_and_scans_of_one_operation(dtype: DType, make) -> None:
    for kind in build.kinds_of(dtype):
        block = make(kind, dtype)
        for shape, axis in SHAPES_AND_AXES:
            tile = build.value(dtype, shape)
            for leading in LEADING:
                special = kind not in (BinaryKind.ADD, BinaryKind.MUL) and len(shape) > 1
                x = build.numbers(dtype, leading + shape, seed=len(shape), special=special)
                got = evaluate(build.reduce_op([tile], axis, block), x)
                expected = scalar_fold(kind, x, dtype, len(leading) + axis)
                build.assert_same(got, expected)
                for reverse in (False, True):
                    got = evaluate(build.scan_op([tile], axis, block, reverse), x)
                    expected = prefixes(kind, x, dtype, len(leading) + axis, reverse)
                    build.assert_same(got, expected)


def test_operands_may_change_places() -> None:
    block = build.combine_block([int32], lambda b, x, y: b.emit(ops.Binary(BinaryKind.ADD, y, x)))
    assert evaluate(build.reduce_op([build.value(int32, (4,))], 0, block), np.arange(4, dtype=np.int32)) == 6


def test_a_difference_is_not_taken_for_a_sum() -> None:
    """x − y is not associative; of two elements it still means something."""
    block = build.combine_block([int32], lambda b, x, y: b.emit(ops.Binary(BinaryKind.SUB, x, y)))
    assert evaluate(build.reduce_op([build.value(int32, (2,))], 0, block), np.array([7, 2], np.int32)) == 5


def test_twice_one_operand_is_not_taken_for_a_sum() -> None:
    block = build.combine_block([int32], lambda b, x, y: b.emit(ops.Binary(BinaryKind.MAX, x, x)))
    assert evaluate(build.reduce_op([build.value(int32, (4,))], 0, block), np.arange(4, dtype=np.int32)) == 0


def test_sums_of_float32_are_rounded_once() -> None:
    x = np.array([1e8, 1, -1e8, 1], np.float32)
    tile = build.value(float32, (4,))
    assert evaluate(build.reduce_op([tile], 0, build.single(BinaryKind.ADD, float32)), x) == 2


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_sums_of_16_bit_floats_round_at_each_step(dtype: DType) -> None:
    ones = np.ones(4096, NUMPY_DTYPES[dtype])
    tile = build.value(dtype, (4096,))
    total = evaluate(build.reduce_op([tile], 0, build.single(BinaryKind.ADD, dtype)), ones)
    assert total.dtype == ones.dtype and total == 4096, (
        "a tree; one after the other would stop at 2048 or 256"
    )


def test_small_integers_wrap() -> None:
    tile = build.value(int8, (4,))
    x = np.full(4, 100, np.int8)
    assert evaluate(build.reduce_op([tile], 0, build.single(BinaryKind.ADD, int8)), x) == np.int8(-112)
    scanned = evaluate(build.scan_op([tile], 0, build.single(BinaryKind.ADD, int8)), x)
    assert scanned.dtype == np.int8 and scanned.tolist() == [100, -56, 44, -112]


affine_inputs = st.integers(0, 6).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(-9, 9), min_size=2**k, max_size=2**k)] * 2)
)


@settings(max_examples=60, deadline=None)
@given(affine_inputs, st.booleans())
def test_order_is_kept_by_any_associative_function(lists: tuple[list[int], list[int]], reverse: bool) -> None:
    m, c = (np.array(x, np.int64) for x in lists)
    block = build.combine_block([int64, int64], build.affine)
    tiles = [build.value(int64, m.shape)] * 2
    got = evaluate_all(build.reduce_op(tiles, 0, block), m, c)
    assert [x.tolist() for x in got] == [x[-1].tolist() for x in build.affine_fold(m, c)]
    order = slice(None, None, -1 if reverse else 1)
    expected = [x[order].tolist() for x in build.affine_fold(m[order], c[order])]
    got = evaluate_all(build.scan_op(tiles, 0, block, reverse), m, c)
    assert [x.tolist() for x in got] == expected


def test_sizes_that_are_no_powers_of_two() -> None:
    m, c = (build.numbers(int64, (3, 7), seed) % 5 for seed in (1, 2))
    block = build.combine_block([int64, int64], build.affine)
    tiles = [build.value(int64, (3, 7))] * 2
    expected = build.affine_fold(m, c)
    for got, x in zip(evaluate_all(build.reduce_op(tiles, 1, block), m, c), expected, strict=True):
        np.testing.assert_array_equal(got, x[:, -1])
    for got, x in zip(evaluate_all(build.scan_op(tiles, 1, block), m, c), expected, strict=True):
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(("shape", "axis"), SHAPES_AND_AXES)
def test_argmax_with_a_branch(shape: tuple[int, ...], axis: int) -> None:
    x = build.numbers(float32, (3, *shape))
    index = build.indices(shape, axis)  # without the leading axis
    op = build.reduce_op(
        [build.value(float32, shape), build.value(int32, shape)],
        axis,
        build.combine_block([float32, int32], build.argmax),
    )
    values, where = evaluate_all(op, x, index)
    np.testing.assert_array_equal(values, x.max(1 + axis), strict=True)
    np.testing.assert_array_equal(where, x.argmax(1 + axis).astype(np.int32), strict=True)


def test_constants_outside_the_block_are_found() -> None:
    constant = ops.Constant(10, int32)
    constant.results = (Value(tile_type(int32), constant),)

    def combine(b, x, y):
        (tens,) = b.emit(ops.Binary(BinaryKind.MUL, x, constant.result))
        return b.emit(ops.Binary(BinaryKind.ADD, tens, y))

    op = build.reduce_op([build.value(int32, (2,))], 0, build.combine_block([int32], combine))
    assert evaluate(op, np.array([4, 2], np.int32)) == 42


def test_what_a_combine_function_cannot_do() -> None:
    tile = build.value(int32, (2,))
    foreign = build.combine_block([int32], lambda b, x, y: (Value(tile_type(int32), None, "z"),))
    with pytest.raises(InternalError, match="which is not its own"):
        evaluate(build.reduce_op([tile], 0, foreign), np.zeros(2, np.int32))

    def loop(b, x, y):
        body = Block((Value(tile_type(int32)), Value(tile_type(int32))), [])
        with b.inside(body):
            b.emit(ops.Yield((body.arguments[1],)))
        return b.emit(ops.For(x, y, y, (x,), body))

    with pytest.raises(CompilationError, match="loop that is not unrolled"):
        evaluate(build.reduce_op([tile], 0, build.combine_block([int32], loop)), np.zeros(2, np.int32))


# --------------------------------------------------------------------------------------- shape


@pytest.mark.parametrize("leading", LEADING)
def test_shapes(leading: tuple[int, ...]) -> None:
    x = build.numbers(int32, (*leading, 2, 4, 8))
    tile = build.value(int32, (2, 4, 8))
    n = len(leading)
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        expected = np.transpose(x, (*range(n), *(n + k for k in order)))
        np.testing.assert_array_equal(evaluate(exchange.Transpose(tile, order), x), expected)
    for shape in ((64,), (8, 8), (1, 16, 4)):
        got = evaluate(exchange.Reshape(tile, shape), x)
        np.testing.assert_array_equal(got, x.reshape(leading + shape))
    joined = evaluate(exchange.Join(tile, tile), x, x + 1)
    np.testing.assert_array_equal(joined, np.stack([x, x + 1], -1))
    np.testing.assert_array_equal(evaluate(exchange.Pick(build.value(int32, (2, 4, 8, 2)), 1), joined), x + 1)


def test_join_without_and_with_leading_axes() -> None:
    got = evaluate(
        exchange.Join(build.value(int32), build.value(int32)), np.int32(5), np.arange(3, dtype=np.int32)
    )
    assert got.tolist() == [[5, 0], [5, 1], [5, 2]]


def test_shapes_of_pointers() -> None:
    array = BoundArray("x_ptr", np.zeros(8, np.float32))
    pointers = Pointers(array, np.arange(8).reshape(2, 4))
    tile = Value(tile_type(pointer_type(float32), (2, 4)))
    assert (
        evaluate(exchange.Transpose(tile, (1, 0)), pointers).offsets.tolist() == pointers.offsets.T.tolist()
    )
    assert evaluate(exchange.Reshape(tile, (8,)), pointers).offsets.tolist() == list(range(8))
    joined = evaluate(exchange.Join(tile, tile), pointers, pointers)
    assert joined.array is array and joined.offsets.shape == (2, 4, 2)
    other = Pointers(BoundArray("y_ptr", array.flat), pointers.offsets)
    with pytest.raises(CompilationError, match="into two arrays, 'x_ptr' and 'y_ptr'"):
        evaluate(exchange.Join(tile, tile), pointers, other)


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_int() and t is not int1], ids=str)
def test_gather_wraps_around(dtype: DType) -> None:
    x = build.numbers(float32, (2, 8, 4))
    index = build.numbers(dtype, (2, 16, 4), seed=3)
    op = exchange.Gather(build.value(float32, (8, 4)), build.value(dtype, (16, 4)), 0)
    exact = np.array([int(i) % 8 for i in index.ravel()]).reshape(index.shape)
    np.testing.assert_array_equal(evaluate(op, x, index), np.take_along_axis(x, exact, 1))
    np.testing.assert_array_equal(evaluate(op, x, index[0]), np.take_along_axis(x, exact[:1], 1))
    np.testing.assert_array_equal(evaluate(op, x[0], index), np.take_along_axis(x[:1], exact, 1))


# ----------------------------------------------------------------------------------- sorting


def is_sorted(line: np.ndarray) -> bool:
    rank = [
        (np.isnan(v) if line.dtype.kind not in "biu" else False, 0 if v != v else v) for v in line.tolist()
    ]
    return rank == sorted(rank)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sort(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(DTYPES.values())))
    size = 2 ** data.draw(st.integers(0, 6))
    shape = data.draw(st.sampled_from([(size,), (2, size), (3, 2, size)]))
    x = build.numbers(dtype, shape, data.draw(st.integers(0, 99)))
    if dtype.is_floating():
        lanes = np.random.default_rng(0).random(shape) < data.draw(st.sampled_from([0, 0.3, 1]))
        x[lanes] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    for descending in (False, True):
        got = evaluate(exchange.Sort(build.value(dtype, shape[-1:]), descending), x)
        assert got.dtype == x.dtype and got.shape == x.shape
        for new, old in zip(got.reshape(-1, size), x.reshape(-1, size), strict=True):
            assert is_sorted(new[::-1] if descending else new)
            np.testing.assert_array_equal(np.sort(new.astype(np.float64)), np.sort(old.astype(np.float64)))


def test_sort_of_nan_by_hand() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf], np.float32)
    tile = build.value(float32, (4,))
    assert str(evaluate(exchange.Sort(tile, False), x).tolist()) == "[-inf, 1.0, inf, nan]"
    assert str(evaluate(exchange.Sort(tile, True), x).tolist()) == "[nan, inf, 1.0, -inf]"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_histogram(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([t for t in DTYPES.values() if t.is_int()]))
    bins = data.draw(st.sampled_from([1, 2, 16, 512]))
    low, high = max(dtype.minimum, -3), min(dtype.maximum, bins + 3)
    numbers = st.one_of(st.integers(low, high), st.integers(dtype.minimum, dtype.maximum))
    x = np.array(data.draw(st.lists(numbers, min_size=16, max_size=16)), NUMPY_DTYPES[dtype])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=16, max_size=16)))
    tile = build.value(dtype, (16,))
    for chosen in (None, mask):
        op = exchange.Histogram(tile, bins, None if chosen is None else build.value(int1, (16,)))
        operands = [x] if chosen is None else [x, chosen]
        kept = [int(v) for v, m in zip(x, mask, strict=True) if chosen is None or m]
        expected = [kept.count(i) for i in range(bins)]
        got = evaluate(op, *operands)
        assert got.dtype == np.int32 and got.tolist() == expected
        twice = evaluate(op, np.stack([x, x]), *operands[1:])
        assert twice.tolist() == [expected, expected]


# ------------------------------------------------------------------------------------ atomics

ATOMIC_TYPES = (int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32)


def updated(kind: AtomicKind, old, value, dtype: DType):
    if kind is AtomicKind.XCHG:
        return value
    with np.errstate(all="ignore"):
        return arithmetic.binary(BinaryKind[kind.name], np.asarray(old), np.asarray(value), dtype)


def atomic_kernel(kind: AtomicKind, dtype: DType, resolved: bool) -> Kernel:
    """``old[i] = atomic(x[index[i]], value[i], mask[i])``, 8 elements a program; then ``seen[i] = x[0]``."""
    k = Kernel()
    x, index, value, mask = (
        k.array(t, name) for t, name in ((dtype, "x"), (int32, "index"), (dtype, "value"), (int1, "mask"))
    )
    old, seen = k.array(dtype, "old"), k.array(dtype, "seen")
    lanes = k.offsets(8)
    at, operand, active = (k.load(a, lanes) for a in (index, value, mask))
    if resolved:
        found = k.emit(exchange.ArrayAtomic(kind, x, at, operand, active))
    else:
        pointers = k.emit(ops.AddPointer(k.emit(ops.Splat(x, (8,))), at))
        found = k.emit(exchange.Atomic(kind, pointers, operand, active))
    k.store(old, lanes, found)
    k.store(seen, lanes, k.load(x, k.mul(lanes, 0)))
    return k


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize("dtype", ATOMIC_TYPES, ids=str)
def test_atomics_are_sequential(dtype: DType, resolved: bool) -> None:
    rng = np.random.default_rng(7)
    for kind in AtomicKind:
        if dtype.is_floating() and kind in (AtomicKind.AND, AtomicKind.OR, AtomicKind.XOR):
            continue
        x = build.numbers(dtype, (1, 5), 1, special=False).ravel()
        value = build.numbers(dtype, (2, 12), 2, special=kind in (AtomicKind.MAX, AtomicKind.MIN)).ravel()
        if dtype.is_floating():
            x[2] = np.nan if kind in (AtomicKind.MAX, AtomicKind.MIN) else 1
        index = rng.integers(0, 5, 24).astype(np.int32)
        mask = rng.random(24) < 0.8
        index[~mask] = 10**6  # not looked at
        expected, old = x.copy(), np.zeros(24, x.dtype)
        for i in np.flatnonzero(mask):
            old[i] = expected[index[i]]
            expected[index[i]] = updated(kind, expected[index[i]], value[i], dtype)
        got, got_old, seen = x.copy(), np.ones(24, x.dtype), np.zeros(24, x.dtype)
        kernel = atomic_kernel(kind, dtype, resolved)
        evaluate_function(kernel.function(), (3, 1, 1), [got, index, value, mask, got_old, seen])
        np.testing.assert_array_equal(got, expected)
        build.assert_same(got_old, old)
        np.testing.assert_array_equal(
            seen, np.full(24, x[0]), "loads see the contents from before the launch"
        )


def test_atomics_see_stores_and_each_other() -> None:
    k = Kernel()
    x, old = k.array(int32, "x"), k.array(int32, "old")
    zero, ten = k.constant(0), k.constant(10)
    k.store(x, zero, ten)
    k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, zero, k.constant(1)))
    k.store(old, zero, k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, zero, k.constant(2))))
    data, found = np.array([99], np.int32), np.zeros(1, np.int32)
    evaluate_function(k.function(), (1, 1, 1), [data, found])
    assert (data.tolist(), found.tolist()) == ([13], [11])


@pytest.mark.parametrize("resolved", [False, True])
def test_compare_and_swap(resolved: bool) -> None:
    k = Kernel()
    x, old = k.array(int32, "x"), k.array(int32, "old")
    lanes = k.range(4)
    at = k.mul(lanes, 0)
    compare, value = k.binary(BinaryKind.MIN, lanes, 2), k.add(lanes, 1)
    if resolved:
        found = k.emit(exchange.ArrayAtomicCas(x, at, compare, value))
    else:
        pointers = k.emit(ops.AddPointer(k.emit(ops.Splat(x, (4,))), at))
        found = k.emit(exchange.AtomicCas(pointers, compare, value))
    k.store(old, lanes, found)
    data, result = np.zeros(1, np.int32), np.zeros(4, np.int32)
    evaluate_function(k.function(), (1, 1, 1), [data, result])
    assert (data.tolist(), result.tolist()) == ([3], [0, 1, 2, 3]), "the last element finds 3, not 2"


def test_atomics_check_bounds_and_read_only_arrays() -> None:
    k = Kernel()
    x = k.array(int32, "x")
    lanes = k.range(4)
    k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, lanes, lanes, k.compare(CompareKind.GE, lanes, 1)))
    with pytest.raises(OutOfBoundsError, match=r"atomic update of x\[3\], an array of 3 elements"):
        evaluate_function(k.function(), (1, 1, 1), [np.zeros(3, np.int32)])
    fixed = np.zeros(4, np.int32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="'x', which is a read-only array"):
        evaluate_function(k.function(), (1, 1, 1), [fixed])
