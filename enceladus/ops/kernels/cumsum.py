"""Running sums along the last axis, for many rows and for a single long one.

Many rows: one program a row, which carries the running total from block to block. Few long rows would leave
most of a GPU idle that way, so there blocks are programs, in three launches: the total of every block, the
sums of the totals before each block, and the scan of every block on top of those.
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl

#: With fewer rows than this, rows are worth cutting up.
MANY_ROWS = 64

# An exclusive sum is the inclusive one of the row moved by an element: SHIFT is -1, or 1 in reverse.


@enceladus.jit
def load_block(x_ptr, row, start, n_cols, SHIFT: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr):
    cols = start + SHIFT + tl.arange(0, BLOCK)
    inside = (cols < n_cols) if SHIFT >= 0 else ((cols >= 0) & (cols < n_cols))
    return tl.load(x_ptr + row * n_cols + cols, mask=inside).to(ACC)


@enceladus.jit
def scan_rows_kernel(
    x_ptr,
    out_ptr,
    n_cols,
    REVERSE: tl.constexpr,
    SHIFT: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program, block after block."""
    row = tl.program_id(0)
    n_blocks = tl.cdiv(n_cols, BLOCK)
    total = tl.full((), 0, ACC)
    for i in range(n_blocks):
        start = (n_blocks - 1 - i if REVERSE else i) * BLOCK
        x = load_block(x_ptr, row, start, n_cols, SHIFT, ACC, BLOCK)
        cols = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + row * n_cols + cols, tl.cumsum(x, 0, REVERSE) + total, mask=cols < n_cols)
        total += tl.sum(x, 0)


@enceladus.jit
def block_totals_kernel(
    x_ptr, totals_ptr, n_cols, SHIFT: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(1)
    x = load_block(x_ptr, row, tl.program_id(0) * BLOCK, n_cols, SHIFT, ACC, BLOCK)
    tl.store(totals_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.sum(x, 0))


@enceladus.jit
def scan_blocks_kernel(
    x_ptr,
    before_ptr,
    out_ptr,
    n_cols,
    REVERSE: tl.constexpr,
    SHIFT: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block a program; ``before_ptr`` holds the sums before each, or is None for rows of one block."""
    row = tl.program_id(1)
    start = tl.program_id(0) * BLOCK
    x = load_block(x_ptr, row, start, n_cols, SHIFT, ACC, BLOCK)
    sums = tl.cumsum(x, 0, REVERSE)
    if before_ptr is not None:
        sums += tl.load(before_ptr + row * tl.num_programs(0) + tl.program_id(0))
    cols = start + tl.arange(0, BLOCK)
    tl.store(out_ptr + row * n_cols + cols, sums, mask=cols < n_cols)


#: The type that sums are computed in: MLX's, for the arrays between launches, and that of kernels.
_ACCUMULATORS = {
    mx.int64: (mx.int64, tl.int64),
    mx.uint64: (mx.uint64, tl.uint64),
    **dict.fromkeys((mx.float32, mx.float16, mx.bfloat16), (mx.float32, tl.float32)),
    **dict.fromkeys((mx.int8, mx.int16, mx.int32), (mx.int32, tl.int32)),
    **dict.fromkeys((mx.uint8, mx.uint16, mx.uint32), (mx.uint32, tl.uint32)),
}


def cumsum(
    x: mx.array, *, reverse: bool = False, inclusive: bool = True, block: int = 4096, num_warps: int = 8
) -> mx.array:
    """Running sums along the last axis, as ``mx.cumsum(x, -1, reverse=…, inclusive=…)`` gives them.

    Any shape but scalars, any dtype that kernels know. 16-bit floats add up in float32 and are rounded once
    an element. Lazy, like any MLX operation. ``ValueError`` for scalars and other dtypes.
    """
    if x.dtype == mx.bool_:
        x = x.astype(mx.int32)
    if x.ndim == 0 or x.dtype not in _ACCUMULATORS:
        raise ValueError(f"cumsum needs an array of numbers, not {x.dtype} of shape {x.shape}")
    if x.size == 0:
        return x
    between, acc = _ACCUMULATORS[x.dtype]
    n_cols = x.shape[-1]
    n_rows = x.size // n_cols
    block = min(block, enceladus.next_power_of_2(n_cols))
    n_blocks = enceladus.cdiv(n_cols, block)
    shift = 0 if inclusive else 1 if reverse else -1
    out = enceladus.empty_like(x)
    options = {"SHIFT": shift, "ACC": acc, "BLOCK": block, "num_warps": num_warps}
    if 1 < n_blocks <= 4 or (n_blocks > 1 and n_rows >= MANY_ROWS):
        return scan_rows_kernel[(n_rows,)](x, out, n_cols, REVERSE=reverse, **options)
    grid = (n_blocks, n_rows)
    before = None
    if n_blocks > 1:
        totals = block_totals_kernel[grid](x, enceladus.empty((n_rows, n_blocks), between), n_cols, **options)
        before = cumsum(totals, reverse=reverse, inclusive=False, block=block, num_warps=num_warps)
    return scan_blocks_kernel[grid](x, before, out, n_cols, REVERSE=reverse, **options)
