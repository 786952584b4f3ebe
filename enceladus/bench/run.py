"""Run a suite: compare every implementation's result first, then time it."""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import mlx.core as mx

from enceladus.bench import copying
from enceladus.bench.progress import Progress
from enceladus.bench.protocol import Benchmark, Chain
from enceladus.testing.compare import largest_error
from enceladus.testing.timing import Measurement, device_name, do_bench, rotating_inputs

#: Kinds whose results must be within the tolerance. The others are the baseline: their error is shown.
CHECKED = ("enceladus", "triton")


@dataclass(frozen=True)
class Settings:
    """How to measure. ``torch_side`` is ``enceladus.bench.others``, or ``None``: no torch, no Triton."""

    repeats: int = 7
    warmup: int = 2
    max_size: int = 1 << 62
    copy_bytes: int = 1 << 30
    torch_side: ModuleType | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Result:
    """One implementation at one size. ``measurement`` is ``None`` where it failed: ``failure`` says how.

    ``error`` is the largest absolute difference from the reference; ``matches`` whether it is within the
    tolerance (``None`` for baselines, which need not be).
    """

    benchmark: str
    size: int
    dtype: str
    kind: str
    label: str
    measurement: Measurement | None = None
    error: float | None = None
    matches: bool | None = None
    failure: str = ""

    @property
    def is_bad(self) -> bool:
        return self.matches is False or bool(self.failure)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.label}".rstrip()


@dataclass(frozen=True)
class Run:
    """Everything that one run measured. ``copies``: method → measurement of the copy bandwidth."""

    results: list[Result]
    copies: dict[str, Measurement]
    skipped: list[str]

    @property
    def copy(self) -> Measurement | None:
        """The fastest copy."""
        return max(self.copies.values(), key=lambda m: m.gbps or 0.0, default=None)

    @property
    def copy_method(self) -> str:
        return max(self.copies, key=lambda name: self.copies[name].gbps or 0.0, default="")


def dtype_name(dtype: mx.Dtype) -> str:
    """``float32`` for ``mlx.core.float32``."""
    return str(dtype).rpartition(".")[2]


def run_suite(benchmarks: Sequence[Benchmark], chains: Sequence[Chain], settings: Settings) -> Run:
    """Measure all of them, in order, with a progress bar on standard error."""
    run = Run([], {}, [])
    cases = []
    for benchmark in benchmarks:
        for dtype in benchmark.dtypes:
            for size in benchmark.sizes:
                if size <= settings.max_size:
                    cases.append((benchmark, dtype, size))
                else:
                    run.skipped.append(f"{benchmark.name}, {dtype_name(dtype)}, {size:,} elements: too large")
    steps = 1 + len(chains) + sum(_count(b, settings) for b, _, _ in cases)
    with Progress(steps, quiet=settings.quiet) as progress:
        try:
            progress.step("copy bandwidth")
            run.copies.update(
                copying.measure(
                    settings.copy_bytes,
                    warmup=settings.warmup,
                    repeats=settings.repeats,
                    torch_side=settings.torch_side,
                )
            )
            for chain in chains:
                progress.step(chain.name)
                run.results.extend(run_chain(chain, settings))
            for benchmark, dtype, size in cases:
                for result in run_case(benchmark, dtype, size, settings, progress):
                    run.results.append(result)
                gc.collect()
                mx.clear_cache()
        except KeyboardInterrupt:
            run.skipped.append("the rest: interrupted")
    return run


def run_case(
    benchmark: Benchmark, dtype: mx.Dtype, size: int, settings: Settings, progress: Progress
) -> Iterator[Result]:
    """All implementations of one benchmark at one size and dtype."""
    case = _Case(benchmark, size, dtype, settings, progress)
    yield from _mlx_results(case)
    mx.clear_cache()
    if settings.torch_side is not None and _torch_entries(benchmark):
        yield from _torch_results(case, settings.torch_side)
        settings.torch_side.release()


def _mlx_results(case: _Case) -> Iterator[Result]:
    sets = rotating_inputs(lambda: tuple(case.view(a) for a in case.make_inputs()))
    expected = case.reference(sets[0])
    for kind, label, function in _mlx_entries(case.benchmark):
        yield case.measure(
            (kind, label),
            expected,
            partial(function, *sets[0]),
            partial(do_bench, function, inputs=sets, **case.counts),
        )
        mx.clear_cache()


def _torch_results(case: _Case, torch_side: ModuleType) -> Iterator[Result]:
    made = case.make_inputs()
    expected = case.reference([case.view(a) for a in made])
    # Views are taken of the copies: a copy of a view would start at an aligned address again.
    sets = [
        tuple(case.view(t) for t in tensors)
        for tensors in torch_side.rotating([torch_side.to_torch(a) for a in made])
    ]
    del made
    mx.clear_cache()
    for kind, label, function in _torch_entries(case.benchmark):
        yield case.measure(
            (kind, label),
            expected,
            partial(_through_torch, function, sets[0], torch_side),
            partial(torch_side.do_bench, function, sets, **case.counts),
        )


def _through_torch(function: Callable[..., Any], inputs: Sequence[Any], torch_side: ModuleType) -> Any:
    result = function(*inputs)
    return tuple(map(torch_side.to_mlx, result)) if isinstance(result, tuple) else torch_side.to_mlx(result)


def _error(actual: Any, expected: Any, **tolerances: float) -> float:
    """``largest_error`` of two arrays, or the largest of two tuples of them."""
    if isinstance(actual, mx.array) and isinstance(expected, mx.array):
        return largest_error(actual, expected, **tolerances)
    return max(largest_error(a, b, **tolerances) for a, b in zip(actual, expected, strict=True))


