"""Write a scan of register tiles: inside a thread, across lanes, across SIMD groups, over chunks.

As in a reduction (``codegen.reduction``) each bit of (register, lane, SIMD group) moves along one axis. Along
the scanned axis the elements of a vector come first, then lanes, SIMD groups and last the chunks of
registers. Each step scans what the step before left, the total of every unit, and adds the units before its
own: the vector in a loop, lanes by shuffles over growing distances, SIMD groups by one trip through
threadgroup memory with one barrier, chunks in a loop. The other axes' bits enumerate independent scans.

A reverse scan visits all of these from the end; "before" and "first" mean the order of visits.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from enceladus.codegen import mathlib
from enceladus.codegen.bits import gather_bits, spread_bits
from enceladus.codegen.combining import LANE_BITS, CombiningWriter, shuffle
from enceladus.ir import exchange
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import float32, int32, uint32

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

#: Metal's inclusive scans of whole SIMD groups.
_WHOLE_GROUP = {
    (BinaryKind.ADD, float32): "simd_prefix_inclusive_sum",
    (BinaryKind.ADD, int32): "simd_prefix_inclusive_sum",
    (BinaryKind.ADD, uint32): "simd_prefix_inclusive_sum",
}
#: Bytes of threadgroup memory up to which all totals of SIMD groups are exchanged at once.
_AT_ONCE = 8192


class ScanWriter(CombiningWriter):
    """Writes one :class:`~enceladus.ir.exchange.Scan` into ``body.writer``."""

    op: exchange.Scan

    def __init__(self, body: BodyWriter, op: exchange.Scan):
        super().__init__(body, op)
        if self.along:
            self.postpone_chunks()
        self.dtypes = [v.type.dtype for v in op.inputs]
        self.types = [mathlib.type_name(dtype) for dtype in self.dtypes]
        #: the bits along the axis in a thread's index, all and those of lanes: each a run of consecutive bits
        self.lane_mask = sum(1 << k for k in self.lanes)
        self.scans = 1 << len(self.kept)
        self.chunks = 1 << len(self.late)
        self.inputs: list[str] = []
        self.results: list[str] = []

    def write(self) -> None:
        self.out.statement(self.op.loc)
        self.inputs = [self.input(v) for v in self.op.inputs]
        self.results = [self.body.declare_tile(v) for v in self.op.results]
        with ExitStack() as ends:
            k = self.each(ends, "k", self.scans * self.chunks)
            self.in_thread(k)
        if self.groups:
            self.across_groups()
        elif self.late:
            self.over_chunks()

    # --------------------------------------------------------------------------------- text

    def each(self, ends: ExitStack, hint: str, count: int, first: int = 0) -> str:
        """Open an unrolled loop from ``first`` to ``count`` and return its variable; ``""`` for one turn."""
        if count == 1 and first == 0:
            return ""
        name = self.body.names.unique(hint)
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {name} = {first}; {name} < {count}; ++{name})")
        ends.callback(self.out.close)
        ends.enter_context(self.body.names.scope())
        return name

    def when(self, ends: ExitStack, condition: str) -> None:
        """Open a branch."""
        self.out.open(f"if ({condition})")
        ends.callback(self.out.close)
        ends.enter_context(self.body.names.scope())

    def entry(self, k: str, r: str) -> str:
        """The number of chunk ``r`` of scan ``k`` among the entries of a thread."""
        if not r or r == "0":
            return k
        if " " in r and not r.startswith("("):
            r = f"({r})"
        return f"({r} * {self.scans} + {k})" if k else r

    def start(self, entry: str) -> str:
        """Where the vector of an entry starts among a thread's registers; may write a constant."""
        if not entry:
            return ""
        text = spread_bits(entry, [*self.kept, *self.late])
        if text.isidentifier():
            return text
        name = self.body.names.unique("at")
        self.out.line(f"const int {name} = {text[1:-1] if text[0] == '(' else text};")
        return name

    def elements(self, names: list[str], start: str, q: str) -> list[str]:
        """The registers at visit ``q`` of the vector that starts at ``start``."""
        if len(self.kept) + len(self.late) + len(self.inner) == 0:
            return names
        terms = [start] if start else []
        if self.inner and (place := self.visit(q, 1 << len(self.inner))) != "0":
            terms.append(spread_bits(place, self.inner))
        return [f"{name}[{' + '.join(terms) or '0'}]" for name in names]

    def visit(self, place: str, count: int) -> str:
        """The place at visit ``place`` of ``count``, or the other way round."""
        if not self.op.reverse:
            return place
        return str(count - 1 - int(place)) if place.isdigit() else f"({count - 1} - {place})"

    def variables(self, hint: str, values: list[str], const: str = "") -> list[str]:
        names = [self.body.names.unique(hint) for _ in values]
        for name, type, value in zip(names, self.types, values, strict=True):
            self.out.line(f"{const}{type} {name} = {value};")
        return names

    def shuffles(self, function: str, values: list[str], lane: str) -> list[str]:
        return [shuffle(function, v, lane, dtype) for v, dtype in zip(values, self.dtypes, strict=True)]

    def put_before(self, before: list[str], start: str) -> None:
        """Combine ``before`` with every element of the vector at ``start``."""
        with ExitStack() as ends:
            q = self.each(ends, "q", 1 << len(self.inner)) or "0"
            mine = self.elements(self.results, start, q)
            self.assign(mine, self.combine(before, mine))

    # --------------------------------------------------------------------------------- steps

    def in_thread(self, k: str) -> None:
        """Scan the vectors of entry ``k``, and those of a SIMD group."""
        count = 1 << len(self.inner)
        start = self.start(k)
        mine = self.elements(self.results, start, "0")
        given = self.elements(self.inputs, start, "0")
        if count == 1 and not self.lanes:
            self.assign(mine, given)
            return
        with ExitStack() as ends:
            total = self.variables("total", given)
            if count > 1:
                self.assign(mine, total)
                with ExitStack() as loop:
                    q = self.each(loop, "q", count, 1)
                    self.assign(total, self.combine(total, self.elements(self.inputs, start, q)))
                    self.assign(self.elements(self.results, start, q), total)
            if self.lanes:
                self.across_lanes(total)
            if count == 1:
                self.assign(mine, total)
            elif self.lanes:
                nearest = str(1 << self.lanes[0])
                before = self.variables("before", self.shuffles(self.from_before(), total, nearest), "const ")
                self.when(ends, f"{self.lane()} >= {nearest}")
                self.put_before(before, start)

    def from_before(self) -> str:
        return "simd_shuffle_down" if self.op.reverse else "simd_shuffle_up"

    def lane(self) -> str:
        """The lane's place along the axis, from the first visited, in steps of the lowest bit's distance."""
        return f"({'~' if self.op.reverse else ''}{self.body.thread()} & {self.lane_mask})"

    def across_lanes(self, total: list[str]) -> None:
        """Inclusive scan of ``total`` over the lanes."""
        kind = self.single()
        whole = _WHOLE_GROUP.get((kind, self.dtypes[0])) if kind is not None else None
        if whole and len(self.lanes) == LANE_BITS and not self.op.reverse:
            self.out.line(f"{total[0]} = {whole}({total[0]});")
            return
        s = self.body.names.unique("s")
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {s} = {1 << self.lanes[0]}; {s} <= {1 << self.lanes[-1]}; {s} *= 2)")
        with self.body.names.scope():
            before = self.variables("before", self.shuffles(self.from_before(), total, s), "const ")
            with ExitStack() as ends:
                self.when(ends, f"{self.lane()} >= {s}")
                self.assign(total, self.combine(before, total))
        self.out.close()

    def last_lane(self) -> int:
        """The bits of the last visited lane along the axis."""
        return 0 if self.op.reverse else self.lane_mask

    def over_chunks(self) -> None:
        """Where one SIMD group holds all of a chunk: its last lane knows the total of all chunks so far."""
        last = str((1 << len(self.inner)) - 1)
        source = str(self.last_lane())
        if outside := 31 & ~self.lane_mask:
            source = f"({self.body.thread()} & {outside}) | {source}"
        with ExitStack() as ends:
            k = self.each(ends, "k", self.scans)
            r = self.each(ends, "r", self.chunks, 1)
            earlier = self.entry(k, f"{self.chunks} - {r}" if self.op.reverse else f"{r} - 1")
            totals = self.elements(self.results, self.start(earlier), last)
            before = self.variables("before", self.shuffles("simd_shuffle", totals, source), "const ")
            self.put_before(before, self.start(self.entry(k, self.visit(r, self.chunks))))

    def across_groups(self) -> None:
        """SIMD groups leave the totals of their chunks; every thread combines those before its own.

        All totals at once, with one barrier; where these are too many, one chunk at a time.
        """
        count = 1 << len(self.groups)
        places = 1 << len(self.others)
        thread = self.body.thread()
        group = self.body.names.unique("group")
        found = gather_bits(thread, self.groups, len(self.threads))
        order = f"{count - 1} - ({found});  // from the last" if self.op.reverse else f"{found};"
        self.out.line(f"const int {group} = {order}")
        place = gather_bits(thread, self.others, len(self.threads)) if self.others else ""

        entries = self.scans * self.chunks
        bytes = entries * places * count * sum(dtype.itemsize for dtype in self.dtypes)
        at_once = entries == 1 or bytes * (2 if self.body.loop_depth else 1) <= _AT_ONCE
        size = places * count * (entries if at_once else 1)
        self.body.loop_depth += not at_once  # chunks take turns, as iterations do
        slots = [self.body.partials(dtype, size) for dtype in self.dtypes]
        self.body.loop_depth -= not at_once

        def left(entry: str, unit: str) -> list[str]:
            indices = []
            for _, turn in slots:
                terms = [turn] if turn else []
                if entry and at_once:
                    terms.append(f"{entry} * {places * count}")
                if place:
                    terms.append(f"({place}) * {count}")
                if unit:
                    terms.append(unit)
                indices.append(" + ".join(terms) or "0")
            return [f"{slot}[{index}]" for (slot, _), index in zip(slots, indices, strict=True)]

        def leave(entry: str) -> None:
            last = str((1 << len(self.inner)) - 1)
            self.assign(left(entry, group), self.elements(self.results, self.start(entry), last))

        def barrier() -> None:
            self.out.line("threadgroup_barrier(mem_flags::mem_threadgroup);")

        def take_turns() -> None:
            for _, turn in slots:
                if turn:  # the next time round writes where nobody still reads
                    self.out.line(f"{turn} ^= {size};")

        # Totals are left by the lanes visited last, and of threads with copies by one.
        chosen = self.copies | self.lane_mask
        if at_once:
            with ExitStack() as ends:
                if chosen:
                    self.when(ends, f"({thread} & {chosen}) == {self.last_lane()}")
                k = self.each(ends, "k", entries)
                leave(k)
            self.body.barrier()
        with ExitStack() as ends:
            k = self.each(ends, "k", self.scans)
            first = left(self.entry(k, self.visit("0", self.chunks) if self.late else ""), "")
            total = self.variables("total", first if at_once else [f"{t}(0)" for t in self.types])
            r = self.each(ends, "r", self.chunks)
            entry = self.entry(k, self.visit(r, self.chunks) if r else "")
            if not at_once:
                with ExitStack() as branch:
                    if chosen:
                        self.when(branch, f"({thread} & {chosen}) == {self.last_lane()}")
                    leave(entry)
                barrier()
            before = self.variables("before", total)
            with ExitStack() as loop:
                w = self.each(loop, "w", count)
                self.out.open(f"if ({w} == {group})")
                self.assign(before, total)
                self.out.close()
                self.out.open(f"if ({r} > 0 || {w} > 0)" if r else f"if ({w} > 0)")
                with self.body.names.scope():
                    self.assign(total, self.combine(total, left(entry, w)))
                if not at_once:
                    self.out.otherwise()
                    self.assign(total, left(entry, w))
                self.out.close()
            with ExitStack() as branch:
                self.when(branch, f"{r} > 0 || {group} > 0" if r else f"{group} > 0")
                self.put_before(before, self.start(entry))
            if not at_once:
                take_turns()
        if at_once:
            take_turns()
