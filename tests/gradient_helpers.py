"""Kernels and comparisons that the tests of gradients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

import enceladus
import enceladus.language as tl
from enceladus.codegen.kernel import CompiledKernel, Role
from tests.engines import SCHEDULES, HostTarget, kernel_from_source

ArrayFunction = Callable[..., mx.array]

RNG = np.random.default_rng(7)


class SummingTarget(HostTarget):
    """Atomic sums of floats depend on the order of threads: each order runs alone, and they must be close."""

    def register(self, engine: str, compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
        if all(parameter.role is not Role.ATOMIC for parameter in compiled.arrays):
            return super().register(engine, compiled)
        launches = [HostTarget((order,)).register(engine, compiled) for order in SCHEDULES]

        def launch(**options: Any) -> list[mx.array]:
            first, *others = [run(**options) for run in launches]
            for other in others:
                for a, b in zip(first, other, strict=True):
                    one, two = (np.array(x.astype(mx.float32)) for x in (a, b))
                    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
            return first

        return launch


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(RNG.normal(size=shape).astype(np.float32)).astype(dtype)


def weighted(function: ArrayFunction) -> ArrayFunction:
    """A scalar loss whose cotangents differ from element to element."""

    def loss(*arrays: mx.array) -> mx.array:
        results = function(*arrays)
        total = mx.array(0.0)
        for i, y in enumerate(results if isinstance(results, tuple) else (results,)):
            weights = mx.sin(mx.arange(y.size) * 0.7 + i).reshape(y.shape)
            total = total + (weights * y.astype(mx.float32)).sum()
        return total

    return loss


def assert_same_gradients(
    function: ArrayFunction,
    reference: ArrayFunction,
    arrays: Sequence[mx.array],
    argnums: Sequence[int] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    argnums = range(len(arrays)) if argnums is None else argnums
    for i in argnums:
        got = mx.grad(weighted(function), argnums=i)(*arrays)
        want = mx.grad(weighted(reference), argnums=i)(*arrays)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        got, want = (np.array(x.astype(mx.float32)) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=f"argument {i}")


def assert_finite_differences(
    function: ArrayFunction, formula: Callable[..., np.ndarray], x: np.ndarray, rtol: float = 2e-4
) -> None:
    """The gradient of ``function`` against central differences of ``formula`` in float64."""
    weights = np.sin(np.arange(formula(x.astype(np.float64)).size) * 0.7)

    def loss(x: np.ndarray) -> float:
        return float((weights * formula(x).reshape(-1)).sum())

    want = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        step = np.zeros(x.shape)
        step[index] = 1e-5
        want[index] = (loss(x.astype(np.float64) + step) - loss(x.astype(np.float64) - step)) / 2e-5
    got = np.array(mx.grad(weighted(function))(mx.array(x)))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


def gradient(function: ArrayFunction, *arrays: mx.array, argnums: int = 0) -> mx.array:
    return mx.grad(lambda *xs: function(*xs).sum(), argnums=argnums)(*arrays)


@enceladus.jit
def scaled_exp(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, tl.exp(x) * y * scale, mask=mask)


def launch_scaled_exp(x: mx.array, y: mx.array, scale: float = 2.5) -> mx.array:
    grid = (enceladus.cdiv(x.size, 64),)
    return scaled_exp[grid](x, y, enceladus.empty_like(x), x.size, scale, BLOCK=64)


@enceladus.jit
def two_outputs(x_ptr, sin_ptr, cos_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(sin_ptr + offs, tl.sin(x), mask=mask)
    tl.store(cos_ptr + offs, tl.cos(2 * x), mask=mask)


@enceladus.jit
def cube(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x * x * x * scale, mask=offs < n)


def launch_cube(kernel: enceladus.JITFunction, x: mx.array, scale: float = 2.0) -> mx.array:
    return kernel[(enceladus.cdiv(x.size, 64),)](x, enceladus.empty_like(x), x.size, scale, BLOCK=64)


def own(kernel: enceladus.JITFunction) -> enceladus.JITFunction:
    """The same kernel, whose rules are nobody else's."""
    return enceladus.JITFunction(kernel.fn, kernel.options)


def binary_kernel(expression: str) -> ArrayFunction:
    """A launch that stores ``expression`` of tiles ``x`` and ``y`` of two arrays of one shape."""
    kernel = kernel_from_source(
        "@enceladus.jit\n"
        "def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):\n"
        "    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + offs, mask=offs < n)\n"
        "    y = tl.load(y_ptr + offs, mask=offs < n)\n"
        f"    tl.store(out_ptr + offs, {expression}, mask=offs < n)\n"
    )

    def launch(x: mx.array, y: mx.array) -> mx.array:
        grid = (enceladus.cdiv(x.size, 64),)
        result: mx.array = kernel[grid](x, y, enceladus.empty_like(x), x.size, BLOCK=64)
        return result

    return launch
