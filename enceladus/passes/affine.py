"""Index analysis: which integer tiles are affine in their coordinates, and what divides a scalar.

``Affine`` says ``tile[i0, i1, …] = Σ coefficient·monomial + constant + Σ step_k · i_k`` where monomials are
products of scalars. From it follow contiguity (a step of 1), alignment (what divides the rest), the scalar
that a tile starts at, and the proof that stores cover an array.

The equality holds modulo 2^width of the tile's type. For valid element offsets that is equality, since an
offset outside the array is out of bounds anyway; masks need the exact test of ``full_blocks``.
"""

from __future__ import annotations

from dataclasses import dataclass

from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Value
from enceladus.ir.ops import BinaryKind as B

#: A product of scalar values (sorted by identity); the empty product is 1.
Monomial = tuple[Value, ...]
#: A sum of monomials with integer coefficients.
Polynomial = dict[Monomial, int]


@dataclass(frozen=True, slots=True)
class Affine:
    """``base + Σ steps[k] · i_k``; ``base`` and each step are polynomials in scalars."""

    base: Polynomial
    steps: tuple[Polynomial, ...]

    def step(self, axis: int) -> int | None:
        """The step along ``axis`` where it is a compile-time number."""
        return constant_polynomial(self.steps[axis])


def constant_polynomial(p: Polynomial) -> int | None:
    """The number that ``p`` is, or ``None`` if it depends on a scalar."""
    if not p:
        return 0
    return p[()] if len(p) == 1 and () in p else None


def add(p: Polynomial, q: Polynomial, sign: int = 1) -> Polynomial:
    total = dict(p)
    for monomial, coefficient in q.items():
        value = total.get(monomial, 0) + sign * coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for left, a in p.items():
        for right, b in q.items():
            key = tuple(sorted((*left, *right), key=id))
            product[key] = product.get(key, 0) + a * b
    return {m: c for m, c in product.items() if c}


