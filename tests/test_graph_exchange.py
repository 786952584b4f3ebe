"""Reductions, scans, shapes, sorting, histograms and atomics in the graph engine, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import enceladus
import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.interpreter.arrays import NUMPY_DTYPES
from enceladus.interpreter.evaluate import evaluate_function
from enceladus.ir import exchange, ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import BinaryKind
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
    uint8,
    uint32,
    uint64,
)
from enceladus.mlx_bridge.targets import graph, graph_exchange
from tests import exchange_helpers as build
from tests.graph_helpers import Kernel, both_engines, to_mx, to_np

PROGRAMS = 3
SHAPES_AND_AXES = [((1,), 0), ((8,), 0), ((4, 8), 0), ((4, 8), 1), ((2, 4, 2), 1), ((1, 16), 0)]

Make = Callable[[Kernel, list[Value]], Sequence[Value]]


def tile_offsets(k: Kernel, shape: tuple[int, ...]) -> Value:
    """Row-major offsets of the program's tile in an array of one tile a program."""
    size = prod(shape)
    flat = k.add(k.mul(k.program_id(), size), k.range(size)) if shape else k.program_id()
    return k.emit(exchange.Reshape(flat, shape)) if len(shape) > 1 else flat


def kernel_of(make: Make, inputs: Sequence[np.ndarray], dtypes: Sequence[DType]) -> tuple[Kernel, list[int]]:
    """Loads a tile of each input per program (first axis), applies ``make``, stores the results."""
    k = Kernel()
    arrays = [k.array(t, f"x{i}") for i, t in enumerate(dtypes)]
    tiles = [k.load(a, tile_offsets(k, x.shape[1:])) for a, x in zip(arrays, inputs, strict=True)]
    written = []
    for result in make(k, tiles):
        out = k.array(result.type.dtype, "out")
        k.store(out, tile_offsets(k, result.type.shape), result)
        written.append(len(k.block.arguments) - 1)
    return k, written


def outputs_of(k: Kernel, written: Sequence[int], programs: int) -> list[np.ndarray]:
    shapes = [op.value.type.shape for op in k.function().walk() if isinstance(op, ops.ArrayStore)]
    return [
        np.zeros((programs, *shape), NUMPY_DTYPES[k.block.arguments[i].type.element.element])
        for i, shape in zip(written, shapes, strict=True)
    ]


def check(
    make: Make, inputs: Sequence[np.ndarray], dtypes: Sequence[DType], rtol: float = 0
) -> list[np.ndarray]:
    """Both engines agree; the results."""
    k, written = kernel_of(make, inputs, dtypes)
    programs = len(inputs[0])
    results = both_engines(k, (programs, 1, 1), [*inputs, *outputs_of(k, written, programs)], written)
    for got, expected in results:
        if rtol:
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol, rtol)
        else:
            build.assert_same(got, expected)
    return [got for got, _ in results]


def one(make: Callable[..., Op]) -> Make:
    """``make(*tiles)`` is an operation."""
    return lambda k, tiles: k.builder.emit(make(*tiles))


# --------------------------------------------------------------------------- reductions, scans


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("make", [build.single, build.disguised])
def test_reductions_and_scans_of_one_operation(dtype: DType, make: Callable[..., Block]) -> None:
    for kind in build.kinds_of(dtype):
        block = make(kind, dtype)
        for shape, axis in SHAPES_AND_AXES:
            special = kind not in (BinaryKind.ADD, BinaryKind.MUL)
            x = build.numbers(dtype, (PROGRAMS, *shape), seed=len(shape), special=special)
            # The general way also multiplies and adds in this order, so 16-bit rounding agrees as well.
            check(one(lambda t, a=axis, b=block: build.reduce_op([t], a, b)), [x], [dtype])
            for reverse in (False, True):
                check(one(lambda t, a=axis, b=block, r=reverse: build.scan_op([t], a, b, r)), [x], [dtype])


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_long_sums(dtype: DType) -> None:
    x = np.random.default_rng(0).random((2, 4096)).astype(np.float32).astype(NUMPY_DTYPES[dtype])
    block = build.single(BinaryKind.ADD, dtype)
    rtol = {float32: 5e-6, float16: 4e-3, bfloat16: 3e-2}[dtype]
    (total,) = check(one(lambda t: build.reduce_op([t], 0, block)), [x], [dtype], rtol)
    np.testing.assert_allclose(total.astype(np.float64), x.astype(np.float64).sum(1), rtol)
    check(one(lambda t: build.scan_op([t], 0, block)), [x], [dtype], rtol * 4)


