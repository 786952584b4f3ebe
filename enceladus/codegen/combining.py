"""What reductions and scans share: the combine function, and which bits move along the combined axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Expression
from enceladus.errors import InternalError
from enceladus.ir import exchange, ops
from enceladus.ir.core import Value
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import DType

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

LANE_BITS = 5


class CombiningWriter:
    """The state of writing one ``Reduce`` or ``Scan`` into ``body.writer``."""

    def __init__(self, body: BodyWriter, op: exchange.Reduce | exchange.Scan):
        self.body = body
        self.op = op
        self.out = body.writer
        layout = op.inputs[0].layout
        physical = layout.blocked
        axis = layout.kept[op.axis]
        vector, self.threads, chunks = physical.bits()
        if layout is not physical:
            vector = [a for a in vector if a in layout.kept]
            chunks = [a for a in chunks if a in layout.kept]
        registers = [*vector, *chunks]
        self.vector_bits = len(vector)
        #: register bits of the other axes, and of the combined one
        self.kept = [k for k, a in enumerate(registers) if a != axis]
        self.inner = [k for k, a in enumerate(registers) if a == axis]
        #: thread bits along the axis, and those of other axes; the rest hold copies
        self.along = [k for k, a in enumerate(self.threads) if a == axis]
        self.others = [
            k for k, a in enumerate(self.threads) if a is not None and a != axis and a in layout.kept
        ]
        self.lanes = [k for k in self.along if k < LANE_BITS]
        self.groups = [k for k in self.along if k >= LANE_BITS]
        #: register bits along the axis that are combined after the threads
        self.late: list[int] = []

    def postpone_chunks(self) -> None:
        """Combine chunks of registers, between whose elements other threads' lie, after the threads."""
        self.late = [k for k in self.inner if k >= self.vector_bits]
        self.inner = [k for k in self.inner if k < self.vector_bits]

    @property
    def copies(self) -> int:
        """The bits of a thread's index along which threads hold copies."""
        return sum(1 << k for k in range(len(self.threads)) if k not in self.others and k not in self.along)

    # ---------------------------------------------------------------------- combine function

    def single(self) -> BinaryKind | None:
        """The operation, where the combine function is just one."""
        block = self.op.combine
        if len(block.ops) != 2 or not isinstance(block.ops[0], ops.Binary):
            return None
        op = block.ops[0]
        plain = (op.lhs, op.rhs) == block.arguments and block.terminator.operands == op.results
        return op.kind if plain else None

    def combine(self, earlier: list[str], later: list[str]) -> list[str]:
        """Expressions of the combination of two lists of values; may write statements first.

        They may be assigned to ``earlier`` or ``later`` one after the other.
        """
        block = self.op.combine
        values = [*earlier, *later]
        known = {a: Expression(text) for a, text in zip(block.arguments, values, strict=True)}
        results = block.terminator.operands
        for op in block.ops[:-1]:
            (value,) = op.results
            if isinstance(op, ops.Constant):
                known[value] = mathlib.literal(op.value, op.dtype)
                continue
            expression = self.body.expressions.spell(op, [known[v] for v in op.operands])
            if len(block.ops) > 2 or results != (value,):
                expression = self.constant(expression.text, value.type.dtype, value.name or "c")
            known[value] = expression
        texts = []
        for place, value in enumerate(results):
            expression = known[value]
            if value in block.arguments and block.arguments.index(value) % len(earlier) != place:
                expression = self.constant(expression.text, value.type.dtype, "c")  # read before assigned
            texts.append(expression.text)
        return texts

    def constant(self, text: str, dtype: DType, hint: str) -> Expression:
        name = self.body.names.unique(hint)
        self.out.line(f"const {mathlib.type_name(dtype)} {name} = {text};")
        return Expression(name)

    # --------------------------------------------------------------------------------- parts

    def input(self, value: Value) -> str:
        name = self.body.tile_name(value)
        if name is None:
            raise InternalError(f"the tile {value!r} to {self.op.mnemonic} was never made")
        return name

    def assign(self, targets: list[str], values: list[str]) -> None:
        for target, value in zip(targets, values, strict=True):
            if target != value:
                self.out.line(f"{target} = {value};")


def shuffle(function: str, value: str, lane: str, dtype: DType) -> str:
    """``value`` from another lane; ``function``: which one ``lane`` means, like ``simd_shuffle_xor``."""
    if dtype.is_bool():
        return f"bool({function}(uint({value}), ushort({lane})))"
    if dtype.bits == 64:
        return f"as_type<{mathlib.type_name(dtype)}>({function}(as_type<uint2>({value}), ushort({lane})))"
    return f"{function}({value}, ushort({lane}))"
