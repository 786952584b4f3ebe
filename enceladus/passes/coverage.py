"""Prove that a kernel's stores cover an array, as far as the compiler can.

The proof has two halves. Here: the store happens in every program (at top level, or in every iteration of a
loop there that counts up from 0), its offset is a sum of ``program_id(a) · stride``, tile coordinates and a
loop's variable, and its mask only cuts off what lies beyond a limit. What remains are conditions on the
launch (grid, sizes, scalar arguments), recorded as small expression trees that JSON can hold and that
``mlx_bridge`` evaluates:

    number | ["grid", axis] | ["size"] | ["scalar", name] | ["mul" | "min" | "cdiv", left, right]

and each condition is ``["le", left, right]``. All must hold for the array to be fully written. ``[]`` would
mean "always"; ``None`` means that nothing could be proven and the launch must merge with the old contents.

The idea: order the parts of the offset by stride. The tile's contiguous run covers ``[0, C)``; the next part
with stride ``S ≤ C`` and ``n`` values extends that to at least ``[0, n·S)``; a limit ``L`` on the sum so far
cuts it to ``min(C, L)``. At the end ``C`` must reach the array's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from enceladus.ir import exchange, ops
from enceladus.ir.core import Function, Value
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.passes.affine import Affine, Analysis, Polynomial, constant_polynomial, multiply
from enceladus.passes.batch import GRID_AXES

Expression = Any
Condition = list[Any]
_ATOMIC = (exchange.ArrayAtomic, exchange.ArrayAtomicCas)


def coverage(function: Function, analysis: Analysis) -> dict[Value, list[Condition] | None]:
    """For each stored array: the conditions under which every element is written, or ``None``.

    An array that is updated atomically needs its old contents, even where a store covers it: programs have no
    order. It has no conditions.
    """
    found: dict[Value, list[Condition] | None] = {}
    scalars = {v: v.name for v in function.arguments}
    atomic: set[Value] = set()
    for op in function.walk():
        if isinstance(op, ops.ArrayStore):
            found.setdefault(op.array, None)
        elif isinstance(op, _ATOMIC):
            found.setdefault(op.array, None)
            atomic.add(op.array)
    for op, loop in _always(function):
        if found[op.array] is None and op.array not in atomic:
            found[op.array] = _Prover(analysis, scalars, loop).store(op)
    return found


def _always(function: Function) -> Iterator[tuple[ops.ArrayStore, ops.For | None]]:
    """The stores that every program executes, once or in each iteration of a loop that counts up from 0."""
    for op in function.body.ops:
        if isinstance(op, ops.ArrayStore):
            yield op, None
        elif isinstance(op, ops.For) and isinstance(op.lower.owner, ops.Constant):
            step = op.step.owner
            if op.lower.owner.value == 0 and isinstance(step, ops.Constant) and step.value > 0:
                yield from ((inner, op) for inner in op.body.ops if isinstance(inner, ops.ArrayStore))


@dataclass(slots=True)
class _Part:
    """``count`` values (an expression) of ``stride`` (a polynomial): a grid axis, a tile axis or a loop."""

    stride: Polynomial
    count: Expression
    key: object


class _Prover:
    def __init__(self, analysis: Analysis, scalars: dict[Value, str], loop: ops.For | None = None):
        self.analysis = analysis
        self.scalars = scalars
        self.loop = loop

    def store(self, op: ops.ArrayStore) -> list[Condition] | None:
        affine = self.analysis.affine(op.offset)
        if affine is None:
            return None
        parts = self.parts(affine, op.offset.type.shape)
        if parts is None:
            return None
        limits = self.limits(op.mask)
        if limits is None:
            return None
        ordered = self.ordered(parts)
        if ordered is None:
            return None
        conditions: list[Condition] = []
        covered: Expression = 1
        for position, part in enumerate(ordered):
            stride = self.expression(part.stride)
            if stride is None:
                return None
            if stride != covered:
                conditions.append(["le", stride, covered])
            covered = _product(part.count, stride)
            for limit in list(limits):
                factor = limit.factor(ordered[: position + 1])
                scale = None if factor is None else self.expression(factor)
                if scale is not None:
                    covered = ["min", covered, _product(limit.bound, scale)]
                    limits.remove(limit)
        if limits:
            return None
        conditions.append(["le", ["size"], covered])
        return conditions

    def parts(self, affine: Affine, shape: tuple[int, ...]) -> list[_Part] | None:
        parts = [
            _Part(step, count, ("axis", k))
            for k, (step, count) in enumerate(zip(affine.steps, shape, strict=True))
            if count > 1 and step
        ]
        seen = set()
        for monomial, coefficient in affine.base.items():
            if self.loop is not None and monomial == (self.loop.body.arguments[0],):
                trips = self.trips(self.loop)
                if trips is None:
                    return None
                count, step = trips
                parts.append(_Part({(): coefficient * step}, count, ("loop", 0)))
                continue
            ids = [v for v in monomial if isinstance(v.owner, ops.ProgramId)]
            if len(ids) != 1:
                return None  # a constant or run-time shift: elements before it are not covered
            axis = ids[0].owner.axis  # type: ignore[union-attr]
            if axis in seen:
                return None
            seen.add(axis)
            rest = list(monomial)
            rest.remove(ids[0])
            parts.append(_Part({tuple(rest): coefficient}, ["grid", axis], ("grid", axis)))
        return parts

    def trips(self, loop: ops.For) -> tuple[Expression, int] | None:
        """How often a loop that counts up from 0 runs, and its step; ``None`` where no expression says it."""
        upper = self.expression(self.analysis.polynomial(loop.upper))
        assert isinstance(loop.step.owner, ops.Constant)
        step = int(loop.step.owner.value)
        return None if upper is None else (["cdiv", upper, step], step)

    def ordered(self, parts: list[_Part]) -> list[_Part] | None:
        """Smallest stride first: numbers, then products with more and more factors, then a batch's axes.

        An inner level's examples lie within one of an outer level.
        """

        def rank(part: _Part) -> tuple[int, int]:
            match part.key:
                case ("grid", int(axis)) if axis >= GRID_AXES:
                    return (1000 - axis, 0)
            if len(part.stride) != 1:
                return (99, 0)
            ((monomial, coefficient),) = part.stride.items()
            return (len(monomial), coefficient)

        if any(len(p.stride) != 1 or min(p.stride.values()) <= 0 for p in parts):
            return None
        return sorted(parts, key=rank)

    def expression(self, p: Polynomial) -> Expression | None:
        """A polynomial with one monomial as an expression over scalar arguments."""
        if constant_polynomial(p) is not None:
            return constant_polynomial(p)
        if len(p) != 1:
            return None
        ((monomial, coefficient),) = p.items()
        result: Expression = None
        for value in monomial:
            name = self.scalars.get(value)
            if name is None:
                return None
            result = ["scalar", name] if result is None else ["mul", result, ["scalar", name]]
        return result if coefficient == 1 else ["mul", result, coefficient]

    # ------------------------------------------------------------------------------ masks

    def limits(self, mask: Value | None) -> list[_Limit] | None:
        """The mask as limits on partial sums; ``None`` where it can cut off anything else."""
        if mask is None:
            return []
        op = mask.owner
        match op:
            case ops.Binary(kind=BinaryKind.AND):
                left, right = self.limits(op.lhs), self.limits(op.rhs)
                return None if left is None or right is None else left + right
            case ops.Broadcast() | ops.ExpandDims() | ops.Splat():
                inner = self.limits(op.value)
                if inner is None:
                    return None
                if isinstance(op, ops.ExpandDims):
                    for limit in inner:
                        limit.insert_axis(op.axis)
                return inner
            case ops.Compare(kind=CompareKind.LT):
                return self.comparison(op.lhs, op.rhs)
            case ops.Compare(kind=CompareKind.GT):
                return self.comparison(op.rhs, op.lhs)
        return None

    def comparison(self, index: Value, bound: Value) -> list[_Limit] | None:
        """``index < bound``."""
        affine = self.analysis.affine(index)
        if index.type.shape:
            if not isinstance(bound.owner, ops.Splat):
                return None
            bound = bound.owner.value
        if affine is None:
            return None
        limit = self.expression(self.analysis.polynomial(bound))
        parts = self.parts(affine, index.type.shape)
        if limit is None or parts is None:
            return None
        return [_Limit({p.key: p.stride for p in parts}, limit)]


@dataclass(slots=True)
class _Limit:
    """``Σ strides[k] · part_k < bound`` over the parts named by the keys."""

    strides: dict[Any, Polynomial]
    bound: Expression

    def insert_axis(self, axis: int) -> None:
        self.strides = {
            ("axis", k[1] + 1) if k[0] == "axis" and k[1] >= axis else k: p for k, p in self.strides.items()
        }

    def factor(self, parts: list[_Part]) -> Polynomial | None:
        """``f`` where the last parts are exactly mine and their strides are ``f`` times the mask's."""
        mine = parts[len(parts) - len(self.strides) :]
        if {p.key for p in mine} != self.strides.keys() or not mine:
            return None
        factor = mine[0].stride
        if self.strides[mine[0].key] != {(): 1}:
            return None
        matches = all(p.stride == multiply(factor, self.strides[p.key]) for p in mine)
        return factor if matches else None


def _product(left: Expression, right: Expression) -> Expression:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if left == 1 or right == 1:
        return right if left == 1 else left
    return ["mul", left, right]
