"""GeGLU: ``gelu(gate) * up`` in one kernel, and both gradients in another.

GELU is exact, with the error function, or the usual approximation by tanh.

The kernels are in ``enceladus/ops/kernels/geglu.py``; here they are checked against MLX:

    python examples/geglu.py
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from enceladus.ops import geglu as differentiable_geglu
from enceladus.ops.kernels.geglu import (
    geglu,
    geglu_backward,
    geglu_backward_kernel,
    geglu_kernel,
    gelu_and_slope,
    require_alike,
)
from enceladus.testing import assert_close

__all__ = [
    "differentiable_geglu",
    "geglu",
    "geglu_backward",
    "geglu_backward_kernel",
    "geglu_kernel",
    "gelu_and_slope",
    "mlx_geglu",
    "require_alike",
]


def mlx_geglu(gate: mx.array, up: mx.array, *, approximate: bool = False) -> mx.array:
    """What the kernel replaces: MLX's operations."""
    return (nn.gelu_approx(gate) if approximate else nn.gelu(gate)) * up


def main() -> None:
    for dtype, tolerance in ((mx.float32, 2e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        gate, up, cotangent = (mx.random.normal((96, 1000)).astype(dtype) for _ in range(3))
        wide = [a.astype(mx.float32) for a in (gate, up, cotangent)]
        for approximate in (False, True):
            actual = geglu(gate, up, approximate=approximate)
            assert_close(
                actual, mlx_geglu(*wide[:2], approximate=approximate), rtol=tolerance, atol=tolerance
            )

            def call(gate: mx.array, up: mx.array, approximate: bool = approximate) -> mx.array:
                return mlx_geglu(gate, up, approximate=approximate)

            _, expected = mx.vjp(call, wide[:2], wide[2:])
            gradients = geglu_backward(cotangent, gate, up, approximate=approximate)
            for gradient, wanted in zip(gradients, expected, strict=True):
                assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
        print(f"geglu {dtype}: agrees with MLX, forward and backward, exact and approximate")


if __name__ == "__main__":
    main()
