"""Sums of columns, and the logarithm of the sum of exponentials of every row."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.rows import choose_tile, count_rows
from enceladus.ops.kernels.softmax import combine, include

#: Elements of a tile of the column sum, and the programs that a large array is divided among.
TILE, PROGRAMS = 4096, 512
#: Up to this many rows, narrow tiles make enough programs without dividing the rows.
FEW_ROWS = 512


@enceladus.jit(do_not_specialize=["n_rows", "rows_per_program"])
def column_sum_kernel(
    x_ptr, out_ptr, n_rows, n_cols, rows_per_program, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """``out`` (row programs, columns): the sums over ``rows_per_program`` rows, a multiple of ROWS.

    A tile is added up elementwise; its rows are reduced once, after the loop.
    """
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    rows = tl.program_id(0) * rows_per_program + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, rows_per_program, ROWS):
        row = start + rows
        mask = (row[:, None] < n_rows) & (cols[None, :] < n_cols)
        total += tl.load(x_ptr + row[:, None] * n_cols + cols[None, :], mask=mask).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0) * n_cols + cols, tl.sum(total, axis=0), mask=cols < n_cols)


def column_sum(x: mx.array, dtype: mx.Dtype | None = None) -> mx.array:
    """The sums over all axes but the last of ``x``, of shape (..., columns), added up in float32.

    The result has shape (columns,) and ``dtype``, by default that of ``x``. Of many rows, groups are summed
    first, and a second launch adds up their float32 sums.
    """
    n_rows, n_cols = count_rows(x)
    dtype = dtype or x.dtype
    if n_rows == 0:
        return mx.zeros((n_cols,), dtype)
    few = n_rows <= FEW_ROWS
    block = min(enceladus.next_power_of_2(n_cols), 32 if few else 128)
    tile_rows = TILE // block
    columns = enceladus.cdiv(n_cols, block)
    # At least four tiles a program, so that the second launch reads little beside the first one.
    most = 1 if few else enceladus.cdiv(n_rows, 4 * tile_rows)
    groups = min(enceladus.cdiv(PROGRAMS, columns), most)
    rows_per_program = enceladus.cdiv(enceladus.cdiv(n_rows, groups), tile_rows) * tile_rows
    groups = enceladus.cdiv(n_rows, rows_per_program)
    out = enceladus.empty((groups, n_cols), dtype if groups == 1 else mx.float32)
    sums = column_sum_kernel[(groups, columns)](
        x, out, n_rows, n_cols, rows_per_program, ROWS=tile_rows, COLS=block
    )
    return sums.reshape(n_cols) if groups == 1 else column_sum(sums, dtype)


@enceladus.jit
def logsumexp_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    """One row a program, of any length: one read of each element."""
    cols = tl.arange(0, BLOCK)
    start_of_row = tl.program_id(0) * n_cols
    running_max = tl.full((BLOCK,), -3.4028234663852886e38, tl.float32)
    running_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start_of_row + start + cols, mask=mask, other=-float("inf")).to(tl.float32)
        running_max, running_sum = include(running_max, running_sum, x)
    row_max, total = combine(running_max, running_sum)
    result = tl.where(row_max == float("inf"), row_max, row_max + tl.log(total))
    tl.store(out_ptr + tl.program_id(0), result)


def logsumexp(x: mx.array, *, block: int | None = None, num_warps: int | None = None) -> mx.array:
    """``log(sum(exp(x)))`` over the last axis of ``x``, of shape (..., columns), without overflow.

    Computed in float32 and rounded once to the dtype of ``x``; the shape is that of ``x`` without its
    last axis. A row of -inf gives -inf, a row with +inf gives +inf.
    """
    n_rows, n_cols = count_rows(x)
    block, num_warps = choose_tile(n_cols, block, num_warps)
    out = enceladus.empty(x.shape[:-1], x.dtype)
    return logsumexp_kernel[(n_rows,)](x, out, n_cols, BLOCK=block, num_warps=num_warps)
