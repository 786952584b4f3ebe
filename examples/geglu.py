"""GeGLU: ``gelu(gate) * up`` in one kernel, and both gradients in another.

GELU is exact, with the error function, or the usual approximation by tanh.

    python examples/geglu.py
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

import enceladus
import enceladus.language as tl
from enceladus.testing import assert_close


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


def require_alike(**arrays: mx.array) -> None:
    """``ValueError`` unless all arrays have one shape and dtype."""
    (name, first), *rest = arrays.items()
    for other, array in rest:
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            kinds = [f"{a.dtype} {a.shape}" for a in (first, array)]
            raise ValueError(f"{name} and {other} must be alike, but are {kinds[0]} and {kinds[1]}")


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


def differentiable_geglu(gate: mx.array, up: mx.array, *, approximate: bool = False) -> mx.array:
    """:func:`geglu` with a gradient on every engine."""

    @mx.custom_function
    def call(gate: mx.array, up: mx.array) -> mx.array:
        return geglu(gate, up, approximate=approximate)

    @call.vjp
    def call_vjp(primals, cotangent, _output):
        return geglu_backward(cotangent, *primals, approximate=approximate)

    return call(gate, up)


def mlx_geglu(gate: mx.array, up: mx.array, *, approximate: bool = False) -> mx.array:
    """What the kernel replaces: MLX's operations."""
    return (nn.gelu_approx(gate) if approximate else nn.gelu(gate)) * up


def main() -> None:
    for dtype, tolerance in ((mx.float32, 2e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        gate, up, cotangent = (mx.random.normal((96, 1000)).astype(dtype) for _ in range(3))
        wide = [a.astype(mx.float32) for a in (gate, up, cotangent)]
        for approximate in (False, True):
            actual = geglu(gate, up, approximate=approximate)
            assert_close(
                actual, mlx_geglu(*wide[:2], approximate=approximate), rtol=tolerance, atol=tolerance
            )

            def call(gate: mx.array, up: mx.array, approximate: bool = approximate) -> mx.array:
                return mlx_geglu(gate, up, approximate=approximate)

            _, expected = mx.vjp(call, wide[:2], wide[2:])
            gradients = geglu_backward(cotangent, gate, up, approximate=approximate)
            for gradient, wanted in zip(gradients, expected, strict=True):
                assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)
        print(f"geglu {dtype}: agrees with MLX, forward and backward, exact and approximate")


if __name__ == "__main__":
    main()
