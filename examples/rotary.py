"""Rotary position embedding, forward and backward, as ``mx.fast.rope`` computes it.

Every element is read once and written once. Angles are kept as fractions of a turn in 64-bit fixed point: a
position times a frequency then wraps exactly where a turn ends, so that sine and cosine are as accurate at
position a million as at position one, and need no reduction of large arguments.

The kernels are in ``enceladus/ops/kernels/rotary.py``; here they are checked against MLX:

    python examples/rotary.py
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops import rope
from enceladus.ops.kernels.rotary import (
    frequencies,
    rotary,
    rotary_backward,
    rotary_kernel,
    sine_and_cosine,
)
from enceladus.testing import assert_close

__all__ = [
    "differentiable_rotary",
    "frequencies",
    "mlx_rotary",
    "rotary",
    "rotary_backward",
    "rotary_kernel",
    "sine_and_cosine",
]


def differentiable_rotary(x: mx.array, dims: int | None = None, **options) -> mx.array:
    """:func:`rotary` with a gradient on every engine."""
    return rope(x, x.shape[-1] if dims is None else dims, **options)


def mlx_rotary(
    x: mx.array,
    dims: int | None = None,
    *,
    traditional: bool = False,
    base: float = 10000.0,
    scale: float = 1.0,
    offset: int = 0,
) -> mx.array:
    """MLX's own kernel for the same."""
    dims = x.shape[-1] if dims is None else dims
    return mx.fast.rope(x, dims, traditional=traditional, base=base, scale=scale, offset=offset)


def main() -> None:
    for dtype, tolerance in ((mx.float32, 3e-5), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        x = mx.random.normal((2, 3, 100, 64)).astype(dtype)
        for traditional in (False, True):
            expected = mlx_rotary(x.astype(mx.float32), traditional=traditional, offset=5)
            actual = rotary(x, traditional=traditional, offset=5)
            assert_close(actual, expected, rtol=tolerance, atol=tolerance)
            back = rotary_backward(actual, traditional=traditional, offset=5)
            assert_close(back, x, rtol=3 * tolerance, atol=3 * tolerance)
        print(f"rotary {dtype}: agrees with mx.fast.rope, and its backward undoes it")


if __name__ == "__main__":
    main()
