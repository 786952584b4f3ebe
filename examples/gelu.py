"""GELU with the error function, as one kernel with a helper function.

    python examples/gelu.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.testing import assert_close


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


def mlx_gelu(x: mx.array) -> mx.array:
    """What the kernel replaces: MLX's operations, one by one."""
    return x * (1 + mx.erf(x * 0.7071067811865476)) / 2


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        x = mx.random.normal((98_432,)).astype(dtype)
        assert_close(fused_gelu(x), mlx_gelu(x.astype(mx.float32)), rtol=tolerance, atol=tolerance)
        print(f"fused_gelu {dtype}: agrees with MLX")


if __name__ == "__main__":
    main()
