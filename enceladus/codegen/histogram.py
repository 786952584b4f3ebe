"""Write a histogram of a register tile: all threads count in threadgroup memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from enceladus.codegen.axis_bits import index_along, runs_along
from enceladus.codegen.mathlib_spelling import unsigned_name
from enceladus.errors import InternalError
from enceladus.ir import exchange
from enceladus.ir.core import Value
from enceladus.ir.laid_out import Blocked, Layout

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


class HistogramWriter:
    """Writes one :class:`~enceladus.ir.exchange.Histogram` into ``body.writer``."""

    def __init__(self, body: BodyWriter, op: exchange.Histogram):
        self.body = body
        self.op = op
        self.out = body.writer
        self.thread = body.thread()

    def write(self) -> None:
        self.out.statement(self.op.loc)
        result = self.op.results[0]
        counts = self.body.shared_slot(self.body.new_slot(), result.type)
        self.body.exchanges.counts = True
        if self.body.loop_depth:  # others may still be reading what the previous iteration counted
            self.out.line(_BARRIER)
        self.clear(counts)
        self.out.line(_BARRIER)
        self.count(counts)
        self.out.line(_BARRIER)
        name = self.body.declare_tile(result)
        runs = runs_along(result.layout, 0)
        self.each(result, lambda k: f"{of(name, k)} = {counts}[{index_along(runs, self.thread, k)}];")

    def clear(self, counts: str) -> None:
        bins, threads = self.op.bins, 32 * self.body.function.num_warps
        if bins <= threads:
            guard = f"if ({self.thread} < {bins}) " if bins < threads else ""
            self.out.line(f"{guard}{counts}[{self.thread}] = 0;")
            return
        k = self.body.names.unique("k")
        self.out.line(f"for (int {k} = {self.thread}; {k} < {bins}; {k} += {threads}) {counts}[{k}] = 0;")

    def count(self, counts: str) -> None:
        value, mask = self.op.value, self.op.mask
        element = self.name(value)
        chosen = None if mask is None else self.name(mask)
        owner = _owner(value.layout, self.thread)
        unsigned = unsigned_name(value.type.dtype)  # negative numbers become large ones
        if owner:
            self.out.open(f"if ({owner})")

        def line(k: str) -> str:
            inside = f"{unsigned}({of(element, k)}) < {self.op.bins}u"
            test = inside if chosen is None else f"{of(chosen, k)} && {inside}"
            return f"if ({test}) enceladus::count_one({counts} + int({of(element, k)}));"

        self.each(value, line)
        if owner:
            self.out.close()

    def name(self, value: Value) -> str:
        name = self.body.tile_name(value)
        if name is None:
            raise InternalError(f"the tile {value!r} to count was never made")
        return name

    def each(self, value: Value, line: Callable[[str], str]) -> None:
        """``line(k)`` for every register ``k`` of ``value``."""
        count = value.layout.registers
        if count == 1:
            self.out.line(line(""))
            return
        k = self.body.names.unique("k")
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {k} = 0; {k} < {count}; ++{k})")
        self.out.line(line(k))
        self.out.close()


def of(name: str, k: str) -> str:
    """Register ``k`` of an array, which is a plain variable where there is one register."""
    return f"{name}[{k}]" if k else name


def _owner(layout: Layout, thread: str) -> str:
    """The condition that a thread holds no copies of another's elements; ``""`` for all threads."""
    if not layout.has_copies:
        return ""
    if isinstance(layout, Blocked):
        return f"{thread} < {layout.busy_threads}"
    return f"({thread} & {layout.copy_bits}) == 0"
