"""Add two arrays: the smallest useful kernel.

    python examples/vector_add.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl


@enceladus.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


def vector_add(x: mx.array, y: mx.array, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """``x + y`` for arrays of one shape and dtype; lazy, like any MLX operation."""
    grid = (enceladus.cdiv(x.size, block),)
    return add_kernel[grid](x, y, enceladus.empty_like(x), x.size, BLOCK=block, num_warps=num_warps)


def main() -> None:
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        x = mx.random.normal((98_432,)).astype(dtype)
        y = mx.random.normal((98_432,)).astype(dtype)
        same = mx.array_equal(vector_add(x, y), x + y).item()
        print(f"vector_add {dtype}: {'equal to x + y' if same else 'DIFFERS from x + y'}")
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
