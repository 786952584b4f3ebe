"""Conversions through threadgroup memory, with a computed swizzle that has no bank conflicts.

A worked example. A 32×32 tile of 4-byte elements is written row by row (lanes along a row) and read column
by column. At offset ``32*row + column`` the 32 lanes of a read all meet bank ``column``: 32 turns instead of
one. At offset ``32*row + (column ^ row)`` a row still covers all banks, and now a column does too.

That offset is linear, and the choice is a question about subspaces. Split the tile's coordinates as ``vector
⊕ bank ⊕ segment`` (the offset's bits from low to high). Two lanes collide when they differ by an element of
``segment`` modulo ``vector``. So take for ``segment`` a subspace that meets neither the span of the writing
lanes nor that of the reading lanes: two subspaces of one dimension always have a common complement, spanned
by the sums ``a_i ^ b_i`` of what is special to each, and by whatever lies in neither.

*Vectors.* Several registers travel in one access (up to 16 B) when both sides hold them in registers and no
lane or warp of either side moves within them. *Wide accesses* are served in turns of 128 B, so only the
lanes of one turn must avoid each other. *Narrow elements*: lanes that meet in one 4-byte word do not
collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import cost, gf2
from .dims import Dim, LayoutError
from .linear import LinearLayout
from .shuffle import T, Values

PLACES = ("register", "lane", "warp")


class Conflicts(NamedTuple):
    """Extra turns that each turn of an access takes because lanes meet in a bank."""

    store: int
    load: int


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """One side of the trip: for each base, register ``base ^ vector[i]`` meets offset ``offset(base) + i``.

    Threads with a bit of ``lane_guard`` or ``warp_guard`` set hold copies and stay out of it.
    """

    offsets: LinearLayout
    vector: tuple[int, ...]
    bases: tuple[int, ...]
    lane_guard: int
    warp_guard: int

    def is_active(self, lane: int, warp: int) -> bool:
        return not (lane & self.lane_guard or warp & self.warp_guard)

    def offset(self, base: int, lane: int, warp: int) -> int:
        """The first element of an access, always a multiple of the vector length."""
        return self.offsets.apply(register=base, lane=lane, warp=warp)[0]

    def conflicts(self, element_bytes: int) -> int:
        return bank_conflicts(self.offsets, len(self.vector), element_bytes, self.lane_guard)


@dataclass(frozen=True, slots=True)
class SharedTrip:
    """Conversion plan through threadgroup memory; `execute` is its definition.

    ``swizzle`` maps the tile's coordinates to element offsets. After the loads, destination register ``r`` is
    the loaded register ``rename[r]``. Barriers may be those of the SIMD group unless ``crosses_simdgroups``.
    """

    src: LinearLayout
    dst: LinearLayout
    element_bytes: int
    swizzle: LinearLayout
    store: SharedAccess
    load: SharedAccess
    rename: tuple[int, ...]
    crosses_simdgroups: bool

    @property
    def elements(self) -> int:
        return 1 << self.swizzle.out_bits

    @property
    def shared_bytes(self) -> int:
        return self.elements * self.element_bytes

    def conflicts(self) -> Conflicts:
        return Conflicts(self.store.conflicts(self.element_bytes), self.load.conflicts(self.element_bytes))

    def cycles(self) -> int:
        accesses = len(self.store.bases) + len(self.load.bases)
        return _cycles(accesses, len(self.store.vector), self.element_bytes)

    def execute(self, values: Values[T]) -> list[list[list[T]]]:
        """Run the plan on simulated threads; every offset is written at most once."""
        memory: dict[int, T] = {}
        for warp, lanes in enumerate(values):
            for lane, held in enumerate(lanes):
                for base in self.store.bases if self.store.is_active(lane, warp) else ():
                    start = self.store.offset(base, lane, warp)
                    for i, register in enumerate(self.store.vector):
                        assert start + i not in memory, "two threads write one element"
                        memory[start + i] = held[base ^ register]
        return [
            [self._read(memory, lane, warp) for lane in range(len(lanes))]
            for warp, lanes in enumerate(values)
        ]

    def _read(self, memory: dict[int, T], lane: int, warp: int) -> list[T]:
        loaded: dict[int, T] = {}
        for base in self.load.bases:
            start = self.load.offset(base, lane, warp)
            for i, register in enumerate(self.load.vector):
                loaded[base ^ register] = memory[start + i]
        return [loaded[register] for register in self.rename]


def _cycles(accesses: int, vector: int, element_bytes: int) -> int:
    turns = max(1, vector * element_bytes * 32 // (cost.BANKS * cost.BANK_BYTES))
    return 2 * cost.BARRIER + accesses * turns * cost.WAVEFRONT


def _turn_lanes(vector_bytes: int, lanes: int) -> int:
    """The lane bits that differ within one turn of the memory."""
    return min(lanes, max(0, gf2.log2(cost.BANKS * cost.BANK_BYTES) - gf2.log2(vector_bytes)))


def bank_conflicts(offsets: LinearLayout, vector: int, element_bytes: int, lane_guard: int = 0) -> int:
    """Extra turns per turn when lanes access ``vector`` elements at ``offsets(lane)``.

    All registers, warps and turns behave alike: a constant xor permutes words and banks.
    """
    width = vector * element_bytes
    columns = offsets.columns_of("lane")
    lanes = [c for j, c in enumerate(columns[: _turn_lanes(width, len(columns))]) if not lane_guard >> j & 1]
    words = [c * element_bytes // cost.BANK_BYTES for c in lanes]
    words += gf2.units(max(0, gf2.log2(width) - 2))
    banks = [word & (cost.BANKS - 1) for word in words]
    return (1 << gf2.rank(tuple(words)) - gf2.rank(tuple(banks))) - 1


def _owned(columns: tuple[int, ...], guard: int) -> tuple[int, ...]:
    return tuple([column for j, column in enumerate(columns) if not guard >> j & 1])


class _Sides(NamedTuple):
    """The thread columns that take part, and the registers common to both sides that may form vectors."""

    stores: tuple[int, ...]
    loads: tuple[int, ...]
    threads: tuple[int, ...]
    vector: list[int]


def _sides(src: LinearLayout, dst: LinearLayout, element_bytes: int, vectors: bool = True) -> _Sides:
    free = src.free_masks()
    stores, loads = _owned(src.columns_of("lane"), free.get("lane", 0)), dst.columns_of("lane")
    threads = (*stores, *_owned(src.columns_of("warp"), free.get("warp", 0)), *loads, *dst.columns_of("warp"))
    common = gf2.intersection(src.columns_of("register"), dst.columns_of("register"))
    most = gf2.log2(max(1, cost.MAX_VECTOR_BYTES // element_bytes)) if vectors else 0
    return _Sides(stores, loads, threads, gf2.new_modulo(threads, common)[:most])


def trip_cycles(src: LinearLayout, dst: LinearLayout, element_bytes: int, vectors: bool = True) -> int:
    """What `plan_shared` would cost, without planning it."""
    vector = len(_sides(src, dst, element_bytes, vectors).vector)
    held = gf2.rank(src.columns_of("register")), gf2.rank(dst.columns_of("register"))
    return _cycles(sum([1 << bits - vector for bits in held]), 1 << vector, element_bytes)


def _swizzle_columns(
    sides: _Sides, pool: Sequence[int], src_turn: int, dst_turn: int, width: int
) -> list[int]:
    """The tile coordinates of the offset's bits, lowest first: vector, word, bank, segment.

    ``pool`` spans a complement of the vector that contains all thread columns.
    """
    writers, readers = list(sides.stores[:src_turn]), list(sides.loads[:dst_turn])
    met = gf2.intersection(writers, readers)
    within = gf2.new_modulo(sides.vector, (*met, *writers, *readers, *pool))[: max(0, 2 - gf2.log2(width))]
    word = [*sides.vector, *within]
    writers, readers = gf2.new_modulo(word, writers), gf2.new_modulo(word, readers)
    met = _meet_modulo(word, writers, readers)
    only_writers = gf2.new_modulo((*word, *met), writers)
    only_readers = gf2.new_modulo((*word, *writers), readers)
    pairs = list(zip(only_writers, only_readers, strict=False))
    banks = [*writers, *only_readers[len(pairs) :]]
    rest = gf2.new_modulo((*word, *writers, *readers), pool) + [a ^ b for a, b in pairs]
    # Where fewer lanes than banks meet, the first of the rest become bank bits: a smaller segment is fine.
    return [*word, *banks, *rest]


def _meet_modulo(word: Sequence[int], left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Combinations of ``left`` that lie in the span of ``right`` modulo ``word``."""
    relations = gf2.kernel((*word, *left, *right))
    mask = (1 << len(left)) - 1
    return [gf2.apply(left, relation >> len(word) & mask) for relation in relations]


