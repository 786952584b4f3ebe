"""Write a sort of register tiles along their last dimension: a bitonic network.

Phase ``p`` merges sorted runs of ``2^(p-1)`` elements into runs of ``2^p``, every other one backwards, so
that the next phase finds what it needs: runs that rise and then fall. A merge takes ``p`` stages; in each,
elements whose indices differ in one bit, the highest first, change places if they are out of order. What a
stage costs depends on where that bit is (``axis_bits``): two registers of one thread, two lanes (a shuffle),
or two SIMD-groups (a trip through threadgroup memory with one barrier).

Floats are sorted as integers in the same order, so the network itself is the same for all types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from enceladus.codegen.axis_bits import Home, Run, index_part, runs_along
from enceladus.codegen.exchange_helpers import key_type
from enceladus.codegen.mathlib import type_name
from enceladus.errors import InternalError
from enceladus.ir import exchange

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
#: Up to so many bytes, elements that cross SIMD-groups have two places that take turns.
_TWO_PLACES = 8192


class SortWriter:
    """Writes one :class:`~enceladus.ir.exchange.Sort` into ``body.writer``."""

    def __init__(self, body: BodyWriter, op: exchange.Sort):
        self.body = body
        self.op = op
        self.out = body.writer
        layout = op.value.layout
        self.threads: int = layout.threads
        self.registers: int = layout.registers
        self.runs = runs_along(layout, len(op.value.type.shape) - 1)
        self.bits = sum(run.length for run in self.runs)
        self.dtype = op.value.type.dtype
        self.key_dtype = key_type(self.dtype)
        self.key_type = type_name(self.key_dtype)
        self.thread = body.thread() if any(run.home is not Home.REGISTER for run in self.runs) else ""
        self.keys = ""
        self.phase = ""
        self.place = ""  #: the part of an element's index that the thread decides

    def write(self) -> None:
        self.out.statement(self.op.loc)
        source = self.body.tile_name(self.op.value)
        if source is None:
            raise InternalError(f"the tile {self.op.value!r} to sort was never made")
        result = self.body.declare_tile(self.op.results[0])
        is_float = self.key_dtype is not self.dtype
        if not is_float or not self.bits:
            self.keys = result
            self.each(lambda k: [f"{self.of(result, k)} = {self.of(source, k)};"])
            self.network()
            return
        self.body.exchanges.sorted.add(self.dtype)
        self.keys = self.body.names.unique("key")
        size = f"[{self.registers}]" if self.registers > 1 else ""
        self.out.line(f"{self.key_type} {self.keys}{size};")
        self.each(lambda k: [f"{self.of(self.keys, k)} = enceladus::sort_key({self.of(source, k)});"])
        self.network()
        back = f"enceladus::{self.dtype.name}_of_key"
        self.each(lambda k: [f"{self.of(result, k)} = {back}({self.of(self.keys, k)});"])

    # -------------------------------------------------------------------------------- pieces

    def of(self, name: str, k: str) -> str:
        return f"{name}[{k}]" if self.registers > 1 else name

    def each(self, lines: Callable[[str], list[str]]) -> None:
        """``lines(k)`` for every register ``k``."""
        if self.registers == 1:
            for line in lines(""):
                self.out.line(line)
            return
        k = self.body.names.unique("k")
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {k} = 0; {k} < {self.registers}; ++{k})")
        for line in lines(k):
            self.out.line(line)
        self.out.close()

    def rises(self, k: str) -> str:
        """Whether the run that register ``k`` is part of gets its smallest element first."""
        register = index_part(self.runs, (Home.REGISTER,), k) if k else ""
        index = " | ".join(part for part in (self.place, register) if part)
        test = "!=" if self.op.descending else "=="
        return f"(({index if index == self.place else f'({index})'} >> {self.phase}) & 1) {test} 0"

    def network(self) -> None:
        if not self.bits:
            return
        trips = any(run.home is Home.SIMD_GROUP for run in self.runs)
        slot, turn = self.places() if trips else ("", "")
        if self.thread:
            self.place = self.body.names.unique("place")
            index = index_part(self.runs, (Home.LANE, Home.SIMD_GROUP), self.thread)
            self.out.line(f"const int {self.place} = {index};")
        self.phase = self.body.names.unique("phase")
        self.out.open(f"for (int {self.phase} = 1; {self.phase} <= {self.bits}; ++{self.phase})")
        with self.body.names.scope():
            for run in reversed(self.runs):
                match run.home:
                    case Home.REGISTER:
                        self.in_registers(run)
                    case Home.LANE:
                        self.across_lanes(run)
                    case Home.SIMD_GROUP:
                        self.across_groups(run, slot, turn)
        self.out.close()

    def places(self) -> tuple[str, str]:
        """A threadgroup array for all keys, and the name of the offset of the place whose turn it is.

        Without a second place the offset is ``""``, and a stage begins with another barrier. Sorts of as many
        keys of one type share the array while it is theirs (one that a finished loop or branch took is not):
        the places take turns from one sort to the next, too.
        """
        count = self.registers * self.threads
        body = self.body
        known = body.exchanges.places.get((self.key_dtype, count))
        if known is not None and known[0].barriers_left is None:
            return known[0].name, known[1]
        two = count * self.key_dtype.itemsize <= _TWO_PLACES
        name = body.names.unique("shared", outermost=True)
        region = body.shared.take(name, self.key_dtype, 2 * count if two else count, self.op.loc)
        turn = ""
        if two:
            turn = body.names.unique("turn", outermost=True)
            body.preamble.append(f"int {turn} = 0;")
        body.exchanges.places[self.key_dtype, count] = region, turn
        return name, turn

    # -------------------------------------------------------------------------------- stages

    def stages(self, run: Run) -> str:
        """Open a loop over the run's bits that this phase has, from the highest."""
        bit = self.body.names.unique("bit")
        high = run.low + run.length - 1
        start = f"{self.phase} - 1"
        if high == 0:
            start = "0"
        elif high < self.bits - 1:
            start = f"{self.phase} > {high} ? {high} : {start}"
        self.out.open(f"for (int {bit} = {start}; {bit} >= {run.low}; --{bit})")
        return bit

    def in_registers(self, run: Run) -> None:
        bit = self.body.names.unique("bit")
        low, high = run.low, run.low + run.length - 1
        shift = run.first - run.low
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {bit} = {high}; {bit} >= {low}; --{bit})")
        with self.body.names.scope():
            if low == 0 and high == 0:
                guard = False  # every phase has the lowest bit
            else:
                guard = True
                self.out.open(f"if ({bit} < {self.phase})")
            k, other = self.body.names.unique("k"), self.body.names.unique("other")
            self.out.line("#pragma unroll")
            self.out.open(f"for (int {k} = 0; {k} < {self.registers}; ++{k})")
            distance = bit if shift == 0 else f"({bit} {'+' if shift > 0 else '-'} {abs(shift)})"
            self.out.line(f"const int {other} = {k} ^ (1 << {distance});")
            self.out.open(f"if ({k} < {other})")
            a, b = f"{self.keys}[{k}]", f"{self.keys}[{other}]"
            least, most = self.body.names.unique("least"), self.body.names.unique("most")
            rises = self.body.names.unique("rises")
            self.out.line(f"const {self.key_type} {least} = {a} < {b} ? {a} : {b};")
            self.out.line(f"const {self.key_type} {most} = {a} < {b} ? {b} : {a};")
            self.out.line(f"const bool {rises} = {self.rises(k)};")
            self.out.line(f"{a} = {rises} ? {least} : {most};")
            self.out.line(f"{b} = {rises} ? {most} : {least};")
            self.out.close()
            self.out.close()
            if guard:
                self.out.close()
        self.out.close()

    def thread_distance(self, run: Run, bit: str) -> str:
        shift = run.first - run.low
        power = bit if shift == 0 else f"({bit} {'+' if shift > 0 else '-'} {abs(shift)})"
        name = self.body.names.unique("distance")
        self.out.line(f"const int {name} = 1 << {power};")
        return name

    def keep(self, partner: str, distance: str) -> None:
        """Of two threads' elements keep one: the smaller in the lower thread, or in the upper if it falls."""
        names = self.body.names
        lower, other, least = names.unique("is_lower"), names.unique("other"), names.unique("wants_least")
        self.out.line(f"const bool {lower} = ({self.thread} & {distance}) == 0;")

        def lines(k: str) -> list[str]:
            mine = self.of(self.keys, k)
            text = partner.replace("MINE", mine).replace("REGISTER", k or "0")
            return [
                f"const {self.key_type} {other} = {text};",
                f"const bool {least} = ({self.rises(k)}) == {lower};",
                f"if ({least} ? {other} < {mine} : {mine} < {other}) {mine} = {other};",
            ]

        self.each(lines)

    def across_lanes(self, run: Run) -> None:
        bit = self.stages(run)
        with self.body.names.scope():
            distance = self.thread_distance(run, bit)
            text = f"simd_shuffle_xor(MINE, ushort({distance}))"
            if self.key_dtype.bits == 64:
                text = f"as_type<{self.key_type}>(simd_shuffle_xor(as_type<uint2>(MINE), ushort({distance})))"
            self.keep(text, distance)
        self.out.close()

    def across_groups(self, run: Run, slot: str, turn: str) -> None:
        bit = self.stages(run)
        with self.body.names.scope():
            distance = self.thread_distance(run, bit)
            start = f"{turn} + " if turn else ""
            if not turn:
                self.out.line(_BARRIER)  # others may still be reading

            def place(k: str, thread: str) -> str:
                return f"{slot}[{start}{f'{k} * {self.threads} + ' if self.registers > 1 else ''}{thread}]"

            self.each(lambda k: [f"{place(k, self.thread)} = {self.of(self.keys, k)};"])
            self.out.line(_BARRIER)
            self.keep(place("REGISTER", f"({self.thread} ^ {distance})"), distance)
            if turn:  # the next stage writes where nobody still reads
                self.out.line(f"{turn} ^= {self.registers * self.threads};")
        self.out.close()
