"""``do_bench``: the time a launch takes on the device, apart from what it costs the host.

MLX is lazy, so the two are easy to tell apart: calling ``fn`` many times only builds a graph (timed as
``host_seconds``); evaluating that graph and waiting for the device is what ``seconds`` reports, per call.
The inputs rotate through more memory than the caches hold, so every call reads from memory.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

#: Bytes of inputs to rotate through: several times the last-level cache of the devices at hand.
GPU_ROTATION, CPU_ROTATION = 256 << 20, 64 << 20
MOST_SETS = 64
MOST_LAUNCHES = 1000

Inputs = Callable[[], Sequence[Any]] | Sequence[Sequence[Any]] | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What :func:`do_bench` measured, and how.

    ``seconds`` has one entry for each repeat: the device time of one call, from an evaluation of
    ``launches`` calls. ``host_seconds`` is the median time that Python took to build the graph for one
    call; it is not part of ``seconds``. ``bytes`` and ``flops`` are the caller's counts for one call, or
    ``None``.
    """

    seconds: tuple[float, ...]
    host_seconds: float
    launches: int
    warmup: int
    input_sets: int
    input_bytes: int
    device: str
    method: str
    bytes: int | None = None
    flops: int | None = None

    @property
    def median(self) -> float:
        """Seconds of one call, the median over the repeats."""
        return statistics.median(self.seconds)

    def quantile(self, fraction: float) -> float:
        """Seconds that this fraction of the repeats did not exceed; interpolated. 0: the fastest."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"quantile: {fraction} is not between 0 and 1")
        ordered = sorted(self.seconds)
        place = fraction * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    @property
    def gbps(self) -> float | None:
        """10^9 bytes a second at the median, or ``None`` without a count of bytes."""
        return None if self.bytes is None else self.bytes / self.median / 1e9

    @property
    def tflops(self) -> float | None:
        """10^12 operations a second at the median, or ``None`` without a count of operations."""
        return None if self.flops is None else self.flops / self.median / 1e12

    def to_json(self) -> dict[str, Any]:
        """A JSON-serializable dictionary; the derived numbers are included for readers."""
        data = asdict(self)
        data["seconds"] = list(self.seconds)
        derived = {"median": self.median, "p20": self.quantile(0.2), "p80": self.quantile(0.8)}
        return {**data, **derived, "gbps": self.gbps, "tflops": self.tflops}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measurement:
        """The inverse of :meth:`to_json`."""
        kept = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**kept, "seconds": tuple(data["seconds"])})

    def __str__(self) -> str:
        low, high = self.quantile(0.2) * 1e6, self.quantile(0.8) * 1e6
        text = f"{self.median * 1e6:.2f} µs ({low:.2f}–{high:.2f})"
        if self.gbps is not None:
            text += f", {self.gbps:.1f} GB/s"
        if self.tflops is not None:
            text += f", {self.tflops:.3f} TFLOP/s"
        return (
            f"{text}: median of {len(self.seconds)} repeats of {self.launches} launches on {self.device}, "
            f"{self.input_sets} input sets of {self.input_bytes:,} bytes; "
            f"host {self.host_seconds * 1e6:.1f} µs"
        )


def do_bench(
    fn: Callable[..., Any],
    *,
    inputs: Inputs = None,
    warmup: int = 2,
    repeats: int = 7,
    launches: int | None = None,
    evaluation_seconds: float = 0.02,
    rotate_bytes: int | None = None,
    bytes: int | None = None,
    flops: int | None = None,
) -> Measurement:
    """Time ``fn(*inputs)``, which returns one or more lazy MLX arrays, on MLX's default device.

    - ``inputs``: a function that makes a fresh tuple of inputs, called until the sets exceed
      ``rotate_bytes`` (or number 64); or the sets themselves; or ``None``: ``fn`` takes no arguments.
    - ``warmup``, ``repeats``: evaluations that are thrown away, and that count.
    - ``launches``: calls in one evaluation; by default as many as fill ``evaluation_seconds``, limited
      by the memory that their outputs take.
    - ``bytes``, ``flops``: what one call moves and computes, for ``gbps`` and ``tflops``.

    ``TypeError`` if ``fn`` returns no array: there would be nothing to wait for.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"do_bench: repeats={repeats} must be at least 1 and warmup={warmup} at least 0")
    sets = rotating_inputs(inputs, rotate_bytes)
    input_bytes = sum(a.nbytes for a in sets[0] if isinstance(a, mx.array))
    if launches is None:
        launches = _choose_launches(fn, sets, evaluation_seconds)
    # Whole rounds, so that every repeat touches every set equally often.
    if launches > len(sets):
        launches = -(-launches // len(sets)) * len(sets)
    seconds, host = [], []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        first = 0
        for repeat in range(warmup + repeats):
            built, evaluated = _evaluate(fn, sets, launches, first)
            first += launches
            if repeat >= warmup:
                host.append(built / launches)
                seconds.append(evaluated / launches)
    finally:
        if was_enabled:
            gc.enable()
    return Measurement(
        seconds=tuple(seconds),
        host_seconds=statistics.median(host),
        launches=launches,
        warmup=warmup,
        input_sets=len(sets),
        input_bytes=input_bytes,
        device=device_name(),
        method="wall clock of one mx.eval of all launches and mx.synchronize; graph building not counted",
        bytes=bytes,
        flops=flops,
    )


def device_name() -> str:
    """MLX's default device and its model, such as ``gpu: NVIDIA H200``."""
    kind = "gpu" if mx.default_device().type == mx.gpu else "cpu"
    model = mx.device_info(mx.default_device()).get("device_name", "unknown")
    return f"{kind}: {model}"


def rotation_bytes() -> int:
    """How many bytes of inputs :func:`do_bench` rotates through on MLX's default device."""
    return GPU_ROTATION if mx.default_device().type == mx.gpu else CPU_ROTATION


def rotating_inputs(inputs: Inputs, rotate_bytes: int | None = None) -> list[Sequence[Any]]:
    """The sets of inputs that :func:`do_bench` takes turns with, evaluated; see there for ``inputs``."""
    if inputs is None:
        return [()]
    if not callable(inputs):
        sets = list(inputs)
        if not sets:
            raise ValueError("do_bench: inputs is empty; give at least one tuple of arguments, or None")
    else:
        limit = rotation_bytes() if rotate_bytes is None else rotate_bytes
        sets, total = [], 0
        while not sets or (total <= limit and len(sets) < MOST_SETS):
            made = inputs()
            sets.append(made)
            total += max(1, sum(a.nbytes for a in made if isinstance(a, mx.array)))
    mx.eval([a for made in sets for a in made if isinstance(a, mx.array)])
    mx.synchronize()
    return sets


def _choose_launches(fn: Callable[..., Any], sets: list[Sequence[Any]], target: float) -> int:
    """As many calls as take ``target`` seconds together, as far as their outputs fit into memory."""
    results = fn(*sets[0])
    arrays = _arrays(results)
    mx.eval(arrays)  # compiles
    mx.synchronize()
    output_bytes = sum(a.nbytes for a in arrays)
    del results, arrays
    most = min(MOST_LAUNCHES, max(1, _output_memory() // max(1, output_bytes)))
    count = 1
    while count < most:
        _, evaluated = _evaluate(fn, sets, count, 0)
        if evaluated >= target / 2:
            return max(1, min(most, round(count * target / evaluated)))
        count = min(most, max(count * 2, min(count * 10, int(count * target / max(evaluated, 1e-7)))))
    return count


def _output_memory() -> int:
    """Bytes that the outputs of one evaluation may take together."""
    share = 4 if mx.default_device().type == mx.gpu else 16
    return int(mx.get_memory_limit()) // share


def _evaluate(
    fn: Callable[..., Any], sets: list[Sequence[Any]], launches: int, first: int
) -> tuple[float, float]:
    """(seconds to build the graph of so many calls, seconds to evaluate it)."""
    count = len(sets)
    start = time.perf_counter()
    results = [fn(*sets[(first + i) % count]) for i in range(launches)]
    built = time.perf_counter()
    arrays = _arrays(results)
    begin = time.perf_counter()
    mx.eval(arrays)
    mx.synchronize()
    return built - start, time.perf_counter() - begin


def _arrays(results: Any) -> list[mx.array]:
    """The arrays in what ``fn`` returned; ``TypeError`` if there is none."""
    found: list[mx.array] = []
    pending = [results]
    while pending:
        item = pending.pop()
        if isinstance(item, mx.array):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            pending.extend(reversed(item))
    if not found:
        raise TypeError("do_bench: the function returned no MLX array, so there is nothing to wait for")
    return found
