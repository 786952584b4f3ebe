"""Conversions inside a SIMD group: selects, one round of shuffles, selects.

A worked example. Each of 4 lanes holds a row of a 4×4 tile and shall hold a column: register ``r`` of lane
``l`` comes from register ``l`` of lane ``r``. A shuffle reads the *same* register of all source lanes, so no
single shuffle fills a register. Diagonals do: in round ``k`` lane ``m`` offers register ``m ^ k`` and lane
``l`` reads lane ``l ^ k``; what arrives is register ``l`` of lane ``l ^ k``, which belongs in register ``l ^
k``. Both ends pick a register that depends on the lane, which two-way selects do, one stage per lane bit.

In general (S, M are the matrices that tell from which register and lane a destination register, lane or warp
reads) round ``k`` offers register ``F k ^ A m ^ C w`` and fills register ``k ^ B l``. Comparing
coefficients::

    F = S_r + A M_r        F B = S_l + A M_l        C = S_w + A M_w

A is chosen so that F reaches what the second equation needs. Where it cannot (one lane feeds several lanes
from different registers) extra rounds are added, as registers of the destination that nobody reads later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from . import cost, gf2
from .linear import LinearLayout

T = TypeVar("T")
Values = Sequence[Sequence[Sequence[T]]]
"""What the threads hold: ``values[warp][lane][register]``."""


def parity(value: int) -> bool:
    return bool(value.bit_count() & 1)


class SelectStage(NamedTuple):
    """Swap registers ``k`` and ``k ^ register_xor`` where the parity of the masked thread bits is odd."""

    lane_mask: int
    warp_mask: int
    register_xor: int

    def swaps(self, lane: int, warp: int) -> bool:
        return parity(lane & self.lane_mask) != parity(warp & self.warp_mask)


class ShuffleStep(NamedTuple):
    """Read ``register`` of the lane ``lane_xor ^ (linear part of the plan)``."""

    register: int
    lane_xor: int


@dataclass(frozen=True, slots=True)
class SimdShuffle:
    """Conversion plan inside SIMD groups; `execute` is its definition.

    First ``select_in`` permutes the source registers of each thread; step ``i`` fills slot ``i``;
    ``select_out`` permutes the slots; destination register ``r`` is slot ``rename[r]``.
    """

    src: LinearLayout
    dst: LinearLayout
    select_in: tuple[SelectStage, ...]
    steps: tuple[ShuffleStep, ...]
    lane_columns: tuple[int, ...]
    warp_columns: tuple[int, ...]
    select_out: tuple[SelectStage, ...]
    rename: tuple[int, ...]

    def source_lane(self, step: ShuffleStep, lane: int, warp: int = 0) -> int:
        """The lane that ``lane`` reads in a step."""
        return step.lane_xor ^ gf2.apply(self.lane_columns, lane) ^ gf2.apply(self.warp_columns, warp)

    @property
    def is_xor(self) -> bool:
        """Every step reads lane ``l ^ mask`` with a mask that is uniform in the SIMD group."""
        return self.lane_columns == gf2.units(len(self.lane_columns))

    def moves(self, step: ShuffleStep) -> bool:
        """False when every lane reads itself, so the step is a register copy."""
        return not self.is_xor or step.lane_xor != 0 or any(self.warp_columns)

    @property
    def shuffles(self) -> int:
        return sum([self.moves(step) for step in self.steps])

    @property
    def selects(self) -> int:
        """Two-way selects per thread."""
        offered = len({step.register for step in self.steps})
        return len(self.select_in) * offered + len(self.select_out) * len(self.steps)

    def cycles(self, element_bytes: int = 4) -> int:
        shuffle = cost.SHUFFLE_XOR if self.is_xor else cost.SHUFFLE
        return (self.shuffles * shuffle + self.selects * cost.SELECT) * max(1, element_bytes // 4)

    def execute(self, values: Values[T]) -> list[list[list[T]]]:
        """Run the plan on simulated threads."""
        result = []
        for warp, lanes in enumerate(values):
            offered = [_select(self.select_in, held, lane, warp) for lane, held in enumerate(lanes)]
            received = []
            for lane in range(len(lanes)):
                slots = [offered[self.source_lane(step, lane, warp)][step.register] for step in self.steps]
                slots = _select(self.select_out, slots, lane, warp)
                received.append([slots[slot] for slot in self.rename])
            result.append(received)
        return result


def _select(stages: Sequence[SelectStage], registers: Sequence[T], lane: int, warp: int) -> list[T]:
    held = list(registers)
    for stage in stages:
        if stage.swaps(lane, warp):
            held = [held[k ^ stage.register_xor] for k in range(len(held))]
    return held


def _stages(lane_columns: Sequence[int], warp_columns: Sequence[int]) -> tuple[SelectStage, ...]:
    """The fewest stages that xor the register number with a linear function of the thread."""
    columns = (*lane_columns, *warp_columns)
    if not any(columns):
        return ()
    solver = gf2.Solver(columns)
    parts = [solver.reduce(column)[1] for column in columns]
    stages = []
    for i, column in enumerate(columns):
        mask = sum([1 << j for j, part in enumerate(parts) if part >> i & 1])
        if mask:
            lanes = len(lane_columns)
            stages.append(SelectStage(mask & ((1 << lanes) - 1), mask >> lanes, column))
    return tuple(stages)


class _Source(NamedTuple):
    """Where something is read from: a linear combination of registers and one of lanes."""

    register: int
    lane: int


def register_rename(columns: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The independent columns, and for each register the equal one in terms of only these."""
    free = gf2.free_mask(columns)
    kept = tuple([column for j, column in enumerate(columns) if not free >> j & 1])
    solver = gf2.Solver(kept)
    return kept, gf2.span([solver.reduce(column)[1] for column in columns])


