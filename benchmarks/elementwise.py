"""The elementwise suite: the kernels of ``examples/`` against MLX, Triton and torch.

    python -m enceladus.bench --suite elementwise --json out.json --png out.png
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from enceladus.bench import Benchmark, Chain, Pick, Target
from enceladus.mlx_bridge import engines

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from bias_gelu import bias_gelu, mlx_bias_gelu
from gelu import fused_gelu, mlx_gelu
from swiglu import mlx_swiglu, swiglu
from vector_add import add_kernel, vector_add

HAS_TRITON = all(importlib.util.find_spec(name) is not None for name in ("torch", "triton"))
if HAS_TRITON:
    import triton_kernels

LARGEST, RAGGED, FUSED, COLUMNS = 2**28, 2**28 - 13, 2**26, 4096
TILES = ((1024, 4), (1024, 8), (4096, 8))


def configurations(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """One entry for each tile: 1,024 elements on 4 SIMD groups, and so on."""
    return {f"{block}/{warps}w": partial(function, block=block, num_warps=warps) for block, warps in TILES}


def triton(name: str) -> dict[str, Callable[..., Any]] | None:
    """The same tiles in Triton, or ``None`` where it is not installed."""
    return configurations(getattr(triton_kernels, name)) if HAS_TRITON else None


def torch(name: str) -> Callable[..., Any] | None:
    """A function of torch tensors, or ``None`` where torch is not installed."""
    return getattr(triton_kernels, name) if HAS_TRITON else None


def two_arrays(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    return mx.random.normal((n,), dtype=dtype), mx.random.normal((n,), dtype=dtype)


def one_array(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    return (mx.random.normal((n,), dtype=dtype),)


def matrix_and_bias(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    x = mx.random.normal((n // COLUMNS, COLUMNS), dtype=dtype)
    return x, mx.random.normal((COLUMNS,), dtype=dtype)


def add(x: Any, y: Any) -> Any:
    return x + y


BENCHMARKS = [
    Benchmark(
        name="vector add",
        sizes=(2**12, 2**16, 2**20, 2**24, RAGGED, LARGEST),
        make_inputs=two_arrays,
        enceladus=configurations(vector_add),
        mlx=add,
        triton=triton("vector_add"),
        torch=add if HAS_TRITON else None,
        bytes=lambda n, itemsize: 3 * n * itemsize,
    ),
    Benchmark(
        name="vector add, odd offset",
        sizes=(2**20, LARGEST),
        make_inputs=lambda n, dtype: two_arrays(n + 1, dtype),
        view=lambda a: a[1:],
        enceladus=configurations(vector_add),
        mlx=add,
        triton=triton("vector_add"),
        bytes=lambda n, itemsize: 3 * n * itemsize,
    ),
    Benchmark(
        name="gelu",
        sizes=(2**12, 2**16, 2**20, 2**24, FUSED),
        make_inputs=one_array,
        enceladus=configurations(fused_gelu),
        mlx=mlx_gelu,
        triton=triton("gelu"),
        torch=torch("torch_gelu"),
        bytes=lambda n, itemsize: 2 * n * itemsize,
    ),
    Benchmark(
        name="bias + gelu",
        sizes=(2**12, 2**16, 2**20, 2**24, FUSED),
        dtypes=(mx.float32, mx.bfloat16),
        make_inputs=matrix_and_bias,
        enceladus=configurations(bias_gelu),
        mlx=mlx_bias_gelu,
        triton=triton("bias_gelu"),
        torch=torch("torch_bias_gelu"),
        bytes=lambda n, itemsize: (2 * n + COLUMNS) * itemsize,
    ),
    Benchmark(
        name="swiglu",
        sizes=(2**12, 2**16, 2**20, 2**24, FUSED),
        dtypes=(mx.float16,),
        make_inputs=two_arrays,
        enceladus=configurations(swiglu),
        mlx=mlx_swiglu,
        triton=triton("swiglu"),
        torch=torch("torch_swiglu"),
        bytes=lambda n, itemsize: 3 * n * itemsize,
    ),
]


def bare_add(x: mx.array, y: mx.array) -> Callable[..., mx.array] | None:
    """The vector add as a call of MLX's own kernel object, with everything prepared beforehand."""
    engine = engines.choose()
    if engine not in ("metal", "cuda"):
        return None
    grid = (-(-x.size // 1024),)
    launch = add_kernel.warmup(x, y, mx.zeros_like(x), x.size, BLOCK=1024, grid=grid).launch
    kernel = engines.register(engine, launch.compiled)
    scalars, shapes, dtypes = launch.scalars, [x.shape], [x.dtype]
    threads, group = launch.grid, launch.threadgroup

    def step(x: mx.array, y: mx.array) -> mx.array:
        made = kernel(
            inputs=[x, y, scalars],
            output_shapes=shapes,
            output_dtypes=dtypes,
            grid=threads,
            threadgroup=group,
        )
        return made[0]

    return step


CHAINS = [
    Chain(
        name="chain of 1000 vector adds",
        launches=1000,
        size=1024,
        make_inputs=lambda n: two_arrays(n, mx.float32),
        enceladus=vector_add,
        bare=bare_add,
        mlx=add,
    )
]


def against(benchmark: str, size: int, dtype: str, kind: str) -> tuple[Pick, Pick]:
    """The fastest Enceladus configuration, and what it is compared with."""
    return Pick(benchmark, size, dtype, "enceladus"), Pick(benchmark, size, dtype, kind)


ALIGNED = Pick("vector add", LARGEST, "float32", "enceladus")
ALL = [
    ("vector add", LARGEST, "float32"),
    ("vector add", RAGGED, "float32"),
    ("vector add, odd offset", LARGEST, "float32"),
    ("bias + gelu", FUSED, "float32"),
    ("bias + gelu", FUSED, "bfloat16"),
    ("swiglu", FUSED, "float16"),
]
CHAIN = ("chain of 1000 vector adds", 1024, "float32")

TARGETS = [
    Target("vector add, 2^28 : copy", *against("vector add", LARGEST, "float32", "copy"), reach=0.92),
    Target(
        "vector add, 2^28 - 13 : 2^28",
        Pick("vector add", RAGGED, "float32", "enceladus"),
        ALIGNED,
        reach=0.95,
    ),
    Target(
        "vector add, odd offset : aligned",
        Pick("vector add, odd offset", LARGEST, "float32", "enceladus"),
        ALIGNED,
        reach=0.85,
    ),
    Target(
        "bias + gelu, 2^26 float32 : mx.compile",
        *against("bias + gelu", FUSED, "float32", "mlx.compile"),
        reach=1.3,
    ),
    Target(
        "bias + gelu, 2^26 bfloat16 : mx.compile",
        *against("bias + gelu", FUSED, "bfloat16", "mlx.compile"),
        reach=1.3,
    ),
    Target(
        "swiglu, 2^26 float16 : mx.compile",
        *against("swiglu", FUSED, "float16", "mlx.compile"),
        reach=1.2,
    ),
    *(
        Target(
            f"{name}, {size:,} {dtype} : Triton, {'same tiles' if same else 'its best'}",
            *against(name, size, dtype, "triton"),
            reach=1.0,
            same_label=same,
        )
        for same in (True, False)
        for name, size, dtype in ALL
    ),
    Target("chain of 1000, time a launch : bare kernel", *against(*CHAIN, "bare"), at_most=1.5),
]