def _access(layout: LinearLayout, swizzle: LinearLayout, vector: int, free: dict[str, int]) -> SharedAccess:
    offsets = swizzle @ layout
    registers = offsets.columns_of("register")
    usable = _owned(gf2.units(len(registers)), gf2.free_mask(registers))
    solver = gf2.Solver(registers)
    carried = [solver.reduce(unit)[1] for unit in gf2.units(vector)]
    bases = gf2.new_modulo(carried, usable)
    low = (1 << vector) - 1
    bases = [base ^ gf2.apply(carried, gf2.apply(registers, base) & low) for base in bases]
    return SharedAccess(offsets, gf2.span(carried), gf2.span(bases), free.get("lane", 0), free.get("warp", 0))


def plan_shared(
    src: LinearLayout, dst: LinearLayout, element_bytes: int = 4, vectors: bool = True
) -> SharedTrip:
    """A trip through threadgroup memory without bank conflicts, by owners only, in the widest vectors.

    Without ``vectors`` every access moves one element.
    """
    owner = gf2.Solver(src.columns)
    owners = [owner.solve(column) for column in dst.columns]
    if None in owners:
        raise LayoutError(f"{src} does not hold every element of {dst}")
    above = src.in_bits - len(src.columns_of("warp"))
    home = [1 << j for j in range(len(dst.columns_of("warp")))]
    owner_warps = [found >> above for found in owners if found is not None]
    crosses = owner_warps != [0] * (dst.in_bits - len(home)) + home

    sides = _sides(src, dst, element_bytes, vectors)
    width = element_bytes << len(sides.vector)
    pool = gf2.new_modulo((), sides.threads)
    pool += gf2.new_modulo((*sides.vector, *pool), gf2.units(src.out_bits))
    lanes = len(src.columns_of("lane"))
    free = src.free_masks()
    turn = _turn_lanes(width, lanes)
    src_turn = turn - (free.get("lane", 0) & ((1 << turn) - 1)).bit_count()
    columns = _swizzle_columns(sides, pool, src_turn, turn, width)
    offset = (Dim("offset", src.out_bits),)
    swizzle = LinearLayout(src.outs[::-1], offset, gf2.inverse(tuple(columns)))
    registers = dst.columns_of("register")
    solver = gf2.Solver(registers)
    return SharedTrip(
        src,
        dst,
        element_bytes,
        swizzle,
        store=_access(src, swizzle, len(sides.vector), free),
        load=_access(dst, swizzle, len(sides.vector), {}),
        rename=gf2.span([solver.reduce(column)[1] for column in registers]),
        crosses_simdgroups=crosses,
    )
