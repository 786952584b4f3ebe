"""The engine of Apple GPUs: register a compiled kernel with ``mx.fast.metal_kernel``.

Works on any machine while ``mx.export_function`` traces; that is how tests and ``warmup(...).metal``
get the source that MLX really builds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx

from enceladus.codegen.kernel import CompiledKernel
from enceladus.errors import InternalError


@lru_cache(maxsize=1)
def _has_math_modes() -> bool:
    """macOS 14 knows only ``safe`` and ``fast``."""
    if sys.platform != "darwin":
        return True
    import platform

    return int(platform.mac_ver()[0].partition(".")[0] or 0) >= 15


def register(compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
    """MLX's kernel object; nothing is compiled until MLX evaluates a launch."""
    mode = compiled.math_mode
    if mode == "relaxed" and not _has_math_modes():
        mode = "safe"
    kernel: Any = mx.fast.metal_kernel(
        name=compiled.name,
        input_names=compiled.input_names,
        output_names=compiled.output_names,
        source=compiled.body,
        header=f"{compiled.header.rstrip()}\n" if compiled.header else "",  # MLX adds no newline
        compile_options={"math_mode": mode},
    )
    made: Callable[..., list[mx.array]] = kernel
    return made


def source(
    compiled: CompiledKernel, launch: Callable[[Callable[..., list[mx.array]]], list[mx.array]]
) -> str:
    """The whole source as MLX builds it for one launch; works without a GPU.

    ``launch`` calls the kernel object it is given and returns the outputs. Must not be called while
    another MLX transformation is tracing.
    """
    found: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if event.get("type") == "primitive" and event.get("name") == "CustomKernel":
            found.append(event["arguments"][1])

    mx.export_function(note, lambda: launch(register(compiled)))
    if not found:
        raise InternalError(f"MLX did not record the kernel {compiled.name}")
    return found[0]
