"""Functions of elements: GELU, gates, rotary position embedding, dropout."""

from __future__ import annotations

import mlx.core as mx

from enceladus.mlx_bridge.op import op
from enceladus.ops.kernels import dropout as dropout_kernels
from enceladus.ops.kernels import geglu as geglu_kernels
from enceladus.ops.kernels import gelu as gelu_kernels
from enceladus.ops.kernels import rotary as rotary_kernels
from enceladus.ops.kernels import swiglu as swiglu_kernels
from enceladus.ops.kernels.rows import FLOATS


def _require_floats(name: str, x: mx.array) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} is {x.dtype}; float32, float16 and bfloat16 are supported")


# ------------------------------------------------------------------------- GELU and its gates


@op
def _gelu(x: mx.array, *, approximate: bool) -> mx.array:
    return gelu_kernels.tanh_gelu(x) if approximate else gelu_kernels.fused_gelu(x)


@_gelu.vjp
def _gelu_gradient(primals, cotangents, outputs, *, approximate):
    return (gelu_kernels.gelu_backward(cotangents[0], *primals, approximate=approximate),)


def gelu(x: mx.array, *, approximate: bool = False) -> mx.array:
    """``x * (1 + erf(x / sqrt(2))) / 2``, as ``mlx.nn.gelu``; if ``approximate`` as ``mlx.nn.gelu_approx``.

    ``x``: float32, float16 or bfloat16, of any shape. Computed in float32, rounded once to the dtype of
    ``x``. ``TypeError`` for other dtypes.
    """
    _require_floats("x", x)
    return _gelu(x, approximate=bool(approximate))


@op
def _swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return swiglu_kernels.swiglu(gate, up)


@_swiglu.vjp
def _swiglu_gradient(primals, cotangents, outputs):
    return swiglu_kernels.swiglu_backward(cotangents[0], *primals)


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """``gate * sigmoid(gate) * up``, computed in float32 and rounded once.

    Arrays of one shape and dtype: float32, float16 or bfloat16. ``ValueError`` if they are not alike,
    ``TypeError`` for other dtypes.
    """
    _require_floats("gate", gate)
    return _swiglu(gate, up)


@op
def _geglu(gate: mx.array, up: mx.array, *, approximate: bool) -> mx.array:
    return geglu_kernels.geglu(gate, up, approximate=approximate)


@_geglu.vjp
def _geglu_gradient(primals, cotangents, outputs, *, approximate):
    return geglu_kernels.geglu_backward(cotangents[0], *primals, approximate=approximate)


def geglu(gate: mx.array, up: mx.array, *, approximate: bool = False) -> mx.array:
    """``gelu(gate) * up``, computed in float32 and rounded once; see :func:`gelu` for ``approximate``.

    Arrays of one shape and dtype: float32, float16 or bfloat16. ``ValueError`` if they are not alike,
    ``TypeError`` for other dtypes.
    """
    _require_floats("gate", gate)
    return _geglu(gate, up, approximate=bool(approximate))


# --------------------------------------------------------------------------- rotary embedding


@op
def _rope(x: mx.array, *, dims: int, traditional: bool, base: float, scale: float, offset: int) -> mx.array:
    return rotary_kernels.rotary(x, dims, traditional=traditional, base=base, scale=scale, offset=offset)


@_rope.vjp
def _rope_gradient(primals, cotangents, outputs, *, dims, **options):
    return (rotary_kernels.rotary_backward(cotangents[0], dims, **options),)


def rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool = False,
    base: float | None = 10000.0,
    scale: float = 1.0,
    offset: int = 0,
    freqs: mx.array | None = None,
) -> mx.array:
    """Rotary position embedding, as ``mx.fast.rope``.

    ``x``: (..., length, dim), float32, float16 or bfloat16. Row ``p`` turns its pair ``i`` of the first
    ``dims`` elements by ``(offset + p) * scale * base^(-2 i / dims)`` radians. Pairs are elements ``2 i`` and
    ``2 i + 1`` if ``traditional``, else ``i`` and ``i + dims / 2``. Computed in float32, angles in fixed
    point: they are as accurate at position a million as at position one.

    ``TypeError`` for other dtypes and for an ``offset`` that is an array (its value would have to be computed
    first); ``ValueError`` for ``freqs``, which this does not support, odd ``dims`` and negative positions.
    """
    _require_floats("x", x)
    if freqs is not None or base is None:
        raise ValueError("frequencies of one's own (freqs) are not supported; use mx.fast.rope for those")
    if isinstance(offset, mx.array):
        raise TypeError("offset is an array; rope needs an int. Use mx.fast.rope for offsets in arrays")
    return _rope(
        x,
        dims=int(dims),
        traditional=bool(traditional),
        base=float(base),
        scale=float(scale),
        offset=int(offset),
    )


# ------------------------------------------------------------------------------------ dropout


@op
def _seeded_dropout(x: mx.array, *, p: float, seed: int) -> mx.array:
    return dropout_kernels.dropout(x, p, seed)


@_seeded_dropout.vjp
def _seeded_dropout_gradient(primals, cotangents, outputs, *, p, seed):
    return (dropout_kernels.dropout_backward(cotangents[0], p, seed),)


@op
def _keyed_dropout(x: mx.array, key: mx.array, *, p: float) -> mx.array:
    return dropout_kernels.keyed_dropout(x, p, key)


@_keyed_dropout.vjp
def _keyed_dropout_gradient(primals, cotangents, outputs, *, p):
    return dropout_kernels.keyed_dropout(cotangents[0], p, primals[1]), None


def dropout(x: mx.array, p: float = 0.5, *, key: mx.array | None = None, seed: int | None = None) -> mx.array:
    """``x`` with each element zeroed with probability ``p``, the others divided by ``1 - p``.

    ``x``: float32, float16 or bfloat16, of any shape. Which elements are zeroed depends on their places and
    on a ``key`` (uint32 of shape (2,), as ``mx.random.key`` gives it) or a ``seed`` (an int of 64 bits).
    Without either, MLX's global random state gives a key; under ``mx.compile`` that state must be among its
    ``inputs`` and ``outputs`` for every call to draw anew. No mask is stored: the gradient draws the same
    numbers again.

    ``ValueError`` for a ``p`` outside 0 to 1 and for a key and a seed at once, ``TypeError`` for other
    dtypes.
    """
    _require_floats("x", x)
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1; it is {p}")
    if key is not None and seed is not None:
        raise ValueError("dropout takes a key or a seed, not both")
    if p == 0:
        return x
    if seed is not None:
        return _seeded_dropout(x, p=float(p), seed=int(seed))
    if key is None:
        key = mx.random.randint(-(2**31), 2**31 - 1, (2,), mx.int32).view(mx.uint32)
    return _keyed_dropout(x, key, p=float(p))
