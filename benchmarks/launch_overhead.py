"""What a launch costs beyond MLX's own call.

Compares ``kernel[grid](x, y, out, n, BLOCK=…)`` on a memory-cache hit with a bare, prepared
``mx.fast.metal_kernel`` call of the same body on the same arrays. Both run under export tracing in one
process, so no GPU is needed; nothing is evaluated. Run: ``python benchmarks/launch_overhead.py``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ["ENCELADUS_ENGINE"] = "metal"

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.mlx_bridge.targets import metal

SIZE, BLOCK = 98_432, 1024


@enceladus.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def median_us(calls: dict[str, Callable[[], object]], rounds: int = 4000) -> dict[str, float]:
    """The median of each call in microseconds; the calls take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


def main() -> None:
    x, y, out = mx.ones((SIZE,)), mx.ones((SIZE,)), mx.zeros((SIZE,))
    fresh = enceladus.empty_like(x)
    mx.eval(x, y, out)
    grid = (enceladus.cdiv(SIZE, BLOCK),)
    launch = add_kernel.warmup(x, y, out, SIZE, BLOCK=BLOCK, grid=grid).launch
    bare = metal.register(launch.compiled)
    scalars = launch.scalars
    assert scalars is not None

    def count(a):
        return (enceladus.cdiv(a["n"], a["BLOCK"]),)

    calls: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "bare metal_kernel": lambda: bare(
            inputs=[x, y, scalars],
            output_shapes=[(SIZE,)],
            output_dtypes=[mx.float32],
            grid=launch.grid,
            threadgroup=launch.threadgroup,
        ),
        "launch into an existing array": lambda: add_kernel[grid](x, y, out, SIZE, BLOCK=BLOCK),
        "launch with enceladus.empty": lambda: add_kernel[grid](x, y, fresh, SIZE, BLOCK=BLOCK),
        "launch with a grid function": lambda: add_kernel[count](x, y, out, SIZE, BLOCK=BLOCK),
        "launch with num_warps=8": lambda: add_kernel[grid](x, y, out, SIZE, BLOCK=BLOCK, num_warps=8),
    }
    results: dict[str, float] = {}

    def traced() -> mx.array:
        for call in calls.values():
            call()
        results.update(median_us(calls))
        return mx.zeros(1)

    mx.export_function(lambda event: None, traced)
    overhead = results.pop("nothing")
    plain = results["bare metal_kernel"] - overhead
    length = len(launch.compiled.body) + len(launch.compiled.header)
    print(f"vector add of {SIZE} float32; source of {length} bytes")
    for name, value in results.items():
        print(f"{name:32s} {value - overhead:6.2f} µs  {(value - overhead) / plain:5.2f} x bare")


if __name__ == "__main__":
    main()
