"""Loads and stores of the graph engine: contiguous ranges, rows, gathers, scatters, masks, chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from enceladus.errors import InternalError
from enceladus.ir import ops
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import bfloat16, float16, float32, int1, int8, int32, int64, uint8, uint64
from enceladus.mlx_bridge.targets import graph, graph_memory
from tests.graph_helpers import Kernel, assert_engines_agree, numpy_type, to_mx, to_np


def ordinary(n: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(n).normal(size=n).astype(dtype)


def vector_add(block: int, wide: bool = False) -> Kernel:
    k = Kernel(wide)
    x, y, out = (k.array(float32, name) for name in ("x", "y", "out"))
    n = k.scalar(k.builder.index_dtype, "n")
    offsets = k.offsets(block)
    mask = k.less(offsets, n)
    k.store(out, offsets, k.add(k.load(x, offsets, mask), k.load(y, offsets, mask)), mask)
    return k


@pytest.fixture
def no_gather(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test if something is gathered or scattered."""

    def refuse(*_: object) -> None:
        raise AssertionError("a contiguous access was not recognised")

    monkeypatch.setattr(graph_memory, "_gather", refuse)
    monkeypatch.setattr(graph_memory.ArrayContents, "_scatter", refuse)
    yield


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n", [1, 7, 256, 1000, 1024, 5000])
@pytest.mark.parametrize("limit", [1, 512, 1 << 24])
def test_masked_vector_add_needs_no_gather(n: int, limit: int, wide: bool, no_gather: None) -> None:
    x, y = ordinary(n), ordinary(n + 1)[1:]
    old = np.full(n, 9, np.float32)
    grid = (-(-n // 256), 1, 1)
    [got] = assert_engines_agree(vector_add(256, wide), grid, [x, y, old, n], [2], max_elements=limit)
    np.testing.assert_array_equal(got, x + y)


@pytest.mark.parametrize("limit", [256, 1 << 24])
def test_elements_no_program_writes_keep_their_value(limit: int, no_gather: None) -> None:
    x, old = ordinary(1000), np.full(1000, 9, np.float32)
    [got] = assert_engines_agree(vector_add(256), (2, 1, 1), [x, x, old, 1000], [2], max_elements=limit)
    np.testing.assert_array_equal(got, np.concatenate([2 * x[:512], old[512:]]))


def test_an_empty_grid_changes_nothing() -> None:
    x = ordinary(10)
    [got] = assert_engines_agree(vector_add(16), (0, 1, 1), [x, x, x, 10], [2])
    np.testing.assert_array_equal(got, x)


def test_results_have_the_shape_of_the_array() -> None:
    x = mx.arange(24, dtype=mx.float32).reshape(2, 3, 4)
    got = graph.run(vector_add(32).function(), (1, 1, 1), [x.T, x.T, x, 24], {2: mx.zeros((4, 3, 2))})[2]
    assert got.shape == (4, 3, 2)
    np.testing.assert_array_equal(np.array(got), 2 * np.array(x).T)


def test_a_zero_dimensional_array(no_gather: None) -> None:
    one = mx.array(3.0)
    got = graph.run(vector_add(16).function(), (1, 1, 1), [one, one, one, 1], {2: one})[2]
    assert got.shape == () and got.item() == 6


def test_arrays_of_size_zero() -> None:
    empty = np.zeros(0, np.float32)
    [got] = assert_engines_agree(vector_add(16), (1, 1, 1), [empty, empty, empty, 0], [2])
    assert got.shape == (0,)


def test_other_replaces_what_is_masked_off() -> None:
    for known in (True, False):
        k = Kernel()
        x, out, n = k.array(int32, "x"), k.array(int32, "out"), k.scalar(int32, "n")
        offsets = k.offsets(8)
        other = k.to_shape(k.constant(-5), (8,)) if known else k.load(x, k.range(8))
        k.store(out, offsets, k.load(x, offsets, k.less(offsets, n), other))
        x_values, old = np.arange(10, 26, dtype=np.int32), np.zeros(16, np.int32)
        [got] = assert_engines_agree(k, (2, 1, 1), [x_values, old, 11], [1])
        np.testing.assert_array_equal(got[11:], -5 if known else x_values[3:8])


@pytest.mark.parametrize("limit", [16, 1 << 24])
def test_rows_of_a_matrix_need_no_gather(limit: int, no_gather: None) -> None:
    """One program a row, the tile wider than the row."""
    k = Kernel()
    x, out, columns = k.array(float32, "x"), k.array(float32, "out"), k.scalar(int32, "columns")
    column = k.range(16)
    offsets = k.add(k.mul(k.program_id(), columns), column)
    mask = k.less(column, columns)
    fill = k.to_shape(k.constant(7.0, float32), (16,))
    k.store(out, offsets, k.add(k.load(x, offsets, mask, fill), 1.0), mask)
    x_values = ordinary(5 * 11).reshape(5, 11)
    arguments = [x_values, np.zeros_like(x_values), 11]
    [got] = assert_engines_agree(k, (5, 1, 1), arguments, [1], max_elements=limit)
    np.testing.assert_array_equal(got, x_values + 1)


def tile_copy(rows: int, columns: int) -> Kernel:
    """Transposes a matrix tile by tile on a two-dimensional grid."""
    k = Kernel()
    x, out, height, width = (
        k.array(float32, "x"), k.array(float32, "out"), k.scalar(int32, "height"), k.scalar(int32, "width"),
    )  # fmt: skip
    shape = (rows, columns)

    def axis(which: int, size: int) -> ops.Value:
        line = k.add(k.mul(k.program_id(which), size), k.range(size))
        return k.emit(ops.Broadcast(k.emit(ops.ExpandDims(line, 1 - which)), shape))

    i, j = axis(0, rows), axis(1, columns)
    mask = k.binary(BinaryKind.AND, k.less(i, height), k.less(j, width))
    value = k.load(x, k.add(k.mul(i, width), j), mask)
    k.store(out, k.add(k.mul(j, height), i), value, mask)
    return k


@pytest.mark.parametrize("limit", [1, 64, 1 << 24])
def test_transpose_on_a_two_dimensional_grid(limit: int) -> None:
    x = ordinary(13 * 21).reshape(13, 21)
    old = np.zeros((21, 13), np.float32)
    [got] = assert_engines_agree(tile_copy(4, 8), (4, 3, 1), [x, old, 13, 21], [1], max_elements=limit)
    np.testing.assert_array_equal(got, x.T)


def test_grid_axes_and_sizes() -> None:
    k = Kernel()
    out = k.array(int32, "out")
    x, y, z = (k.program_id(axis) for axis in range(3))
    sizes = [k.emit(ops.NumPrograms(axis)) for axis in range(3)]
    at = k.add(k.mul(k.add(k.mul(z, sizes[1]), y), sizes[0]), x)
    k.store(out, at, k.add(k.add(k.mul(x, 100), k.mul(y, 10)), k.add(z, k.mul(sizes[2], 1000))))
    for limit in (1, 5, 100):
        [got] = assert_engines_agree(k, (4, 3, 2), [np.zeros(24, np.int32)], [0], max_elements=limit)
        assert got[-1] == 2000 + 300 + 20 + 1


def gather(offset_dtype=int32) -> Kernel:
    k = Kernel()
    x, index, out = k.array(float32, "x"), k.array(offset_dtype, "index"), k.array(float32, "out")
    offsets = k.offsets(8)
    k.store(out, offsets, k.load(x, k.load(index, offsets)))
    return k


@pytest.mark.parametrize("dtype", [int8, uint8, int32, int64, uint64], ids=str)
def test_offsets_from_an_array(dtype: object) -> None:
    index = np.random.default_rng(5).integers(0, 20, 16).astype(numpy_type(dtype))
    x = ordinary(20)
    [got] = assert_engines_agree(gather(dtype), (2, 1, 1), [x, index, np.zeros(16, np.float32)], [2])
    np.testing.assert_array_equal(got, x[index])


def test_offsets_from_an_array_that_point_outside_are_clipped() -> None:
    x, old = mx.arange(20, dtype=mx.float32), mx.zeros(8)
    index = mx.array([0, -1, 20, 2**40, -(2**40), 5, 19, 2**62], dtype=mx.int64)
    got = graph.run(gather(int64).function(), (1, 1, 1), [x, index, old], {2: old})[2]
    assert set(np.array(got).tolist()) <= set(range(20))
    assert np.array(got)[[0, 5, 6]].tolist() == [0, 5, 19]


@pytest.mark.parametrize("from_array", [False, True])
def test_stores_out_of_range_are_dropped(from_array: bool) -> None:
    k = Kernel()
    out, index = k.array(int32, "out"), k.array(int32, "index")
    lanes = k.range(8)
    offsets = k.load(index, lanes) if from_array else k.mul(k.add(lanes, -2), 3)
    k.store(out, offsets, k.add(lanes, 1))
    index_values = mx.array((np.arange(8, dtype=np.int32) - 2) * 3)
    old = mx.zeros(10, mx.int32)
    got = graph.run(k.function(), (1, 1, 1), [old, index_values], {0: old})[0]
    assert got.tolist() == [3, 0, 0, 4, 0, 0, 5, 0, 0, 6]


@pytest.mark.parametrize("start", [-20, -3, 0, 3, 9, 30])
def test_contiguous_ranges_that_reach_outside(start: int, no_gather: None) -> None:
    k = Kernel()
    x, out = k.array(int32, "x"), k.array(int32, "out")
    offsets = k.add(k.range(8), start)
    k.store(out, offsets, k.add(k.load(x, offsets), 100))
    x_values, old = mx.arange(10, dtype=mx.int32), mx.zeros(10, mx.int32)
    got = graph.run(k.function(), (1, 1, 1), [x_values, old], {1: old})[1]
    assert got.tolist() == [i + 100 if start <= i < start + 8 else 0 for i in range(10)]


def masks(n: int) -> dict[str, np.ndarray]:
    lanes = np.arange(n)
    return {
        "none": lanes < 0, "all": lanes >= 0, "prefix": lanes < 5, "suffix": lanes > 9,
        "middle": abs(lanes - 7) < 3, "odd": lanes % 2 == 1, "one": lanes == 6,
    }  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", list(masks(16)))
@pytest.mark.parametrize("stride", [1, -1, 2])
def test_masks_known_and_loaded(name: str, stride: int, known: bool) -> None:
    """Each mask on a load and on a store, with contiguous and other offsets."""
    chosen = masks(16)[name]
    k = Kernel()
    x, out, bits = k.array(float32, "x"), k.array(float32, "out"), k.array(int1, "bits")
    lanes = k.range(16)
    if known:
        mask = k.to_shape(k.constant(False, int1), (16,))
        for lane in np.flatnonzero(chosen):
            mask = k.binary(BinaryKind.OR, mask, k.compare(ops.CompareKind.EQ, lanes, int(lane)))
    else:
        mask = k.load(bits, lanes)
    offsets = k.add(k.mul(lanes, stride), 16 if stride < 0 else 1)
    k.store(out, offsets, k.load(x, offsets, mask), mask)
    k.store(out, k.add(lanes, 40), k.load(x, offsets, mask))
    x_values, old = ordinary(56), np.full(56, 3, np.float32)
    [got] = assert_engines_agree(k, (1, 1, 1), [x_values, old, chosen], [1])
    assert np.count_nonzero(got[:40] != 3) == chosen.sum()


def test_one_value_for_all_lanes_and_one_lane_for_all_programs() -> None:
    k = Kernel()
    x, out, last = k.array(float32, "x"), k.array(float32, "out"), k.array(int32, "last")
    scalar = k.load(x, k.program_id())  # one element a program
    k.store(out, k.offsets(4), k.to_shape(scalar, (4,)))
    k.store(last, k.constant(0), k.program_id())  # every program, one element: the last program wins here
    x_values = ordinary(6)
    arguments = [x_values, np.zeros(24, np.float32), np.zeros(2, np.int32)]
    got = assert_engines_agree(k, (6, 1, 1), arguments, [1, 2])
    np.testing.assert_array_equal(got[0], np.repeat(x_values, 4))
    assert got[1].tolist() == [5, 0]


def test_later_stores_of_a_program_win() -> None:
    k = Kernel()
    out = k.array(int32, "out")
    lanes = k.range(8)
    k.store(out, lanes, k.add(lanes, 10))
    k.store(out, k.add(lanes, 4), k.add(lanes, 20), k.less(lanes, 4))
    k.store(out, k.mul(lanes, 2), k.add(lanes, 30), k.less(lanes, 3))
    mask = k.compare(ops.CompareKind.EQ, k.binary(BinaryKind.AND, lanes, 3), 1)
    k.store(out, lanes, k.add(lanes, 40), mask)
    [got] = assert_engines_agree(k, (1, 1, 1), [np.zeros(12, np.int32)], [0])
    assert got.tolist() == [30, 41, 31, 13, 32, 45, 22, 23, 0, 0, 0, 0]


def test_loads_see_the_contents_from_before_the_launch() -> None:
    k = Kernel()
    x = k.array(int32, "x")
    lanes = k.range(4)
    k.store(x, lanes, k.add(k.load(x, k.binary(BinaryKind.XOR, lanes, 3)), 10))
    values = mx.arange(4, dtype=mx.int32)
    assert graph.run(k.function(), (1, 1, 1), [values], {0: values})[0].tolist() == [13, 12, 11, 10]
    assert values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [float16, bfloat16, int1, int8, uint64], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_element_types_of_memory(dtype: object, stride: int) -> None:
    k = Kernel()
    x, out = k.array(dtype, "x"), k.array(dtype, "out")
    offsets = k.mul(k.offsets(4), stride)
    k.store(out, offsets, k.load(x, offsets, k.less(offsets, 9)))
    values = (np.arange(16) % 5).astype(numpy_type(dtype))
    [got] = assert_engines_agree(k, (2, 1, 1), [values, np.zeros(16, numpy_type(dtype))], [1])
    assert np.count_nonzero(got) > 0


def test_random_strides_offsets_and_masks() -> None:
    rng = np.random.default_rng(42)
    for _ in range(60):
        block, programs = int(rng.choice([1, 4, 16])), int(rng.integers(1, 6))
        stride, row, base, bound = (int(rng.integers(0, high)) for high in (3, 20, 4, 24))
        k = Kernel()
        x, out = k.array(int32, "x"), k.array(int32, "out")
        lanes = k.range(block)
        at = k.add(k.add(k.mul(k.program_id(), row), k.mul(lanes, stride)), base)
        mask = k.less(lanes if rng.random() < 0.5 else at, bound)
        value = k.load(x, at, mask)
        k.store(out, k.offsets(block), value)
        k.store(out, k.add(at, 100), value, mask)
        arguments = [np.arange(1, 201, dtype=np.int32), np.zeros(300, np.int32)]
        assert_engines_agree(k, (programs, 1, 1), arguments, [1], max_elements=int(rng.choice([1, 32, 4096])))


def test_wrong_arguments_are_our_bug() -> None:
    function = vector_add(16).function()
    x = mx.zeros(4)
    for arguments, words in (
        ([x, x, x], "takes 4 arguments, got 3"),
        ([x, x.astype(mx.float16), x, 4], "'y' is .*float16 where the kernel was compiled for float32"),
        ([x, 1.0, x, 4], "'y' is float where"),
        ([x, x, x, mx.zeros(2)], "scalar argument 'n'"),
    ):
        with pytest.raises(InternalError, match=words):
            graph.run(function, (1, 1, 1), arguments, {2: x})
    with pytest.raises(InternalError, match="stores to 'out', which was not passed as written"):
        graph.run(function, (1, 1, 1), [x, x, x, 4], {})


def test_scalars_of_each_kind_and_as_arrays() -> None:
    def scaled(make: Callable[[Kernel], ops.Value]) -> Kernel:
        k = Kernel()
        out = k.array(float32, "out")
        k.store(out, k.range(4), k.to_shape(k.cast(make(k), float32), (4,)))
        return k

    old = np.zeros(4, np.float32)
    for dtype, value, expected in (
        (float32, 0.1, np.float32(0.1)), (bfloat16, 0.1, np.float32(0.10009765625)), (int1, True, 1.0),
        (uint64, 2**63, np.float32(2.0**63)), (int8, -3, -3.0),
    ):  # fmt: skip
        k = scaled(lambda k, d=dtype: k.scalar(d, "s"))
        [got] = assert_engines_agree(k, (1, 1, 1), [old, value], [0])
        np.testing.assert_array_equal(got, expected)
        as_array = to_mx(np.asarray(value, numpy_type(dtype)))
        lazy = graph.run(k.function(), (1, 1, 1), [to_mx(old), as_array], {0: to_mx(old)})[0]
        np.testing.assert_array_equal(to_np(lazy), got)
