"""GELU with the error function, as one kernel with a helper function.

The kernels are in ``enceladus/ops/kernels/gelu.py``; here they are checked against MLX:

    python examples/gelu.py
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops.kernels.gelu import (
    fused_gelu,
    gelu,
    gelu_kernel,
    wide_gelu_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "fused_gelu",
    "gelu",
    "gelu_kernel",
    "mlx_gelu",
    "wide_gelu_kernel",
]


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
