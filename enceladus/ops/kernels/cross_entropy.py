"""Cross entropy of logits and its gradient in one kernel, with label smoothing and ignored rows."""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.ops.kernels.rows import choose_tile, count_rows
from enceladus.ops.kernels.softmax import combine, include


@enceladus.jit
def cross_entropy_kernel(
    x_ptr,
    target_ptr,
    scale_ptr,
    loss_ptr,
    dx_ptr,
    n_cols,
    ignore_index,
    SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    """The loss of one row a program, if there is a ``loss_ptr``, and its gradient, if there is a ``dx_ptr``.

    A row of one block is read once. A longer one is read in a loop without barriers, as in ``softmax.py``,
    and a second time for the gradient. ``scale_ptr``: what the gradient of each row is multiplied by.
    """
    row = tl.program_id(0)
    start_of_row = row * n_cols
    cols = tl.arange(0, BLOCK)
    target = tl.load(target_ptr + row)
    ignored = target == ignore_index
    length = tl.where(ignored, 0, n_cols)  # nothing is read of an ignored row

    if ONE_BLOCK:
        mask = cols < length
        x = tl.load(x_ptr + start_of_row + cols, mask=mask, other=-float("inf")).to(tl.float32)
        row_max = tl.max(x, axis=0)
        e = tl.exp(x - row_max)
        total = tl.sum(e, axis=0)
        sum_x = tl.sum(tl.where(mask, x, 0.0), axis=0) if SMOOTHING > 0 else 0.0
    else:
        running_max = tl.full((BLOCK,), -3.4028234663852886e38, tl.float32)
        running_sum = tl.zeros((BLOCK,), tl.float32)
        sums_x = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < length
            x = tl.load(x_ptr + start_of_row + start + cols, mask=mask, other=-float("inf")).to(tl.float32)
            running_max, running_sum = include(running_max, running_sum, x)
            if SMOOTHING > 0:
                sums_x += tl.where(mask, x, 0.0)
        row_max, total = combine(running_max, running_sum)
        sum_x = tl.sum(sums_x, axis=0) if SMOOTHING > 0 else 0.0

    is_class = (target >= 0) & (target < n_cols)
    if loss_ptr is not None:
        x_target = tl.load(x_ptr + start_of_row + target, mask=is_class & (target != ignore_index))
        loss = tl.log(total) + (1.0 - SMOOTHING) * (row_max - x_target.to(tl.float32))
        if SMOOTHING > 0:
            loss += SMOOTHING * (row_max - sum_x / n_cols)
        loss = tl.where(is_class, loss, float("nan"))
        tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss))

    if dx_ptr is not None:
        scale = 1.0 if scale_ptr is None else tl.load(scale_ptr + row)
        scale = tl.where(is_class, scale, float("nan"))
        share = SMOOTHING / n_cols  # of the probability, for every class
        if ONE_BLOCK:
            expected = tl.where(cols == target, 1.0 - SMOOTHING + share, share)
            gradient = (e * (1.0 / total) - expected) * scale
            tl.store(dx_ptr + start_of_row + cols, tl.where(ignored, 0.0, gradient), mask=cols < n_cols)
        else:
            for start in range(0, n_cols, BLOCK):
                col = start + cols
                x = tl.load(x_ptr + start_of_row + col, mask=col < length).to(tl.float32)
                expected = tl.where(col == target, 1.0 - SMOOTHING + share, share)
                gradient = (tl.exp(x - row_max) * (1.0 / total) - expected) * scale
                tl.store(dx_ptr + start_of_row + col, tl.where(ignored, 0.0, gradient), mask=col < n_cols)


def launch(
    logits: mx.array,
    targets: mx.array,
    scale: mx.array | None,
    *,
    loss: bool,
    gradient: bool,
    label_smoothing: float,
    ignore_index: int,
    block: int | None = None,
    num_warps: int | None = None,
):
    """The losses, the gradients, or both: what ``loss`` and ``gradient`` ask for."""
    n_rows, n_cols = count_rows(logits, "logits")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets has shape {targets.shape}; logits has shape {logits.shape}")
    if targets.dtype != mx.int32:
        raise TypeError(f"targets is {targets.dtype}; int32 is needed")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
    block, num_warps = choose_tile(n_cols, block, num_warps)
    return cross_entropy_kernel[(n_rows,)](
        logits,
        targets,
        scale,
        enceladus.empty(targets.shape, mx.float32) if loss else None,
        enceladus.empty_like(logits) if gradient else None,
        n_cols,
        ignore_index,
        SMOOTHING=float(label_smoothing),
        BLOCK=block,
        ONE_BLOCK=n_cols <= block,
        num_warps=num_warps,
    )


def mean_scale(targets: mx.array, ignore_index: int) -> mx.array:
    """One over the number of rows that count, at least 1; float32, of shape ()."""
    count = (targets != ignore_index).sum()
    return 1.0 / mx.maximum(count, 1).astype(mx.float32)


def cross_entropy_and_gradient(
    logits: mx.array,
    targets: mx.array,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    block: int | None = None,
    num_warps: int | None = None,
) -> tuple[mx.array, mx.array]:
    """The loss and its gradient with respect to ``logits``, from one kernel.

    ``logits``: (..., classes); ``targets``: int32 of shape (...), classes or ``ignore_index``. With
    ``label_smoothing`` s, the target has the probability 1 - s, and s is divided among all classes.

    ``reduction`` "mean" gives the mean loss over the rows that are not ignored, "sum" the sum, "none" the
    loss of each row (0 where it is ignored) with the gradient of their sum. Losses are float32, the
    gradient has the dtype of ``logits`` and is 0 in ignored rows. A target that is no class makes its row
    NaN.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
    scale = mean_scale(targets, ignore_index) if reduction == "mean" else None
    losses, gradient = launch(
        logits,
        targets,
        None if scale is None else mx.broadcast_to(scale, targets.shape),
        loss=True,
        gradient=True,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        block=block,
        num_warps=num_warps,
    )
    if reduction == "none":
        return losses, gradient
    return losses.sum() if scale is None else losses.sum() * scale, gradient
