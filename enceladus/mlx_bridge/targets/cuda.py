"""The engine of NVIDIA GPUs: the same body through ``mx.fast.cuda_kernel``.

A header spells the vocabulary of Metal's language in CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from enceladus.codegen.kernel import CompiledKernel


def register(compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
    """MLX's kernel object. ``NotImplementedError`` while the vocabulary header is absent."""
    try:
        from enceladus.codegen.cuda_header import CUDA_HEADER
    except ImportError as error:
        raise NotImplementedError(
            "the cuda engine is not available in this version; set ENCELADUS_ENGINE=graph, or make the "
            "CPU MLX's default device"
        ) from error
    kernel: Any = mx.fast.cuda_kernel(
        name=compiled.name,
        input_names=compiled.input_names,
        output_names=compiled.output_names,
        source=compiled.body,
        header=f"{CUDA_HEADER}\n{compiled.header}",
    )
    made: Callable[..., list[mx.array]] = kernel
    return made
