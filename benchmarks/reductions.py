"""The suite of rows: softmax, norms, losses, sums and scans of ``examples/`` against MLX and Triton.

    python -m enceladus.bench --suite reductions --json out.json --png out.png

Sizes count elements: ``2**26`` is 16,384 rows of 4,096. The smallest of each is for machines without a GPU.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from enceladus.bench import Benchmark, Pick, Target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from cross_entropy import cross_entropy_and_gradient
from cumsum import cumsum
from layer_norm import layer_norm_backward, layer_norm_forward
from reductions import column_sum, logsumexp
from rms_norm import rms_norm_forward
from rotary import mlx_rotary, rotary
from softmax import softmax

HAS_TRITON = all(importlib.util.find_spec(name) is not None for name in ("torch", "triton"))
if HAS_TRITON:
    import triton_reductions

COLUMNS, LONG, CLASSES = 4096, 65_536, 50_257
ROWS, LONG_ROWS, LOSS_ROWS = 16_384, 4096, 8192
LENGTH, HEADS, HEAD_DIM = 4096, 32, 128  #: of the rotary embedding
FULL, FULL_LONG, FULL_LOSS = ROWS * COLUMNS, LONG_ROWS * LONG, LOSS_ROWS * CLASSES
FULL_ROTARY = 4 * HEADS * LENGTH * HEAD_DIM
EPS = 1e-5

Tiles = Iterable[tuple[int, int]]  #: (block, num_warps)
WHOLE_ROWS: Tiles = ((COLUMNS, 4), (COLUMNS, 8), (COLUMNS, 16))
LOOPED: Tiles = ((2048, 8), (4096, 8), (4096, 16))
SCANS: Tiles = ((2048, 4), (4096, 4), (4096, 8))


def configurations(function: Callable[..., Any], tiles: Tiles, **more: Any) -> dict[str, Callable[..., Any]]:
    """One entry for each tile: 4,096 elements on 8 SIMD groups, and so on."""
    return {f"{b}/{w}w": partial(function, block=b, num_warps=w, **more) for b, w in tiles}


def triton(name: str, tiles: Tiles | None, **options: Any) -> dict[str, Callable[..., Any]] | None:
    """The same tiles in Triton, or ``None`` where it is not installed. No tiles: those that it chooses."""
    if not HAS_TRITON:
        return None
    function = getattr(triton_reductions, name)
    return {"": function} if tiles is None else configurations(function, tiles, **options)


# ----------------------------------------------------------------------------------------- inputs


def matrix(columns: int) -> Callable[[int, mx.Dtype], tuple[mx.array, ...]]:
    """Normal numbers in rows of ``columns``."""
    return lambda n, dtype: (mx.random.normal((n // columns, columns), dtype=dtype),)


def one_row(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """Numbers whose running sums stay near 0."""
    return (mx.random.normal((n,), dtype=dtype) / 64,)


def norm_inputs(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """(x, weight, bias)"""
    x = mx.random.normal((n // COLUMNS, COLUMNS), dtype=dtype)
    return x, mx.random.normal((COLUMNS,), dtype=dtype), mx.random.normal((COLUMNS,), dtype=dtype)


def gradient_inputs(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """(dy, x, weight, bias, mean, rstd): the last two are what the forward pass of ours leaves behind."""
    x, weight, bias = norm_inputs(n, dtype)
    dy = mx.random.normal(x.shape, dtype=dtype)
    wide = x.astype(mx.float32)
    return dy, x, weight, bias, wide.mean(-1), mx.rsqrt(wide.var(-1) + EPS)


def logits_and_targets(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    rows = n // CLASSES
    return mx.random.normal((rows, CLASSES), dtype=dtype), mx.random.randint(0, CLASSES, (rows,))


def heads(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """(batch, heads, length, dim); shorter where ``n`` is small."""
    length = min(LENGTH, n // (HEADS * HEAD_DIM))
    return (mx.random.normal((n // (HEADS * length * HEAD_DIM), HEADS, length, HEAD_DIM), dtype=dtype),)


# -------------------------------------------------------------------------------- ours and MLX's


def our_layer_norm(x: mx.array, weight: mx.array, bias: mx.array, **tile: int) -> mx.array:
    return layer_norm_forward(x, weight, bias, EPS, **tile)[0]


def our_rms_norm(x: mx.array, weight: mx.array, _bias: mx.array, **tile: int) -> mx.array:
    return rms_norm_forward(x, weight, EPS, **tile)[0]


def our_layer_norm_backward(
    dy: mx.array, x: mx.array, weight: mx.array, _bias: mx.array, mean: mx.array, rstd: mx.array, **tile: int
) -> tuple[mx.array | None, ...]:
    return layer_norm_backward(dy, x, weight, mean, rstd, **tile)


def mlx_softmax(x: mx.array) -> mx.array:
    return mx.softmax(x, axis=-1)


def mlx_layer_norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * mx.rsqrt((centred * centred).mean(-1, keepdims=True) + EPS) * weight + bias


def mlx_rms_norm(x: mx.array, weight: mx.array, _bias: mx.array) -> mx.array:
    return x * mx.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def fast_layer_norm_backward(dy: mx.array, *arrays: mx.array) -> tuple[mx.array, ...]:
    """The gradient of ``mx.fast.layer_norm``, which computes means and deviations again."""

    def forward(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, weight, bias, EPS)

    return tuple(mx.vjp(forward, list(arrays[:3]), [dy])[1])


def mlx_layer_norm_backward(dy: mx.array, *arrays: mx.array) -> tuple[mx.array, ...]:
    return tuple(mx.vjp(mlx_layer_norm, list(arrays[:3]), [dy])[1])


def mlx_cross_entropy(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    """(the loss of each row in float32, the gradient of their sum)."""

    def losses(logits: mx.array) -> mx.array:
        return nn.losses.cross_entropy(logits.astype(mx.float32), targets)

    (loss,), (gradient,) = mx.vjp(losses, [logits], [mx.ones(targets.shape)])
    return loss, gradient


BENCHMARKS = [
    Benchmark(
        name="softmax",
        sizes=(16 * COLUMNS, FULL),
        dtypes=(mx.float32, mx.float16),
        make_inputs=matrix(COLUMNS),
        enceladus=configurations(softmax, WHOLE_ROWS),
        mlx=mlx_softmax,
        mlx_compiled=False,
        triton=triton("softmax", WHOLE_ROWS),
        bytes=lambda n, itemsize: 2 * n * itemsize,
    ),
    Benchmark(
        name="softmax of long rows",
        sizes=(LONG, FULL_LONG),
        dtypes=(mx.float32, mx.float16),
        make_inputs=matrix(LONG),
        enceladus=configurations(softmax, LOOPED),
        mlx=mlx_softmax,
        mlx_compiled=False,
        triton=triton("softmax", LOOPED),
        bytes=lambda n, itemsize: 2 * n * itemsize,
    ),
    Benchmark(
        name="layer norm",
        sizes=(16 * COLUMNS, FULL),
        dtypes=(mx.float16,),
        make_inputs=norm_inputs,
        enceladus=configurations(our_layer_norm, WHOLE_ROWS),
        mlx=mlx_layer_norm,
        mlx_fast=lambda x, weight, bias: mx.fast.layer_norm(x, weight, bias, EPS),
        triton=triton("layer_norm", WHOLE_ROWS),
        bytes=lambda n, itemsize: (2 * n + 2 * COLUMNS) * itemsize,
    ),
    Benchmark(
        name="rms norm",
        sizes=(16 * COLUMNS, FULL),
        dtypes=(mx.float16,),
        make_inputs=norm_inputs,
        enceladus=configurations(our_rms_norm, WHOLE_ROWS),
        mlx=mlx_rms_norm,
        mlx_fast=lambda x, weight, _bias: mx.fast.rms_norm(x, weight, EPS),
        triton=triton("rms_norm", WHOLE_ROWS),
        bytes=lambda n, itemsize: (2 * n + COLUMNS) * itemsize,
    ),
    Benchmark(
        name="layer norm backward",
        sizes=(16 * COLUMNS, FULL),
        dtypes=(mx.float16,),
        make_inputs=gradient_inputs,
        enceladus=configurations(our_layer_norm_backward, WHOLE_ROWS),
        mlx=mlx_layer_norm_backward,
        mlx_fast=fast_layer_norm_backward,
        triton=triton("layer_norm_backward", WHOLE_ROWS),
        bytes=lambda n, itemsize: (3 * n + 3 * COLUMNS) * itemsize,
        tolerance=(4e-3, 4e-3),  # sums of up to 16,384 products in another order
    ),
    Benchmark(
        name="cross entropy, forward and backward",
        sizes=(2 * CLASSES, FULL_LOSS),
        make_inputs=logits_and_targets,
        enceladus=configurations(partial(cross_entropy_and_gradient, reduction="none"), LOOPED),
        mlx=mlx_cross_entropy,
        triton=triton("cross_entropy", LOOPED),
        bytes=lambda n, itemsize: 2 * n * itemsize,
    ),
    Benchmark(
        name="column sum",
        sizes=(16 * COLUMNS, FULL),
        make_inputs=matrix(COLUMNS),
        enceladus={"": column_sum},
        mlx=lambda x: x.sum(axis=0),
        mlx_compiled=False,
        triton=triton("column_sum", None),
        bytes=lambda n, itemsize: n * itemsize,
        tolerance=(1e-5, 1e-3),  # sums of up to 16,384 numbers that cancel
    ),
    Benchmark(
        name="log-sum-exp",
        sizes=(16 * COLUMNS, FULL),
        make_inputs=matrix(COLUMNS),
        enceladus=configurations(logsumexp, WHOLE_ROWS),
        mlx=lambda x: mx.logsumexp(x, axis=-1),
        mlx_compiled=False,
        triton=triton("logsumexp", WHOLE_ROWS),
        bytes=lambda n, itemsize: n * itemsize,
    ),
    Benchmark(
        name="cumsum of one row",
        sizes=(2**16, 2**26),
        make_inputs=one_row,
        enceladus=configurations(cumsum, SCANS),
        mlx=lambda x: mx.cumsum(x, axis=-1),
        mlx_compiled=False,
        triton=triton("cumsum", SCANS),
        bytes=lambda n, itemsize: 2 * n * itemsize,
        tolerance=(1e-4, 2e-2),  # the reference adds 2^26 numbers one by one
    ),
    *(
        Benchmark(
            name=name,
            sizes=(HEADS * HEAD_DIM * 16, FULL_ROTARY),
            dtypes=(mx.float16, mx.float32),
            make_inputs=heads,
            enceladus=configurations(rotary, ((1024, 4), (2048, 8)), traditional=traditional),
            mlx=partial(mlx_rotary, traditional=traditional),
            mlx_compiled=False,
            triton=triton("rotary", ((1024, 4), (2048, 8)), traditional=traditional),
            bytes=lambda n, itemsize: 2 * n * itemsize,
            tolerance=(2e-3, 2e-3),  # MLX's angles at position 4,096 are off by 2e-4
        )
        for name, traditional in (("rotary", False), ("rotary, interleaved", True))
    ),
]


#: (benchmark, size, dtype, what it is compared with, ratio to reach)
REACH = [
    ("softmax", FULL, "float32", "mlx", 1.3),
    ("softmax", FULL, "float16", "mlx", 1.3),
    ("softmax of long rows", FULL_LONG, "float32", "mlx", 1.2),
    ("softmax of long rows", FULL_LONG, "float16", "mlx", 1.2),
    ("layer norm", FULL, "float16", "mlx.fast", 1.5),
    ("rms norm", FULL, "float16", "mlx.fast", 1.2),
    ("layer norm backward", FULL, "float16", "mlx.fast", 1.5),
    ("cross entropy, forward and backward", FULL_LOSS, "float32", "mlx.compile", 2.0),
    ("column sum", FULL, "float32", "mlx", 1.5),
    ("log-sum-exp", FULL, "float32", "mlx", 1.5),
    ("cumsum of one row", 2**26, "float32", "mlx", 20.0),
    ("rotary", FULL_ROTARY, "float16", "mlx", 1.2),
    ("rotary", FULL_ROTARY, "float32", "mlx", 1.2),
    ("rotary, interleaved", FULL_ROTARY, "float16", "mlx", 1.2),
    ("rotary, interleaved", FULL_ROTARY, "float32", "mlx", 1.2),
]
MLX_NAMES = {"mlx": "MLX", "mlx.fast": "mx.fast", "mlx.compile": "mx.compile"}

TARGETS = [
    *(
        Target(
            f"{name}, {size:,} {dtype} : {MLX_NAMES[kind]}",
            Pick(name, size, dtype, "enceladus"),
            Pick(name, size, dtype, kind),
            reach=reach,
        )
        for name, size, dtype, kind, reach in REACH
    ),
    *(
        Target(
            f"{name}, {size:,} {dtype} : Triton, same tiles",
            Pick(name, size, dtype, "enceladus"),
            Pick(name, size, dtype, "triton"),
            reach=1.0,
            same_label=True,
        )
        for name, size, dtype, _, _ in REACH
    ),
]
