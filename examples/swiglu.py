"""SwiGLU, the gate of many transformer MLPs: ``silu(gate) * up`` in one kernel, its gradients in another.

The kernels are in ``enceladus/ops/kernels/swiglu.py``; here they are checked against MLX:

    python examples/swiglu.py
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops import swiglu as differentiable_swiglu
from enceladus.ops.kernels.swiglu import (
    require_alike,
    swiglu,
    swiglu_backward,
    swiglu_backward_kernel,
    swiglu_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "differentiable_swiglu",
    "mlx_swiglu",
    "require_alike",
    "swiglu",
    "swiglu_backward",
    "swiglu_backward_kernel",
    "swiglu_kernel",
]


def mlx_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """What the kernel replaces: MLX's operations, one by one."""
    return gate * mx.sigmoid(gate) * up


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        gate = mx.random.normal((96, 1000)).astype(dtype)
        up = mx.random.normal((96, 1000)).astype(dtype)
        expected = mlx_swiglu(gate.astype(mx.float32), up.astype(mx.float32))
        assert_close(swiglu(gate, up), expected, rtol=tolerance, atol=tolerance)
        cotangent = mx.random.normal((96, 1000)).astype(dtype)
        wide = [a.astype(mx.float32) for a in (gate, up, cotangent)]
        _, gradients = mx.vjp(mlx_swiglu, wide[:2], wide[2:])
        for actual, gradient in zip(swiglu_backward(cotangent, gate, up), gradients, strict=True):
            assert_close(actual, gradient, rtol=tolerance, atol=tolerance)
        print(f"swiglu {dtype}: agrees with MLX, forward and backward")


if __name__ == "__main__":
    main()
