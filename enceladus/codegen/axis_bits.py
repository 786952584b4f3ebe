"""Where the bits of an index along a dimension of a register tile are: registers, lanes or SIMD-groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from enceladus.ir.laid_out import Layout

LANE_BITS = 5  #: the low bits of a thread's index


class Home(Enum):
    """What a bit of an index chooses."""

    REGISTER = "register"
    LANE = "lane"
    SIMD_GROUP = "SIMD-group"


@dataclass(frozen=True, slots=True)
class Run:
    """Bits ``low`` to ``low + length - 1`` of the index.

    They are bits ``first``, ``first + 1``, … of the register's number or of the thread's index.
    """

    home: Home
    low: int
    length: int
    first: int

    def part(self, source: str) -> str:
        """The run's part of the index, from the register's number or the thread's index."""
        mask = ((1 << self.length) - 1) << self.low
        shift = self.low - self.first
        moved = source if shift == 0 else f"{source} << {shift}" if shift > 0 else f"{source} >> {-shift}"
        return f"({moved if shift == 0 else f'({moved})'} & {mask})"


def runs_along(layout: Layout, dim: int) -> list[Run]:
    """The runs of dimension ``dim``'s index, lowest first. Bits that hold copies belong to no index."""
    axis = layout.kept[dim]
    vector, threads, chunks = layout.blocked.bits()
    registers = [a for a in (*vector, *chunks) if a in layout.kept]
    split = sum(a in layout.kept for a in vector)
    homes = [(Home.REGISTER, k, a) for k, a in enumerate(registers[:split])]
    homes += [(Home.LANE if k < LANE_BITS else Home.SIMD_GROUP, k, a) for k, a in enumerate(threads)]  # type: ignore[misc]
    homes += [(Home.REGISTER, k + split, a) for k, a in enumerate(registers[split:])]
    runs: list[Run] = []
    low = 0
    for home, position, a in homes:
        if a != axis:
            continue
        last = runs[-1] if runs else None
        if last is not None and last.home is home and last.first + last.length == position:
            runs[-1] = Run(home, last.low, last.length + 1, last.first)
        else:
            runs.append(Run(home, low, 1, position))
        low += 1
    return runs


def index_part(runs: list[Run], homes: tuple[Home, ...], source: str) -> str:
    """The part of the index that bits of ``homes`` make; ``""`` where there are none."""
    chosen: list[Run] = []
    for run in runs:
        if run.home not in homes:
            continue
        last = chosen[-1] if chosen else None
        if last is not None and last.low + last.length == run.low and last.first + last.length == run.first:
            chosen[-1] = Run(last.home, last.low, last.length + run.length, last.first)
        else:
            chosen.append(run)
    return " | ".join(run.part(source) for run in chosen)


def index_along(runs: list[Run], thread: str, register: str) -> str:
    """The index along the dimension of a thread's register."""
    parts = [
        index_part(runs, (Home.REGISTER,), register) if register else "",
        index_part(runs, (Home.LANE, Home.SIMD_GROUP), thread),
    ]
    return " | ".join(part for part in parts if part) or "0"
