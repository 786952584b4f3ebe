"""``python -m enceladus.bench``: run a suite, print its tables, save JSON and a plot."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx

from enceladus.bench import plot, report
from enceladus.bench.run import Settings, run_suite
from enceladus.bench.targets import judge

#: Sizes that a CPU finishes in a reasonable time, and the bytes of its copy measurement.
CPU_MAX_SIZE, CPU_COPY_BYTES = 1 << 20, 8 << 20


def load_suite(name: str) -> ModuleType:
    """A module by path (``my_suite.py``), by import name, or one of the project's own suites.

    ``ImportError`` if there is none, ``AttributeError`` if it declares no ``BENCHMARKS``.
    """
    path = Path(name)
    if path.suffix != ".py":
        own = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
        path = own if own.is_file() else path
    if path.suffix == ".py":
        if not path.is_file():
            raise ImportError(f"there is no file {name}")
        sys.path.insert(0, str(path.resolve().parent))
        # A name of its own: a suite may be called like a module that it imports.
        module_name = f"suite_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(
                f"{name} is neither a module nor one of the project's suites (those need a checkout)"
            ) from error
    if not hasattr(module, "BENCHMARKS"):
        raise AttributeError(f"{name} declares no BENCHMARKS; see the documentation of enceladus.bench")
    return module


def torch_side(wanted: bool) -> ModuleType | None:
    """``enceladus.bench.others`` where torch is installed and sees a GPU that MLX uses too."""
    if not wanted or mx.default_device().type != mx.gpu or mx.metal.is_available():
        return None
    if importlib.util.find_spec("torch") is None:
        return None
    from enceladus.bench import others

    return others if others.is_usable() else None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m enceladus.bench",
        description="Kernels against the MLX operations they replace, and Triton and torch where installed.",
    )
    made.add_argument("suite", nargs="?", help="a suite: a .py file, a module, or a name in benchmarks/")
    made.add_argument("--suite", dest="suite_option", metavar="SUITE", help="the same, as an option")
    made.add_argument("--json", metavar="FILE", help="save all numbers")
    made.add_argument("--png", metavar="FILE", help="save a plot (needs matplotlib)")
    made.add_argument("--only", metavar="TEXT", default="", help="only benchmarks whose name contains TEXT")
    made.add_argument("--max-size", type=int, metavar="N", help="leave out larger sizes")
    made.add_argument("--repeats", type=int, default=7, metavar="N", help="timed evaluations (default: 7)")
    made.add_argument("--no-torch", action="store_true", help="leave out Triton and torch")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    name = options.suite or options.suite_option or "elementwise"
    if options.png and not plot.is_available():
        print(plot.MISSING, file=sys.stderr)  # now, not after minutes of measuring
        return 2
    for file in (options.json, options.png):
        if file:
            Path(file).resolve().parent.mkdir(parents=True, exist_ok=True)
    try:
        suite = load_suite(name)
    except (ImportError, AttributeError) as error:
        print(f"cannot load the suite: {error}", file=sys.stderr)
        return 2
    on_cpu = mx.default_device().type != mx.gpu
    settings = Settings(
        repeats=options.repeats,
        max_size=options.max_size or (CPU_MAX_SIZE if on_cpu else Settings.max_size),
        copy_bytes=CPU_COPY_BYTES if on_cpu else Settings.copy_bytes,
        torch_side=torch_side(not options.no_torch),
        quiet=options.quiet,
    )
    mx.random.seed(0)
    benchmarks = [b for b in suite.BENCHMARKS if options.only in b.name]
    chains = [c for c in getattr(suite, "CHAINS", []) if options.only in c.name]
    if not benchmarks and not chains:
        print(f"no benchmark of {name} has a name with {options.only!r}", file=sys.stderr)
        return 2
    context = report.environment(settings.torch_side)
    run = run_suite(benchmarks, chains, settings)
    verdicts = judge(list(getattr(suite, "TARGETS", [])), run)
    print(report.heading(context, run))
    print(f"\n{report.tables(run)}")
    if any(v.reached is not None for v in verdicts):
        print(f"\n{report.verdict_table(verdicts)}")
    elif verdicts:
        print("\ntargets: nothing that they compare was measured")
    if run.skipped:
        print(f"\nleft out: {len(run.skipped)} cases, such as {run.skipped[0]} (--max-size)")
    if options.json:
        text = json.dumps(report.to_json(context, run, verdicts), indent=1, default=str)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.png:
        plot.save(options.png, context, run)
    bad = [r for r in run.results if r.is_bad]
    for r in bad:
        reason = r.failure or f"differs from the reference by {r.error:.3g}"
        print(f"WRONG: {r.benchmark}, {r.dtype}, {r.size:,}, {r.name}: {reason}", file=sys.stderr)
    return 1 if bad or not run.results else 0


if __name__ == "__main__":
    sys.exit(main())