@pytest.mark.parametrize("reverse", [False, True])
def test_order_is_kept_by_any_associative_function(reverse: bool) -> None:
    for size in (1, 2, 32):
        inputs = [build.numbers(int64, (PROGRAMS, 2, size), seed) % 5 for seed in (1, 2)]
        block = build.combine_block([int64, int64], build.affine)
        check(one(lambda *t, b=block: build.reduce_op(t, 1, b)), inputs, [int64, int64])
        check(one(lambda *t, b=block: build.scan_op(t, 1, b, reverse)), inputs, [int64, int64])


@pytest.mark.parametrize(("shape", "axis"), SHAPES_AND_AXES)
def test_argmax_of_an_array_with_known_indices(shape: tuple[int, ...], axis: int) -> None:
    """Values from an array, indices held once for all programs and lines."""
    x = build.numbers(float32, (PROGRAMS, *shape))
    block = build.combine_block([float32, int32], build.argmax)

    def make(k: Kernel, tiles: list[Value]) -> Sequence[Value]:
        index = k.range(shape[axis])
        for i in range(len(shape)):
            if i != axis:
                index = k.emit(ops.ExpandDims(index, i))
        index = k.emit(ops.Broadcast(index, shape))
        return k.builder.emit(build.reduce_op([tiles[0], index], axis, block))

    values, where = check(make, [x], [float32])
    np.testing.assert_array_equal(values, x.max(1 + axis))
    np.testing.assert_array_equal(where, x.argmax(1 + axis))


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16, int32, uint8], ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("ascending", [True, False])
def test_extremes_with_an_index_are_native(
    dtype: DType, largest: bool, ascending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties, NaN, infinities, zeros of both signs; an index that does not ascend takes the general way."""
    if ascending:
        monkeypatch.setattr(graph_exchange.combine, "reduce", None)
    block = build.combine_block([dtype, int32], build.extreme(largest, dtype))
    x = build.numbers(dtype, (8, 4, 16), special=True)
    if dtype.is_floating():
        x[1], x[2, :, 1:] = np.nan, -np.inf if largest else np.inf
        x[2, :, 0] = np.nan
        x[3] = np.where(x[4].astype(np.float32) > 0, 0.0, -0.0)

    def make(k: Kernel, tiles: list[Value]) -> Sequence[Value]:
        index = k.range(16) if ascending else k.binary(BinaryKind.XOR, k.range(16), 5)
        index = k.emit(ops.Broadcast(k.emit(ops.ExpandDims(k.mul(index, 3), 0)), (4, 16)))
        return k.builder.emit(build.reduce_op([tiles[0], index], 1, block))

    k, written = kernel_of(make, [x], [dtype])
    outputs = outputs_of(k, written, 8)
    in_mlx = [to_mx(a) for a in (x, *outputs)]
    results = graph.run(k.function(), (8, 1, 1), in_mlx, {i: in_mlx[i] for i in written})
    got = [to_np(results[i]) for i in written]
    monkeypatch.undo()
    evaluate_function(k.function(), (8, 1, 1), [x, *outputs])
    for one_result, expected in zip(got, outputs, strict=True):
        build.assert_same(one_result, expected)


def test_a_combination_that_ignores_one_side() -> None:
    block = build.combine_block([int32], build.last)
    x = build.numbers(int32, (PROGRAMS, 8))
    (got,) = check(one(lambda t: build.reduce_op([t], 0, block)), [x], [int32])
    np.testing.assert_array_equal(got, x[:, -1])


def test_a_combination_that_ignores_both_sides() -> None:
    def nine(b: IRBuilder, x: Value, y: Value) -> Sequence[Value]:
        return b.emit(ops.Constant(9, int32))

    block = build.combine_block([int32], nine)
    x = build.numbers(int32, (PROGRAMS, 2, 4))
    (got,) = check(one(lambda t: build.reduce_op([t], 1, block)), [x], [int32])
    assert (got == 9).all()
    check(one(lambda t: build.scan_op([t], 0, block)), [x], [int32])


def held_once(k: Kernel, known: bool, x: Value) -> Value:
    """A 4 × 8 tile that is the same in all rows, and in all programs: known, or from an array."""
    row = k.range(8) if known else k.load(x, k.range(8))
    return k.emit(ops.Broadcast(k.emit(ops.ExpandDims(row, 0)), (4, 8)))


def first_row(k: Kernel, tile: Value) -> Value:
    return k.emit(exchange.Pick(k.emit(exchange.Transpose(tile, (1, 0))), 0))


@pytest.mark.parametrize("known", [False, True])
def test_dimensions_that_are_held_once(known: bool) -> None:
    """What the engine keeps with a dimension of 1 counts in full where elements meet."""
    add = build.single(BinaryKind.ADD, int32)
    operations: list[Callable[[Kernel, Value], Op]] = [
        lambda k, t: build.reduce_op([t], 0, add),
        lambda k, t: build.reduce_op([t], 1, add),
        lambda k, t: build.reduce_op([t], 0, build.disguised(BinaryKind.ADD, int32)),
        lambda k, t: build.scan_op([t], 0, add),
        lambda k, t: build.scan_op([t], 0, build.disguised(BinaryKind.ADD, int32), True),
        lambda k, t: exchange.Transpose(t, (1, 0)),
        lambda k, t: exchange.Reshape(t, (32,)),
        lambda k, t: exchange.Join(t, t),
        lambda k, t: exchange.Join(t, k.emit(exchange.Reshape(k.range(32), (4, 8)))),
        lambda k, t: exchange.Pick(t, 5),
        lambda k, t: exchange.Pick(k.emit(exchange.Transpose(t, (1, 0))), 3),
        lambda k, t: exchange.Gather(t, t, 0),
        lambda k, t: exchange.Gather(t, t, 1),
        lambda k, t: exchange.Gather(t, k.emit(exchange.Reshape(k.range(32), (4, 8))), 0),
        lambda k, t: exchange.Gather(k.emit(exchange.Reshape(k.range(32), (4, 8))), t, 1),
        lambda k, t: exchange.Sort(t, True),
        lambda k, t: exchange.Sort(k.emit(exchange.Transpose(t, (1, 0))), False),
        lambda k, t: exchange.Histogram(k.emit(exchange.Reshape(t, (32,))), 4),
        lambda k, t: exchange.Histogram(k.range(8), 4, k.less(first_row(k, t), 4)),
    ]  # fmt: skip
    x = np.random.default_rng(3).integers(0, 8, 8).astype(np.int32)
    for operation in operations:
        k = Kernel()
        source = k.array(int32, "x")
        (result,) = k.builder.emit(operation(k, held_once(k, known, source)))
        out = k.array(int32, "out")
        k.store(out, tile_offsets(k, result.type.shape), result)
        for limit in (1, 1 << 20):
            target = np.zeros((PROGRAMS, *result.type.shape), np.int32)
            [(got, expected)] = both_engines(k, (PROGRAMS, 1, 1), [x, target], [1], max_elements=limit)
            build.assert_same(got, expected)


# --------------------------------------------------------------------------------------- shape


def test_shapes() -> None:
    x = build.numbers(int32, (PROGRAMS, 2, 4, 8))
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        (got,) = check(one(lambda t, o=order: exchange.Transpose(t, o)), [x], [int32])
        np.testing.assert_array_equal(got, np.transpose(x, (0, *(1 + k for k in order))))
    for shape in ((64,), (8, 8), (1, 16, 4)):
        (got,) = check(one(lambda t, s=shape: exchange.Reshape(t, s)), [x], [int32])
        np.testing.assert_array_equal(got, x.reshape(PROGRAMS, *shape))
    (got,) = check(one(exchange.Join), [x, x + 1], [int32, int32])
    np.testing.assert_array_equal(got, np.stack([x, x + 1], -1))
    for i in (0, 5):
        (got,) = check(one(lambda t, i=i: exchange.Pick(t, i)), [x], [int32])
        np.testing.assert_array_equal(got, x[..., i])


def test_join_and_pick_scalars() -> None:
    x = build.numbers(float32, (PROGRAMS,))
    (got,) = check(one(lambda t: exchange.Join(t, t)), [x], [float32])
    np.testing.assert_array_equal(got, np.stack([x, x], -1))
    (got,) = check(one(lambda t: exchange.Pick(t, 1)), [got], [float32])
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_int() and t is not int1], ids=str)
def test_gather_wraps_around(dtype: DType) -> None:
    x = build.numbers(float32, (PROGRAMS, 8, 4))
    index = build.numbers(dtype, (PROGRAMS, 16, 4), seed=3)
    exact = np.array([int(i) % 8 for i in index.ravel()]).reshape(index.shape)
    (got,) = check(one(lambda s, i: exchange.Gather(s, i, 0)), [x, index], [float32, dtype])
    np.testing.assert_array_equal(got, np.take_along_axis(x, exact, 1))
    check(one(lambda s, i: exchange.Gather(s, i, 1)), [x[:, :4], index[:, :4]], [float32, dtype])


# -------------------------------------------------------------------------- sorting, counting


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sort(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(DTYPES.values())))
    size = 2 ** data.draw(st.integers(0, 6))
    shape = data.draw(st.sampled_from([(2, size), (1, 4, size)]))
    x = build.numbers(dtype, shape, data.draw(st.integers(0, 99)))
    if dtype.is_floating():
        lanes = np.random.default_rng(0).random(shape) < data.draw(st.sampled_from([0, 0.3, 1]))
        x[lanes] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    for descending in (False, True):
        check(one(lambda t, d=descending: exchange.Sort(t, d)), [x], [dtype])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_histogram(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([t for t in DTYPES.values() if t.is_int()]))
    bins = data.draw(st.sampled_from([1, 2, 16, 512]))
    low, high = max(dtype.minimum, -3), min(dtype.maximum, bins + 3)
    numbers = st.one_of(st.integers(low, high), st.integers(dtype.minimum, dtype.maximum))
    x = np.array(data.draw(st.lists(numbers, min_size=32, max_size=32)), NUMPY_DTYPES[dtype]).reshape(2, 16)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=32, max_size=32))).reshape(2, 16)
    check(one(lambda t: exchange.Histogram(t, bins)), [x], [dtype])
    check(one(lambda t, m: exchange.Histogram(t, bins, m)), [x, mask], [dtype, int1])


# ------------------------------------------------------------------------------------ atomics

ATOMIC_TYPES = (int1, int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32)


def atomic_kernel(kind: AtomicKind, dtype: DType, used: bool, known: bool, block: int = 8) -> Kernel:
    """``old[i] = atomic(x[index[i]], value[i], mask[i])``; ``known``: the index is ``i · i mod 8``."""
    k = Kernel()
    x, index, value, mask = (
        k.array(t, name) for t, name in ((dtype, "x"), (int32, "index"), (dtype, "value"), (int1, "mask"))
    )
    old = k.array(dtype, "old")
    lanes = k.offsets(block)
    at = k.binary(BinaryKind.AND, k.mul(lanes, lanes), 7) if known else k.load(index, lanes)
    found = k.emit(exchange.ArrayAtomic(kind, x, at, k.load(value, lanes), k.load(mask, lanes)))
    if used:
        k.store(old, lanes, found)
    return k


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("dtype", ATOMIC_TYPES, ids=str)
def test_atomics(dtype: DType, used: bool, known: bool) -> None:
    """Duplicates inside a tile and between programs, masks, NaN; sums are exact."""
    rng = np.random.default_rng(7)
    count, size = 32, 9
    for kind in AtomicKind:
        if dtype.is_floating() and kind in (AtomicKind.AND, AtomicKind.OR, AtomicKind.XOR):
            continue
        special = kind in (AtomicKind.MAX, AtomicKind.MIN)
        x = build.numbers(dtype, (1, size), 1).ravel()
        value = build.numbers(dtype, (4, 8), 2, special=special).ravel()
        if dtype.is_floating() and special:
            x[[2, 8]] = np.nan
        index = rng.integers(0, size - 1, count).astype(np.int32)
        mask = rng.random(count) < 0.8
        index[~mask] = -1
        kernel = atomic_kernel(kind, dtype, used, known)
        arguments = [x, index, value, mask, np.zeros(count, x.dtype)]
        written = [0, 4] if used else [0]
        for limit in (16, 1 << 20):
            for got, expected in both_engines(kernel, (4, 1, 1), arguments, written, max_elements=limit):
                build.assert_same(got, expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_old_values_are_those_of_one_order(data: st.DataObject) -> None:
    """Every kind and pattern of collisions: exactly what the programs one after the other would find."""
    kind = data.draw(st.sampled_from(list(AtomicKind)))
    size = data.draw(st.sampled_from([1, 2, 7, 40]))
    count = data.draw(st.sampled_from([1, 4, 32]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    x = rng.integers(-99, 99, size).astype(np.int32)
    value = rng.integers(-99, 99, count).astype(np.int32)
    index = rng.integers(0, size, count).astype(np.int32)
    mask = rng.random(count) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    kernel = atomic_kernel(kind, int32, True, False, block=min(4, count))
    arguments = [x, index, value, mask, np.full(count, 7, np.int32)]
    for got, expected in both_engines(kernel, (-(-count // 4), 1, 1), arguments, [0, 4]):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_16_bit_sums_round_at_each_update(dtype: DType) -> None:
    k = Kernel()
    x = k.array(dtype, "x")
    zeros = k.mul(k.offsets(64), 0)
    k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, zeros, k.to_shape(k.constant(1.0, dtype), (64,))))
    old = np.zeros(1, NUMPY_DTYPES[dtype])
    [(got, expected)] = both_engines(k, (64, 1, 1), [old], [0])
    assert float(got[0]) == float(expected[0]) == {float16: 2048, bfloat16: 256}[dtype]


def test_scalar_updates_count_every_program() -> None:
    """Operands that are the same in all programs still act once a program; chunks follow each other."""
    for used in (False, True):
        k = Kernel()
        x, old = k.array(int32, "x"), k.array(int32, "old")
        found = k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, k.constant(0), k.constant(3)))
        if used:
            k.store(old, k.program_id(), found)
        for limit in (1, 4, 100):
            arguments = [np.array([5, 6], np.int32), np.zeros(10, np.int32)]
            results = both_engines(k, (10, 1, 1), arguments, [0, 1], max_elements=limit)
            assert results[0][0].tolist() == results[0][1].tolist() == [35, 6]
            assert (
                results[1][0].tolist()
                == results[1][1].tolist()
                == ([5 + 3 * i for i in range(10)] if used else [0] * 10)
            )


def test_updates_in_branches_and_loops_and_out_of_range() -> None:
    k = Kernel()
    x = k.array(int32, "x")
    program = k.program_id()
    body = Block((Value(program.type),))
    with k.builder.inside(body):
        sides = Block(), Block()
        for amount, side in zip((1, 100), sides, strict=True):
            with k.builder.inside(side):
                k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, body.arguments[0], k.constant(amount)))
                k.emit(ops.Yield())
        k.emit(ops.If(k.less(program, 2), *sides))
        k.emit(ops.Yield())
    k.emit(ops.For(k.constant(0), k.add(program, 1), k.constant(1), (), body))
    [(got, expected)] = both_engines(k, (4, 1, 1), [np.zeros(4, np.int32)], [0])
    np.testing.assert_array_equal(got, expected)
    assert got.tolist() == [202, 201, 200, 100]
    x = mx.zeros(2, mx.int32)
    assert graph.run(k.function(), (4, 1, 1), [x], {0: x})[0].tolist() == [202, 201], "the rest is dropped"
    empty = mx.zeros(0, mx.int32)
    assert graph.run(k.function(), (4, 1, 1), [empty], {0: empty})[0].shape == (0,)


def test_atomics_see_stores_and_loads_do_not_see_atomics() -> None:
    k = Kernel()
    x, old = k.array(int32, "x"), k.array(int32, "old")
    lanes = k.range(4)
    k.store(x, lanes, k.add(lanes, 10))
    found = k.emit(exchange.ArrayAtomic(AtomicKind.ADD, x, lanes, lanes))
    k.store(old, lanes, found)
    k.emit(exchange.ArrayAtomic(AtomicKind.XCHG, x, k.constant(1), k.constant(-1)))
    k.store(old, k.add(lanes, 4), k.load(x, lanes))
    arguments = [np.full(4, 7, np.int32), np.zeros(8, np.int32)]
    results = both_engines(k, (1, 1, 1), arguments, [0, 1])
    for got, expected in results:
        np.testing.assert_array_equal(got, expected)
    assert results[0][0].tolist() == [10, -1, 14, 16]
    assert results[1][0].tolist() == [10, 11, 12, 13, 7, 7, 7, 7]


def swap_kernel(known: bool) -> Kernel:
    k = Kernel()
    x, index, old = k.array(int32, "x"), k.array(int32, "index"), k.array(int32, "old")
    lanes = k.offsets(4)
    at = k.binary(BinaryKind.AND, lanes, 1) if known else k.load(index, lanes)
    compare = k.binary(BinaryKind.MIN, lanes, 5)
    k.store(old, lanes, k.emit(exchange.ArrayAtomicCas(x, at, compare, k.add(lanes, 2))))
    return k


def test_compare_and_swap() -> None:
    arguments = [np.arange(2, dtype=np.int32), np.zeros(12, np.int32), np.zeros(12, np.int32)]
    results = both_engines(swap_kernel(True), (3, 1, 1), arguments, [0, 2])
    for got, expected in results:
        np.testing.assert_array_equal(got, expected)
    assert results[1][0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 6, 7]


def test_compare_and_swap_in_a_branch_on_data() -> None:
    k = Kernel()
    x, flags, old = k.array(int32, "x"), k.array(int1, "flags"), k.array(int32, "old")
    sides = Block(), Block()
    program = k.program_id()
    for side in sides:
        with k.builder.inside(side):
            result = k.constant(-1)
            if side is sides[0]:
                result = k.emit(exchange.ArrayAtomicCas(x, k.constant(0), k.constant(0), k.add(program, 1)))
            k.emit(ops.Yield((result,)))
    (found,) = k.builder.emit(ops.If(k.load(flags, program), *sides))
    k.store(old, program, found)
    flags_values = np.array([False, True, False, True])
    arguments = [np.zeros(1, np.int32), flags_values, np.zeros(4, np.int32)]
    results = both_engines(k, (4, 1, 1), arguments, [0, 2])
    for got, expected in results:
        np.testing.assert_array_equal(got, expected)
    assert results[0][0].tolist() == [2] and results[1][0].tolist() == [-1, 0, -1, 2]


def test_compare_and_swap_that_the_engine_cannot_order() -> None:
    x = mx.zeros(2, mx.int32)
    index, old = mx.zeros(400, mx.int32), mx.zeros(400, mx.int32)
    with pytest.raises(CompilationError, match="addresses that depend on array data") as caught:
        graph.run(swap_kernel(False).function(), (3, 1, 1), [x, index, old], {0: x, 2: old})
    assert "ENCELADUS_INTERPRET=1" in caught.value.hint
    with pytest.raises(CompilationError, match="of which 200 meet in one address"):
        graph.run(swap_kernel(True).function(), (100, 1, 1), [x, index, old], {0: x, 2: old})


# ---------------------------------------------------------------------------- transformations


def row_function(make: Make, columns: int) -> Callable[[mx.array], mx.array]:
    """One row a program: (rows, columns) → the results, one row each."""

    def call(x: mx.array) -> mx.array:
        rows = x.shape[0]
        k, written = kernel_of(make, [np.zeros((rows, columns), np.float32)], [float32])
        (out,) = outputs_of(k, written, rows)
        return graph.run(k.function(), (rows, 1, 1), [x, to_mx(out)], {1: to_mx(out)})[1]

    return call


def double_last(k: Kernel, tiles: list[Value]) -> Value:
    return k.emit(exchange.Reshape(tiles[0], (2, 4)))


def block_of(kind: BinaryKind) -> Block:
    return build.single(kind, float32)


WEIGHTS = mx.array(np.linspace(-1, 2, 8, dtype=np.float32))

#: name → (what a program does with its row, the same in MLX on (rows, 8))
DIFFERENTIABLE: dict[str, tuple[Make, Callable[[mx.array], mx.array]]] = {
    "sum": (one(lambda t: build.reduce_op([t], 0, block_of(BinaryKind.ADD))), lambda x: x.sum(1)),
    "prod": (one(lambda t: build.reduce_op([t], 0, block_of(BinaryKind.MUL))), lambda x: x.prod(1)),
    "max": (one(lambda t: build.reduce_op([t], 0, block_of(BinaryKind.MAX))), lambda x: x.max(1)),
    "min": (one(lambda t: build.reduce_op([t], 0, block_of(BinaryKind.MIN_NAN))), lambda x: x.min(1)),
    "general max": (
        one(lambda t: build.reduce_op([t], 0, build.disguised(BinaryKind.MAX, float32))), lambda x: x.max(1)
    ),
    "cumsum": (
        one(lambda t: build.scan_op([t], 0, block_of(BinaryKind.ADD), True)),
        lambda x: mx.cumsum(x, 1, reverse=True),
    ),
    "cumprod": (one(lambda t: build.scan_op([t], 0, block_of(BinaryKind.MUL))), lambda x: mx.cumprod(x, 1)),
    "sort": (one(lambda t: exchange.Sort(t, True)), lambda x: -mx.sort(-x, 1)),
    "transpose": (
        lambda k, t: k.builder.emit(exchange.Transpose(double_last(k, t), (1, 0))),
        lambda x: x.reshape(-1, 2, 4).transpose(0, 2, 1),
    ),
    "pick": (
        lambda k, t: k.builder.emit(exchange.Pick(double_last(k, t), 1)),
        lambda x: x.reshape(-1, 2, 4)[..., 1],
    ),
    "join": (one(lambda t: exchange.Join(t, t)), lambda x: mx.stack([x, x], -1)),
    "gather": (
        lambda k, t: k.builder.emit(exchange.Gather(t[0], k.mul(k.range(8), 3), 0)),
        lambda x: x[:, mx.array([0, 3, 6, 1, 4, 7, 2, 5])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_under_transformations(name: str) -> None:
    make, reference = DIFFERENTIABLE[name]
    call = row_function(make, 8)
    x = mx.array(np.random.default_rng(5).permutation(24).astype(np.float32).reshape(3, 8) / 8 + 0.5)

    def loss(f: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
        def total(x: mx.array) -> mx.array:
            y = f(x)
            return (y * mx.arange(y.size).reshape(y.shape)).sum()

        return total

    def close(a: mx.array, b: mx.array) -> None:
        assert a.shape == b.shape
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-4)

    close(mx.compile(call)(x), reference(x))
    close(mx.grad(loss(call))(x), mx.grad(loss(reference))(x))
    close(mx.compile(mx.grad(loss(call)))(x), mx.grad(loss(reference))(x))
    many = mx.stack([x, x[::-1], x + 1])
    close(mx.vmap(call)(many), mx.stack([reference(y) for y in many]))


@pytest.mark.parametrize("kind", [AtomicKind.ADD, AtomicKind.MAX, AtomicKind.MIN])
@pytest.mark.parametrize("used", [False, True])
def test_atomics_under_transformations(kind: AtomicKind, used: bool) -> None:
    k = Kernel()
    x, out = k.array(float32, "x"), k.array(float32, "out")
    old = k.array(float32, "old")
    found = k.emit(exchange.ArrayAtomic(kind, out, k.range(8), k.load(x, k.offsets(8))))
    if used:
        k.store(old, k.offsets(8), found)
    function = k.function()

    def call(x: mx.array, start: mx.array) -> mx.array:
        seen = mx.zeros(x.shape)
        arguments = [x, start, seen]
        return graph.run(function, (x.shape[0], 1, 1), arguments, {1: start, **({2: seen} if used else {})})[
            1
        ]

    def reference(x: mx.array, start: mx.array) -> mx.array:
        everything = mx.concatenate([start[None], x])
        return {AtomicKind.ADD: mx.sum, AtomicKind.MAX: mx.max, AtomicKind.MIN: mx.min}[kind](
            everything, axis=0
        )

    rng = np.random.default_rng(5)
    inputs = [mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 8), (8,))]

    def close(a: mx.array, b: mx.array) -> None:
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-6)

    close(mx.compile(call)(*inputs), reference(*inputs))
    for i in (0, 1):
        gradients = [mx.grad(lambda *a, f=f: (f(*a) * WEIGHTS).sum(), i)(*inputs) for f in (call, reference)]
        close(*gradients)
    many = [mx.stack([x, 2 * x]) for x in inputs]
    close(mx.vmap(call)(*many), mx.stack([reference(a, b) for a, b in zip(*many, strict=True)]))


def test_export(tmp_path) -> None:
    call = row_function(DIFFERENTIABLE["cumsum"][0], 8)
    path = str(tmp_path / "rows.mlxfn")
    x = mx.random.normal((3, 8))
    mx.export_function(path, call, x)
    np.testing.assert_allclose(np.array(mx.import_function(path)(x)[0]), np.array(call(x)))


# ------------------------------------------------------------------------------------ launches


@enceladus.jit
def count_kernel(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + i, i < n, other=0), 1, mask=i < n)


@enceladus.jit
def ticket_kernel(counter_ptr, out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.atomic_add(counter_ptr, 2))


@pytest.mark.parametrize("engine", ["graph", "interpreter"])
def test_launches_start_from_the_contents_of_the_array(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "interpreter":
        monkeypatch.setenv("ENCELADUS_INTERPRET", "1")
    x = np.random.default_rng(1).integers(0, 10, 1000).astype(np.int32)
    expected = np.bincount(x, minlength=10)
    grid = (8,)
    for fresh in (enceladus.zeros((10,), mx.int32), enceladus.empty((10,), mx.int32)):
        np.testing.assert_array_equal(np.array(count_kernel[grid](mx.array(x), fresh, 1000, 128)), expected)
    counts = mx.full((10,), 5, dtype=mx.int32)
    count_kernel[grid](mx.array(x), counts, 1000, 128)
    np.testing.assert_array_equal(np.array(counts), expected + 5)
    counter, tickets = ticket_kernel[(5,)](mx.array([10]), enceladus.empty((5,), mx.int32))
    assert counter.tolist() == [20] and sorted(tickets.tolist()) == [10, 12, 14, 16, 18]
