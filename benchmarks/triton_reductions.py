"""The row kernels of the examples in Triton, for timings side by side: the same bodies, tiles and warps.

Imports only where Triton and torch are installed.
"""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np
import torch
import triton
import triton.language as tl
from reductions import FEW_ROWS, PROGRAMS, TILE
from rotary import frequencies
from rows import ROW_PROGRAMS


def empty(shape: tuple[int, ...], x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A fresh tensor on the device of ``x``."""
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device)


def rows_and_columns(x: torch.Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[-1], x.shape[-1]


# ------------------------------------------------------------------------------ softmax, logsumexp


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    scale = 1.0 / tl.sum(e, axis=0)
    tl.store(out_ptr + offs, e * scale, mask=mask)


@triton.jit
def include(running_max, running_sum, x):
    decay = tl.exp(-tl.abs(x - running_max))
    running_sum = tl.where(x > running_max, running_sum * decay + 1.0, running_sum + decay)
    return tl.maximum(running_max, x), running_sum


@triton.jit
def combine(running_max, running_sum):
    row_max = tl.max(running_max, axis=0)
    return row_max, tl.sum(running_sum * tl.exp(running_max - row_max), axis=0)


@triton.jit
def online_softmax_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
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


@triton.jit
def logsumexp_kernel(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
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


def softmax(x: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    n_rows, n_cols = rows_and_columns(x)
    kernel = softmax_kernel if n_cols <= block else online_softmax_kernel
    out = torch.empty_like(x)
    kernel[(n_rows,)](x, out, n_cols, BLOCK=block, num_warps=num_warps)
    return out


def logsumexp(x: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    n_rows, n_cols = rows_and_columns(x)
    out = empty(x.shape[:-1], x)
    logsumexp_kernel[(n_rows,)](x, out, n_cols, BLOCK=block, num_warps=num_warps)
    return out


# ---------------------------------------------------------------------------------- column sums


@triton.jit
def column_sum_kernel(
    x_ptr, out_ptr, n_rows, n_cols, rows_per_program, ROWS: tl.constexpr, COLS: tl.constexpr
):
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    rows = tl.program_id(0) * rows_per_program + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, rows_per_program, ROWS):
        row = start + rows
        mask = (row[:, None] < n_rows) & (cols[None, :] < n_cols)
        total += tl.load(x_ptr + row[:, None] * n_cols + cols[None, :], mask=mask).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0) * n_cols + cols, tl.sum(total, axis=0), mask=cols < n_cols)


def column_sum(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    n_rows, n_cols = rows_and_columns(x)
    dtype = dtype or x.dtype
    few = n_rows <= FEW_ROWS
    block = min(triton.next_power_of_2(n_cols), 32 if few else 128)
    tile_rows = TILE // block
    columns = triton.cdiv(n_cols, block)
    most = 1 if few else triton.cdiv(n_rows, 4 * tile_rows)
    groups = min(triton.cdiv(PROGRAMS, columns), most)
    rows_per_program = triton.cdiv(triton.cdiv(n_rows, groups), tile_rows) * tile_rows
    groups = triton.cdiv(n_rows, rows_per_program)
    out = empty((groups, n_cols), x, dtype if groups == 1 else torch.float32)
    column_sum_kernel[(groups, columns)](x, out, n_rows, n_cols, rows_per_program, ROWS=tile_rows, COLS=block)
    return out.reshape(n_cols) if groups == 1 else column_sum(out, dtype)


# ----------------------------------------------------------------------------------------- norms


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    offs = row * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, centred * rstd * weight + bias, mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def layer_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, n_rows, n_cols, BLOCK: tl.constexpr
):
    share = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(share, n_rows, tl.num_programs(0)):
        offs = row * n_cols + cols
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
        g = tl.where(mask, dy * weight, 0.0)
        along_x = tl.sum(g * x_hat, axis=0) / n_cols
        along_1 = tl.sum(g, axis=0) / n_cols
        tl.store(dx_ptr + offs, (g - x_hat * along_x - along_1) * rstd, mask=mask)
        dw += dy * x_hat
        db += dy
    tl.store(dw_ptr + share * n_cols + cols, dw, mask=mask)
    tl.store(db_ptr + share * n_cols + cols, db, mask=mask)


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    offs = row * n_cols + cols
    mask = cols < n_cols
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, x * rstd * weight, mask=mask)
    tl.store(rstd_ptr + row, rstd)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, block: int, num_warps: int
) -> torch.Tensor:
    n_rows, n_cols = rows_and_columns(x)
    out = torch.empty_like(x)
    mean, rstd = (empty(x.shape[:-1], x, torch.float32) for _ in range(2))
    layer_norm_kernel[(n_rows,)](
        x, weight, bias, out, mean, rstd, n_cols, 1e-5, BLOCK=block, num_warps=num_warps
    )
    return out


def layer_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    _bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *,
    block: int,
    num_warps: int,
) -> tuple[torch.Tensor, ...]:
    n_rows, n_cols = rows_and_columns(x)
    shares = min(n_rows, ROW_PROGRAMS)
    dx = torch.empty_like(x)
    dw, db = (empty((shares, n_cols), x, torch.float32) for _ in range(2))
    layer_norm_backward_kernel[(shares,)](
        dy, x, weight, mean, rstd, dx, dw, db, n_rows, n_cols, BLOCK=block, num_warps=num_warps
    )
    return dx, column_sum(dw, weight.dtype), column_sum(db, weight.dtype)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, _bias: torch.Tensor, *, block: int, num_warps: int
) -> torch.Tensor:
    n_rows, n_cols = rows_and_columns(x)
    out, rstd = torch.empty_like(x), empty(x.shape[:-1], x, torch.float32)
    rms_norm_kernel[(n_rows,)](x, weight, out, rstd, n_cols, 1e-5, BLOCK=block, num_warps=num_warps)
    return out


# ---------------------------------------------------------------------------------- cross entropy


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, loss_ptr, dx_ptr, n_cols, ignore_index, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start_of_row = row * n_cols
    cols = tl.arange(0, BLOCK)
    target = tl.load(target_ptr + row)
    ignored = target == ignore_index
    length = tl.where(ignored, 0, n_cols)
    running_max = tl.full((BLOCK,), -3.4028234663852886e38, tl.float32)
    running_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < length
        x = tl.load(x_ptr + start_of_row + start + cols, mask=mask, other=-float("inf")).to(tl.float32)
        running_max, running_sum = include(running_max, running_sum, x)
    row_max, total = combine(running_max, running_sum)
    is_class = (target >= 0) & (target < n_cols)
    x_target = tl.load(x_ptr + start_of_row + target, mask=is_class & (target != ignore_index))
    loss = tl.log(total) + row_max - x_target.to(tl.float32)
    loss = tl.where(is_class, loss, float("nan"))
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss))
    scale = tl.where(is_class, 1.0, float("nan"))
    for start in range(0, n_cols, BLOCK):
        col = start + cols
        x = tl.load(x_ptr + start_of_row + col, mask=col < length).to(tl.float32)
        expected = tl.where(col == target, 1.0, 0.0)
        gradient = (tl.exp(x - row_max) * (1.0 / total) - expected) * scale
        tl.store(dx_ptr + start_of_row + col, tl.where(ignored, 0.0, gradient), mask=col < n_cols)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, *, block: int, num_warps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    n_rows, n_cols = rows_and_columns(logits)
    loss, gradient = empty(targets.shape, logits, torch.float32), torch.empty_like(logits)
    cross_entropy_kernel[(n_rows,)](
        logits, targets, loss, gradient, n_cols, -100, BLOCK=block, num_warps=num_warps
    )
    return loss, gradient


# ------------------------------------------------------------------------------------------ scans


@triton.jit
def scan_rows_kernel(x_ptr, out_ptr, n_cols, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for i in range(tl.cdiv(n_cols, BLOCK)):
        cols = i * BLOCK + tl.arange(0, BLOCK)
        inside = (cols + SHIFT >= 0) & (cols + SHIFT < n_cols)
        x = tl.load(x_ptr + row * n_cols + cols + SHIFT, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * n_cols + cols, tl.cumsum(x, 0) + total, mask=cols < n_cols)
        total += tl.sum(x, 0)


@triton.jit
def block_totals_kernel(x_ptr, totals_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    tl.store(totals_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.sum(x, 0))


@triton.jit
def scan_blocks_kernel(x_ptr, before_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    before = tl.load(before_ptr + row * tl.num_programs(0) + tl.program_id(0))
    tl.store(out_ptr + row * n_cols + cols, tl.cumsum(x, 0) + before, mask=cols < n_cols)


def cumsum(x: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    """Of one row, in three launches."""
    n_cols = x.shape[-1]
    n_blocks = triton.cdiv(n_cols, block)
    totals, before = (empty((n_blocks,), x, torch.float32) for _ in range(2))
    out = torch.empty_like(x)
    block_totals_kernel[(n_blocks, 1)](x, totals, n_cols, BLOCK=block, num_warps=num_warps)
    scan_rows_kernel[(1,)](
        totals,
        before,
        n_blocks,
        SHIFT=-1,
        BLOCK=min(block, triton.next_power_of_2(n_blocks)),
        num_warps=num_warps,
    )
    scan_blocks_kernel[(n_blocks, 1)](x, before, out, n_cols, BLOCK=block, num_warps=num_warps)
    return out


# ----------------------------------------------------------------------------------------- rotary


@triton.jit
def rotary_kernel(
    x_ptr,
    frequency_ptr,
    out_ptr,
    n_heads,
    length,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    TRADITIONAL: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None, None]
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[None, :, None]
    pairs = tl.arange(0, COLS)[None, None, :]
    high = tl.load(frequency_ptr + pairs, mask=pairs < PAIRS).to(tl.uint32, bitcast=True)
    low = tl.load(frequency_ptr + PAIRS + pairs, mask=pairs < PAIRS).to(tl.uint32, bitcast=True)
    position = rows.to(tl.uint32)
    turn = position * high + tl.umulhi(position, low)
    quarter = (turn + 0x20000000) >> 30
    rest = (turn - (quarter << 30)).to(tl.int32, bitcast=True)
    angle = rest.to(tl.float32) * 1.4629180792671596e-09
    z = angle * angle
    sine = angle + angle * z * (-0.16666655 + z * (0.008332178 + z * -0.00019517297))
    cosine = 1.0 - 0.5 * z + z * z * (0.041666647 + z * (-0.0013887368 + z * 2.443845e-05))
    odd = (quarter & 1) != 0
    s, c = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    s, c = tl.where(quarter >= 2, -s, s), tl.where(((quarter + 1) & 2) != 0, -c, c)
    start = (heads * length + rows) * DIM
    if TRADITIONAL:
        first = start + 2 * pairs
        second = first + 1
    else:
        first = start + pairs
        second = first + PAIRS
    inside = (heads < n_heads) & (rows < length) & (pairs < PAIRS)
    a = tl.load(x_ptr + first, mask=inside).to(tl.float32)
    b = tl.load(x_ptr + second, mask=inside).to(tl.float32)
    tl.store(out_ptr + first, a * c - b * s, mask=inside)
    tl.store(out_ptr + second, a * s + b * c, mask=inside)


@functools.lru_cache(maxsize=8)
def frequency_tensor(pairs: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(frequencies(pairs, 10000.0, 1.0).view(mx.int32))).to(device)


def rotary(x: torch.Tensor, *, traditional: bool, block: int, num_warps: int) -> torch.Tensor:
    length, dim = x.shape[-2:]
    pairs, n_heads = dim // 2, x.numel() // (length * dim)
    cols = triton.next_power_of_2(pairs)
    rows = max(1, min(block // cols, triton.next_power_of_2(length)))
    heads = max(1, min(4 * block // (rows * cols), triton.next_power_of_2(n_heads)))
    out = torch.empty_like(x)
    rotary_kernel[(triton.cdiv(length, rows), triton.cdiv(n_heads, heads))](
        x,
        frequency_tensor(pairs, x.device),
        out,
        n_heads,
        length,
        DIM=dim,
        PAIRS=pairs,
        TRADITIONAL=traditional,
        HEADS=heads,
        ROWS=rows,
        COLS=cols,
        num_warps=num_warps,
    )
    return out
