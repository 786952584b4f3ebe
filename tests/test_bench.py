"""``python -m enceladus.bench``: what it measures, what it refuses, what it writes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from enceladus.bench import Benchmark, Chain, Pick, Target, plot, report
from enceladus.bench.__main__ import load_suite, main
from enceladus.bench.progress import Progress
from enceladus.bench.run import Result, Run, Settings, dtype_name, run_suite
from enceladus.bench.targets import judge
from enceladus.testing import Measurement, timing

ROOT = Path(__file__).resolve().parent.parent
QUICK = Settings(repeats=1, warmup=0, copy_bytes=1 << 12, quiet=True)


def ones(n: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    return (mx.ones((n,), dtype=dtype),)


def double(x: mx.array) -> mx.array:
    return 2 * x


def fail(x: mx.array) -> mx.array:
    raise RuntimeError("no such luck")


def benchmark(**more: Any) -> Benchmark:
    fields: dict[str, Any] = {
        "name": "double",
        "sizes": (4, 8),
        "make_inputs": ones,
        "enceladus": {"a": double},
        "mlx": lambda x: x + x,
        "bytes": lambda n, itemsize: 2 * n * itemsize,
    }
    return Benchmark(**{**fields, **more})


def measurement(seconds: float, **more: Any) -> Measurement:
    return Measurement((seconds,), 1e-6, 1, 0, 1, 4, "cpu: x", "m", **more)


def test_every_implementation_is_measured_at_every_size() -> None:
    run = run_suite([benchmark(mlx_fast=double)], [], QUICK)
    assert [(r.size, r.kind, r.label) for r in run.results] == [
        (size, kind, label)
        for size in (4, 8)
        for kind, label in (("enceladus", "a"), ("mlx.fast", ""), ("mlx.compile", ""), ("mlx", ""))
    ]
    assert all(r.measurement is not None and not r.is_bad for r in run.results)
    first = run.results[0].measurement
    assert first is not None and first.bytes == 32
    assert run.copy is not None and run.copy.gbps


def test_a_wrong_result_is_marked_and_a_failure_does_not_stop_the_rest() -> None:
    made = benchmark(sizes=(4,), enceladus={"right": double, "wrong": lambda x: 3 * x, "fails": fail})
    run = run_suite([made], [], QUICK)
    by_label = {r.label: r for r in run.results if r.kind == "enceladus"}
    assert by_label["right"].matches is True
    assert by_label["wrong"].matches is False and by_label["wrong"].error == 1.0
    assert by_label["fails"].failure.startswith("RuntimeError: no such luck (test_bench.py:")
    assert [r.kind for r in run.results[3:]] == ["mlx.compile", "mlx"]
    table = report.tables(run)
    assert "MISMATCH" in table and "no such luck" in table


def test_all_of_several_outputs_are_compared() -> None:
    def two(x: mx.array) -> tuple[mx.array, mx.array]:
        return 2 * x, 3 * x

    made = benchmark(
        sizes=(4,),
        mlx=two,
        enceladus={"right": two, "wrong": lambda x: (2 * x, 4 * x), "one": lambda x: (2 * x,)},
    )
    right, wrong, one, *_ = run_suite([made], [], QUICK).results
    assert right.matches is True
    assert wrong.matches is False and wrong.error == 1.0
    assert "ValueError" in one.failure


def test_16_bit_floats_are_compared_with_float32() -> None:
    made = benchmark(
        sizes=(4,), dtypes=(mx.bfloat16,), mlx=lambda x: x * 1.001, enceladus={"a": lambda x: x * 1.001}
    )
    run = run_suite([made], [], QUICK)
    assert run.results[0].error == pytest.approx(0.001, rel=0.01)
    assert run.results[0].matches


def test_views_are_applied_to_the_inputs() -> None:
    sizes: list[int] = []

    def note(x: mx.array) -> mx.array:
        sizes.append(x.size)
        return 2 * x

    run_suite([benchmark(sizes=(9,), view=lambda a: a[1:], enceladus={"a": note})], [], QUICK)
    assert set(sizes) == {8}


def test_large_sizes_are_left_out_and_said_so() -> None:
    run = run_suite([benchmark()], [], Settings(1, 0, max_size=5, copy_bytes=4096, quiet=True))
    assert {r.size for r in run.results} == {4}
    assert run.skipped == ["double, float32, 8 elements: too large"]


def test_chains_are_timed_as_a_whole() -> None:
    steps: list[int] = []

    def step(x: mx.array, y: mx.array) -> mx.array:
        steps.append(1)
        return x + y

    def inputs(n: int) -> tuple[mx.array, ...]:
        return mx.zeros((n,)), mx.ones((n,))

    chain = Chain("chain", 5, 4, inputs, enceladus=step, mlx=lambda x, y: x + y, bare=lambda x, y: step)
    run = run_suite([], [chain], QUICK)
    assert [r.kind for r in run.results] == ["enceladus", "bare", "mlx"]
    assert len(steps) == 2 * 2 * 5  # compared once, timed once, for two kinds
    assert all(r.error == 0.0 and r.matches is not False for r in run.results)
    wrong = Chain("chain", 5, 4, inputs, enceladus=lambda x, y: x, mlx=lambda x, y: x + y)
    assert [r.matches for r in run_suite([], [wrong], QUICK).results] == [False, None]


def test_a_benchmark_without_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="'double' needs at least one size"):
        benchmark(sizes=())


def results(**medians: float) -> Run:
    made = []
    for name, seconds in medians.items():
        kind, _, label = name.partition("_")
        made.append(Result("b", 8, "float32", kind, label, measurement(seconds, bytes=64), 0.0, True))
    return Run(made, {"slow": measurement(1e-6, bytes=16), "fast": measurement(1e-6, bytes=64)}, [])


def target(kind: str, **more: Any) -> Target:
    return Target("t", Pick("b", 8, "float32", "enceladus"), Pick("b", 8, "float32", kind), **more)


def test_targets_compare_the_fastest_configuration() -> None:
    run = results(enceladus_a=2e-6, enceladus_b=1e-6, triton_a=0.5e-6, triton_b=3e-6)
    best, same, copy, late = judge(
        [
            target("triton", reach=1.0),
            target("triton", reach=1.0, same_label=True),
            target("copy", reach=0.9),
            target("triton", at_most=1.5),
        ],
        run,
    )
    assert (best.ratio, best.reached) == (pytest.approx(0.5), False)
    assert (same.ratio, same.reached) == (pytest.approx(3.0), True)
    assert (copy.ratio, copy.reached) == (pytest.approx(1.0), True)
    assert "fast" in copy.note
    assert (late.ratio, late.reached) == (pytest.approx(2.0), False)


def test_targets_that_were_not_measured_say_so() -> None:
    (verdict,) = judge([target("triton", reach=1.0)], results(enceladus_a=1e-6))
    assert verdict.ratio is None and verdict.reached is None
    assert verdict.note == "triton was not measured"
    assert "not measured" in report.verdict_table([verdict])


SUITE = """
import mlx.core as mx
from enceladus.bench import Benchmark, Pick, Target

