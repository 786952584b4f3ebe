"""SwiGLU, the gate of many transformer MLPs: ``silu(gate) * up`` in one kernel, its gradients in another."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl


@enceladus.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, gate * tl.sigmoid(gate) * up, mask=mask)


@enceladus.jit
def swiglu_backward_kernel(cotangent_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    cotangent = tl.load(cotangent_ptr + offs, mask=mask).to(tl.float32)
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    tl.store(d_gate_ptr + offs, cotangent * up * (sigmoid + silu * (1.0 - sigmoid)), mask=mask)
    tl.store(d_up_ptr + offs, cotangent * silu, mask=mask)


def require_alike(**arrays: mx.array) -> None:
    """``ValueError`` unless all arrays have one shape and dtype."""
    (name, first), *rest = arrays.items()
    for other, array in rest:
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            kinds = [f"{a.dtype} {a.shape}" for a in (first, array)]
            raise ValueError(f"{name} and {other} must be alike, but are {kinds[0]} and {kinds[1]}")


def swiglu(gate: mx.array, up: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """``silu(gate) * up`` for arrays of one shape and dtype, computed in float32 and rounded once.

    Lazy, like any MLX operation. ``ValueError`` if they are not alike.
    """
    require_alike(gate=gate, up=up)
    grid = (enceladus.cdiv(gate.size, block),)
    out = enceladus.empty_like(gate)
    return swiglu_kernel[grid](gate, up, out, gate.size, BLOCK=block, num_warps=num_warps)


def swiglu_backward(
    cotangent: mx.array, gate: mx.array, up: mx.array, *, block: int = 1024, num_warps: int = 4
) -> tuple[mx.array, mx.array]:
    """The gradients of :func:`swiglu` for ``gate`` and ``up``, given that for its result."""
    require_alike(gate=gate, up=up, cotangent=cotangent)
    grid = (enceladus.cdiv(gate.size, block),)
    outs = enceladus.empty_like(gate), enceladus.empty_like(up)
    return swiglu_backward_kernel[grid](
        cotangent, gate, up, *outs, gate.size, BLOCK=block, num_warps=num_warps
    )
