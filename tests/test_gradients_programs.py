"""Whole kernels whose gradients are computed by backward kernels, against the graph engine's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import engine, needs_host
from tests.gradient_helpers import SummingTarget, normal, weighted


@enceladus.jit
def planes_kernel(x, b, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    z = tl.program_id(2)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    m = (r[:, None] < M) & (c[None, :] < N)
    p = z * M * N + r[:, None] * N + c[None, :]
    v = tl.load(x + p, mask=m, other=0.0).to(tl.float32)
    bb = tl.load(b + z * M + r, mask=r < M).to(tl.float32)
    row = tl.sum(v * v, axis=1)
    tl.store(out + p, (v * bb[:, None]) / (1.0 + row[:, None]), mask=m)


@enceladus.jit
def grid_stride_kernel(x, w, out, n, step, B: tl.constexpr):
    pid = tl.program_id(0)
    for s in range(pid * B, n, step):
        o = s + tl.arange(0, B)
        v = tl.load(x + o, mask=o < n)
        ww = tl.load(w)
        tl.store(out + o, tl.exp(v * ww), mask=o < n)


@enceladus.jit
def normalize_kernel(x, out, n, B: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((B,), dtype=tl.float32)
    for s in range(0, n, B):
        o = s + tl.arange(0, B)
        acc += tl.load(x + row * n + o, mask=o < n)
    mean = tl.sum(acc, axis=0) / n
    var = tl.zeros((B,), dtype=tl.float32)
    for s in range(0, n, B):
        o = s + tl.arange(0, B)
        d = tl.where(o < n, tl.load(x + row * n + o, mask=o < n) - mean, 0.0)
        var = tl.fma(d, d, var)
    rstd = tl.rsqrt(tl.sum(var, axis=0) / n + 1e-3)
    for s in range(0, n, B):
        o = s + tl.arange(0, B)
        v = tl.load(x + row * n + o, mask=o < n)
        tl.store(out + row * n + o, (v - mean) * rstd, mask=o < n)


@enceladus.jit
def nested_kernel(x, w, out, n, B: tl.constexpr):
    row = tl.program_id(0)
    for i in range(3):
        s = tl.load(w + i)
        for j in range(0, n, B):
            o = j + tl.arange(0, B)
            v = tl.load(x + row * n + o, mask=o < n)
            tl.store(out + (row * 3 + i) * n + o, v * s * s, mask=o < n)


@enceladus.jit
def neighbours_kernel(x, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    left = tl.load(x + o - 1, mask=(o > 0) & (o < n), other=0.0)
    mid = tl.load(x + o, mask=o < n)
    right = tl.load(x + o + 1, mask=o < n - 1, other=0.0)
    tl.store(out + o, left * mid - right * right, mask=o < n)


@enceladus.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    q = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(K):
        va = tl.load(a + r * K + k, mask=r < M, other=0.0)
        vb = tl.load(b + k * N + q, mask=q < N, other=0.0)
        acc += va[:, None] * vb[None, :]
    tl.store(c + r[:, None] * N + q[None, :], acc, mask=(r[:, None] < M) & (q[None, :] < N))


#: name → (kernel, grid, arrays, arguments behind them, constexprs, kind of the gradient)
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "planes": (
        planes_kernel, (2, 2, 2), [(2, 5, 11), (2, 5)], (2, 5, 11), (5, 11), {"BM": 4, "BN": 16}, "kernel"
    ),
    "grid stride": (grid_stride_kernel, (2,), [(75,), (1,)], (75,), (75, 32), {"B": 16}, "graph"),
    "normalize": (normalize_kernel, (3,), [(3, 40)], (3, 40), (40,), {"B": 16}, "kernel"),
    "nested loops": (nested_kernel, (2,), [(2, 20), (3,)], (2, 3, 20), (20,), {"B": 16}, "kernel"),
    "neighbours": (neighbours_kernel, (3,), [(45,)], (45,), (45,), {"B": 16}, "kernel"),
    "matrix product": (
        matmul_kernel, (2, 2), [(7, 5), (5, 9)], (7, 9), (7, 9, 5), {"BM": 4, "BN": 8}, "kernel"
    ),
}  # fmt: skip


@needs_host
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, mx.float32) for name in PROGRAMS] + [("planes", mx.float16), ("planes", mx.bfloat16)],
)
def test_programs(name: str, dtype: mx.Dtype) -> None:
    kernel, grid, shapes, result, numbers, constants, kind = PROGRAMS[name]
    arrays = [normal(*shape, dtype=dtype) for shape in shapes]
    fresh = enceladus.zeros(result, dtype)

    def function(*arrays: mx.array) -> mx.array:
        made: mx.array = kernel[grid](*arrays, fresh, *numbers, **constants)
        return made

    gradients: Callable[..., list[mx.array]] = mx.grad(weighted(function), argnums=list(range(len(arrays))))
    found = {}
    for engine_name in ("graph", "host"):
        with engine(engine_name, SummingTarget()):
            if engine_name == "host":
                assert kernel.gradient_kind(*arrays, fresh, *numbers, **constants, grid=grid) == kind
            found[engine_name] = [np.array(g.astype(mx.float32)) for g in gradients(*arrays)]
    for got, want in zip(found["host"], found["graph"], strict=True):
        tolerance = 1e-3 if dtype == mx.float32 else 2e-2
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
