"""Which data movement turns one layout of a tile into another, and nothing more than that.

>>> rows = LinearLayout.from_bases({"register": [(0, 1)], "lane": [(1, 0)]}, {"dim0": 2, "dim1": 2})
>>> columns = LinearLayout.from_bases({"register": [(1, 0)], "lane": [(0, 1)]}, {"dim0": 2, "dim1": 2})
>>> plan = plan_conversion(rows, columns)
>>> type(plan).__name__, plan.shuffles, plan.selects
('SimdShuffle', 1, 4)
>>> plan.execute([[["a", "b"], ["c", "d"]]])          # one warp, two lanes, two registers
[[['a', 'c'], ['b', 'd']]]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from . import gf2, shared, shuffle
from .dims import LayoutError, bits_of
from .linear import LinearLayout
from .shuffle import SimdShuffle, T, Values


@dataclass(frozen=True, slots=True)
class Nothing:
    """Every thread already holds what it needs, in the right registers."""

    src: LinearLayout
    dst: LinearLayout

    def execute(self, values: Values[T]) -> list[list[list[T]]]:
        return [[list(registers) for registers in lanes] for lanes in values]


@dataclass(frozen=True, slots=True)
class RegisterRename:
    """Every thread holds what it needs: destination register ``r`` is source register ``sources[r]``."""

    src: LinearLayout
    dst: LinearLayout
    sources: tuple[int, ...]

    def execute(self, values: Values[T]) -> list[list[list[T]]]:
        return [[[registers[s] for s in self.sources] for registers in lanes] for lanes in values]


Plan: TypeAlias = Nothing | RegisterRename | SimdShuffle | shared.SharedTrip


def _require_convertible(src: LinearLayout, dst: LinearLayout) -> None:
    if src.outs != dst.outs:
        raise LayoutError(f"tiles {src.outs} and {dst.outs} differ")
    for layout in (src, dst):
        order = [dim.name for dim in layout.ins]
        if order != [name for name in shared.PLACES if name in order]:
            raise LayoutError(f"inputs must be named register, lane, warp, in this order, got {order}")
    for name in ("lane", "warp"):
        if bits_of(src.ins, name) != bits_of(dst.ins, name):
            raise LayoutError(f"{src.in_size(name)} and {dst.in_size(name)} {name}s cannot exchange data")


@lru_cache(maxsize=4096)
def plan_conversion(
    src: LinearLayout, dst: LinearLayout, element_bytes: int = 4, vectors: bool = True
) -> Plan:
    """The cheapest plan: rename registers, else shuffle in the SIMD group, else through threadgroup memory.

    ``src`` must hold every element that ``dst`` asks for. Either side may hold copies. Without ``vectors``
    accesses of threadgroup memory move one element each.
    """
    _require_convertible(src, dst)
    if src.columns == dst.columns and src.ins == dst.ins:
        return Nothing(src, dst)
    sources = _same_thread(src, dst)
    if sources is not None:
        return RegisterRename(src, dst, sources)
    plan = shuffle.plan_shuffle(src, dst)
    if plan is None or plan.cycles(element_bytes) > shared.trip_cycles(src, dst, element_bytes, vectors):
        return shared.plan_shared(src, dst, element_bytes, vectors)
    return plan


def _same_thread(src: LinearLayout, dst: LinearLayout) -> tuple[int, ...] | None:
    """The source register of each destination register, the same in all threads, or None."""
    if any(src.columns_of(name) != dst.columns_of(name) for name in ("lane", "warp")):
        return None
    held = gf2.Solver(src.columns_of("register"))
    bits: list[int] = []
    for target in dst.columns_of("register"):
        found = held.solve(target)
        if found is None:
            return None
        bits.append(found)
    return gf2.span(bits)
