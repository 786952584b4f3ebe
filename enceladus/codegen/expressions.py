"""One elementwise operation as an MSL expression, given its operands' expressions."""

from __future__ import annotations

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Expression
from enceladus.errors import InternalError
from enceladus.ir import ops
from enceladus.ir.core import Op, Value
from enceladus.ir.ops import BinaryKind
from enceladus.passes.intervals import Intervals
from enceladus.passes.updates import WRITES

_ACCESSES = (ops.ArrayLoad, ops.IsAligned, *WRITES)
_WRAPS = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.SHL)


class Expressions:
    """Spells operations, using interval proofs for plainer text, and collects the helpers needed."""

    def __init__(self, intervals: Intervals, offset_only: set[Value], fast: bool):
        self.intervals = intervals
        #: integers that are only used to form element offsets: overflow would be out of bounds anyway
        self.offset_only = offset_only
        self.fast = fast
        self.needs: set[str] = set()

    def spell(self, op: Op, operands: list[Expression]) -> Expression:
        """The expression of ``op``'s result."""
        spelling = self._spelling(op)
        self.needs.update(spelling.needs)
        return spelling(*operands)

    def _spelling(self, op: Op) -> mathlib.Spelling:
        match op:
            case ops.Unary():
                return mathlib.unary(op.kind, op.value.type.dtype, self.fast)
            case ops.Binary():
                return self._binary(op)
            case ops.Compare():
                return mathlib.compare(op.kind, op.lhs.type.dtype, self.fast)
            case ops.Select():
                return mathlib.select(op.on_true.type.dtype)
            case ops.Fma():
                return mathlib.fma(op.a.type.dtype, self.fast)
            case ops.Cast():
                return mathlib.cast(op.value.type.dtype, op.dtype, self.fast)
            case ops.Bitcast():
                return mathlib.bitcast(op.value.type.dtype, op.dtype)
        raise InternalError(f"code generation has no expression for {op.mnemonic}")

    def _binary(self, op: ops.Binary) -> mathlib.Spelling:
        dtype = op.lhs.type.dtype
        if not dtype.is_int() or dtype.is_bool():
            return mathlib.binary(op.kind, dtype, self.fast)
        result = op.results[0]
        if op.kind in (BinaryKind.IDIV, BinaryKind.IREM):
            low, high = self.intervals.of(op.rhs)
            divisor = low if low == high else None
            nonnegative = low >= 0 and self.intervals.of(op.lhs)[0] >= 0
            return mathlib.binary(
                op.kind,
                dtype,
                divisor=divisor,
                divisor_known_nonzero=low > 0 or high < 0,
                both_nonnegative=nonnegative,
            )
        if op.kind in (BinaryKind.SHL, BinaryKind.SHR):
            low, high = self.intervals.of(op.rhs)
            in_range = low >= 0 and high < dtype.bits
            return mathlib.binary(
                op.kind, dtype, may_overflow=not self.intervals.fits(result), amount_known_in_range=in_range
            )
        plain = op.kind in _WRAPS and (result in self.offset_only or self.intervals.fits(result))
        return mathlib.binary(op.kind, dtype, may_overflow=not plain)


def offset_only_values(ops_in_order: list[Op]) -> set[Value]:
    """Integer values that reach nothing but the offsets of memory accesses.

    Their overflow needs no wrapping: such an offset is outside the array, and masked-off lanes do not use it.
    """
    elsewhere: set[Value] = set()
    for op in reversed(ops_in_order):
        chain = isinstance(op, ops.Splat | ops.Broadcast | ops.ExpandDims | ops.Hint) or (
            isinstance(op, ops.Binary) and op.kind in (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL)
        )
        passes_on = chain and op.results[0] not in elsewhere
        for name in op.operand_fields:
            value = getattr(op, name)
            if value is None:
                continue
            is_offset = name == "offset" and isinstance(op, _ACCESSES)
            if not is_offset and not passes_on:
                elsewhere.add(value)
        for name in op.operand_list_fields:
            elsewhere.update(getattr(op, name))
    every = {v for op in ops_in_order for v in op.results}
    return every - elsewhere
