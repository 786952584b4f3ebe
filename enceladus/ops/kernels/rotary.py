"""Rotary position embedding, forward and backward, as ``mx.fast.rope`` computes it.

Every element is read once and written once. Angles are kept as fractions of a turn in 64-bit fixed point: a
position times a frequency then wraps exactly where a turn ends, so that sine and cosine are as accurate at
position a million as at position one, and need no reduction of large arguments.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import mlx.core as mx

import enceladus
import enceladus.language as tl


@enceladus.jit
def sine_and_cosine(turn):
    """Of an angle given as a fraction of a turn, in units of 2^-32 (uint32): to 2 units of 2^-24."""
    quarter = (turn + 0x20000000) >> 30
    rest = (turn - (quarter << 30)).to(tl.int32, bitcast=True)  # an eighth of a turn to either side
    x = rest.to(tl.float32) * 1.4629180792671596e-09
    z = x * x
    sine = x + x * z * (-0.16666655 + z * (0.008332178 + z * -0.00019517297))
    cosine = 1.0 - 0.5 * z + z * z * (0.041666647 + z * (-0.0013887368 + z * 2.443845e-05))
    odd = (quarter & 1) != 0
    s, c = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    return tl.where(quarter >= 2, -s, s), tl.where(((quarter + 1) & 2) != 0, -c, c)


@enceladus.jit
def rotary_kernel(
    x_ptr,
    frequency_ptr,
    out_ptr,
    n_heads,
    length,
    offset,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    TRADITIONAL: tl.constexpr,
    BACKWARD: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    REST: tl.constexpr,
):
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None, None]
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[None, :, None]
    pairs = tl.arange(0, COLS)[None, None, :]
    high = tl.load(frequency_ptr + pairs, mask=pairs < PAIRS)
    low = tl.load(frequency_ptr + PAIRS + pairs, mask=pairs < PAIRS)
    position = (offset + rows).to(tl.uint32)
    sine, cosine = sine_and_cosine(position * high + tl.umulhi(position, low))
    if BACKWARD:
        sine = -sine
    start = (heads * length + rows) * DIM
    if TRADITIONAL:
        first = start + 2 * pairs
        second = first + 1
    else:
        first = start + pairs
        second = first + PAIRS
    inside = (heads < n_heads) & (rows < length) & (pairs < PAIRS)
    a = tl.load(x_ptr + first, mask=inside).to(tl.float32)
    b = tl.load(x_ptr + second, mask=inside).to(tl.float32)
    tl.store(out_ptr + first, a * cosine - b * sine, mask=inside)
    tl.store(out_ptr + second, a * sine + b * cosine, mask=inside)
    if DIM > 2 * PAIRS:  # what is not rotated
        cols = 2 * PAIRS + tl.arange(0, REST)[None, None, :]
        inside = (heads < n_heads) & (rows < length) & (cols < DIM)
        tl.store(out_ptr + start + cols, tl.load(x_ptr + start + cols, mask=inside), mask=inside)


@functools.lru_cache(maxsize=64)
def frequencies(pairs: int, base: float, scale: float) -> mx.array:
    """``scale * base^(-i / pairs)`` radians a position for pair ``i``: fractions of a turn times 2^64.

    uint32 of shape (2, pairs): the high words, then the low words.
    """
    turns = [Fraction(scale * base ** (-i / pairs) / math.tau) for i in range(pairs)]
    words = [round(turn * 2**64) % 2**64 for turn in turns]
    table = mx.array([w >> 32 for w in words] + [w & 0xFFFFFFFF for w in words], dtype=mx.uint32)
    return table.reshape(2, pairs)


def rotary(
    x: mx.array,
    dims: int | None = None,
    *,
    traditional: bool = False,
    base: float = 10000.0,
    scale: float = 1.0,
    offset: int = 0,
    backward: bool = False,
    block: int = 1024,
    num_warps: int = 4,
) -> mx.array:
    """Rotate pairs of the last dimension of ``x``, of shape (..., length, dim), by position-dependent angles.

    Row ``p`` turns its pair ``i`` by ``(offset + p) * scale * base^(-2 i / dims)`` radians, or back if
    ``backward``. Pairs are elements ``2 i`` and ``2 i + 1`` if ``traditional``, else ``i`` and
    ``i + dims / 2``. ``dims`` (default: dim) counts the elements that take part; the others are copied.
    Computed in float32 and rounded once to the dtype of ``x``. ``ValueError`` for odd ``dims`` and for
    positions outside 0 to 2^31 - 1.
    """
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; it needs (..., length, dim)")
    length, dim = x.shape[-2:]
    dims = dim if dims is None else dims
    if dims % 2 or not 0 < dims <= dim:
        raise ValueError(f"dims must be even, from 2 to the last dimension of x, {dim}; it is {dims}")
    if offset < 0 or offset + length >= 2**31:
        raise ValueError(f"positions go from {offset} to {offset + length - 1}: outside 0 to 2^31 - 1")
    if x.size == 0:
        return x
    pairs, n_heads = dims // 2, x.size // (length * dim)
    cols = enceladus.next_power_of_2(pairs)
    rows = max(1, min(block // cols, enceladus.next_power_of_2(length)))
    # Several heads in a program: they share sines and cosines.
    heads = max(1, min(4 * block // (rows * cols), enceladus.next_power_of_2(n_heads)))
    grid = (enceladus.cdiv(length, rows), enceladus.cdiv(n_heads, heads))
    return rotary_kernel[grid](
        x,
        frequencies(pairs, base, scale),
        enceladus.empty_like(x),
        n_heads,
        length,
        offset,
        DIM=dim,
        PAIRS=pairs,
        TRADITIONAL=traditional,
        BACKWARD=backward,
        HEADS=heads,
        ROWS=rows,
        COLS=cols,
        REST=enceladus.next_power_of_2(max(1, dim - dims)),
        num_warps=num_warps,
    )


def rotary_backward(cotangent: mx.array, dims: int | None = None, **options) -> mx.array:
    """The gradient of :func:`rotary` for ``x``, given that for its result: the rotation back."""
    return rotary(cotangent, dims, backward=True, **options)
