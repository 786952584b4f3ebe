"""Scans: every engine against NumPy, over kinds × dtypes × shapes × axes × directions × SIMD groups."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import HostTarget, engine, kernel_from_source, needs_host, run_everywhere, to_mlx

SHAPES = [(1,), (64,), (8, 4), (4, 2, 8), (8, 512), (1, 4096), (128, 4)]
EVERY_AXIS = [(shape, axis) for shape in SHAPES for axis in range(len(shape))]


def offsets(shape):
    """Row-major offsets of a tile, as an expression of the language."""
    terms = []
    for axis, size in enumerate(shape):
        index = ", ".join(":" if k == axis else "None" for k in range(len(shape)))
        stride = int(np.prod(shape[axis + 1 :], dtype=int))
        terms.append(f"tl.arange(0, {size})[{index}] * {stride}")
    return " + ".join(terms)


def along(x, axis, reverse):
    """``x`` with the scanned axis first, in the order of visits; its own inverse but for moving the axis."""
    moved = np.moveaxis(x, axis, 0)
    return moved[::-1] if reverse else moved


def back(x, axis, reverse):
    return np.moveaxis(x[::-1] if reverse else x, 0, axis)


def reference(combine, inputs, axis, reverse):
    """A tuple of scans by a combine function of two tuples of arrays, element after element."""
    visits = [along(x, axis, reverse) for x in inputs]
    found = [tuple(v[0] for v in visits)]
    for k in range(1, len(visits[0])):
        found.append(combine(found[-1], tuple(v[k] for v in visits)))
    return [back(np.stack(column), axis, reverse) for column in zip(*found, strict=True)]


def linear(earlier, later):
    """Two maps x → a·x + b, one after the other: associative, not commutative."""
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


TWO_SCANS = """
@enceladus.jit
def linear(a, b, c, d):
    return a * c, b * c + d

@enceladus.jit
def kernel(x_ptr, y_ptr, sums_ptr, a_ptr, b_ptr, REVERSE: tl.constexpr):
    at = OFFSETS
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(sums_ptr + at, tl.cumsum(x, AXIS, reverse=REVERSE))
    a, b = tl.associative_scan((x, y), AXIS, linear, reverse=REVERSE)
    tl.store(a_ptr + at, a)
    tl.store(b_ptr + at, b)
"""


def check_two_scans(shape, axis, reverse, num_warps):
    rng = np.random.default_rng([*shape, axis])
    x = rng.integers(-9, 9, shape, dtype=np.int32) * 2 + 1  # odd: products never become 0
    y = rng.integers(-99, 99, shape, dtype=np.int32)
    with np.errstate(over="ignore"):
        (sums,) = reference(lambda a, b: (a[0] + b[0],), [x], axis, reverse)
        a, b = reference(linear, [x, y], axis, reverse)
    kernel = kernel_from_source(TWO_SCANS.replace("OFFSETS", offsets(shape)).replace("AXIS", str(axis)))
    arguments = {"x_ptr": x, "y_ptr": y, "REVERSE": reverse}
    arguments |= {name: np.zeros(shape, np.int32) for name in ("sums_ptr", "a_ptr", "b_ptr")}
    for name, got in run_everywhere(kernel, (1,), arguments, num_warps=num_warps).items():
        for found, expected in zip(got, (sums, a, b), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(("reverse", "num_warps"), [(False, 1), (True, 1), (True, 2), (False, 4)])
@pytest.mark.parametrize(("shape", "axis"), EVERY_AXIS)
def test_scans_see_every_element_in_order(shape, axis, reverse, num_warps):
    check_two_scans(shape, axis, reverse, num_warps)


@pytest.mark.parametrize(
    ("shape", "axis", "reverse"),
    [((64,), 0, False), ((8, 512), 0, True), ((8, 512), 1, False), ((128, 4), 0, True), ((4096,), 0, False)],
)
def test_scans_across_32_simd_groups(shape, axis, reverse):
    check_two_scans(shape, axis, reverse, 32)


KINDS = {
    "cumsum": ("tl.cumsum(x, AXIS, reverse=REVERSE)", np.add),
    "cumprod": ("tl.cumprod(x, AXIS, reverse=REVERSE)", np.multiply),
    "max": ("tl.associative_scan(x, AXIS, larger, reverse=REVERSE)", np.maximum),
    "or": ("tl.associative_scan(x != 0, AXIS, either, reverse=REVERSE)", np.logical_or),
}
ONE_SCAN = """
@enceladus.jit
def larger(a, b):
    return tl.maximum(a, b)

@enceladus.jit
def either(a, b):
    return a | b

