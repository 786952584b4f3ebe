"""Dropout that keeps no mask: the backward pass draws the same random numbers again from the seed.

Philox is a counter-based generator: a number is a function of the seed and of its place. So nothing has to be
stored between the passes, and the result is the same on every device.
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl

#: Elements of a program. One step of the generator gives four numbers, for elements a quarter of this apart.
BLOCK = 4096


@enceladus.jit
def drop(x_ptr, out_ptr, n, p, scale, seed, BLOCK: tl.constexpr):
    quarter: tl.constexpr = BLOCK // 4
    offs = tl.arange(0, quarter)
    randoms = tl.rand4x(seed, tl.program_id(0) * quarter + offs)
    for i in tl.static_range(4):
        place = tl.program_id(0) * BLOCK + i * quarter + offs
        x = tl.load(x_ptr + place, mask=place < n).to(tl.float32)
        tl.store(out_ptr + place, tl.where(randoms[i] >= p, x * scale, 0.0), mask=place < n)


@enceladus.jit(do_not_specialize=["seed"])
def dropout_kernel(x_ptr, out_ptr, n, p, scale, seed, BLOCK: tl.constexpr):
    drop(x_ptr, out_ptr, n, p, scale, seed, BLOCK)


@enceladus.jit
def keyed_dropout_kernel(x_ptr, key_ptr, out_ptr, n, p, scale, BLOCK: tl.constexpr):
    """The seed is in memory, as two uint32: the key may be computed in the same graph."""
    seed = (tl.load(key_ptr).to(tl.uint64) << 32) | tl.load(key_ptr + 1).to(tl.uint64)
    drop(x_ptr, out_ptr, n, p, scale, seed, BLOCK)


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


def keyed_dropout(x: mx.array, p: float, key: mx.array, *, num_warps: int = 4) -> mx.array:
    """:func:`dropout` with the seed in an array, as ``mx.random.key`` gives it: uint32 of shape (2,)."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1; it is {p}")
    if key.shape != (2,) or key.dtype != mx.uint32:
        raise ValueError(f"key must be uint32 of shape (2,); it is {key.dtype} of shape {key.shape}")
    scale = 1 / (1 - p) if p < 1 else 0.0
    grid = (enceladus.cdiv(x.size, BLOCK),)
    out = enceladus.empty_like(x)
    return keyed_dropout_kernel[grid](
        x, key, out, x.size, float(p), float(scale), BLOCK=BLOCK, num_warps=num_warps
    )
