"""How long Enceladus takes to import, to compile a kernel, and to find one in its disk cache.

    python benchmarks/compile_time.py

Needs no GPU. Prints each time beside its target, and the share of each stage of a compile. Every
"without cache" number starts from the Python function: source text, parsing, tile IR, passes, body text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

import enceladus
from enceladus.compiler import compile_function
from enceladus.frontend.function import KernelFunction
from enceladus.mlx_bridge import cache
from enceladus.mlx_bridge.compilation import Compilations, build, compile_kernel
from enceladus.mlx_bridge.jit import JITFunction
from enceladus.mlx_bridge.specialization import SpecializationKey

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from gelu import gelu_kernel  # noqa: E402
from vector_add import add_kernel  # noqa: E402

SIZE, BLOCK = 98_432, 1024

#: What is measured → its target in milliseconds.
TARGETS = {
    "vector add, no cache": 1.5,
    "gelu, no cache": 2.5,
    "first compile of a process": 15.0,
    "disk-cache hit, vector add": 1.0,
    "disk-cache hit, gelu": 1.0,
    "import enceladus after mlx.core": 60.0,
}

FIRST_COMPILE = """
import os, sys, time
os.environ["ENCELADUS_CACHE"] = "0"
sys.path.insert(0, sys.argv[1])
import mlx.core as mx
from vector_add import add_kernel
import enceladus
x = mx.zeros((98432,))
start = time.perf_counter()
add_kernel.warmup(x, x, enceladus.empty_like(x), x.size, BLOCK=1024, grid=(97,)).body
print((time.perf_counter() - start) * 1e3)
"""

IMPORT = """
import time
import mlx.core
start = time.perf_counter()
import enceladus
print((time.perf_counter() - start) * 1e3)
"""


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of a call; the first one is thrown away."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def in_fresh_processes(program: str, processes: int) -> float:
    """Median of the number that a program prints, each time in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": os.environ["BYTECODE"]}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", program, str(ROOT / "examples")]
    numbers = []
    for _ in range(processes + 1):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        numbers.append(float(done.stdout.split()[-1]))
    return statistics.median(numbers[1:])  # the first one writes the bytecode, as an installation does


def stages(kernel: JITFunction, key: SpecializationKey, repeats: int) -> dict[str, float]:
    """Median milliseconds of each stage of a compile, in order."""
    totals: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        last = time.perf_counter()
        repeated = False

        def note(stage: str, _function: object = None) -> None:
            nonlocal last
            now = time.perf_counter()
            totals.setdefault(stage, []).append((now - last) * 1e3)
            last = time.perf_counter()

        def after_pass(name: str, function: object) -> None:
            nonlocal repeated
            if name == "full_blocks":
                # Between the shared passes and this one the compiler also derives roles and coverage and
                # prints the IR; the listener cannot see the border.
                repeated = True
                note("roles, coverage, IR text, full_blocks", function)
            else:
                note(f"{name} (again)" if repeated and name in ("canonicalize", "dce") else name, function)

        function = build(KernelFunction(kernel.fn), key)
        note("front end (source, parse, tile IR)")
        compile_function(function, math_mode=key.math_mode, listener=after_pass)
        note("code generation")
    return {name: statistics.median(times[1:]) for name, times in totals.items()}


def measure(repeats: int, processes: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """(what → ms, kernel → stage → ms)."""
    x = mx.zeros((SIZE,))
    fresh = enceladus.empty_like(x)
    grid = (enceladus.cdiv(SIZE, BLOCK),)
    kernels = {
        "vector add": (add_kernel, add_kernel.warmup(x, x, fresh, SIZE, BLOCK=BLOCK, grid=grid).key),
        "gelu": (gelu_kernel, gelu_kernel.warmup(x, fresh, SIZE, BLOCK=BLOCK, grid=grid).key),
    }
    results: dict[str, float] = {}
    shares: dict[str, dict[str, float]] = {}
    for name, (kernel, key) in kernels.items():

        def compile_afresh(kernel: JITFunction = kernel, key: SpecializationKey = key) -> object:
            return compile_kernel(KernelFunction(kernel.fn), key)

        results[f"{name}, no cache"] = median_ms(compile_afresh, repeats)
        shares[name] = stages(kernel, key, repeats)
    results["first compile of a process"] = in_fresh_processes(FIRST_COMPILE, processes)
    for name, (kernel, key) in kernels.items():
        if cache.load(key) is None:
            raise SystemExit(f"the disk cache does not hold {name}; is its directory writable?")

        def load(kernel: JITFunction = kernel, key: SpecializationKey = key) -> object:
            return Compilations(kernel.kernel_function).kernel(key)

        results[f"disk-cache hit, {name}"] = median_ms(load, repeats)
    results["import enceladus after mlx.core"] = in_fresh_processes(IMPORT, processes)
    return results, shares


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to a file")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="compiles and loads")
    parser.add_argument("--processes", type=int, default=7, metavar="N", help="fresh processes")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ENCELADUS_CACHE_DIR"] = folder
        os.environ["ENCELADUS_CACHE"] = "1"
        os.environ["BYTECODE"] = os.path.join(folder, "bytecode")
        results, shares = measure(arguments.repeats, arguments.processes)
    print(f"Python {sys.version.split()[0]}, MLX {mx.__version__}, Enceladus {enceladus.__version__}")
    print(f"medians: {arguments.repeats} compiles or loads, {arguments.processes} processes\n")
    print(f"{'':34s} {'ms':>8s} {'target':>8s}")
    for name, target in TARGETS.items():
        verdict = "" if results[name] <= target else "   above the target"
        print(f"{name:34s} {results[name]:8.2f} {target:8.1f}{verdict}")
    for name, parts in shares.items():
        total = sum(parts.values())
        print(f"\n{name}: stages of a compile, {total:.2f} ms")
        for stage, milliseconds in parts.items():
            share = milliseconds / total
            print(f"  {stage:40s} {milliseconds:7.3f} ms {share:5.0%}  {'█' * round(share * 40)}")
    if arguments.json:
        record = {"milliseconds": results, "targets": TARGETS, "stages": shares}
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    missed = any(results[name] > target for name, target in TARGETS.items())
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