def plan_shuffle(src: LinearLayout, dst: LinearLayout) -> SimdShuffle | None:
    """A plan that stays inside each SIMD group, or None when data must cross."""
    registers, lanes, warps = (src.columns_of(name) for name in ("register", "lane", "warp"))
    kept, rename = register_rename(dst.columns_of("register"))
    own = gf2.Solver(registers)
    register_first, lane_first = gf2.Solver((*registers, *lanes)), gf2.Solver((*lanes, *registers))

    def find(target: int, *, prefer_lanes: bool) -> _Source | None:
        found = (lane_first if prefer_lanes else register_first).solve(target)
        if found is None:
            return None
        split = len(lanes) if prefer_lanes else len(registers)
        low, high = found & ((1 << split) - 1), found >> split
        return _Source(high, low) if prefer_lanes else _Source(low, high)

    def find_lane(j: int, target: int) -> _Source | None:
        same_thread = own.solve(target ^ lanes[j])
        return find(target, prefer_lanes=True) if same_thread is None else _Source(same_thread, 1 << j)

    by_register = [find(target, prefer_lanes=False) for target in kept]
    by_lane = [find_lane(j, target) for j, target in enumerate(dst.columns_of("lane"))]
    drift = [mine ^ theirs for mine, theirs in zip(warps, dst.columns_of("warp"), strict=True)]
    by_warp = [find(target, prefer_lanes=True) for target in drift]
    r_sources = [source for source in by_register if source is not None]
    l_sources = [source for source in by_lane if source is not None]
    w_sources = [source for source in by_warp if source is not None]
    if len(r_sources) + len(l_sources) + len(w_sources) < len(by_register) + len(by_lane) + len(by_warp):
        return None

    offer, extra = _offer(r_sources, l_sources, len(lanes))
    r_sources += [_Source(vector, 0) for vector in extra]
    fetched = [source.register ^ gf2.apply(offer, source.lane) for source in r_sources]
    solver = gf2.Solver(fetched)
    spread: list[int] = []
    for source in l_sources:
        slot = solver.solve(source.register ^ gf2.apply(offer, source.lane))
        assert slot is not None, "the offered registers do not reach what the lanes need"
        spread.append(slot)
    reads = [source.lane for source in r_sources]
    return SimdShuffle(
        src,
        dst,
        select_in=_stages(offer, [source.register ^ gf2.apply(offer, source.lane) for source in w_sources]),
        steps=tuple([ShuffleStep(f, m) for f, m in zip(gf2.span(fetched), gf2.span(reads), strict=True)]),
        lane_columns=tuple([s.lane ^ gf2.apply(reads, b) for s, b in zip(l_sources, spread, strict=True)]),
        warp_columns=tuple([source.lane for source in w_sources]),
        select_out=_stages(spread, ()),
        rename=rename,
    )


def _offer(
    by_register: Sequence[_Source], by_lane: Sequence[_Source], lanes: int
) -> tuple[list[int], list[int]]:
    """The matrix A (lane bits to register bits) and the registers that extra rounds must offer."""
    reached = [source.register for source in by_register]
    wanted = gf2.new_modulo(reached, [source.register for source in by_lane])
    offer = [0] * lanes
    if not wanted:
        return offer, []
    reads = [source.lane for source in by_register]
    # Rounds that fetch the same register from different lanes: these lanes offer what is wanted instead.
    idle = [gf2.apply(reads, combination) for combination in gf2.kernel(reached)][: len(wanted)]
    diagonal = gf2.Solver(idle)
    for unit in gf2.units(lanes):
        diagonal.add(unit)
    for j, unit in enumerate(gf2.units(lanes)):
        offer[j] ^= gf2.apply([*wanted[: len(idle)], *[0] * lanes], diagonal.reduce(unit)[1])
    rest = wanted[len(idle) :]
    if not rest:
        return offer, []
    # What is still wanted: a lane whose readers all want the same register offers just that one.
    known = len(reached) + len(idle)
    coordinates = gf2.Solver((*reached, *wanted))
    wants = [0] * len(reads) + [coordinates.reduce(source.register)[1] >> known for source in by_lane]
    readers, quarrels = gf2.Solver(reads), []
    for source in by_lane:
        relation = readers.add(source.lane)
        if relation is not None:
            quarrels.append(gf2.apply(wants, relation))
    for unit in gf2.units(lanes):
        readers.add(unit)
    answers = [gf2.apply(rest, want) for want in wants] + [0] * lanes
    for j, unit in enumerate(gf2.units(lanes)):
        offer[j] ^= gf2.apply(answers, readers.reduce(unit)[1])
    return offer, [gf2.apply(rest, quarrel) for quarrel in gf2.new_modulo((), quarrels)]