class Analysis:
    """Caches of affine forms, divisors and intervals for one function. Make a new one after a rewrite."""

    def __init__(self, function: Function):
        self.function = function
        self._affine: dict[Value, Affine | None] = {}
        self._divisor: dict[Value, int] = {}
        #: induction variable or carried value → (initial, advance per iteration)
        self.inductions: dict[Value, tuple[Value, Value]] = {}
        for op in function.walk():
            if isinstance(op, ops.For):
                self._loop(op)

    def _loop(self, loop: ops.For) -> None:
        self.inductions[loop.body.arguments[0]] = (loop.lower, loop.step)
        finals = loop.body.terminator.operands
        for argument, initial, final in zip(loop.body.arguments[1:], loop.initial, finals, strict=True):
            add_op = final.owner
            if (
                isinstance(add_op, ops.Binary)
                and add_op.kind is B.ADD
                and argument in (add_op.lhs, add_op.rhs)
            ):
                self.inductions[argument] = (initial, add_op.rhs if add_op.lhs is argument else add_op.lhs)

    # ----------------------------------------------------------------------------- affine

    def affine(self, value: Value) -> Affine | None:
        """The affine form of an integer tile, or ``None`` where it has none that we can see."""
        try:
            return self._affine[value]
        except KeyError:
            self._affine[value] = None  # a cycle through a loop has no form
            self._affine[value] = found = self._find_affine(value)
            return found

    def _find_affine(self, value: Value) -> Affine | None:
        if value.type.is_scalar:
            return Affine(self.polynomial(value), ())
        op = value.owner
        match op:
            case ops.MakeRange():
                return Affine({(): op.start} if op.start else {}, ({(): 1},))
            case ops.Splat():
                return Affine(self.polynomial(op.value), ({},) * len(op.shape))
            case ops.ExpandDims():
                inner = self.affine(op.value)
                return inner and Affine(inner.base, (*inner.steps[: op.axis], {}, *inner.steps[op.axis :]))
            case ops.Broadcast():
                inner = self.affine(op.value)
                if inner is None:
                    return None
                old = op.value.type.shape
                steps = tuple({} if n == 1 else s for n, s in zip(old, inner.steps, strict=True))
                return Affine(inner.base, steps)
            case ops.Hint():
                return self.affine(op.value)
            case ops.Cast() if op.dtype.is_int() and op.dtype.bits >= 32 and op.value.type.dtype.bits >= 32:
                return self.affine(op.value)
            case ops.Binary(kind=B.ADD | B.SUB):
                left, right = self.affine(op.lhs), self.affine(op.rhs)
                if left is None or right is None:
                    return None
                sign = 1 if op.kind is B.ADD else -1
                steps = tuple(add(p, q, sign) for p, q in zip(left.steps, right.steps, strict=True))
                return Affine(add(left.base, right.base, sign), steps)
            case ops.Binary(kind=B.MUL):
                left, right = self.affine(op.lhs), self.affine(op.rhs)
                if left is None or right is None:
                    return None
                if any(left.steps):
                    left, right = right, left
                if any(left.steps):
                    return None  # a product of two coordinates
                return Affine(
                    multiply(left.base, right.base), tuple(multiply(left.base, s) for s in right.steps)
                )
        return None

    def polynomial(self, value: Value) -> Polynomial:
        """A scalar as a sum of products of scalars that do not decompose further."""
        op = value.owner
        match op:
            case ops.Constant() if not isinstance(op.value, float):
                return {(): int(op.value)} if op.value else {}
            case ops.Binary(kind=B.ADD):
                return add(self.polynomial(op.lhs), self.polynomial(op.rhs))
            case ops.Binary(kind=B.SUB):
                return add(self.polynomial(op.lhs), self.polynomial(op.rhs), -1)
            case ops.Binary(kind=B.MUL):
                return multiply(self.polynomial(op.lhs), self.polynomial(op.rhs))
            case ops.Hint():
                return self.polynomial(op.value) if not op.divisibility else {(value,): 1}
            case ops.Cast() if op.dtype.is_int() and op.dtype.bits >= 32 and op.value.type.dtype.is_int():
                if op.value.type.dtype.bits >= 32:
                    return self.polynomial(op.value)
        return {(value,): 1}

    # --------------------------------------------------------------------------- divisors

    def divisor_of(self, p: Polynomial) -> int:
        """A power of two that divides every value of ``p`` (2**30 for 0)."""
        result = 1 << 30
        for monomial, coefficient in p.items():
            term = coefficient & -coefficient
            for value in monomial:
                term *= self.divisor(value)
            result = min(result, term)
        return result

    def divisor(self, value: Value) -> int:
        """A power of two that divides the scalar ``value``."""
        known = self._divisor.get(value)
        if known is None:
            self._divisor[value] = 1  # what a cycle through a loop sees
            known = self._divisor[value] = self._find_divisor(value)
        return known

    def _find_divisor(self, value: Value) -> int:
        hint = self.function.hints.get(value)
        if hint is not None:
            return hint.divisibility
        if value in self.inductions:
            return min(map(self.divisor, self.inductions[value]))
        op = value.owner
        match op:
            case ops.Constant():
                number = op.value
                return 1 if isinstance(number, float) else (int(number) & -int(number)) or 1 << 30
            case ops.Binary(kind=B.MUL):
                return min(1 << 30, self.divisor(op.lhs) * self.divisor(op.rhs))
            case ops.Binary(kind=B.ADD | B.SUB | B.MIN | B.MAX | B.IREM):
                return min(self.divisor(op.lhs), self.divisor(op.rhs))
            case ops.Select():
                return min(self.divisor(op.on_true), self.divisor(op.on_false))
            case ops.Cast() if op.dtype.is_int() and op.value.type.dtype.is_int():
                return self.divisor(op.value)
            case ops.Hint():
                promised = op.divisibility[0] if op.divisibility else 1
                return max(promised & -promised, self.divisor(op.value))
        return 1


def uses_of(block: Block) -> dict[Value, int]:
    """How often each value is used in ``block`` and nested blocks."""
    counts: dict[Value, int] = {}
    for op in block.walk():
        for value in op.operands:
            counts[value] = counts.get(value, 0) + 1
    return counts
