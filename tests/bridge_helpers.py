"""Kernels and tools for the tests of the bridge to MLX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

import enceladus
import enceladus.language as tl


@enceladus.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@enceladus.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@enceladus.jit
def increment_kernel(x_ptr, n, BLOCK: tl.constexpr):
    """Reads and writes one array."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask=mask)


@enceladus.jit
def two_outputs_kernel(x_ptr, double_ptr, square_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(double_ptr + offsets, x + x, mask=mask)
    tl.store(square_ptr + offsets, x * x, mask=mask)


class Traced(NamedTuple):
    """One call of ``metal_kernel`` as MLX recorded it."""

    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]


def trace(call: Callable[[], Any]) -> tuple[list[Traced], list[str]]:
    """Run ``call`` under export tracing: the kernels reachable from its result, and all primitives' names.

    The caller sets ``ENCELADUS_ENGINE=metal``. Works on machines without a GPU.
    """
    kernels: list[Traced] = []
    names: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if event.get("type") != "primitive":
            return
        names.append(event["name"])
        if event["name"] == "CustomKernel":
            arguments = event["arguments"]
            kernels.append(Traced(arguments[1], tuple(arguments[2:5]), tuple(arguments[5:8])))

    def function() -> Any:
        result = call()
        return mx.zeros(1) if result is None else result

    mx.export_function(note, function)
    return kernels, names


def values(array: Any) -> np.ndarray:
    """NumPy's copy of an MLX array, bfloat16 as float32."""
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)
