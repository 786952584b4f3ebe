"""Dropout that keeps no mask: the backward pass draws the same random numbers again from the seed.

Philox is a counter-based generator: a number is a function of the seed and of its place. So nothing has to be
stored between the passes, and the result is the same on every device.

The kernels are in ``enceladus/ops/kernels/dropout.py``; here they are checked against MLX:

    python examples/dropout.py
"""

from __future__ import annotations

import mlx.core as mx

from enceladus import ops
from enceladus.ops.kernels.dropout import (
    BLOCK,
    dropout,
    dropout_backward,
    dropout_kernel,
)

__all__ = [
    "BLOCK",
    "differentiable_dropout",
    "dropout",
    "dropout_backward",
    "dropout_kernel",
]


def differentiable_dropout(x: mx.array, p: float, seed: int) -> mx.array:
    """:func:`dropout` with a gradient on every engine."""
    return ops.dropout(x, p, seed=seed)


def main() -> None:
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        x = mx.ones((100, 1000)).astype(dtype)
        out = dropout(x, 0.25, seed=7)
        kept = (out != 0).mean().item()
        _, (gradient,) = mx.vjp(lambda x: differentiable_dropout(x, 0.25, seed=7), [x], [x])
        same = mx.array_equal(gradient, out).item()
        print(f"dropout {dtype}: {kept:.3f} kept, mean {out.astype(mx.float32).mean().item():.3f}")
        if not same or abs(kept - 0.75) > 0.01:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
