"""Reductions: every engine against NumPy, over kinds × dtypes × shapes × axes × SIMD groups."""

from __future__ import annotations

import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import run_everywhere

SHAPES = [(1, 1), (2, 8), (16, 64), (4, 512), (128, 4), (1, 2048)]


@enceladus.jit
def reduce_kernel(
    x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr, AXIS: tl.constexpr, KIND: tl.constexpr
):
    r = tl.arange(0, BM)
    c = tl.arange(0, BN)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N), other=0)
    if KIND == "sum":
        y = tl.sum(x, axis=AXIS)
    elif KIND == "max":
        y = tl.max(x, axis=AXIS)
    elif KIND == "min":
        y = tl.min(x, axis=AXIS)
    elif KIND == "xor":
        y = tl.xor_sum(x, axis=AXIS)
    elif KIND == "argmax":
        y = tl.argmax(x, axis=AXIS)
    else:
        y = tl.argmin(x, axis=AXIS)
    if AXIS == 0:
        tl.store(out_ptr + c, y)
    else:
        tl.store(out_ptr + r, y)


NUMPY = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "xor": np.bitwise_xor.reduce,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


@pytest.mark.parametrize("num_warps", [1, 4, 32])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("sum", "float32"), ("max", "float32"), ("argmin", "float32"), ("sum", "int32"), ("xor", "int32"),
     ("sum", "float16"), ("min", "int8"), ("argmax", "int32"), ("max", "int64")],
)  # fmt: skip
def test_reductions_agree_with_numpy(kind, dtype, shape, axis, num_warps):
    rng = np.random.default_rng([len(kind), *shape])
    x = rng.standard_normal(shape) if "float" in dtype else rng.integers(-100, 100, shape)
    x = x.astype(dtype)
    wide = x.astype(np.float64 if "float" in dtype else np.int64)
    expected = NUMPY[kind](wide, axis=axis)
    stored = np.int32 if kind.startswith("arg") else np.int64 if "int" in dtype else dtype
    out = np.zeros(shape[1 - axis], stored)
    arguments = {
        "x_ptr": x, "out_ptr": out, "M": shape[0], "N": shape[1], "BM": shape[0], "BN": shape[1],
        "AXIS": axis, "KIND": kind,
    }  # fmt: skip
    for engine, (got,) in run_everywhere(reduce_kernel, (1,), arguments, num_warps=num_warps).items():
        if kind == "sum" and "float" in dtype:
            scale = np.abs(wide).sum(axis=axis)
            error = np.abs(got.astype(np.float64) - expected)
            bound = scale * (2.0**-11 if dtype == "float16" else 2.0**-20) + 1e-30
            assert (error <= bound).all(), engine
        else:
            np.testing.assert_array_equal(got, expected, err_msg=engine)


@enceladus.jit
def first_then_last(a_first, a_last, b_first, b_last):
    return a_first, b_last


@enceladus.jit
def ends_kernel(x_ptr, first_ptr, last_ptr, B: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, B))
    first, last = tl.reduce((x, x), 0, first_then_last)
    tl.store(first_ptr, first)
    tl.store(last_ptr, last)


@pytest.mark.parametrize("num_warps", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 2, 32, 64, 2048])
def test_a_combine_function_that_does_not_commute_sees_the_elements_in_order(size, num_warps):
    x = np.arange(3, size + 3, dtype=np.float32)
    arguments = {"x_ptr": x, "first_ptr": np.zeros(1, "f"), "last_ptr": np.zeros(1, "f"), "B": size}
    for engine, (first, last) in run_everywhere(ends_kernel, (1,), arguments, num_warps=num_warps).items():
        assert (first[0], last[0]) == (x[0], x[-1]), engine


@enceladus.jit
def online_softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0) * n
    cols = tl.arange(0, BLOCK)
    most = -float("inf")
    total = 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + cols, mask=start + cols < n, other=-float("inf"))
        new = tl.maximum(most, tl.max(x, axis=0))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new), axis=0)
        most = new
    for start in range(0, n, BLOCK):
        mask = start + cols < n
        x = tl.load(x_ptr + row + start + cols, mask=mask)
        tl.store(out_ptr + row + start + cols, tl.exp(x - most) / total, mask=mask)


@pytest.mark.parametrize("n", [1, 100, 1000, 4097])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_reductions_in_a_loop_take_turns_in_threadgroup_memory(n, num_warps):
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32) * 4
    wide = x.astype(np.float64)
    expected = np.exp(wide - wide.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    arguments = {"x_ptr": x, "out_ptr": np.zeros_like(x), "n": n, "BLOCK": 256}
    for engine, (got,) in run_everywhere(online_softmax_kernel, (3,), arguments, num_warps=num_warps).items():
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-9, err_msg=engine)
