"""Triton and torch beside MLX on one NVIDIA GPU: inputs, timing by CUDA events, results back.

Only imported where torch is installed and wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import torch

from enceladus.testing.timing import MOST_LAUNCHES, MOST_SETS, Measurement, rotation_bytes


def is_usable() -> bool:
    """Whether torch sees a GPU."""
    return bool(torch.cuda.is_available())


def versions() -> dict[str, str]:
    """Versions of what is measured here."""
    found = {"torch": str(torch.__version__)}
    try:
        import triton

        found["triton"] = str(triton.__version__)
    except ImportError:
        pass
    return found


def to_torch(array: mx.array) -> torch.Tensor:
    """A copy on the GPU; bfloat16 travels as 16-bit integers, which NumPy knows."""
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.int16))).cuda().view(torch.bfloat16)
    return torch.from_numpy(np.array(array)).cuda()


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """A copy as an MLX array."""
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16))
    return mx.array(tensor.cpu().numpy())


def rotating(inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Copies of the inputs that together exceed the cache, the given ones first."""
    size = max(1, sum(t.numel() * t.element_size() for t in inputs))
    count = min(MOST_SETS, rotation_bytes() // size + 1)
    return [tuple(inputs), *(tuple(t.clone() for t in inputs) for _ in range(count - 1))]


def do_bench(
    fn: Callable[..., Any],
    sets: Sequence[Sequence[Any]],
    *,
    warmup: int,
    repeats: int,
    evaluation_seconds: float = 0.02,
    bytes: int | None = None,
    flops: int | None = None,
) -> Measurement:
    """The counterpart of ``enceladus.testing.do_bench``, by CUDA events around many launches."""

    def run(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            fn(*sets[i % len(sets)])
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    run(3)  # compiles, fills the allocator's cache
    launches, elapsed = 4, run(4)
    while elapsed < evaluation_seconds / 2 and launches < MOST_LAUNCHES:
        wanted = int(launches * evaluation_seconds / max(elapsed, 1e-7))
        launches = min(MOST_LAUNCHES, max(launches * 2, min(launches * 10, wanted)))
        elapsed = run(launches)
    if launches > len(sets):
        launches = -(-launches // len(sets)) * len(sets)
    for _ in range(warmup):
        run(launches)
    seconds = tuple(run(launches) / launches for _ in range(repeats))
    return Measurement(
        seconds=seconds,
        host_seconds=0.0,
        launches=launches,
        warmup=warmup,
        input_sets=len(sets),
        input_bytes=sum(t.numel() * t.element_size() for t in sets[0]),
        device=f"gpu: {torch.cuda.get_device_name()}",
        method="CUDA events around all launches, on one stream",
        bytes=bytes,
        flops=flops,
    )


def copy_bandwidth(nbytes: int, *, warmup: int, repeats: int) -> Measurement:
    """``cudaMemcpy`` from device to device, by way of ``Tensor.copy_``."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return do_bench(target.copy_, [(source,)], warmup=warmup, repeats=repeats, bytes=2 * nbytes)


def release() -> None:
    """Give the memory of freed tensors back to the device, so that MLX can have it."""
    torch.cuda.empty_cache()
