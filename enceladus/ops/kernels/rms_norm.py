"""Root-mean-square normalization of every row, and its gradient."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.reductions import column_sum
from enceladus.ops.kernels.rows import ROW_PROGRAMS, choose_tile, count_rows


@enceladus.jit
def load_weight(weight_ptr, cols, mask):
    """The weight in float32, 1 where there is none."""
    return 1.0 if weight_ptr is None else tl.load(weight_ptr + cols, mask=mask).to(tl.float32)


@enceladus.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr):
    """One row a program, held in registers: one read and one write of each element."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    offs = row * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    weight = load_weight(weight_ptr, cols, mask)
    tl.store(out_ptr + offs, x * rstd * weight, mask=mask)
    tl.store(rstd_ptr + row, rstd)


@enceladus.jit
def long_rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr):
    """One row a program, of any length: two reads and one write of each element, one reduction."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * n_cols + start + cols, mask=mask).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        mask = col < n_cols
        x = tl.load(x_ptr + row * n_cols + col, mask=mask).to(tl.float32)
        weight = load_weight(weight_ptr, col, mask)
        tl.store(out_ptr + row * n_cols + col, x * rstd * weight, mask=mask)
    tl.store(rstd_ptr + row, rstd)


@enceladus.jit
def load_gradient(dy_ptr, x_ptr, weight_ptr, rstd, offs, cols, mask):
    """(the normalized ``x``, the gradient that reaches it)."""
    dy = tl.load(dy_ptr + offs, mask=mask).to(tl.float32)
    x_hat = tl.load(x_ptr + offs, mask=mask).to(tl.float32) * rstd
    return x_hat, dy * load_weight(weight_ptr, cols, mask)


@enceladus.jit(do_not_specialize=["n_rows"])
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, dw_ptr, n_rows, n_cols, BLOCK: tl.constexpr
):
    """A share of the rows: their ``dx``, and a row of ``dw``, if there is one, with the sums over them.

    Each element of ``dy`` and ``x`` is read once. The weight stays in registers through the loop.
    """
    share = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    weight = load_weight(weight_ptr, cols, mask)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(share, n_rows, tl.num_programs(0)):
        offs = row * n_cols + cols
        rstd = tl.load(rstd_ptr + row)
        dy = tl.load(dy_ptr + offs, mask=mask).to(tl.float32)
        x_hat = tl.load(x_ptr + offs, mask=mask).to(tl.float32) * rstd
        product = dy * x_hat
        along_x = tl.sum(product * weight, axis=0) / n_cols
        tl.store(dx_ptr + offs, (dy * weight - x_hat * along_x) * rstd, mask=mask)
        dw += product
    if dw_ptr is not None:
        tl.store(dw_ptr + share * n_cols + cols, dw, mask=mask)


@enceladus.jit
def long_input_gradient_kernel(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, n_cols, BLOCK: tl.constexpr):
    """``dx`` of one row a program, of any length: two reads of ``dy`` and ``x``, one reduction."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    rstd = tl.load(rstd_ptr + row)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        x_hat, g = load_gradient(dy_ptr, x_ptr, weight_ptr, rstd, row * n_cols + col, col, col < n_cols)
        sums += g * x_hat
    along_x = tl.sum(sums, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        offs = row * n_cols + col
        x_hat, g = load_gradient(dy_ptr, x_ptr, weight_ptr, rstd, offs, col, col < n_cols)
        tl.store(dx_ptr + offs, (g - x_hat * along_x) * rstd, mask=col < n_cols)


@enceladus.jit(do_not_specialize=["n_rows"])
def long_weight_gradient_kernel(dy_ptr, x_ptr, rstd_ptr, dw_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """A block of columns, and a share of the rows: a row of sums over them. No reduction within a program."""
    share = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(share, n_rows, tl.num_programs(0)):
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
        dw += dy * x * tl.load(rstd_ptr + row)
    tl.store(dw_ptr + share * n_cols + cols, dw, mask=mask)


def rms_norm_forward(
    x: mx.array,
    weight: mx.array | None,
    eps: float = 1e-5,
    *,
    block: int | None = None,
    num_warps: int | None = None,
) -> tuple[mx.array, mx.array]:
    """(the normalized rows, the reciprocals of their root mean squares).

    ``x``: (..., columns); ``weight``: (columns,) or None. Computed in float32; the first result is rounded
    once to the dtype of ``x``, the second is float32 of shape (...). Rows up to ``block`` elements (4096 by
    default) are read once.
    """
    n_rows, n_cols = count_rows(x)
    if weight is not None and weight.shape != (n_cols,):
        raise ValueError(f"weight has shape {weight.shape}; x has {n_cols} columns")
    block, num_warps = choose_tile(n_cols, block, num_warps)
    kernel = rms_norm_kernel if n_cols <= block else long_rms_norm_kernel
    y, rstd = enceladus.empty_like(x), enceladus.empty(x.shape[:-1], mx.float32)
    return kernel[(n_rows,)](x, weight, y, rstd, n_cols, float(eps), BLOCK=block, num_warps=num_warps)


def rms_norm_backward(
    dy: mx.array,
    x: mx.array,
    weight: mx.array | None,
    rstd: mx.array,
    *,
    block: int | None = None,
    num_warps: int | None = None,
) -> tuple[mx.array, mx.array | None]:
    """The gradients of ``x`` and ``weight`` (None without one), in their dtypes.

    ``rstd`` is what ``rms_norm_forward`` returned.

    The sums over rows are made in float32: by at most 256 programs, then by ``column_sum`` over theirs.
    """
    n_rows, n_cols = count_rows(x)
    if dy.shape != x.shape:
        raise ValueError(f"dy has shape {dy.shape}; x has shape {x.shape}")
    block, num_warps = choose_tile(n_cols, block, num_warps, carries_tiles=True)
    shares = max(1, min(n_rows, ROW_PROGRAMS))
    dx = enceladus.empty_like(x)
    dw = enceladus.empty((shares, n_cols), mx.float32) if weight is not None else None
    if n_cols <= block:
        written = rms_norm_backward_kernel[(shares,)](
            dy, x, weight, rstd, dx, dw, n_rows, n_cols, BLOCK=block, num_warps=num_warps
        )
        dx, dw = written if weight is not None else (written, None)
    else:
        dx = long_input_gradient_kernel[(n_rows,)](
            dy, x, weight, rstd, dx, n_cols, BLOCK=block, num_warps=num_warps
        )
        if dw is not None:
            columns = min(block, 512)
            dw = long_weight_gradient_kernel[(shares, enceladus.cdiv(n_cols, columns))](
                dy, x, rstd, dw, n_rows, n_cols, BLOCK=columns
            )
    return dx, None if weight is None or dw is None else column_sum(dw, weight.dtype)
