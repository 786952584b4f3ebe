"""Whether an access touches each element at most once in a whole launch, and none outside of its array.

Offsets are taken apart into ``constant + Σ coefficient · variable``, where a variable is a grid axis, a tile
axis or the number of an iteration, each with so many values. Coefficients and counts may depend on grid and
scalar arguments, so the question is asked for one launch, with numbers.

Ordered by their coefficients, the parts are like digits: each must step over all that the smaller ones
reach. A mask such as ``cols < n`` bounds what its own digits make up, and so lets the next digit be smaller.
``False`` means "not proven".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.exchange import ArrayAtomic
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.passes.affine import Affine, Analysis, Polynomial

Access = ops.ArrayLoad | ops.ArrayStore | ArrayAtomic
Key = tuple[str, object]
_LIMIT = 2**31


class Unknown(Exception):
    """Something that has no such form."""


@dataclass(slots=True)
class _Form:
    """``constant + Σ coefficients[k] · k``."""

    constant: int
    coefficients: dict[Key, int]


@dataclass(slots=True)
class _Digit:
    coefficient: int
    count: int


class Prover:
    """Answers for one launch. ``numbers``: the value of each scalar argument, by name."""

    def __init__(
        self, function: Function, analysis: Analysis, grid: tuple[int, ...], numbers: Mapping[str, object]
    ):
        self.analysis = analysis
        self.grid = grid
        self.numbers = numbers
        self.arguments = set(function.arguments)
        self.loop_of: dict[Value, ops.For] = {}
        #: operation → the loops around it
        self.inside: dict[Op, list[ops.For]] = {}
        self._walk(function.body, [])

    def _walk(self, block: Block, loops: list[ops.For]) -> None:
        for op in block.ops:
            self.inside[op] = loops
            if isinstance(op, ops.For):
                self.loop_of.update((v, op) for v in op.body.arguments)
            for nested in op.blocks:
                self._walk(nested, [*loops, op] if isinstance(op, ops.For) else loops)

    def touches_once(self, *accesses: Access) -> bool:
        """Whether no two lanes, iterations, programs or accesses that pass the masks meet in one element.

        Several accesses are known to be apart where they are the same but for a constant, in equal steps.
        """
        try:
            found = [self.parts(op) for op in accesses]
        except Unknown:
            return False
        found = [parts for parts in found if all(digit.count > 0 for digit in parts[1])]
        if not found:
            return True  # nothing passes the masks
        first = found[0][1]
        for _, digits in found[1:]:
            if [d.coefficient for d in digits] != [d.coefficient for d in first]:
                return False
        digits = [
            _Digit(same[0].coefficient, max(d.count for d in same))
            for same in zip(*(digits for _, digits in found), strict=True)
        ]
        starts = sorted(constant for constant, _ in found)
        if len(starts) > 1:
            steps = {b - a for a, b in pairwise(starts)}
            if len(steps) != 1:
                return False
            digits.append(_Digit(steps.pop(), len(starts)))
        reach = 0
        for digit in sorted(digits, key=lambda d: abs(d.coefficient)):
            if digit.count > 1:
                if abs(digit.coefficient) <= reach:
                    return False
                reach += abs(digit.coefficient) * (digit.count - 1)
        return reach < _LIMIT  # no offset wraps around to another

    def parts(self, op: Access) -> tuple[int, list[_Digit]]:
        """The offset's constant and digits, by coefficient. A variable that it lacks is a digit of 0."""
        counts = self.counts(op)
        offset = self.form(op.offset)
        digits = self.digits(offset, counts, self.limits(op.mask))
        digits += [_Digit(0, n) for key, n in counts.items() if n > 1 and key not in offset.coefficients]
        return offset.constant, sorted(digits, key=lambda d: (d.coefficient, d.count))

    def stays_inside(self, op: Access, size: int) -> bool:
        """Whether every lane that passes the mask accesses an element of an array of ``size``."""
        try:
            offset = self.form(op.offset)
            digits = self.digits(offset, self.counts(op), self.limits(op.mask))
        except Unknown:
            return False
        if any(digit.count <= 0 for digit in digits):
            return True  # nothing passes the mask
        steps = [digit.coefficient * (digit.count - 1) for digit in digits]
        low = offset.constant + sum(step for step in steps if step < 0)
        high = offset.constant + sum(step for step in steps if step > 0)
        return low >= 0 and high < min(size, _LIMIT)

    # ------------------------------------------------------------------------------- counts

    def counts(self, op: Access) -> dict[Key, int]:
        """Every variable of the access → how many values it has."""
        counts: dict[Key, int] = {("grid", axis): size for axis, size in enumerate(self.grid)}
        counts |= {("axis", axis): size for axis, size in enumerate(op.offset.type.shape)}
        for loop in self.inside[op]:
            counts["loop", loop] = self.trips(loop)
        return counts

    def trips(self, loop: ops.For) -> int:
        lower, upper, step = (self.number(v) for v in (loop.lower, loop.upper, loop.step))
        return max(0, -((lower - upper) // step)) if step else 0

    def number(self, value: Value) -> int:
        form = self.scalar(self.analysis.polynomial(value))
        if form.coefficients:
            raise Unknown
        return form.constant

    # -------------------------------------------------------------------------------- forms

    def form(self, value: Value) -> _Form:
        affine = self.analysis.affine(value)
        if affine is None:
            raise Unknown
        return self.of_affine(affine)

    def of_affine(self, affine: Affine) -> _Form:
        form = self.scalar(affine.base)
        for axis, step in enumerate(affine.steps):
            found = self.scalar(step)
            if found.coefficients:
                raise Unknown
            if found.constant:
                form.coefficients["axis", axis] = found.constant
        return form

    def scalar(self, polynomial: Polynomial) -> _Form:
        total = _Form(0, {})
        for monomial, coefficient in polynomial.items():
            product = _Form(coefficient, {})
            for value in monomial:
                product = _multiply(product, self.value(value))
            total.constant += product.constant
            for key, n in product.coefficients.items():
                total.coefficients[key] = total.coefficients.get(key, 0) + n
        total.coefficients = {k: n for k, n in total.coefficients.items() if n}
        return total

    def value(self, value: Value) -> _Form:
        """A scalar that the analysis does not take apart."""
        if value in self.arguments:
            number = self.numbers.get(value.name)
            if isinstance(number, int):
                return _Form(int(number), {})
            raise Unknown
        induction = self.analysis.inductions.get(value)
        if induction is not None:
            initial, advance = (self.scalar(self.analysis.polynomial(v)) for v in induction)
            if advance.coefficients:
                raise Unknown
            coefficients = dict(initial.coefficients)
            coefficients["loop", self.loop_of[value]] = advance.constant
            return _Form(initial.constant, coefficients)
        match value.owner:
            case ops.ProgramId(axis=axis):
                return _Form(0, {("grid", axis): 1})
            case ops.NumPrograms(axis=axis):
                return _Form(self.grid[axis], {})
            case ops.Hint(value=inner):
                return self.scalar(self.analysis.polynomial(inner))
            case ops.Binary(kind=BinaryKind.IDIV, lhs=lhs, rhs=rhs):
                a, b = self.number(lhs), self.number(rhs)
                return _Form(0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), {})
            case ops.Binary(kind=BinaryKind.MIN, lhs=lhs, rhs=rhs):
                return _Form(min(self.number(lhs), self.number(rhs)), {})
            case ops.Binary(kind=BinaryKind.MAX, lhs=lhs, rhs=rhs):
                return _Form(max(self.number(lhs), self.number(rhs)), {})
        raise Unknown

    # -------------------------------------------------------------------------------- masks

    def limits(self, mask: Value | None) -> list[tuple[_Form, int]]:
        """What the mask says, as far as it says ``form < bound``."""
        if mask is None:
            return []
        match mask.owner:
            case ops.Binary(kind=BinaryKind.AND, lhs=lhs, rhs=rhs):
                return self.limits(lhs) + self.limits(rhs)
            case ops.Broadcast(value=inner):
                repeated: set[Key] = {
                    ("axis", axis) for axis, size in enumerate(inner.type.shape) if size == 1
                }
                return [(_without(form, repeated), bound) for form, bound in self.limits(inner)]
            case ops.ExpandDims(value=inner, axis=axis):
                return [(_insert_axis(form, axis), bound) for form, bound in self.limits(inner)]
            case ops.Compare(kind=CompareKind.LT, lhs=lhs, rhs=rhs):
                try:
                    form, bound = self.form(lhs), self.form(rhs)
                except Unknown:
                    return []
                return [] if bound.coefficients else [(form, bound.constant)]
        return []

    def digits(self, offset: _Form, counts: dict[Key, int], limits: list[tuple[_Form, int]]) -> list[_Digit]:
        """The parts of the offset; those that a limit bounds together become one part."""
        rest = dict(offset.coefficients)
        digits = []
        for form, bound in sorted(limits, key=lambda item: -len(item[0].coefficients)):
            scale = _scale(form, rest)
            if scale is None:
                continue
            inner = [_Digit(n, counts[key]) for key, n in form.coefficients.items()]
            largest = _largest(inner)
            if largest is None or form.constant + largest >= _LIMIT:  # the sum might wrap around
                continue
            for key in form.coefficients:
                del rest[key]
            digits.append(_Digit(scale, min(largest + 1, bound - form.constant)))
        return digits + [_Digit(n, counts[key]) for key, n in rest.items()]


def _multiply(a: _Form, b: _Form) -> _Form:
    if a.coefficients and b.coefficients:
        raise Unknown
    if b.coefficients:
        a, b = b, a
    return _Form(a.constant * b.constant, {k: n * b.constant for k, n in a.coefficients.items()})


def _insert_axis(form: _Form, axis: int) -> _Form:
    moved = {
        ("axis", key[1] + 1) if key[0] == "axis" and key[1] >= axis else key: n  # type: ignore[operator]
        for key, n in form.coefficients.items()
    }
    return _Form(form.constant, moved)


def _without(form: _Form, keys: set[Key]) -> _Form:
    """The form where these variables are 0."""
    return _Form(form.constant, {k: n for k, n in form.coefficients.items() if k not in keys})


def _scale(form: _Form, coefficients: dict[Key, int]) -> int | None:
    """``s`` where the offset holds ``s`` times the form; ``None`` where it holds something else."""
    scales = set()
    for key, n in form.coefficients.items():
        outer = coefficients.get(key)
        if outer is None or n <= 0 or outer % n:
            return None
        scales.add(outer // n)
    return scales.pop() if len(scales) == 1 else None


def _largest(digits: list[_Digit]) -> int | None:
    """The largest sum of the digits, if every sum is made in one way only; coefficients are positive."""
    reach = 0
    for digit in sorted(digits, key=lambda d: d.coefficient):
        if digit.count > 1:
            if digit.coefficient <= reach:
                return None
            reach += digit.coefficient * (digit.count - 1)
    return reach
