"""Add a bias to every row and apply GELU, reading and writing the matrix once.

    python examples/bias_gelu.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.testing import assert_close


@enceladus.jit
def bias_gelu_kernel(x_ptr, bias_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs = tl.program_id(0) * n_cols + cols
    mask = cols < n_cols
    bias = tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    z = tl.load(x_ptr + offs, mask=mask).to(tl.float32) + bias
    tl.store(out_ptr + offs, 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476)), mask=mask)


def bias_gelu(x: mx.array, bias: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """``gelu(x + bias)`` for ``x`` of shape (..., columns) and ``bias`` of shape (columns,).

    Computed in float32 and rounded once to the dtype of ``x``.
    """
    n_cols = x.shape[-1]
    if bias.shape != (n_cols,):
        raise ValueError(f"bias has shape {bias.shape}; x has {n_cols} columns")
    grid = (x.size // n_cols, enceladus.cdiv(n_cols, block))
    out = enceladus.empty_like(x)
    return bias_gelu_kernel[grid](x, bias, out, n_cols, BLOCK=block, num_warps=num_warps)


def mlx_bias_gelu(x: mx.array, bias: mx.array) -> mx.array:
    """What the kernel replaces: MLX's operations, one by one."""
    z = x + bias
    return z * (1 + mx.erf(z * 0.7071067811865476)) / 2


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        x = mx.random.normal((96, 1000)).astype(dtype)
        bias = mx.random.normal((1000,)).astype(dtype)
        expected = mlx_bias_gelu(x.astype(mx.float32), bias.astype(mx.float32))
        assert_close(bias_gelu(x, bias), expected, rtol=tolerance, atol=tolerance)
        print(f"bias_gelu {dtype}: agrees with MLX")


if __name__ == "__main__":
    main()
