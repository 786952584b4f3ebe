"""Functions along an axis, with MLX's signatures: norms, softmax, cross entropy, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from enceladus.mlx_bridge.op import op
from enceladus.ops.kernels import cross_entropy as cross_entropy_kernels
from enceladus.ops.kernels import cumsum as cumsum_kernels
from enceladus.ops.kernels import layer_norm as layer_norm_kernels
from enceladus.ops.kernels import rms_norm as rms_norm_kernels
from enceladus.ops.kernels import softmax as softmax_kernels

# ------------------------------------------------------------------------------------- norms


@op
def _rms_norm(x: mx.array, weight: mx.array | None, *, eps: float) -> tuple[mx.array, mx.array]:
    return rms_norm_kernels.rms_norm_forward(x, weight, eps)


@_rms_norm.vjp
def _rms_norm_gradient(primals, cotangents, outputs, *, eps):
    x, weight = primals
    return rms_norm_kernels.rms_norm_backward(cotangents[0], x, weight, outputs[1])


def _promoted(x: mx.array, *parameters: mx.array | None) -> mx.array:
    """``x`` in the dtype of the result, as MLX promotes."""
    for parameter in parameters:
        if parameter is not None:
            x = x.astype(mx.result_type(x, parameter))
    return x


def rms_norm(x: mx.array, weight: mx.array | None = None, eps: float = 1e-5) -> mx.array:
    """``x / sqrt(mean(x * x) + eps) * weight`` over the last axis, as ``mx.fast.rms_norm``.

    ``x``: (..., columns), float32, float16 or bfloat16; ``weight``: (columns,) or None. The result has the
    shape of ``x`` and the dtype that MLX promotes ``x`` and ``weight`` to. Computed in float32, rounded once.
    ``ValueError`` for other shapes, ``TypeError`` for other dtypes.
    """
    return _rms_norm(_promoted(x, weight), weight, eps=float(eps))[0]


@op
def _layer_norm(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, *, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    return layer_norm_kernels.layer_norm_forward(x, weight, bias, eps)


@_layer_norm.vjp
def _layer_norm_gradient(primals, cotangents, outputs, *, eps):
    x, weight, bias = primals
    return layer_norm_kernels.layer_norm_backward(
        cotangents[0], x, weight, *outputs[1:], has_bias=bias is not None
    )


def layer_norm(
    x: mx.array, weight: mx.array | None = None, bias: mx.array | None = None, eps: float = 1e-5
) -> mx.array:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis, as ``mx.fast.layer_norm``.

    ``x``: (..., columns), float32, float16 or bfloat16; ``weight`` and ``bias``: (columns,) or None. The
    result has the shape of ``x`` and the dtype that MLX promotes all three to. Computed in float32, rounded
    once. ``ValueError`` for other shapes, ``TypeError`` for other dtypes.
    """
    return _layer_norm(_promoted(x, weight, bias), weight, bias, eps=float(eps))[0]


# ----------------------------------------------------------------------------------- softmax


@op
def _softmax(x: mx.array) -> mx.array:
    return softmax_kernels.softmax(x)


@_softmax.vjp
def _softmax_gradient(primals, cotangents, outputs):
    return (softmax_kernels.softmax_backward(cotangents[0], outputs[0]),)


