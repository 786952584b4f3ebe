"""Sorting and histograms: every engine against NumPy, over types × shapes × SIMD-groups."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import enceladus
import enceladus.language as tl
from tests.engines import ENGINES, HostTarget, assert_everywhere, engine, kernel_from_source, needs_host

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32")
SHAPES = [(1,), (64,), (8, 4), (4, 2, 8), (4, 512), (1, 2048)]
WARPS = (1, 4, 32)


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def numbers(dtype, shape, seed=0):
    """Half of them small, with repetitions, half from the whole range; of floats some infinite or NaN."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0 if dtype[0] == "u" else -9, 10, shape)
    if dtype in FLOATS:
        bits = rng.integers(0, 2**16, shape).astype(np.uint16)  # every kind of number, tiny ones too
        if dtype == "float32":
            wide = bits.astype(np.uint32) << 16 | rng.integers(1, 2**16, shape).astype(np.uint32)
            far = wide.view(np.float32)
        else:
            far = bits.view(numpy_dtype(dtype))
        x = np.where(rng.random(shape) < 0.5, (small / 4).astype(far.dtype), far)
        chance = rng.random(shape)
        for low, value in ((0.0, np.nan), (0.05, np.inf), (0.1, -np.inf)):
            x[(chance >= low) & (chance < low + 0.05)] = value
        with np.errstate(invalid="ignore"):
            x[x == 0] = 0  # zeros of both signs are equal, and may come in any order
        return x
    info = np.iinfo(dtype)
    far = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.5, small.astype(dtype), far)


def ordered(x, descending):
    with np.errstate(invalid="ignore"):  # some versions of ml_dtypes warn of NaN
        y = np.sort(x.astype(np.float32) if x.dtype.kind not in "iu" else x, -1).astype(x.dtype)
    return y[..., ::-1] if descending else y


@enceladus.jit
def sort_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, DESCENDING: tl.constexpr):
    offs = tl.arange(0, C)
    if B > 0:
        offs = tl.arange(0, B)[:, None] * C + offs[None, :]
    if A > 0:
        offs = tl.arange(0, A)[:, None, None] * (B * C) + offs[None, :, :]
    tl.store(out_ptr + offs, tl.sort(tl.load(x_ptr + offs), descending=DESCENDING))


def check_sort(x, descending, num_warps, engines=ENGINES):
    a, b, c = (*(0,) * (3 - x.ndim), *x.shape)
    arguments = {
        "x_ptr": x, "out_ptr": np.zeros_like(x), "A": a, "B": b, "C": c, "DESCENDING": descending,
    }  # fmt: skip
    assert_everywhere(
        sort_kernel, (1,), arguments, ordered(x, descending), num_warps=num_warps, engines=engines
    )


