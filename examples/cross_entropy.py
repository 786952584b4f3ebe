"""Cross entropy of logits and its gradient in one kernel, with label smoothing and ignored rows.

The kernels are in ``enceladus/ops/kernels/cross_entropy.py``; here they are checked against MLX.

Run it with ``python examples/cross_entropy.py``.
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops.kernels.cross_entropy import (
    cross_entropy_and_gradient,
    cross_entropy_kernel,
    launch,
    mean_scale,
)
from enceladus.ops.row_functions import row_losses as cross_entropy
from enceladus.testing import assert_close

__all__ = [
    "cross_entropy",
    "cross_entropy_and_gradient",
    "cross_entropy_kernel",
    "launch",
    "mean_scale",
    "mlx_cross_entropy",
]


def mlx_cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """What the kernel replaces, without label smoothing and ignored rows."""
    picked = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    return mx.logsumexp(logits, axis=-1) - picked


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-5), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        for shape in ((96, 1000), (4, 10_000)):
            logits = mx.random.normal(shape).astype(dtype)
            targets = mx.random.randint(0, shape[-1], shape[:-1])
            loss, gradient = cross_entropy_and_gradient(logits, targets)

            def mean_loss(logits, targets=targets):
                return mlx_cross_entropy(logits, targets).mean()

            expected = mx.value_and_grad(mean_loss)(logits.astype(mx.float32))
            assert_close(loss, expected[0], rtol=1e-5, atol=1e-5)
            assert_close(gradient, expected[1], rtol=tolerance, atol=tolerance / 1000)
            print(f"cross_entropy {dtype} {shape}: agrees with MLX, gradient too")


if __name__ == "__main__":
    main()
