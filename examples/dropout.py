"""Dropout that keeps no mask: the backward pass draws the same random numbers again from the seed.

Philox is a counter-based generator: a number is a function of the seed and of its place. So nothing has to be
stored between the passes, and the result is the same on every device.

    python examples/dropout.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl

#: Elements of a program. One step of the generator gives four numbers, for elements a quarter of this apart.
BLOCK = 4096


@enceladus.jit(do_not_specialize=["seed"])
def dropout_kernel(x_ptr, out_ptr, n, p, scale, seed, BLOCK: tl.constexpr):
    quarter: tl.constexpr = BLOCK // 4
    offs = tl.arange(0, quarter)
    randoms = tl.rand4x(seed, tl.program_id(0) * quarter + offs)
    for i in tl.static_range(4):
        place = tl.program_id(0) * BLOCK + i * quarter + offs
        x = tl.load(x_ptr + place, mask=place < n).to(tl.float32)
        tl.store(out_ptr + place, tl.where(randoms[i] >= p, x * scale, 0.0), mask=place < n)


def dropout(x: mx.array, p: float, seed: int, *, num_warps: int = 4) -> mx.array:
    """``x`` with each element zeroed with probability ``p``, the others divided by ``1 - p``.

    Any shape; float32, float16 or bfloat16; lazy, like any MLX operation. Elements that are zeroed depend on
    ``seed`` (64 bits, signed) and their places only. ``ValueError`` for a ``p`` outside 0 to 1.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1; it is {p}")
    scale = 1 / (1 - p) if p < 1 else 0.0
    grid = (enceladus.cdiv(x.size, BLOCK),)
    out = enceladus.empty_like(x)
    return dropout_kernel[grid](
        x, out, x.size, float(p), float(scale), seed, BLOCK=BLOCK, num_warps=num_warps
    )


def dropout_backward(cotangent: mx.array, p: float, seed: int, *, num_warps: int = 4) -> mx.array:
    """The gradient of :func:`dropout` for ``x``, given that for its result: the same elements zeroed."""
    return dropout(cotangent, p, seed, num_warps=num_warps)


def differentiable_dropout(x: mx.array, p: float, seed: int) -> mx.array:
    """:func:`dropout` with a gradient on every engine."""

    @mx.custom_function
    def call(x: mx.array) -> mx.array:
        return dropout(x, p, seed)

    @call.vjp
    def call_vjp(_x: mx.array, cotangent: mx.array, _out: mx.array) -> mx.array:
        return dropout_backward(cotangent, p, seed)

    return call(x)


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
