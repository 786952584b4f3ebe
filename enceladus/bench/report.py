"""Tables for people, JSON for programs."""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import mlx.core as mx

import enceladus
from enceladus.bench.protocol import KINDS
from enceladus.bench.run import Result, Run
from enceladus.bench.targets import Verdict
from enceladus.mlx_bridge import engines
from enceladus.testing.timing import device_name

FORMAT = 1


def environment(torch_side: ModuleType | None) -> dict[str, Any]:
    """Device, engine, versions, date and command of this run."""
    mlx_version: str = mx.__version__  # type: ignore[attr-defined]
    found = {"enceladus": enceladus.__version__, "mlx": mlx_version, "python": platform.python_version()}
    return {
        "device": device_name(),
        "engine": engines.choose(),
        "versions": {**found, **(torch_side.versions() if torch_side is not None else {})},
        "system": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "enceladus.bench", *sys.argv[1:]]),
    }


def to_json(context: dict[str, Any], run: Run, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The whole run as a JSON-serializable dictionary."""
    results = []
    for r in run.results:
        measurement = r.measurement.to_json() if r.measurement else None
        results.append({**asdict(r), "measurement": measurement})
    return {
        "format": FORMAT,
        **context,
        "copy": {name: m.to_json() for name, m in run.copies.items()},
        "copy_method": run.copy_method,
        "results": results,
        "targets": [asdict(v) for v in verdicts],
        "skipped": run.skipped,
    }


def heading(context: dict[str, Any], run: Run) -> str:
    """Where the numbers come from."""
    versions = ", ".join(f"{name} {version}" for name, version in context["versions"].items())
    lines = [
        f"{context['device']}; engine {context['engine']}; {versions}",
        f"{context['date']}  {context['command']}",
    ]
    if context["engine"] == "graph":
        lines.append("On the CPU kernels run as MLX operations: this compares those, not generated code.")
    for name, m in run.copies.items():
        chosen = "  (the yardstick below)" if name == run.copy_method else ""
        lines.append(f"copy by {name}: {m.gbps:,.1f} GB/s{chosen}")
    return "\n".join(lines)


def tables(run: Run) -> str:
    """One table for each benchmark and dtype, over sizes."""
    parts = []
    for benchmark, dtype in _groups(run.results):
        rows = [r for r in run.results if (r.benchmark, r.dtype) == (benchmark, dtype)]
        parts.append(f"{benchmark}, {dtype}\n{_table(rows, run)}")
    return "\n\n".join(parts)


def _groups(results: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((r.benchmark, r.dtype) for r in results))


def _table(results: list[Result], run: Run) -> str:
    with_rate = any(r.measurement and r.measurement.gbps for r in results)
    with_flops = any(r.measurement and r.measurement.tflops for r in results)
    head = ["size", "implementation", "time µs", "20–80 %", "host µs"]
    head += ["bytes", "GB/s", "of copy"] if with_rate else []
    head += ["TFLOP/s"] if with_flops else []
    head += ["error", ""]
    copy = run.copy.gbps if run.copy else None
    order = {kind: i for i, kind in enumerate(KINDS)}
    rows = []
    for r in sorted(results, key=lambda r: (r.size, order.get(r.kind, len(order)))):
        m = r.measurement
        if m is None:
            rows.append([f"{r.size:,}", r.name, "failed", *[""] * (len(head) - 4), r.failure])
            continue
        low, high = m.quantile(0.2) * 1e6, m.quantile(0.8) * 1e6
        row = [f"{r.size:,}", r.name, _micro(m.median * 1e6), f"{_micro(low)}–{_micro(high)}"]
        row.append(_micro(m.host_seconds * 1e6) if m.host_seconds else "")
        if with_rate:
            row += [f"{m.bytes:,}" if m.bytes else "", f"{m.gbps:,.1f}" if m.gbps else ""]
            row.append(f"{m.gbps / copy:.0%}" if m.gbps and copy else "")
        if with_flops:
            row.append(f"{m.tflops:.3f}" if m.tflops else "")
        row += [f"{r.error:.1e}", "MISMATCH" if r.matches is False else "ok" if r.matches else ""]
        rows.append(row)
    return _aligned(head, rows, left={1, len(head) - 1})


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Ratios and their targets."""
    rows = []
    for v in verdicts:
        outcome = "not measured" if v.reached is None else "reached" if v.reached else "MISSED"
        rows.append([v.text, "" if v.ratio is None else f"{v.ratio:.3f}", v.bound, outcome, v.note])
    return _aligned(["target", "ratio", "bound", "", ""], rows, left={0, 3, 4})


def _micro(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"


def _aligned(head: list[str], rows: list[list[str]], left: set[int]) -> str:
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = []
    for line in [head, ["─" * w for w in widths], *rows]:
        padded = zip(line, widths, strict=True)
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(padded))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
