"""Layer normalization of every row, and its gradient.

The kernels are in ``enceladus/ops/kernels/layer_norm.py``; here they are checked against MLX.

Run it with ``python examples/layer_norm.py``.
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops import layer_norm
from enceladus.ops.kernels.layer_norm import (
    layer_norm_backward,
    layer_norm_backward_kernel,
    layer_norm_forward,
    layer_norm_kernel,
    load_gradient,
    load_weight,
    long_input_gradient_kernel,
    long_layer_norm_kernel,
    long_parameter_gradient_kernel,
    scale_and_shift,
)
from enceladus.testing import assert_close

__all__ = [
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_backward_kernel",
    "layer_norm_forward",
    "layer_norm_kernel",
    "load_gradient",
    "load_weight",
    "long_input_gradient_kernel",
    "long_layer_norm_kernel",
    "long_parameter_gradient_kernel",
    "scale_and_shift",
]


def main() -> None:
    for dtype, tolerance in ((mx.float32, 2e-5), (mx.float16, 4e-3), (mx.bfloat16, 3e-2)):
        for shape in ((96, 1000), (4, 5000)):
            x, weights = mx.random.normal(shape).astype(dtype), mx.random.normal(shape).astype(mx.float32)
            weight, bias = (mx.random.normal(shape[-1:]).astype(dtype) for _ in range(2))

            def loss(function, *arrays, weights=weights):
                return (function(*arrays, 1e-5).astype(mx.float32) * weights).sum()

            arrays = (x, weight, bias)
            wide = [a.astype(mx.float32) for a in arrays]
            assert_close(layer_norm(*arrays), mx.fast.layer_norm(*wide, 1e-5), rtol=tolerance, atol=tolerance)
            got = mx.grad(loss, argnums=(1, 2, 3))(layer_norm, *arrays)
            expected = mx.grad(loss, argnums=(1, 2, 3))(mx.fast.layer_norm, *wide)
            for actual, gradient in zip(got, expected, strict=True):
                assert_close(actual, gradient, rtol=tolerance, atol=10 * tolerance)
            print(f"layer_norm {dtype} {shape}: agrees with MLX, gradients too")


if __name__ == "__main__":
    main()
