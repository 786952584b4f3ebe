"""Copy bandwidth, the yardstick of memory-bound kernels, measured in the same run.

The fastest of these counts: a float4 copy kernel without any of our own code (on a GPU), MLX's unary
minus (one read and one write of each element), and a device-to-device ``cudaMemcpy`` where torch is there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx

from enceladus.testing.timing import Measurement, do_bench

_CUDA = """
  size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  reinterpret_cast<float4*>(target)[i] = reinterpret_cast<const float4*>(source)[i];
"""
_METAL = """
  size_t i = size_t(threadgroup_position_in_grid.x) * 256 + thread_index_in_threadgroup;
  reinterpret_cast<device float4*>(target)[i] = reinterpret_cast<const device float4*>(source)[i];
"""


def measure(
    nbytes: int, *, warmup: int, repeats: int, torch_side: ModuleType | None = None
) -> dict[str, Measurement]:
    """Name of the method → its measurement, for a copy of ``nbytes`` (a multiple of 4,096)."""
    size = nbytes // 4

    def inputs() -> tuple[mx.array, ...]:
        return (mx.zeros((size,)) + 1,)

    common: dict[str, Any] = {"warmup": warmup, "repeats": repeats, "bytes": 2 * nbytes}
    found = {"MLX unary minus": do_bench(mx.negative, inputs=inputs, **common)}
    if mx.default_device().type == mx.gpu:
        found["float4 copy kernel"] = do_bench(_copy_kernel(size), inputs=inputs, **common)
    mx.clear_cache()
    if torch_side is not None:
        found["cudaMemcpy"] = torch_side.copy_bandwidth(nbytes, warmup=warmup, repeats=repeats)
        torch_side.release()
    return found


def _copy_kernel(size: int) -> Callable[[mx.array], mx.array]:
    metal = mx.metal.is_available()
    make: Any = mx.fast.metal_kernel if metal else mx.fast.cuda_kernel
    kernel = make(
        name="copy_float4",
        input_names=["source"],
        output_names=["target"],
        source=_METAL if metal else _CUDA,
    )

    def copy(source: mx.array) -> mx.array:
        made: list[mx.array] = kernel(
            inputs=[source],
            output_shapes=[source.shape],
            output_dtypes=[source.dtype],
            grid=(size // 4, 1, 1),
            threadgroup=(256, 1, 1),
        )
        return made[0]

    return copy
