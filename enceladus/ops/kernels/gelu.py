"""GELU with the error function, as one kernel with a helper function; its tanh approximation; gradients."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.geglu import gelu_and_slope


@enceladus.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@enceladus.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, gelu(x), mask=mask)


@enceladus.jit
def wide_gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The same, computed in float32 and rounded once: for 16-bit floats."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, gelu(x), mask=mask)


def fused_gelu(x: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """GELU of a floating-point array of any shape; lazy, like any MLX operation."""
    kernel = gelu_kernel if x.dtype == mx.float32 else wide_gelu_kernel
    grid = (enceladus.cdiv(x.size, block),)
    return kernel[grid](x, enceladus.empty_like(x), x.size, BLOCK=block, num_warps=num_warps)


@enceladus.jit
def tanh_gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The approximation with tanh."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value, _ = gelu_and_slope(tl.load(x_ptr + offs, mask=mask).to(tl.float32), True)
    tl.store(out_ptr + offs, value, mask=mask)


@enceladus.jit
def gelu_backward_kernel(cotangent_ptr, x_ptr, dx_ptr, n, APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    cotangent = tl.load(cotangent_ptr + offs, mask=mask).to(tl.float32)
    _, slope = gelu_and_slope(tl.load(x_ptr + offs, mask=mask).to(tl.float32), APPROXIMATE)
    tl.store(dx_ptr + offs, cotangent * slope, mask=mask)


def tanh_gelu(x: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """GELU approximated with tanh, of an array of any shape; computed in float32 and rounded once."""
    grid = (enceladus.cdiv(x.size, block),)
    return tanh_gelu_kernel[grid](x, enceladus.empty_like(x), x.size, BLOCK=block, num_warps=num_warps)


def gelu_backward(
    cotangent: mx.array, x: mx.array, *, approximate: bool = False, block: int = 1024, num_warps: int = 4
) -> mx.array:
    """The gradient of :func:`fused_gelu` or :func:`tanh_gelu` for ``x``, given that for its result."""
    grid = (enceladus.cdiv(x.size, block),)
    dx = enceladus.empty_like(x)
    return gelu_backward_kernel[grid](
        cotangent, x, dx, x.size, APPROXIMATE=approximate, BLOCK=block, num_warps=num_warps
    )
