"""Softmax of every row: in one block, or for rows of any length in a loop over blocks.

The kernels are in ``enceladus/ops/kernels/softmax.py``; here they are checked against MLX.

Run it with ``python examples/softmax.py``.
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops.kernels.softmax import (
    combine,
    include,
    online_softmax_kernel,
    softmax,
    softmax_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "combine",
    "include",
    "mlx_softmax",
    "online_softmax_kernel",
    "softmax",
    "softmax_kernel",
]


def mlx_softmax(x: mx.array) -> mx.array:
    """What the kernels replace: MLX's fused operation."""
    return mx.softmax(x, axis=-1, precise=True)


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        for shape in ((96, 1000), (4, 10_000)):
            x = mx.random.normal(shape).astype(dtype)
            expected = mlx_softmax(x.astype(mx.float32))
            assert_close(softmax(x), expected, rtol=tolerance, atol=tolerance)
            print(f"softmax {dtype} {shape}: agrees with MLX")


if __name__ == "__main__":
    main()
