"""Count how often each integer occurs, with atomic updates.

Two ways: every element adds one to its bin in memory, which suits many bins; or every program first counts
its share on its own and then adds whole histograms, which suits few bins, where updates would queue up.

    python examples/histogram.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl

#: More bins than this are counted in memory at once.
FEW_BINS = 2048
#: More programs than this add nothing to the speed of counting, but to the histograms that are added up.
MOST_PROGRAMS = 1024


@enceladus.jit
def histogram_elements_kernel(x_ptr, bins_ptr, n, n_bins, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    inside = (offs < n) & (x >= 0) & (x < n_bins)
    tl.atomic_add(bins_ptr + x.to(tl.int32), 1, mask=inside)


@enceladus.jit
def histogram_tiles_kernel(x_ptr, bins_ptr, n, n_bins, BINS: tl.constexpr, BLOCK: tl.constexpr):
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        inside = (offs < n) & (x >= 0) & (x < n_bins)
        counts += tl.histogram(x.to(tl.int32), BINS, mask=inside)
    bins = tl.arange(0, BINS)
    tl.atomic_add(bins_ptr + bins, counts, mask=(bins < n_bins) & (counts > 0))


def _checked(x: mx.array, n_bins: int) -> mx.array:
    if x.dtype == mx.bool_:
        x = x.astype(mx.uint8)
    if not mx.issubdtype(x.dtype, mx.integer):
        raise ValueError(f"a histogram counts integers, not {x.dtype}; compute the bin of each element first")
    if n_bins < 1:
        raise ValueError(f"n_bins must be positive; it is {n_bins}")
    return x


def histogram_of_elements(x: mx.array, n_bins: int, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """As :func:`histogram`: every element updates its bin in memory."""
    x = _checked(x, n_bins)
    grid = (enceladus.cdiv(x.size, block),)
    bins = enceladus.zeros((n_bins,), mx.int32)
    return histogram_elements_kernel[grid](x, bins, x.size, n_bins, BLOCK=block, num_warps=num_warps)


def histogram_of_tiles(x: mx.array, n_bins: int, *, block: int = 1024, num_warps: int = 4) -> mx.array:
    """As :func:`histogram`: every program counts its share, then updates all bins."""
    x = _checked(x, n_bins)
    grid = (min(enceladus.cdiv(x.size, block), MOST_PROGRAMS),)
    bins = enceladus.zeros((n_bins,), mx.int32)
    size = enceladus.next_power_of_2(n_bins)
    return histogram_tiles_kernel[grid](x, bins, x.size, n_bins, BINS=size, BLOCK=block, num_warps=num_warps)


def histogram(x: mx.array, n_bins: int) -> mx.array:
    """How many elements of ``x`` are 0, 1, …, ``n_bins`` - 1: int32 of shape (n_bins,).

    ``x`` has any shape and integer type; values outside that range are not counted. Lazy, like any MLX
    operation. ``ValueError`` for other types and for no bins.
    """
    return (histogram_of_tiles if n_bins <= FEW_BINS else histogram_of_elements)(x, n_bins)


def mlx_histogram(x: mx.array, n_bins: int) -> mx.array:
    """What the kernel replaces: MLX's operations."""
    inside = (x >= 0) & (x < n_bins)
    bins = mx.zeros((n_bins + 1,), mx.int32)
    return bins.at[mx.where(inside, x, n_bins).astype(mx.int32)].add(1)[:n_bins]


def main() -> None:
    for dtype in (mx.uint8, mx.int16, mx.int64):
        x = mx.random.randint(0 if dtype == mx.uint8 else -10, 120, (100, 1000)).astype(dtype)
        for function in (histogram, histogram_of_elements):
            if not mx.array_equal(function(x, 100), mlx_histogram(x, 100)).item():
                raise SystemExit(f"{function.__name__} differs from MLX")
        print(f"histogram {dtype}: agrees with MLX")


if __name__ == "__main__":
    main()
