"""GeGLU: ``gelu(gate) * up`` in one kernel, and both gradients in another.

GELU is exact, with the error function, or the usual approximation by tanh.
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.swiglu import require_alike


@enceladus.jit
def gelu_and_slope(x, APPROXIMATE: tl.constexpr):
    """GELU and its derivative."""
    if APPROXIMATE:
        t = tl.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        # The slope of tanh has gone to 0 long before the square of x overflows.
        near = tl.clamp(x, -20.0, 20.0)
        slope = 0.7978845608028654 * (1.0 + 0.134145 * near * near)
        return 0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * near * (1.0 - t * t) * slope
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return x * below, below + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@enceladus.jit
def geglu_kernel(gate_ptr, up_ptr, out_ptr, n, APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    gelu, _ = gelu_and_slope(gate, APPROXIMATE)
    tl.store(out_ptr + offs, gelu * up, mask=mask)


@enceladus.jit
def geglu_backward_kernel(
    cotangent_ptr,
    gate_ptr,
    up_ptr,
    d_gate_ptr,
    d_up_ptr,
    n,
    APPROXIMATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    cotangent = tl.load(cotangent_ptr + offs, mask=mask).to(tl.float32)
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    gelu, slope = gelu_and_slope(gate, APPROXIMATE)
    tl.store(d_gate_ptr + offs, cotangent * up * slope, mask=mask)
    tl.store(d_up_ptr + offs, cotangent * gelu, mask=mask)


def geglu(
    gate: mx.array, up: mx.array, *, approximate: bool = False, block: int = 1024, num_warps: int = 4
) -> mx.array:
    """``gelu(gate) * up`` for arrays of one shape and dtype, computed in float32 and rounded once.

    Lazy, like any MLX operation. ``ValueError`` if they are not alike.
    """
    require_alike(gate=gate, up=up)
    grid = (enceladus.cdiv(gate.size, block),)
    out = enceladus.empty_like(gate)
    return geglu_kernel[grid](
        gate, up, out, gate.size, APPROXIMATE=approximate, BLOCK=block, num_warps=num_warps
    )


def geglu_backward(
    cotangent: mx.array,
    gate: mx.array,
    up: mx.array,
    *,
    approximate: bool = False,
    block: int = 1024,
    num_warps: int = 4,
) -> tuple[mx.array, mx.array]:
    """The gradients of :func:`geglu` for ``gate`` and ``up``, given that for its result."""
    require_alike(gate=gate, up=up, cotangent=cotangent)
    grid = (enceladus.cdiv(gate.size, block),)
    outs = enceladus.empty_like(gate), enceladus.empty_like(up)
    return geglu_backward_kernel[grid](
        cotangent, gate, up, *outs, gate.size, APPROXIMATE=approximate, BLOCK=block, num_warps=num_warps
    )
