"""Layer normalization of every row, and its gradient."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.reductions import column_sum
from enceladus.ops.kernels.rows import ROW_PROGRAMS, choose_tile, count_rows


@enceladus.jit
def scale_and_shift(x_hat, weight_ptr, bias_ptr, cols, mask):
    """``x_hat * weight + bias``, where there is a weight and a bias."""
    if weight_ptr is not None:
        x_hat = x_hat * tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    if bias_ptr is not None:
        x_hat = x_hat + tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    return x_hat


@enceladus.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr
):
    """One row a program, held in registers: one read and one write of each element."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    offs = row * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(out_ptr + offs, scale_and_shift(centred * rstd, weight_ptr, bias_ptr, cols, mask), mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@enceladus.jit
def long_layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr
):
    """One row a program, of any length: two reads and one write of each element.

    Every element of the tile keeps a mean and a sum of squared deviations of its own (Welford's update);
    after the loop they are combined (Chan's formula), so the steps need no barrier.
    """
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    means = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * n_cols + start + cols, mask=mask).to(tl.float32)
        deviation = tl.where(mask, x - means, 0.0)
        means += deviation * (1.0 / (start // BLOCK + 1))
        squares += deviation * (x - means)
    counts = ((n_cols - cols + (BLOCK - 1)) // BLOCK).to(tl.float32)  # how many elements each has seen
    mean = tl.sum(means * counts, axis=0) / n_cols
    deviation = means - mean
    rstd = tl.rsqrt(tl.sum(squares + counts * deviation * deviation, axis=0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        mask = col < n_cols
        x_hat = (tl.load(x_ptr + row * n_cols + col, mask=mask).to(tl.float32) - mean) * rstd
        out = scale_and_shift(x_hat, weight_ptr, bias_ptr, col, mask)
        tl.store(out_ptr + row * n_cols + col, out, mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@enceladus.jit
def load_weight(weight_ptr, cols, mask):
    """The weight in float32, None where there is none."""
    return None if weight_ptr is None else tl.load(weight_ptr + cols, mask=mask).to(tl.float32)


@enceladus.jit
def load_gradient(dy_ptr, x_ptr, weight, mean, rstd, offs, mask):
    """(``dy``, the normalized ``x``, the gradient that reaches the latter)."""
    dy = tl.load(dy_ptr + offs, mask=mask).to(tl.float32)
    x_hat = (tl.load(x_ptr + offs, mask=mask).to(tl.float32) - mean) * rstd
    return dy, x_hat, (dy if weight is None else dy * weight)


@enceladus.jit(do_not_specialize=["n_rows"])
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, n_rows, n_cols, BLOCK: tl.constexpr
):
    """A share of the rows: their ``dx``, and a row (of ``dw`` and ``db``) of sums over them.

    Each element of ``dy`` and ``x`` is read once. The weight stays in registers through the loop.
    """
    share = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    weight = load_weight(weight_ptr, cols, mask)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(share, n_rows, tl.num_programs(0)):
        offs = row * n_cols + cols
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        dy, x_hat, g = load_gradient(dy_ptr, x_ptr, weight, mean, rstd, offs, mask)
        along_x = tl.sum(g * x_hat, axis=0) / n_cols
        along_1 = tl.sum(g, axis=0) / n_cols
        tl.store(dx_ptr + offs, (g - x_hat * along_x - along_1) * rstd, mask=mask)
        dw += dy * x_hat
        db += dy
    if dw_ptr is not None:
        tl.store(dw_ptr + share * n_cols + cols, dw, mask=mask)
    if db_ptr is not None:
        tl.store(db_ptr + share * n_cols + cols, db, mask=mask)


@enceladus.jit
def long_input_gradient_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, n_cols, BLOCK: tl.constexpr
):
    """``dx`` of one row a program, of any length: two reads of ``dy`` and ``x``, no barrier in the steps."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    sums_x = tl.zeros((BLOCK,), tl.float32)
    sums_1 = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        offs, mask = row * n_cols + col, col < n_cols
        weight = load_weight(weight_ptr, col, mask)
        _, x_hat, g = load_gradient(dy_ptr, x_ptr, weight, mean, rstd, offs, mask)
        sums_x += g * x_hat
        sums_1 += g
    along_x = tl.sum(sums_x, axis=0) / n_cols
    along_1 = tl.sum(sums_1, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        offs, mask = row * n_cols + col, col < n_cols
        weight = load_weight(weight_ptr, col, mask)
        _, x_hat, g = load_gradient(dy_ptr, x_ptr, weight, mean, rstd, offs, mask)
        tl.store(dx_ptr + offs, (g - x_hat * along_x - along_1) * rstd, mask=mask)


@enceladus.jit(do_not_specialize=["n_rows"])
def long_parameter_gradient_kernel(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr, n_rows, n_cols, BLOCK: tl.constexpr
):
    """A block of columns, and a share of the rows: a row of sums over them. No reduction within a program."""
    share = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(share, n_rows, tl.num_programs(0)):
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        dy, x_hat, _ = load_gradient(dy_ptr, x_ptr, None, mean, rstd, row * n_cols + cols, mask)
        dw += dy * x_hat
        db += dy
    if dw_ptr is not None:
        tl.store(dw_ptr + share * n_cols + cols, dw, mask=mask)
    if db_ptr is not None:
        tl.store(db_ptr + share * n_cols + cols, db, mask=mask)


def layer_norm_forward(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float = 1e-5,
    *,
    block: int | None = None,
    num_warps: int | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """(the normalized rows, their means, their reciprocal standard deviations).

    ``x``: (..., columns); ``weight`` and ``bias``: (columns,) or None. Computed in float32; the first result
    is rounded once to the dtype of ``x``, the other two are float32 of shape (...). Rows up to ``block``
    elements (4096 by default) are read once.
    """
    n_rows, n_cols = count_rows(x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.shape != (n_cols,):
            raise ValueError(f"{name} has shape {parameter.shape}; x has {n_cols} columns")
    block, num_warps = choose_tile(n_cols, block, num_warps)
    kernel = layer_norm_kernel if n_cols <= block else long_layer_norm_kernel
    y = enceladus.empty_like(x)
    mean = enceladus.empty(x.shape[:-1], mx.float32)
    rstd = enceladus.empty(x.shape[:-1], mx.float32)
    return kernel[(n_rows,)](
        x, weight, bias, y, mean, rstd, n_cols, float(eps), BLOCK=block, num_warps=num_warps
    )


def layer_norm_backward(
    dy: mx.array,
    x: mx.array,
    weight: mx.array | None,
    mean: mx.array,
    rstd: mx.array,
    *,
    has_bias: bool = True,
    block: int | None = None,
    num_warps: int | None = None,
) -> tuple[mx.array, mx.array | None, mx.array | None]:
    """The gradients of ``x``, ``weight`` and ``bias``, given ``dy`` and what ``layer_norm_forward`` returned.

    ``dx`` has the dtype of ``x``, the others that of ``weight`` (without one: of ``x``); they are None for
    parameters that are not there. Sums over rows are made in float32: by at most 256 programs, then by
    ``column_sum`` over theirs.
    """
    n_rows, n_cols = count_rows(x)
    if dy.shape != x.shape:
        raise ValueError(f"dy has shape {dy.shape}; x has shape {x.shape}")
    block, num_warps = choose_tile(n_cols, block, num_warps, carries_tiles=True)
    shares = max(1, min(n_rows, ROW_PROGRAMS))
    dw = enceladus.empty((shares, n_cols), mx.float32) if weight is not None else None
    db = enceladus.empty((shares, n_cols), mx.float32) if has_bias else None
    dx = enceladus.empty_like(x)
    sums: list[mx.array]
    if n_cols <= block:
        written = layer_norm_backward_kernel[(shares,)](
            dy, x, weight, mean, rstd, dx, dw, db, n_rows, n_cols, BLOCK=block, num_warps=num_warps
        )
        dx, *sums = written if isinstance(written, tuple) else (written,)
    else:
        dx = long_input_gradient_kernel[(n_rows,)](
            dy, x, weight, mean, rstd, dx, n_cols, BLOCK=block, num_warps=num_warps
        )
        sums = []
        if dw is not None or db is not None:
            columns = min(block, 512)
            written = long_parameter_gradient_kernel[(shares, enceladus.cdiv(n_cols, columns))](
                dy, x, mean, rstd, dw, db, n_rows, n_cols, BLOCK=columns
            )
            sums = list(written) if isinstance(written, tuple) else [written]
    dtype = x.dtype if weight is None else weight.dtype
    dw_sum = column_sum(sums.pop(0), dtype) if dw is not None else None
    db_sum = column_sum(sums.pop(0), dtype) if db is not None else None
    return dx, dw_sum, db_sum
