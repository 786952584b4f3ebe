"""Ratios to reach, looked up among the results of one run."""

from __future__ import annotations

from dataclasses import dataclass

from enceladus.bench.protocol import Pick, Target
from enceladus.bench.run import Result, Run


@dataclass(frozen=True)
class Verdict:
    """A target and what came out. ``ratio`` is ``None`` where something was not measured."""

    text: str
    ratio: float | None
    bound: str
    reached: bool | None
    note: str


def judge(targets: list[Target], run: Run) -> list[Verdict]:
    """One verdict for each target."""
    return [_judge(target, run) for target in targets]


def find(run: Run, pick: Pick, label: str = "") -> Result | None:
    """The fastest result that fits; with ``label`` only that configuration."""
    wanted = label or pick.label
    found = [
        r
        for r in run.results
        if (r.benchmark, r.size, r.dtype, r.kind) == (pick.benchmark, pick.size, pick.dtype, pick.kind)
        and r.measurement is not None
        and (not wanted or r.label == wanted)
    ]
    return min(found, key=lambda r: r.measurement.median, default=None)  # type: ignore[union-attr]


def _judge(target: Target, run: Run) -> Verdict:
    bound = f"≥ {target.reach:g}" if target.reach is not None else f"≤ {target.at_most:g}"
    measured = find(run, target.measured)
    if measured is None or measured.measurement is None:
        return Verdict(target.text, None, bound, None, f"{target.measured.kind} was not measured")
    if target.against.kind == "copy":
        other, name = run.copy, f"copy by {run.copy_method}"
    else:
        found = find(run, target.against, measured.label if target.same_label else "")
        other, name = (found.measurement, found.name) if found else (None, target.against.kind)
    if other is None:
        return Verdict(target.text, None, bound, None, f"{name} was not measured")
    mine = measured.measurement
    note = f"{measured.name} against {name}"
    if target.at_most is not None:
        ratio = mine.median / other.median
        return Verdict(target.text, ratio, bound, ratio <= target.at_most, note)
    if mine.gbps is not None and other.gbps is not None:
        ratio = mine.gbps / other.gbps
    else:
        ratio = other.median / mine.median
    return Verdict(target.text, ratio, bound, ratio >= (target.reach or 0.0), note)
