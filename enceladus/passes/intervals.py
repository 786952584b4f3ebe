"""Interval analysis: bounds on integer values, used to prove that arithmetic does not overflow.

In the 32-bit variant the launch guarantees that the programs times the largest tile stay below 2^31
(otherwise it selects the wide variant), which bounds ``program_id``. Everything unknown has its type's
full range, so the answers are sound for any arguments.
"""

from __future__ import annotations

from enceladus.ir import ops
from enceladus.ir.core import Function, Value
from enceladus.ir.ops import BinaryKind as B
from enceladus.ir.types import PointerType

Interval = tuple[int, int]


def largest_tile(function: Function) -> int:
    """Elements of the largest tile in ``function``, at least 1."""
    return max((v.type.numel for op in function.walk() for v in op.results), default=1)


class Intervals:
    """Bounds of the integer values of one function."""

    def __init__(self, function: Function):
        limit = (2**31 - 1) // largest_tile(function)
        self._program_ids = (0, max(0, limit - 1)) if not function.wide else (0, 2**31 - 1)
        self._programs = (1, max(1, limit)) if not function.wide else (1, 2**31 - 1)
        self._known: dict[Value, Interval] = {}
        self._loops = {op.body.arguments[0]: op for op in function.walk() if isinstance(op, ops.For)}

    def of(self, value: Value) -> Interval:
        """Inclusive bounds of an integer scalar or of all elements of an integer tile."""
        known = self._known.get(value)
        if known is None:
            element = value.type.element
            assert not isinstance(element, PointerType) and element.is_int()
            full = (element.minimum, element.maximum)
            self._known[value] = full  # what a cycle sees
            exact = self.exact(value)
            fits = exact is not None and full[0] <= exact[0] and exact[1] <= full[1]
            known = self._known[value] = exact if fits and exact is not None else full
        return known

    def fits(self, value: Value) -> bool:
        """Whether the arithmetic that makes ``value`` stays within its type for all inputs."""
        dtype = value.type.dtype
        exact = self.exact(value)
        return exact is not None and dtype.minimum <= exact[0] and exact[1] <= dtype.maximum

    def exact(self, value: Value) -> Interval | None:
        """Bounds before wrapping to the type; ``None`` where nothing is known."""
        op = value.owner
        match op:
            case ops.Constant() if not isinstance(op.value, float):
                return (int(op.value), int(op.value))
            case ops.ProgramId():
                return self._program_ids
            case ops.NumPrograms():
                return self._programs
            case ops.MakeRange():
                return (op.start, op.end - 1)
            case ops.Splat() | ops.Broadcast() | ops.ExpandDims() | ops.Hint():
                return self.of(op.value)
            case ops.Cast() if op.value.type.dtype.is_int() and op.dtype.is_int():
                return self.of(op.value)
            case ops.Select():
                (a, b), (c, d) = self.of(op.on_true), self.of(op.on_false)
                return (min(a, c), max(b, d))
            case ops.Binary():
                return self._binary(op)
        if value in self._loops:
            return self._induction(self._loops[value])
        return None

    def _binary(self, op: ops.Binary) -> Interval | None:
        if not op.lhs.type.dtype.is_int():
            return None
        (a, b), (c, d) = self.of(op.lhs), self.of(op.rhs)
        match op.kind:
            case B.ADD:
                return (a + c, b + d)
            case B.SUB:
                return (a - d, b - c)
            case B.MUL:
                products = (a * c, a * d, b * c, b * d)
                return (min(products), max(products))
            case B.MIN | B.MIN_NAN:
                return (min(a, c), min(b, d))
            case B.MAX | B.MAX_NAN:
                return (max(a, c), max(b, d))
            case B.IDIV if c > 0 and a >= 0:
                return (0, b // c)
            case B.IREM if c > 0 and a >= 0:
                return (0, min(b, d - 1))
            case B.AND if c >= 0 and a >= 0:
                return (0, min(b, d))
            case B.SHL if a >= 0 and c >= 0 and d < 64:
                return (a << c, b << d)
            case B.SHR if a >= 0 and c >= 0:
                return (0, b >> c)
        return None

    def _induction(self, loop: ops.For) -> Interval | None:
        step = self.of(loop.step)
        first, last = self.of(loop.lower), self.of(loop.upper)
        if step[0] > 0:
            return (first[0], max(first[0], last[1] - 1))
        return None
