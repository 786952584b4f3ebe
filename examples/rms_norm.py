"""Root-mean-square normalization of every row, and its gradient.

The kernels are in ``enceladus/ops/kernels/rms_norm.py``; here they are checked against MLX.

Run it with ``python examples/rms_norm.py``.
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops import rms_norm
from enceladus.ops.kernels.rms_norm import (
    load_gradient,
    long_input_gradient_kernel,
    long_rms_norm_kernel,
    long_weight_gradient_kernel,
    rms_norm_backward,
    rms_norm_backward_kernel,
    rms_norm_forward,
    rms_norm_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "load_gradient",
    "long_input_gradient_kernel",
    "long_rms_norm_kernel",
    "long_weight_gradient_kernel",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_backward_kernel",
    "rms_norm_forward",
    "rms_norm_kernel",
]


def main() -> None:
    for dtype, tolerance in ((mx.float32, 2e-5), (mx.float16, 4e-3), (mx.bfloat16, 3e-2)):
        for shape in ((96, 1000), (4, 5000)):
            x, weights = mx.random.normal(shape).astype(dtype), mx.random.normal(shape).astype(mx.float32)
            weight = mx.random.normal(shape[-1:]).astype(dtype)

            def loss(function, *arrays, weights=weights):
                return (function(*arrays, 1e-5).astype(mx.float32) * weights).sum()

            wide = [x.astype(mx.float32), weight.astype(mx.float32)]
            expected = mx.fast.rms_norm(*wide, 1e-5)
            assert_close(rms_norm(x, weight), expected, rtol=tolerance, atol=tolerance)
            got = mx.grad(loss, argnums=(1, 2))(rms_norm, x, weight)
            expected = mx.grad(loss, argnums=(1, 2))(mx.fast.rms_norm, *wide)
            for actual, gradient in zip(got, expected, strict=True):
                assert_close(actual, gradient, rtol=tolerance, atol=10 * tolerance)
            print(f"rms_norm {dtype} {shape}: agrees with MLX, gradients too")


if __name__ == "__main__":
    main()
