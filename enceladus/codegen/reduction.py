"""Write a reduction of register tiles: inside a thread, across lanes, across SIMD groups.

Each bit of (register, lane, SIMD group) moves along one axis of the tile (``ir.laid_out``). Bits along the
reduced axis are combined: register bits by a loop, lane bits by shuffles (or ``simd_sum`` and its kin),
SIMD-group bits by one trip through threadgroup memory with one barrier. What remains are the other bits: the
result is a slice of the tile, or a scalar that every thread knows.

A combine function that may not be commutative sees the elements in order: then chunks of registers, whose
elements other threads' lie between, are combined last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from enceladus.codegen import mathlib
from enceladus.codegen.bits import gather_bits, spread_bits
from enceladus.codegen.combining import LANE_BITS, CombiningWriter, shuffle
from enceladus.codegen.mathlib import Expression
from enceladus.ir import exchange
from enceladus.ir.core import Value
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import float32, int32, uint32

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

_COMMUTATIVE = {
    BinaryKind.ADD, BinaryKind.MUL, BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR,
    BinaryKind.MIN, BinaryKind.MAX, BinaryKind.MIN_NAN, BinaryKind.MAX_NAN,
}  # fmt: skip
#: Whole-SIMD-group functions of Metal. Not for float minima and maxima, whose NaN rule Metal leaves open.
_WHOLE_GROUP = {
    (BinaryKind.ADD, float32): "simd_sum",
    (BinaryKind.ADD, int32): "simd_sum", (BinaryKind.ADD, uint32): "simd_sum",
    (BinaryKind.MAX, int32): "simd_max", (BinaryKind.MAX, uint32): "simd_max",
    (BinaryKind.MIN, int32): "simd_min", (BinaryKind.MIN, uint32): "simd_min",
    (BinaryKind.AND, int32): "simd_and", (BinaryKind.AND, uint32): "simd_and",
    (BinaryKind.OR, int32): "simd_or", (BinaryKind.OR, uint32): "simd_or",
    (BinaryKind.XOR, int32): "simd_xor", (BinaryKind.XOR, uint32): "simd_xor",
}  # fmt: skip


class ReductionWriter(CombiningWriter):
    """Writes one :class:`~enceladus.ir.exchange.Reduce` into ``body.writer``."""

    def __init__(self, body: BodyWriter, op: exchange.Reduce):
        super().__init__(body, op)
        if self.along and not self.is_commutative():
            self.postpone_chunks()
        self.entries = 1 << (len(self.kept) + len(self.late))

    def is_commutative(self) -> bool:
        return self.single() in _COMMUTATIVE

    # --------------------------------------------------------------------------------- steps

    def write(self) -> None:
        self.out.statement(self.op.loc)
        inputs = [self.input(v) for v in self.op.inputs]
        results = [self.declare(v) for v in self.op.results]
        parts = results
        if self.late:
            parts = [self.array(v, self.entries, "part") for v in self.op.results]
        if self.entries > 1:
            k = self.body.names.unique("k")
            self.out.line("#pragma unroll")
            self.out.open(f"for (int {k} = 0; {k} < {self.entries}; ++{k})")
            with self.body.names.scope():
                self.entry(inputs, [f"{part}[{k}]" for part in parts], k)
            self.out.close()
        else:
            self.entry(inputs, parts, "")
        if self.groups:
            self.across_groups(parts)
        if self.late:
            self.last(parts, results)

    def declare(self, value: Value) -> str:
        if not value.type.is_scalar:
            return self.body.declare_tile(value)
        name = self.body.names.unique(value.name or self.hint())
        self.out.line(f"{mathlib.type_name(value.type.dtype)} {name};")
        self.body.scalars[value] = Expression(name)
        return name

    def hint(self) -> str:
        kind = self.single()
        return {BinaryKind.ADD: "total", BinaryKind.MAX: "most", BinaryKind.MIN: "least"}.get(kind, "reduced")  # type: ignore[arg-type]

    def array(self, value: Value, count: int, hint: str) -> str:
        name = self.body.names.unique(f"{value.name}_{hint}" if value.name else hint)
        size = f"[{count}]" if count > 1 else ""
        self.out.line(f"{mathlib.type_name(value.type.dtype)} {name}{size};")
        return name

    def element(self, name: str, entry: str, inner: str) -> str:
        """Register of ``name`` for an entry (kept and late bits) and a number over the inner bits."""
        if len(self.kept) + len(self.late) + len(self.inner) == 0:
            return name
        terms = []
        if entry:
            terms.append(spread_bits(entry, [*self.kept, *self.late]))
        if inner:
            terms.append(spread_bits(inner, self.inner))
        return f"{name}[{' + '.join(terms) if terms else '0'}]"

    def entry(self, inputs: list[str], targets: list[str], k: str) -> None:
        """Combine inside the thread, then across lanes, into ``targets``."""
        count = 1 << len(self.inner)
        first = [self.element(name, k, "") for name in inputs]
        types = [mathlib.type_name(v.type.dtype) for v in self.op.results]
        current = [self.body.names.unique("acc") for _ in targets] if k else targets
        for target, text, type in zip(current, first, types, strict=True):
            self.out.line(f"{type} {target} = {text};" if k else f"{target} = {text};")
        if count > 1:
            q = self.body.names.unique("q")
            self.out.line("#pragma unroll")
            self.out.open(f"for (int {q} = 1; {q} < {count}; ++{q})")
            with self.body.names.scope():
                self.assign(current, self.combine(current, [self.element(name, k, q) for name in inputs]))
            self.out.close()
        self.across_lanes(current)
        if k:
            self.assign(targets, current)

    def across_lanes(self, current: list[str]) -> None:
        lanes = self.lanes
        if not lanes:
            return
        kind = self.single()
        dtype = self.op.inputs[0].type.dtype
        whole = _WHOLE_GROUP.get((kind, dtype)) if kind is not None else None
        if whole and len(lanes) == LANE_BITS:
            self.out.line(f"{current[0]} = {whole}({current[0]});")
            return
        s = self.body.names.unique("s")
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {s} = {1 << lanes[0]}; {s} <= {1 << lanes[-1]}; {s} *= 2)")
        with self.body.names.scope():
            others = []
            for name, value in zip(current, self.op.inputs, strict=True):
                other = self.body.names.unique("other")
                dtype = value.type.dtype
                text = shuffle("simd_shuffle_xor", name, s, dtype)
                self.out.line(f"const {mathlib.type_name(dtype)} {other} = {text};")
                others.append(other)
            if self.is_commutative():
                self.assign(current, self.combine(current, others))
            else:
                self.in_order(current, others, f"({self.body.thread()} & {s}) != 0")
        self.out.close()

    def in_order(self, current: list[str], others: list[str], is_later: str) -> None:
        """Combine with the partner's values, those of the lower lane first."""
        types = [mathlib.type_name(v.type.dtype) for v in self.op.inputs]
        low, high = [], []
        for mine, other, type in zip(current, others, types, strict=True):
            names = [self.body.names.unique(hint) for hint in ("low", "high")]
            self.out.line(f"const {type} {names[0]} = {is_later} ? {other} : {mine};")
            self.out.line(f"const {type} {names[1]} = {is_later} ? {mine} : {other};")
            low.append(names[0])
            high.append(names[1])
        self.assign(current, self.combine(low, high))

    def across_groups(self, parts: list[str]) -> None:
        """One trip through threadgroup memory: SIMD groups leave their parts, every thread reads all."""
        groups = self.groups
        count = 1 << len(groups)
        places = 1 << len(self.others)
        size = self.entries * places * count
        thread = self.body.thread()
        slots = [self.body.partials(v.type.dtype, size) for v in self.op.results]
        place = gather_bits(thread, self.others, len(self.threads)) if self.others else ""
        group = gather_bits(thread, groups, len(self.threads))
        idle = sum(1 << k for k in range(len(self.threads)) if k not in self.others and k not in groups)
        k = self.body.names.unique("k") if self.entries > 1 else ""

        def base(turn: str) -> str:
            terms = [turn] if turn else []
            if k:
                terms.append(f"{k} * {places * count}")
            if place:
                terms.append(f"({place}) * {count}")
            return " + ".join(terms)

        def each_entry() -> None:
            if k:
                self.out.line("#pragma unroll")
                self.out.open(f"for (int {k} = 0; {k} < {self.entries}; ++{k})")

        pick = [f"{part}[{k}]" if k else part for part in parts]
        self.out.open(f"if (({thread} & {idle}) == 0)")
        each_entry()
        for (slot, turn), part in zip(slots, pick, strict=True):
            start = base(turn)
            index = f"{start} + ({group})" if start else group
            self.out.line(f"{slot}[{index}] = {part};")
        if k:
            self.out.close()
        self.out.close()
        self.body.barrier()
        each_entry()
        w = self.body.names.unique("w")
        self.assign(pick, [f"{slot}[{base(turn) or '0'}]" for slot, turn in slots])
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {w} = 1; {w} < {count}; ++{w})")
        with self.body.names.scope():
            starts = [base(turn) for _, turn in slots]
            read = [
                f"{slot}[{start} + {w}]" if start else f"{slot}[{w}]"
                for (slot, _), start in zip(slots, starts, strict=True)
            ]
            self.assign(pick, self.combine(pick, read))
        self.out.close()
        if k:
            self.out.close()
        for _, turn in slots:
            if turn:  # the next time round writes where nobody still reads
                self.out.line(f"{turn} ^= {size};")

    def last(self, parts: list[str], results: list[str]) -> None:
        """Combine the chunks of registers, in order."""
        count = 1 << len(self.late)
        kept = 1 << len(self.kept)
        k = self.body.names.unique("k") if kept > 1 else ""
        if k:
            self.out.line("#pragma unroll")
            self.out.open(f"for (int {k} = 0; {k} < {kept}; ++{k})")
        targets = [f"{name}[{k}]" if k else name for name in results]
        self.assign(targets, [f"{part}[{k or '0'}]" for part in parts])
        q = self.body.names.unique("q")
        self.out.line("#pragma unroll")
        self.out.open(f"for (int {q} = 1; {q} < {count}; ++{q})")
        with self.body.names.scope():
            index = f"{q} * {kept} + {k}" if k else q
            self.assign(targets, self.combine(targets, [f"{part}[{index}]" for part in parts]))
        self.out.close()
        if k:
            self.out.close()
