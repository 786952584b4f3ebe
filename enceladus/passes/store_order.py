"""Which stores of one program may touch the same element from different threads.

Triton leaves the order of overlapping stores to the hardware; here the later one wins, in every engine. Two
stores to one array need a barrier between them unless they are in one group with equal offsets (then the
same thread does both, in order), or both of scalars (the first thread's), or provably touch different
elements. Atomic updates count as stores, except where nobody can tell their order (``Manner.is_open``).
"""

from __future__ import annotations

from math import gcd

from enceladus.ir import ops
from enceladus.ir.core import Value
from enceladus.passes.affine import Affine, Analysis, Polynomial, add, constant_polynomial
from enceladus.passes.intervals import Intervals
from enceladus.passes.updates import Atomic, manners

Write = ops.ArrayStore | Atomic


class StoreOrder:
    """The stores since the last barrier, by array. ``clone`` before a branch, ``merge`` after it."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.pending: dict[Value, list[Write]] = {}
        self.open = {array for array, manner in manners(analysis.function).items() if manner.is_open}

    def clone(self) -> StoreOrder:
        copy = object.__new__(StoreOrder)
        copy.analysis, copy.open = self.analysis, self.open
        copy.pending = {array: list(stores) for array, stores in self.pending.items()}
        return copy

    def merge(self, other: StoreOrder) -> None:
        for array, stores in other.pending.items():
            mine = self.pending.setdefault(array, [])
            mine.extend(s for s in stores if s not in mine)

    def clear(self) -> None:
        """After a barrier."""
        self.pending = {}

    def add(self, store: Write) -> None:
        if store.array not in self.open:
            self.pending.setdefault(store.array, []).append(store)

    def conflicts(self, store: Write, same_group: set[Write]) -> bool:
        """Whether ``store`` must be separated from a pending store by a barrier."""
        for earlier in self.pending.get(store.array, ()):
            if earlier in same_group and earlier.offset is store.offset:
                continue
            if earlier.offset.type.is_scalar and store.offset.type.is_scalar:
                continue
            if not self.disjoint(earlier, store):
                return True
        return False

    def disjoint(self, a: Write, b: Write) -> bool:
        """Whether two stores provably touch different elements."""
        x, y = self.analysis.affine(a.offset), self.analysis.affine(b.offset)
        if x is None or y is None:
            return False
        difference = add(y.base, x.base, -1)
        if _interleaved(difference, x, a.offset.type.shape, y, b.offset.type.shape):
            return True
        distance = constant_polynomial(difference)
        if distance is None:
            return False
        first = _span(x, a.offset.type.shape) if distance >= 0 else _span(y, b.offset.type.shape)
        return first is not None and abs(distance) >= first

    def repeats(self, store: Write, loop: ops.For) -> bool:
        """Whether iterations of ``loop`` may store to one element through ``store``."""
        affine = self.analysis.affine(store.offset)
        if affine is None:
            return True
        span = _span(affine, store.offset.type.shape)
        moving = {loop.body.arguments[0]: loop.step}
        for argument in loop.body.arguments[1:]:
            if argument in self.analysis.inductions:
                moving[argument] = self.analysis.inductions[argument][1]
        intervals = Intervals(self.analysis.function)
        computed = {v for op in loop.body.walk() for v in op.results}
        least = most = 0  # how far one iteration moves the tile
        for monomial, coefficient in affine.base.items():
            if not any(v in moving or v in computed for v in monomial):
                continue
            if len(monomial) != 1 or monomial[0] not in moving:
                return True
            low, high = (coefficient * bound for bound in intervals.of(moving[monomial[0]]))
            least, most = least + min(low, high), most + max(low, high)
        return span is None or not (least >= span or most <= -span)


def _interleaved(
    difference: Polynomial, x: Affine, x_shape: tuple[int, ...], y: Affine, y_shape: tuple[int, ...]
) -> bool:
    """Whether two tiles never meet because they differ modulo a number, as the two halves of each row do.

    ``difference`` is that of their bases. Steps that the number divides do not matter; the others must leave
    a gap on both sides.
    """
    moduli = {gcd(*step.values()) for affine in (x, y) for step in affine.steps if step}
    for modulus in moduli:
        if any(coefficient % modulus for monomial, coefficient in difference.items() if monomial):
            continue
        before, after = _width(x, x_shape, modulus), _width(y, y_shape, modulus)
        if before is not None and after is not None:
            distance = difference.get((), 0) % modulus
            if before < distance < modulus - after:
                return True
    return False


def _width(affine: Affine, shape: tuple[int, ...], modulus: int) -> int | None:
    """How far the steps that ``modulus`` does not divide reach; None unless they are constant, >= 0."""
    steps = [({} if all(c % modulus == 0 for c in step.values()) else step) for step in affine.steps]
    span = _span(Affine(affine.base, tuple(steps)), shape)
    return None if span is None else span - 1


def _span(affine: Affine, shape: tuple[int, ...]) -> int | None:
    """Length of the smallest run of elements that holds the tile; None unless steps are constant, >= 0."""
    total = 1
    for axis, size in enumerate(shape):
        step = affine.step(axis)
        if size > 1 and (step is None or step < 0):
            return None
        total += (step or 0) * (size - 1)
    return total
