"""One PNG for a run: a panel for each benchmark and dtype, speed over size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from enceladus.bench.protocol import KINDS
from enceladus.bench.run import Result, Run

#: Kind → colour (Okabe and Ito's palette, readable without colour vision) and marker.
_STYLES = {
    "enceladus": ("#0072B2", "o"),
    "triton": ("#D55E00", "s"),
    "mlx.fast": ("#CC79A7", "D"),
    "mlx.compile": ("#009E73", "^"),
    "mlx": ("#7F7F7F", "v"),
    "torch": ("#E69F00", "x"),
    "bare": ("#56B4E9", "P"),
}
MISSING = "plots need matplotlib: pip install 'enceladus[bench]'"


def is_available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def save(path: str, context: dict[str, Any], run: Run) -> None:
    """Draw ``run`` into ``path`` (PNG, or what the suffix says). ``ImportError`` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    groups: dict[tuple[str, str], list[Result]] = {}
    for result in run.results:
        if result.measurement is not None:
            groups.setdefault((result.benchmark, result.dtype), []).append(result)
    sweeps = {key: found for key, found in groups.items() if len({r.size for r in found}) > 1}
    singles = {key: found for key, found in groups.items() if key not in sweeps}
    panels = [(key, found, True) for key, found in sweeps.items()]
    panels += [(key, found, False) for key, found in singles.items()]
    if not panels:
        raise ValueError("there is nothing to plot: no implementation was measured")
    columns = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6.4 * columns, 0.9 + 3.9 * rows), dpi=150, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, ((benchmark, dtype), found, is_sweep) in zip(axes, panels, strict=False):
        axis.set_title(f"{benchmark} · {dtype}", fontsize=11, fontweight="bold", loc="left")
        (_draw_sweep if is_sweep else _draw_bars)(axis, found, run)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8.5)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    versions = ", ".join(f"{name} {version}" for name, version in context["versions"].items())
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.1)  # type: ignore[union-attr, call-arg]
    figure.suptitle(f"{context['device']} · engine {context['engine']}", fontsize=12)
    figure.supxlabel(f"{versions} · {context['date']}\n{context['command']}", fontsize=7, color="#555555")
    figure.savefig(path)


def _speed(result: Result) -> float:
    """GB/s, else TFLOP/s, else launches a second."""
    m = result.measurement
    assert m is not None
    return m.gbps or m.tflops or 1 / m.median


def _unit(results: Sequence[Result]) -> str:
    m = results[0].measurement
    assert m is not None
    return "GB/s" if m.gbps else "TFLOP/s" if m.tflops else "calls a second"


def _lines(results: Sequence[Result]) -> list[tuple[str, str]]:
    """(kind, label), ordered as in tables."""
    order = {kind: i for i, kind in enumerate(KINDS)}
    return sorted(
        dict.fromkeys((r.kind, r.label) for r in results), key=lambda line: order.get(line[0], len(order))
    )


def _draw_sweep(axis: Any, results: Sequence[Result], run: Run) -> None:
    seen: dict[str, int] = {}
    for kind, label in _lines(results):
        found = sorted((r for r in results if (r.kind, r.label) == (kind, label)), key=lambda r: r.size)
        colour, marker = _STYLES.get(kind, ("#000000", "."))
        variant = seen[kind] = seen.get(kind, -1) + 1
        sizes = [r.size for r in found]
        speeds = [_speed(r) for r in found]
        axis.plot(
            sizes,
            speeds,
            color=colour,
            marker=marker,
            markersize=4.5,
            markerfacecolor=colour if variant == 0 else "white",
            linestyle=("-", "--", ":", "-.")[variant % 4],
            linewidth=2.0 if kind == "enceladus" else 1.3,
            label=f"{kind} {label}".rstrip(),
            zorder=3 if kind == "enceladus" else 2,
        )
        spread = [
            [_speed(r) * r.measurement.median / r.measurement.quantile(q) for r in found]  # type: ignore[union-attr]
            for q in (0.8, 0.2)
        ]
        axis.fill_between(sizes, *spread, color=colour, alpha=0.12, linewidth=0)
        wrong = [r for r in found if r.is_bad]
        axis.plot([r.size for r in wrong], [_speed(r) for r in wrong], "rX", markersize=10, zorder=4)
    unit = _unit(results)
    copy = run.copy.gbps if run.copy is not None and unit == "GB/s" else None
    if copy is not None and max(map(_speed, results)) > copy / 3:
        axis.axhline(copy, color="black", linewidth=1, linestyle=(0, (5, 3)), label="copy", zorder=1)
    elif copy is not None:  # the line would squeeze all others into the bottom of the panel
        axis.set_title(f"copy: {copy:,.0f} GB/s", fontsize=8.5, color="#555555", loc="right")
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("elements", fontsize=9)
    axis.set_ylabel(unit, fontsize=9)
    axis.grid(True, color="#DDDDDD", linewidth=0.6)
    axis.legend(fontsize=7.5, frameon=False, loc="best")


def _draw_bars(axis: Any, results: Sequence[Result], run: Run) -> None:
    lines = _lines(results)[::-1]
    by_line = {(r.kind, r.label): r for r in results}
    times = [by_line[line].measurement.median * 1e6 for line in lines]  # type: ignore[union-attr]
    names = [f"{kind} {label}".rstrip() for kind, label in lines]
    colours = [_STYLES.get(kind, ("#000000", ""))[0] for kind, _ in lines]
    bars = axis.barh(names, times, color=colours, height=0.62)
    for bar, line in zip(bars, lines, strict=True):
        m = by_line[line].measurement
        assert m is not None
        rate = f"  {m.gbps:,.0f} GB/s" if m.gbps else ""
        wrong = "  MISMATCH" if by_line[line].is_bad else ""
        text = f" {m.median * 1e6:,.2f} µs{rate}{wrong}"
        axis.text(bar.get_width(), bar.get_y() + bar.get_height() / 2, text, va="center", fontsize=8)
    axis.set_xlim(0, max(times) * 1.45)
    axis.set_xlabel(f"µs a launch, {results[0].size:,} elements (shorter is better)", fontsize=9)