def _axis(axis: int, ndim: int) -> int:
    """``axis`` counted from the front. ``ValueError`` if there is none."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} does not exist in an array of {ndim} dimensions")
    return axis % ndim


def softmax(x: mx.array, axis: int | Sequence[int] | None = None, *, precise: bool = True) -> mx.array:
    """``exp(x) / sum(exp(x))`` along ``axis``, several of them or (None) all, as ``mx.softmax``.

    float32, float16 or bfloat16; always computed in float32 and rounded once, whatever ``precise`` says. Axes
    other than the last are moved there and back by MLX, which copies.
    ``TypeError`` for other dtypes, ``ValueError`` for axes that do not exist, are given twice or are empty.
    """
    if axis is None:
        return _softmax(x.reshape(-1)).reshape(x.shape)
    if isinstance(axis, int):
        axis = (axis,)
    axes = [_axis(a, x.ndim) for a in axis]
    if len(set(axes)) != len(axes) or not axes:
        raise ValueError(f"axis is {tuple(axis)}; it must name each of its axes once")
    if axes == [x.ndim - 1]:
        return _softmax(x)
    order = [a for a in range(x.ndim) if a not in axes] + axes
    moved = x.transpose(order)
    kept = moved.shape[: x.ndim - len(axes)]
    columns = math.prod(moved.shape[x.ndim - len(axes) :])
    y = _softmax(moved.reshape(*kept, columns)).reshape(moved.shape)
    return y.transpose([order.index(a) for a in range(x.ndim)])


# ----------------------------------------------------------------------------- cross entropy


@op
def row_losses(
    logits: mx.array, targets: mx.array, *, label_smoothing: float = 0.0, ignore_index: int = -100
) -> mx.array:
    """The cross entropy of rows: ``logits`` (..., classes), ``targets`` int32 (...) → float32 (...).

    A row whose target is ``ignore_index`` has the loss 0, one whose target is no class NaN. Where the
    gradient is wanted anyway, ``kernels.cross_entropy.cross_entropy_and_gradient`` reads the logits once
    less.
    """
    return cross_entropy_kernels.launch(
        logits,
        targets,
        None,
        loss=True,
        gradient=False,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
    )


@row_losses.vjp
def _row_losses_gradient(primals, cotangents, outputs, *, label_smoothing, ignore_index):
    logits, targets = primals
    gradient = cross_entropy_kernels.launch(
        logits,
        targets,
        cotangents[0],
        loss=False,
        gradient=True,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
    )
    return gradient, None


#: No target, for calls without ignored rows: targets are cut off at -1 before.
_NOTHING_IGNORED = -(2**31)


def cross_entropy(
    logits: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: str = "none",
) -> mx.array:
    """``-log(softmax(logits)[target])`` along ``axis``, as ``mlx.nn.losses.cross_entropy``.

    ``logits``: float32, float16 or bfloat16; ``targets``: integers, of the shape of ``logits`` without
    ``axis``; ``weights``: what the losses are multiplied by, of their shape. With ``label_smoothing`` s, the
    target has the probability 1 - s, and s is divided among all classes. ``reduction``: "none", "mean" (over
    all rows) or "sum". Computed in float32, also the reduction, and rounded once to the dtype that MLX's
    function returns.

    A target that is no class (also a negative one) makes its loss NaN. ``ValueError`` for probabilities as
    targets, which this does not support; for other shapes and options; ``TypeError`` for other dtypes.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'none', 'mean' or 'sum'")
    if targets.ndim == logits.ndim:
        raise ValueError(
            "targets has as many dimensions as logits: probabilities as targets are not supported; "
            "use mlx.nn.losses.cross_entropy for those"
        )
    if not mx.issubdtype(targets.dtype, mx.integer):
        raise TypeError(f"targets is {targets.dtype}; integers are needed")
    axis = _axis(axis, logits.ndim)
    if axis != logits.ndim - 1:
        logits = mx.moveaxis(logits, axis, -1)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets has shape {targets.shape}; logits without its axis {axis} has shape {logits.shape[:-1]}"
        )
    if weights is not None and weights.shape != targets.shape:
        raise ValueError(f"weights has shape {weights.shape}; the losses have shape {targets.shape}")
    losses = row_losses(
        logits,
        _as_classes(targets, logits.shape[-1]),
        label_smoothing=float(label_smoothing),
        ignore_index=_NOTHING_IGNORED,
    )
    dtype = logits.dtype
    if weights is not None:
        losses, dtype = losses * weights, mx.result_type(logits, weights)
    if reduction != "none":
        losses = losses.mean() if reduction == "mean" else losses.sum()
    return losses.astype(dtype)


def _as_classes(targets: mx.array, n_classes: int) -> mx.array:
    """``targets`` in int32; what is no class stays none, also if it has no place in int32."""
    if targets.dtype in (mx.int64, mx.uint32, mx.uint64):
        targets = mx.minimum(targets, n_classes)
    return mx.maximum(targets.astype(mx.int32), -1)


# ------------------------------------------------------------------------------ running sums


@op
def _cumsum(x: mx.array, *, reverse: bool, inclusive: bool) -> mx.array:
    return cumsum_kernels.cumsum(x, reverse=reverse, inclusive=inclusive)


@_cumsum.vjp
def _cumsum_gradient(primals, cotangents, outputs, *, reverse, inclusive):
    return (cumsum_kernels.cumsum(cotangents[0], reverse=not reverse, inclusive=inclusive),)


def cumsum(
    x: mx.array,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: mx.Dtype | None = None,
) -> mx.array:
    """Running sums along ``axis``, or (None) of all elements in a row, as ``mx.cumsum``.

    Any dtype that kernels know (bool counts as int32), converted to ``dtype`` first if there is one. 16-bit
    floats add up in float32 and are rounded once an element. Axes other than the last are moved there and
    back by MLX, which copies. ``ValueError`` for other dtypes and for axes that do not exist.
    """
    if dtype is not None:
        x = x.astype(dtype)
    if axis is None:
        return _cumsum(x.reshape(-1), reverse=bool(reverse), inclusive=bool(inclusive))
    axis = _axis(axis, x.ndim)
    moved = x if axis == x.ndim - 1 else mx.moveaxis(x, axis, -1)
    sums = _cumsum(moved, reverse=bool(reverse), inclusive=bool(inclusive))
    return sums if moved is x else mx.moveaxis(sums, -1, axis)