@enceladus.jit
def kernel(x_ptr, out_ptr, REVERSE: tl.constexpr):
    at = OFFSETS
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, SCAN)
"""
#: Stored dtype of the scan of each dtype by ``tl.cumsum`` and ``tl.cumprod``, which widen small integers.
WIDENED = {"int8": "int32"}
DTYPES = ["float32", "float16", "bfloat16", "int8", "int32", "int64", "uint32"]
KINDS_AND_DTYPES = [
    *(("cumsum", dtype) for dtype in DTYPES),
    *(("cumprod", dtype) for dtype in ("float32", "int8", "int64")),
    *(("max", dtype) for dtype in ("float32", "float16", "bfloat16", "int8", "int64", "uint32")),
    ("or", "bool"),
    ("or", "int32"),
]


def check_one_scan(kind, dtype, shape, axis, reverse, num_warps):
    exact = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    floating = "float" in dtype
    rng = np.random.default_rng([len(kind), *shape])
    if kind == "or":
        x = (rng.random(shape) < 0.03).astype(exact)
    elif kind == "cumprod" and floating:
        x = (1 + rng.standard_normal(shape) / 64).astype(exact)
    elif floating:
        x = rng.standard_normal(shape).astype(exact)
    else:
        x = rng.integers(0 if dtype == "uint32" else -100, 100, shape).astype(exact)
    text, ufunc = KINDS[kind]
    stored = np.dtype(bool) if kind == "or" else exact
    if kind.startswith("cum") and dtype in WIDENED:
        stored = np.dtype(WIDENED[dtype])
    with np.errstate(over="ignore"):
        wide = along(x.astype(np.float64 if floating else stored), axis, reverse)
        expected = back(ufunc.accumulate(wide, axis=0), axis, reverse)
        bound = back(np.add.accumulate(np.abs(wide), axis=0), axis, reverse) if floating else None
    source = ONE_SCAN.replace("SCAN", text).replace("OFFSETS", offsets(shape)).replace("AXIS", str(axis))
    arguments = {"x_ptr": x, "out_ptr": np.zeros(shape, stored), "REVERSE": reverse}
    results = run_everywhere(kernel_from_source(source), (1,), arguments, num_warps=num_warps)
    for name, (got,) in results.items():
        assert got.dtype == stored, name
        if not floating or kind == "max":
            np.testing.assert_array_equal(got, expected.astype(stored), err_msg=name)
            continue
        step = {"float32": 2.0**-20, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
        # The sum itself in float32, then one rounding.
        scale = np.abs(expected) if kind == "cumsum" else np.abs(expected) * shape[axis]
        allowed = 2.0**-20 * (bound if kind == "cumsum" else scale) + step * np.abs(expected) + 1e-30
        assert (np.abs(got.astype(np.float64) - expected) <= allowed).all(), name


@pytest.mark.parametrize(
    ("shape", "axis", "reverse", "num_warps"),
    [
        ((64,), 0, True, 4),
        ((8, 512), 0, False, 2),
        ((8, 512), 1, True, 4),
    ],
)
@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_DTYPES)
def test_kinds_and_dtypes(kind, dtype, shape, axis, reverse, num_warps):
    check_one_scan(kind, dtype, shape, axis, reverse, num_warps)


@pytest.mark.parametrize(("num_warps", "dtype", "reverse"), [(4, "float32", True), (16, "int64", False)])
def test_more_totals_than_threadgroup_memory_holds(num_warps, dtype, reverse):
    """Along the slow axis every thread has totals of many scans and chunks, which are exchanged in turns."""
    check_one_scan("cumsum", dtype, (128, 64), 0, reverse, num_warps)


@enceladus.jit
def running_sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    row = tl.program_id(0) * n
    blocks = tl.cdiv(n, BLOCK)
    total = 0
    for i in range(blocks):
        at = (blocks - 1 - i if REVERSE else i) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + at, mask=at < n, other=0)
        sums = tl.cumsum(x, 0, reverse=REVERSE) + total
        tl.store(out_ptr + row + at, sums, mask=at < n)
        total += tl.sum(x, 0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 100, 1000, 4097])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_scans_in_a_loop_take_turns_in_threadgroup_memory(n, reverse, num_warps):
    x = np.random.default_rng(n).integers(-1000, 1000, (3, n), dtype=np.int32)
    expected = np.cumsum(x[:, ::-1] if reverse else x, 1, dtype=np.int32)
    expected = expected[:, ::-1] if reverse else expected
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "n": n, "BLOCK": 512, "REVERSE": reverse}
    for name, (got,) in run_everywhere(running_sum_kernel, (3,), arguments, num_warps=num_warps).items():
        np.testing.assert_array_equal(got, expected, err_msg=name)


@enceladus.jit
def scanned_again_kernel(x_ptr, out_ptr, STEPS: tl.constexpr):
    """A carried tile that is scanned in each iteration, then one scan along the other axis."""
    at = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + at)
    for _ in range(STEPS):
        x = tl.cumsum(x, 1)
    tl.store(out_ptr + at, tl.cumsum(x, 0, reverse=True))


@pytest.mark.parametrize("num_warps", [1, 2, 8])
def test_a_carried_tile_can_be_scanned(num_warps):
    x = np.random.default_rng(1).integers(-5, 5, (16, 32), dtype=np.int32)
    expected = x
    for _ in range(3):
        expected = np.cumsum(expected, 1, dtype=np.int32)
    expected = np.cumsum(expected[::-1], 0, dtype=np.int32)[::-1]
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "STEPS": 3}
    for name, (got,) in run_everywhere(scanned_again_kernel, (1,), arguments, num_warps=num_warps).items():
        np.testing.assert_array_equal(got, expected, err_msg=name)


@enceladus.jit
def scan_of_sums_kernel(x_ptr, out_ptr, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """What a reduction leaves is a slice of a tile: its scan, and the tile on top of it."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    sums = tl.cumsum(tl.sum(x, AXIS), 0)
    tl.store(out_ptr + at, x + tl.expand_dims(sums, AXIS))


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2, 8), (16, 64), (4, 512), (128, 4)])
def test_sums_can_be_scanned(shape, axis, num_warps):
    x = np.random.default_rng(2).integers(-50, 50, shape, dtype=np.int32)
    expected = x + np.expand_dims(np.cumsum(x.sum(axis, dtype=np.int32), dtype=np.int32), axis)
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "AXIS": axis, "M": shape[0], "N": shape[1]}
    for name, (got,) in run_everywhere(scan_of_sums_kernel, (1,), arguments, num_warps=num_warps).items():
        np.testing.assert_array_equal(got, expected, err_msg=name)