@dataclass(frozen=True)
class _Case:
    """One benchmark at one size and dtype."""

    benchmark: Benchmark
    size: int
    dtype: mx.Dtype
    settings: Settings
    progress: Progress

    @property
    def counts(self) -> dict[str, Any]:
        """What ``do_bench`` is told about each implementation."""
        count_bytes, count_flops = self.benchmark.bytes, self.benchmark.flops
        return {
            "bytes": None if count_bytes is None else count_bytes(self.size, self.dtype.size),
            "flops": None if count_flops is None else count_flops(self.size),
            "warmup": self.settings.warmup,
            "repeats": self.settings.repeats,
        }

    def make_inputs(self) -> tuple[mx.array, ...]:
        return self.benchmark.make_inputs(self.size, self.dtype)

    def view(self, array: Any) -> Any:
        return array if self.benchmark.view is None else self.benchmark.view(array)

    def reference(self, inputs: Sequence[mx.array]) -> Any:
        """What the results should be; 16-bit floats are computed in float32."""
        function = self.benchmark.reference or self.benchmark.mlx
        expected = function(*(_widened(a) for a in inputs))
        mx.eval(expected)
        return expected

    def measure(
        self,
        name: tuple[str, str],
        expected: Any,
        call: Callable[[], Any],
        bench: Callable[[], Measurement],
    ) -> Result:
        """Compare, then time. A wrong result is timed too, and marked. ``name``: kind and label."""
        dtype = dtype_name(self.dtype)
        self.progress.step(f"{self.benchmark.name}, {dtype}, {self.size:,}: {' '.join(name).rstrip()}")
        place = (self.benchmark.name, self.size, dtype, *name)
        try:
            actual = call()
            rtol, atol = self.benchmark.allowed(self.dtype)
            error = _error(actual, expected)
            matches = _error(actual, expected, rtol=rtol, atol=atol) <= 1.0
            del actual
            measurement = bench()
        except Exception as caught:  # one implementation's failure must not lose the others' numbers
            return Result(*place, failure=_failure(caught))
        return Result(*place, measurement, error, matches if name[0] in CHECKED else None)


def run_chain(chain: Chain, settings: Settings) -> list[Result]:
    """Time a chain of dependent launches as a whole: building its graph, evaluating it, waiting."""
    inputs = chain.make_inputs(chain.size)
    mx.eval(inputs)
    place = (chain.name, chain.size, dtype_name(inputs[0].dtype))
    steps = {"enceladus": chain.enceladus, "bare": chain.bare(*inputs), "mlx": chain.mlx}
    present = {kind: step for kind, step in steps.items() if step is not None}
    try:
        ends = {kind: _run_chain(step, inputs, chain.launches)[2] for kind, step in present.items()}
        built: dict[str, list[float]] = {kind: [] for kind in present}
        total: dict[str, list[float]] = {kind: [] for kind in present}
        for repeat in range(settings.warmup + settings.repeats):
            for kind, step in present.items():  # in turns, so that noise hits all alike
                building, all_of_it, _ = _run_chain(step, inputs, chain.launches)
                if repeat >= settings.warmup:
                    built[kind].append(building / chain.launches)
                    total[kind].append(all_of_it / chain.launches)
    except Exception as caught:  # as above: the rest of the run goes on
        return [Result(*place, "enceladus", "", failure=_failure(caught))]
    results = []
    for kind in present:
        measurement = Measurement(
            seconds=tuple(total[kind]),
            host_seconds=statistics.median(built[kind]),
            launches=chain.launches,
            warmup=settings.warmup,
            input_sets=1,
            input_bytes=sum(a.nbytes for a in inputs),
            device=device_name(),
            method="wall clock of building the graph of a chain and evaluating it, a launch",
        )
        error = largest_error(ends[kind], ends["mlx"])
        results.append(Result(*place, kind, "", measurement, error, error <= 1e-3 if kind != "mlx" else None))
    return results


def _run_chain(step: Callable[..., Any], inputs: Sequence[Any], launches: int) -> tuple[float, float, Any]:
    value, *rest = inputs
    start = time.perf_counter()
    for _ in range(launches):
        value = step(value, *rest)
    built = time.perf_counter()
    mx.eval(value)
    mx.synchronize()
    return built - start, time.perf_counter() - start, value


def _mlx_entries(benchmark: Benchmark) -> list[tuple[str, str, Callable[..., Any]]]:
    """(kind, label, function of MLX arrays)."""
    entries = [("enceladus", label, function) for label, function in benchmark.enceladus.items()]
    if benchmark.mlx_fast is not None:
        entries.append(("mlx.fast", "", benchmark.mlx_fast))
    if benchmark.mlx_compiled:
        entries.append(("mlx.compile", "", mx.compile(benchmark.mlx)))
    return [*entries, ("mlx", "", benchmark.mlx)]


def _torch_entries(benchmark: Benchmark) -> list[tuple[str, str, Callable[..., Any]]]:
    """(kind, label, function of torch tensors)."""
    entries = [("triton", label, function) for label, function in (benchmark.triton or {}).items()]
    return entries if benchmark.torch is None else [*entries, ("torch", "", benchmark.torch)]


def _count(benchmark: Benchmark, settings: Settings) -> int:
    torch_count = len(_torch_entries(benchmark)) if settings.torch_side is not None else 0
    return len(_mlx_entries(benchmark)) + torch_count


def _widened(array: mx.array) -> mx.array:
    """16-bit floats as float32, so that the reference is the better one."""
    return array.astype(mx.float32) if array.dtype in (mx.float16, mx.bfloat16) else array


def _failure(error: Exception) -> str:
    """The error and the place in the user's or our code that raised it, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    text = " ".join(str(error).split())
    place = f" ({last.filename.rpartition('/')[2]}:{last.lineno})" if last else ""
    return f"{type(error).__name__}: {text}{place}"
