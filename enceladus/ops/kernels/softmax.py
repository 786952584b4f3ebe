"""Softmax of every row and its gradient: in one block, or for rows of any length in a loop over blocks."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.rows import choose_tile, count_rows


@enceladus.jit
def softmax_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    """One row a program. The row stays in registers: each element is read once and written once."""
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    scale = 1.0 / tl.sum(e, axis=0)
    tl.store(out_ptr + offs, e * scale, mask=mask)


@enceladus.jit
def include(running_max, running_sum, x):
    """The maximum and the sum of ``exp(x - maximum)`` of all elements seen, after those of ``x``.

    Elementwise, with one ``exp``: of the old sum and the new term, one keeps its factor of 1. The maximum
    starts at the lowest finite number, so that elements of -inf never meet ``inf - inf``.
    """
    decay = tl.exp(-tl.abs(x - running_max))
    running_sum = tl.where(x > running_max, running_sum * decay + 1.0, running_sum + decay)
    return tl.maximum(running_max, x), running_sum


@enceladus.jit
def combine(running_max, running_sum):
    """Of tiles of partial maxima and sums: the maximum, and the sum that goes with it, as scalars."""
    row_max = tl.max(running_max, axis=0)
    return row_max, tl.sum(running_sum * tl.exp(running_max - row_max), axis=0)


@enceladus.jit
def online_softmax_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    """One row a program, of any length: two reads and one write of each element.

    Every element of the tile keeps a maximum and a sum of its own through the loop; only after it are they
    reduced, so the steps need no barrier.
    """
    cols = tl.arange(0, BLOCK)
    start_of_row = tl.program_id(0) * n_cols
    running_max = tl.full((BLOCK,), -3.4028234663852886e38, tl.float32)
    running_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start_of_row + start + cols, mask=mask, other=-float("inf")).to(tl.float32)
        running_max, running_sum = include(running_max, running_sum, x)
    row_max, total = combine(running_max, running_sum)
    scale = 1.0 / total
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start_of_row + start + cols, mask=mask).to(tl.float32)
        tl.store(out_ptr + start_of_row + start + cols, tl.exp(x - row_max) * scale, mask=mask)


def softmax(x: mx.array, *, block: int | None = None, num_warps: int | None = None) -> mx.array:
    """Softmax over the last axis of ``x``, of shape (..., columns), in float32 and rounded once.

    Rows up to ``block`` elements (4096 by default) are read once; longer ones go through the online
    kernel. A row of -inf alone gives NaN, as ``mx.softmax`` does. The result has ``x``'s shape and dtype.
    """
    n_rows, n_cols = count_rows(x)
    block, num_warps = choose_tile(n_cols, block, num_warps)
    kernel = softmax_kernel if n_cols <= block else online_softmax_kernel
    return kernel[(n_rows,)](x, enceladus.empty_like(x), n_cols, BLOCK=block, num_warps=num_warps)


@enceladus.jit
def softmax_backward_kernel(dy_ptr, y_ptr, dx_ptr, n_cols, BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr):
    """``dx`` of one row a program, from the softmax ``y``. A row of one block is read once, others twice."""
    start_of_row = tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        mask = cols < n_cols
        dy = tl.load(dy_ptr + start_of_row + cols, mask=mask).to(tl.float32)
        y = tl.load(y_ptr + start_of_row + cols, mask=mask).to(tl.float32)
        along_y = tl.sum(tl.where(mask, dy * y, 0.0), axis=0)
        tl.store(dx_ptr + start_of_row + cols, y * (dy - along_y), mask=mask)
    else:
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            dy = tl.load(dy_ptr + start_of_row + start + cols, mask=mask).to(tl.float32)
            y = tl.load(y_ptr + start_of_row + start + cols, mask=mask).to(tl.float32)
            sums += tl.where(mask, dy * y, 0.0)
        along_y = tl.sum(sums, axis=0)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            dy = tl.load(dy_ptr + start_of_row + start + cols, mask=mask).to(tl.float32)
            y = tl.load(y_ptr + start_of_row + start + cols, mask=mask).to(tl.float32)
            tl.store(dx_ptr + start_of_row + start + cols, y * (dy - along_y), mask=mask)


def softmax_backward(
    dy: mx.array, y: mx.array, *, block: int | None = None, num_warps: int | None = None
) -> mx.array:
    """The gradient of :func:`softmax` for its argument, given its result ``y`` and the gradient for that."""
    n_rows, n_cols = count_rows(y, "y")
    if dy.shape != y.shape:
        raise ValueError(f"dy has shape {dy.shape}; y has shape {y.shape}")
    block, num_warps = choose_tile(n_cols, block, num_warps)
    return softmax_backward_kernel[(n_rows,)](
        dy,
        y,
        enceladus.empty_like(y),
        n_cols,
        BLOCK=block,
        ONE_BLOCK=n_cols <= block,
        num_warps=num_warps,
    )