@enceladus.jit
def sum_twice(a, unused_a, b, unused_b):
    total = a + b
    return total, total


@enceladus.jit
def sum_twice_kernel(x_ptr, first_ptr, second_ptr, total_ptr, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(x_ptr + at)
    first, second = tl.associative_scan((x, x), 0, sum_twice)
    tl.store(first_ptr + at, first)
    tl.store(second_ptr + at, second)
    _, total = tl.reduce((x, x), 0, sum_twice)
    tl.store(total_ptr, total)


@pytest.mark.parametrize("num_warps", [1, 4])
def test_results_of_a_combine_function_may_be_one_value(num_warps):
    """The second must not be computed from the new first."""
    x = np.arange(1, 1025, dtype=np.int32)
    arguments = {"x_ptr": x, "B": x.size, "total_ptr": np.zeros(1, np.int32)}
    arguments |= {"first_ptr": np.zeros_like(x), "second_ptr": np.zeros_like(x)}
    sums = np.cumsum(x, dtype=np.int32)
    # The element that nothing is combined with keeps its own value.
    results = run_everywhere(sum_twice_kernel, (1,), arguments, num_warps=num_warps)
    for name, (first, second, total) in results.items():
        np.testing.assert_array_equal(first, sums, err_msg=name)
        np.testing.assert_array_equal(second, sums, err_msg=name)
        assert total[0] == sums[-1], name


def text_of(shape, axis, num_warps):
    target = HostTarget(("forward",))
    source = ONE_SCAN.replace("SCAN", KINDS["cumsum"][0]).replace("OFFSETS", offsets(shape))
    kernel = kernel_from_source(source.replace("AXIS", str(axis)))
    x = np.ones(shape, np.float32)
    with engine("host", target):
        mx.eval(kernel[(1,)](to_mlx(x), enceladus.empty(shape, mx.float32), False, num_warps=num_warps))
    return target.sources[0]


@needs_host
def test_barriers_stand_only_where_simd_groups_meet():
    assert "threadgroup_barrier" not in text_of((512,), 0, 1)
    assert "threadgroup_barrier" not in text_of((8, 512), 1, 1)
    assert "threadgroup_barrier" not in text_of((64, 4), 1, 4)
    assert text_of((2048,), 0, 4).count("threadgroup_barrier") == 1
    assert text_of((128, 4), 0, 4).count("threadgroup_barrier") == 1


@needs_host
def test_a_scan_inside_a_thread_needs_no_shuffle():
    assert "simd_" not in text_of((64, 4), 1, 1).split("x_ptr", 1)[1]


@enceladus.jit
def affine(a, b, c, d):
    return a * c, b * c + d


@enceladus.jit
def two_sums_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    y = tl.load(x_ptr + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :])
    _, b = tl.associative_scan((tl.sum(x, 1), tl.sum(y, 0)), 0, affine)
    tl.store(out_ptr + tl.arange(0, M), b)


@needs_host
def test_slices_of_two_tiles_cannot_be_scanned_together():
    x = mx.ones(16 * 64)
    with (
        engine("host"),
        pytest.raises(enceladus.CompilationError, match="reductions of different tiles") as e,
    ):
        two_sums_kernel[(1,)](x, enceladus.empty(16, mx.float32), M=16, N=64)
    assert "affine)" in str(e.value)
