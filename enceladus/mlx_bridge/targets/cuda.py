"""The engine of NVIDIA GPUs: the same body through ``mx.fast.cuda_kernel``.

A header spells the vocabulary of Metal's language in CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from enceladus.codegen.cuda_header import cuda_source
from enceladus.codegen.kernel import CompiledKernel


def register(compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
    """MLX's kernel object; nothing is compiled until MLX evaluates a launch."""
    header, source = cuda_source(compiled)
    kernel: Any = mx.fast.cuda_kernel(
        name=compiled.name,
        input_names=compiled.input_names,
        output_names=compiled.output_names,
        source=source,
        header=header,
    )
    made: Callable[..., list[mx.array]] = kernel
    return made