#: Everything for two types; the others take turns, because the network is the same for all.
SORTS = [(dtype, shape, warps) for dtype in ("float32", "int64") for shape in SHAPES for warps in WARPS]
SORTS += [
    (dtype, shape, WARPS[(k + j) % 3])
    for k, dtype in enumerate(
        ("float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
    )
    for j, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("dtype", "shape", "num_warps"), SORTS)
def test_sort(dtype, shape, num_warps):
    for descending in (False, True):
        check_sort(numbers(dtype, shape, len(shape)), descending, num_warps)


@enceladus.jit
def sort_in_a_loop(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The smallest BLOCK of n numbers, in order: the classic way to keep the best."""
    offs = tl.arange(0, BLOCK)
    best = tl.sort(tl.load(x_ptr + offs))
    for start in range(BLOCK, n, BLOCK):
        more = tl.sort(tl.load(x_ptr + start + offs), descending=True)
        best = tl.sort(tl.minimum(best, more))
    tl.store(out_ptr + offs, best)


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("block", [32, 256, 1024])
def test_sorts_in_a_loop(block, num_warps):
    x = np.random.default_rng(block).standard_normal(4 * block).astype(np.float32)
    arguments = {"x_ptr": x, "out_ptr": np.zeros(block, "f"), "n": x.size, "BLOCK": block}
    assert_everywhere(sort_in_a_loop, (1,), arguments, np.sort(x)[:block], num_warps=num_warps)


@enceladus.jit
def sorted_slices(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    """Sorts what a reduction leaves, and adds it to every row or column."""
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    order = tl.sort(tl.max(x, axis=AXIS))
    tl.store(out_ptr + offs, x + tl.expand_dims(order, AXIS))


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2, 8), (16, 64), (64, 16)])
def test_sort_of_a_slice(shape, axis, num_warps):
    x = np.random.default_rng(axis).integers(-1000, 1000, shape).astype(np.int32)
    expected = x + np.expand_dims(np.sort(x.max(axis)), axis)
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "M": shape[0], "N": shape[1], "AXIS": axis}
    assert_everywhere(sorted_slices, (1,), arguments, expected, num_warps=num_warps)


@enceladus.jit
def sort_transposed(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """The fastest axis in memory is not the one that is sorted."""
    offs = tl.arange(0, M)[:, None] + tl.arange(0, N)[None, :] * M
    tl.store(out_ptr + offs, tl.sort(tl.load(x_ptr + offs)))


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("shape", [(4, 8), (64, 32), (128, 16)])
def test_sort_along_the_slow_axis(shape, num_warps):
    m, n = shape
    x = np.random.default_rng(m).standard_normal(n * m).astype(np.float32)
    expected = np.sort(x.reshape(n, m), 0).reshape(-1)
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "M": m, "N": n}
    assert_everywhere(sort_transposed, (1,), arguments, expected, num_warps=num_warps)


@enceladus.jit
def chosen_order(x_ptr, out_ptr, backwards, BLOCK: tl.constexpr):
    """Sorts in a branch, what was sorted before, and what no array holds."""
    offs = tl.arange(0, BLOCK)
    x = tl.sort(tl.load(x_ptr + offs))
    if backwards:
        x = tl.sort(-x)
    else:
        x = tl.sort(x + tl.sort(offs % 3))
    tl.store(out_ptr + offs, x)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("backwards", [False, True])
def test_sorts_in_a_branch(backwards, num_warps):
    x = np.random.default_rng(5).integers(-1000, 1000, 256).astype(np.int32)
    expected = np.sort(-x) if backwards else np.sort(np.sort(x) + np.sort(np.arange(256, dtype="i") % 3))
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "backwards": int(backwards), "BLOCK": 256}
    assert_everywhere(chosen_order, (1,), arguments, expected, num_warps=num_warps)


@needs_host
def test_sorts_of_one_size_share_threadgroup_memory():
    target = HostTarget()
    with engine("host", target):
        x = mx.array(np.random.default_rng(6).permutation(1024).astype(np.float32))
        sort_in_a_loop[(1,)](x, mx.zeros((256,)), 1024, BLOCK=256, num_warps=8)
    (compiled,) = target.compiled
    assert compiled.threadgroup_bytes == 2 * 4 * 256  # two places that take turns
    assert compiled.body.count("threadgroup_barrier(") == 3  # one in each network, inside its loops


@enceladus.jit
def sorts_around_a_loop(x_ptr, out_ptr, n, BLOCK: tl.constexpr, N: tl.constexpr):
    """What the sort in the loop used serves others behind it, so the last sort needs memory of its own."""
    offs = tl.arange(0, BLOCK)
    best = tl.load(x_ptr + offs)
    for start in range(BLOCK, n, BLOCK):
        best = tl.sort(tl.maximum(best, tl.load(x_ptr + start + offs)))
    rows = tl.reshape(best, (BLOCK // N, N))
    turned = tl.reshape(tl.trans(rows), (BLOCK,))
    tl.store(out_ptr + offs, tl.sort(turned - offs) + turned)


@pytest.mark.parametrize("num_warps", [4, 32])
def test_sorts_around_a_loop(num_warps):
    x = np.random.default_rng(8).integers(-9999, 9999, 3072).astype(np.int32)
    parts = x.reshape(3, 1024)
    best = np.sort(np.maximum(np.sort(np.maximum(parts[0], parts[1])), parts[2]))
    turned = best.reshape(32, 32).T.reshape(-1)
    expected = np.sort(turned - np.arange(1024, dtype="i")) + turned
    arguments = {"x_ptr": x, "out_ptr": np.zeros(1024, "i"), "n": 3072, "BLOCK": 1024, "N": 32}
    assert_everywhere(sorts_around_a_loop, (1,), arguments, expected, num_warps=num_warps)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_numbers(data):
    size = data.draw(st.sampled_from([2, 16, 128]))
    elements = st.floats(width=32).filter(lambda x: x != 0) | st.just(0.0)
    x = np.array(data.draw(st.lists(elements, min_size=size, max_size=size)), np.float32)
    check_sort(x, data.draw(st.booleans()), 2)


@pytest.mark.parametrize("k", [1, 4, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64"])
def test_topk(dtype, k):
    x = numbers(dtype, (4, 64), k)
    kernel = kernel_from_source(
        f"""
@enceladus.jit
def kernel(x_ptr, out_ptr):
    row = tl.arange(0, 4)[:, None]
    x = tl.load(x_ptr + row * 64 + tl.arange(0, 64)[None, :])
    tl.store(out_ptr + row * {k} + tl.arange(0, {k})[None, :], tl.topk(x, {k}))
"""
    )
    arguments = {"x_ptr": x, "out_ptr": np.zeros((4, k), x.dtype)}
    assert_everywhere(kernel, (1,), arguments, ordered(x, True)[:, :k])


# --------------------------------------------------------------------------------------- histograms


@enceladus.jit
def histogram_kernel(x_ptr, mask_ptr, all_ptr, some_ptr, scale, BLOCK: tl.constexpr, BINS: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    bins = tl.arange(0, BINS)
    x = tl.load(x_ptr + offs)
    tl.store(all_ptr + bins, tl.histogram(x, BINS) * scale)
    tl.store(some_ptr + bins, tl.histogram(x, BINS, mask=tl.load(mask_ptr + offs) != 0))


def counts(x, bins):
    inside = x[(x >= 0) & (x < bins)].astype(np.int64)
    return np.bincount(inside, minlength=bins).astype(np.int32)


HISTOGRAMS = [
    (dtype, size, bins, WARPS[(k + j) % 3])
    for k, dtype in enumerate(INTEGERS)
    for j, (size, bins) in enumerate([(1, 1), (16, 256), (64, 2), (2048, 64), (1024, 256)])
]


@pytest.mark.parametrize(("dtype", "size", "bins", "num_warps"), HISTOGRAMS)
def test_histogram(dtype, size, bins, num_warps):
    rng = np.random.default_rng([size, bins])
    info = np.iinfo(dtype)
    near = rng.integers(max(info.min, -3), min(info.max, bins + 3), size, endpoint=True).astype(dtype)
    far = rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
    x = np.where(rng.random(size) < 0.8, near, far)
    mask = (rng.random(size) < 0.5).astype(np.uint8)
    out = np.zeros(bins, np.int32)
    arguments = {
        "x_ptr": x, "mask_ptr": mask, "all_ptr": out, "some_ptr": out, "scale": 3, "BLOCK": size,
        "BINS": bins,
    }  # fmt: skip
    expected = counts(x, bins) * np.int32(3), counts(x[mask != 0], bins)
    assert_everywhere(histogram_kernel, (1,), arguments, *expected, num_warps=num_warps)


@enceladus.jit
def histogram_in_a_loop(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    total = tl.zeros((BINS,), tl.int32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.histogram(tl.load(x_ptr + offs, mask=offs < n, other=-1), BINS)
    tl.store(out_ptr + tl.arange(0, BINS), total)


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("bins", [1, 16, 256, 2048])
def test_histograms_in_a_loop(bins, num_warps):
    x = np.random.default_rng(bins).integers(0, bins, 1000).astype(np.int32)
    arguments = {"x_ptr": x, "out_ptr": np.zeros(bins, "i"), "n": 1000, "BLOCK": 128, "BINS": bins}
    assert_everywhere(histogram_in_a_loop, (1,), arguments, counts(x, bins), num_warps=num_warps)


@enceladus.jit
def histogram_of_a_slice(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    """Counts what a reduction leaves, where several threads hold copies of an element."""
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + tl.arange(0, 32), tl.histogram(tl.max(x, axis=AXIS), 32))


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2, 8), (16, 64), (64, 16)])
def test_histogram_of_a_slice(shape, axis, num_warps):
    x = np.random.default_rng(axis).integers(0, 40, shape).astype(np.int32)
    arguments = {"x_ptr": x, "out_ptr": np.zeros(32, "i"), "M": shape[0], "N": shape[1], "AXIS": axis}
    assert_everywhere(histogram_of_a_slice, (1,), arguments, counts(x.max(axis), 32), num_warps=num_warps)


@enceladus.jit
def rows_where_columns(x_ptr, out_ptr, N: tl.constexpr, WHERE: tl.constexpr):
    """Counts the largest of every row where the largest of the column is even."""
    x = tl.load(x_ptr + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    rows = tl.max(x, axis=1)
    mask = tl.max(x, axis=0) % 2 == 0
    if WHERE:
        counts = tl.histogram(tl.where(mask, rows, -1), 32)
    else:
        counts = tl.histogram(rows, 32, mask=mask)
    tl.store(out_ptr + tl.arange(0, 32), counts)


def test_a_mask_that_lies_elsewhere():
    x = np.random.default_rng(7).integers(0, 32, (16, 16)).astype(np.int32)
    arguments = {"x_ptr": x, "out_ptr": np.zeros(32, "i"), "N": 16, "WHERE": True}
    expected = counts(x.max(1)[x.max(0) % 2 == 0], 32)
    assert_everywhere(rows_where_columns, (1,), arguments, expected)
    refused = arguments | {"WHERE": False}
    assert_everywhere(rows_where_columns, (1,), refused, expected, engines=("interpreter", "graph"))
    with engine("host"), pytest.raises(enceladus.CompilationError, match=r"dealt to the threads in two ways"):
        rows_where_columns[(1,)](mx.array(x), mx.zeros((32,), mx.int32), N=16, WHERE=False)
