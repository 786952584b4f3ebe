"""SwiGLU, the gate of many transformer MLPs: ``silu(gate) * up`` in one kernel.

    python examples/swiglu.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.testing import assert_close


@enceladus.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, gate * tl.sigmoid(gate) * up, mask=mask)


def swiglu(gate: mx.array, up: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """``silu(gate) * up`` for arrays of one shape and dtype, computed in float32 and rounded once."""
    grid = (enceladus.cdiv(gate.size, block),)
    out = enceladus.empty_like(gate)
    return swiglu_kernel[grid](gate, up, out, gate.size, BLOCK=block, num_warps=num_warps)


def mlx_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """What the kernel replaces: MLX's operations, one by one."""
    return gate * mx.sigmoid(gate) * up


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        gate = mx.random.normal((96, 1000)).astype(dtype)
        up = mx.random.normal((96, 1000)).astype(dtype)
        expected = mlx_swiglu(gate.astype(mx.float32), up.astype(mx.float32))
        assert_close(swiglu(gate, up), expected, rtol=tolerance, atol=tolerance)
        print(f"swiglu {dtype}: agrees with MLX")


if __name__ == "__main__":
    main()
