"""Run a fused GELU and a vector add, check them against MLX, and show the Metal they became.

    make demo
"""

from __future__ import annotations

import sys

import mlx.core as mx
from gelu import gelu_kernel, mlx_gelu
from vector_add import add_kernel

import enceladus
from enceladus.mlx_bridge import engines


def check(name: str, actual: mx.array, expected: mx.array, tolerance: float) -> bool:
    """Print how far two arrays are apart; whether that is within ``tolerance``."""
    error = mx.abs(actual - expected).max().item()
    passed = actual.shape == expected.shape and error <= tolerance
    print(f"  {'ok  ' if passed else 'FAIL'}  {name:42s} largest difference from MLX: {error:.1e}")
    return passed


def main() -> int:
    mx.random.seed(0)
    x = mx.random.normal((98_432,))
    y = mx.random.normal((98_432,))
    grid = (enceladus.cdiv(x.size, 1024),)

    # Into a fresh output: described, never allocated by Python; the launch returns it, still lazy.
    fresh = gelu_kernel[grid](x, enceladus.empty_like(x), x.size, BLOCK=1024)

    # Into an array that exists: `out` is the result afterwards. The grid may depend on the arguments.
    out = mx.zeros_like(x)
    gelu_kernel[lambda a: (enceladus.cdiv(a["n"], a["BLOCK"]),)](x, out, x.size, BLOCK=1024, num_warps=8)

    total = add_kernel[grid](x, y, enceladus.empty_like(x), x.size, BLOCK=1024)

    print(f"Enceladus {enceladus.__version__} on MLX {mx.__version__}: engine {engines.choose()!r}")
    print(f"{x.size:,} float32 elements")
    passed = [
        check("gelu into a fresh output", fresh, mlx_gelu(x), 1e-6),
        check("gelu into an existing array, 8 SIMD groups", out, mlx_gelu(x), 1e-6),
        check("vector add", total, x + y, 0.0),
    ]

    print("\nThe Metal kernel that the vector add became:\n")
    metal = add_kernel.warmup(x, y, enceladus.empty_like(x), x.size, BLOCK=1024, grid=grid).metal
    # The lines before are its helpers, the same for every kernel that moves 4-byte elements.
    print(metal[metal.index("[[kernel]]") :].strip())
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