FACTOR = {factor}
BENCHMARKS = [
    Benchmark(
        name="double",
        sizes=(4, 64),
        make_inputs=lambda n, dtype: (mx.ones((n,), dtype=dtype),),
        enceladus={{"a": lambda x: FACTOR * x}},
        mlx=lambda x: x + x,
        bytes=lambda n, itemsize: 2 * n * itemsize,
    )
]
TARGETS = [
    Target("t", Pick("double", 64, "float32", "enceladus"), Pick("double", 64, "float32", "mlx"), reach=1e-9)
]
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_suite.py"
    path.write_text(SUITE.format(factor=2), encoding="utf-8")
    return str(path)


def test_command_line_prints_a_table_and_saves_json(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "out.json"
    assert main([suite, "--repeats", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    assert "double, float32" in printed.out and "of copy" in printed.out and "reached" in printed.out
    assert "[1/7] copy bandwidth" in printed.err
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert {"device", "engine", "versions", "date", "command"} <= set(saved)
    assert len(saved["results"]) == 6
    assert saved["targets"][0]["reached"] is True
    assert saved["results"][0]["measurement"]["gbps"] > 0


def test_command_line_fails_on_a_wrong_result(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(suite).write_text(SUITE.format(factor=3), encoding="utf-8")
    assert main([suite, "--repeats", "1", "--max-size", "4", "--quiet"]) == 1
    expected = "WRONG: double, float32, 4, enceladus a: differs from the reference by 1\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_file.py", "there is no file no_such_file.py"),
        ("no_such_module", "neither a module nor one of the project's suites"),
        ("json", "json declares no BENCHMARKS"),
    ],
)
def test_command_line_explains_a_suite_that_cannot_be_loaded(
    name: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([name]) == 2
    assert words in capsys.readouterr().err


def test_command_line_says_when_nothing_is_selected(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([suite, "--only", "triple"]) == 2
    assert "no benchmark" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_measuring(
    suite: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([suite, "--png", "x.png"]) == 2
    printed = capsys.readouterr()
    assert "pip install 'enceladus[bench]'" in printed.err and not printed.out


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = results(enceladus_a=2e-6, mlx=3e-6)
    run.results.extend([replace(r, size=64, matches=False) for r in run.results])
    context = {"device": "d", "engine": "graph", "versions": {"mlx": "1"}, "date": "x", "command": "c"}
    file = tmp_path / "plot.png"
    plot.save(str(file), context, run)
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to plot"):
        plot.save(str(file), context, Run([], {}, []))


def test_the_project_suite_runs_and_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = load_suite("elementwise")
    sizes = {(b.name, size) for b in module.BENCHMARKS for size in b.sizes}
    chains = {(c.name, c.size) for c in module.CHAINS}
    for pick in (p for t in module.TARGETS for p in (t.measured, t.against)):
        assert (pick.benchmark, pick.size) in sizes | chains
    run = run_suite(module.BENCHMARKS, [], Settings(1, 0, max_size=1 << 12, copy_bytes=4096, quiet=True))
    assert {r.benchmark for r in run.results} == {"vector add", "gelu", "bias + gelu", "swiglu"}
    assert [r for r in run.results if r.is_bad] == []


def test_the_suite_of_rows_runs_and_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(timing, "MOST_LAUNCHES", 1)
    monkeypatch.setattr(timing, "MOST_SETS", 1)
    module = load_suite("reductions")
    measured = {
        (b.name, size, dtype_name(dtype)) for b in module.BENCHMARKS for size in b.sizes for dtype in b.dtypes
    }
    for pick in (p for t in module.TARGETS for p in (t.measured, t.against)):
        assert (pick.benchmark, pick.size, pick.dtype) in measured
    smallest = [replace(b, sizes=(min(b.sizes),)) for b in module.BENCHMARKS]
    run = run_suite(smallest, [], QUICK)
    assert {r.benchmark for r in run.results} == {b.name for b in module.BENCHMARKS}
    assert [r for r in run.results if r.is_bad] == []


def test_a_suite_may_be_called_like_a_module_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    suite, other = tmp_path / "suite" / "twins.py", tmp_path / "other" / "twins.py"
    for file in (suite, other):
        file.parent.mkdir()
    other.write_text("NAME = 'the module'\n", encoding="utf-8")
    text = f"import sys\nsys.path.insert(0, {str(other.parent)!r})\nfrom twins import NAME\nBENCHMARKS = []\n"
    suite.write_text(text, encoding="utf-8")
    try:
        assert load_suite(str(suite)).NAME == "the module"
    finally:
        sys.modules.pop("twins", None)


def test_compile_time_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/compile_time.py", "--processes", "1", "--repeats", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("vector add, no cache", "disk-cache hit", "import enceladus", "front end"):
        assert words in done.stdout


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((Terminal(), "█"), (io.StringIO(), "[2/2] second\n")):
        with Progress(2, stream=stream) as progress:
            progress.step("first")
            progress.step("second")
        assert expected in stream.getvalue()
    silent = io.StringIO()
    Progress(1, stream=silent, quiet=True).step("x")
    assert silent.getvalue() == ""
