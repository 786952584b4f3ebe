"""Reduce the values of an atomic update that meet in one element before the update.

Before: a tile of addresses may be the same along an axis, as in ``tl.atomic_add(total + zeros, x)`` or
``tl.atomic_add(column_sums + cols[None, :], tile)``; every element is an update of its own, and those of one
address wait for each other. After: where the address provably does not depend on an axis and nobody uses
the old values, a ``Reduce`` along the axis comes first, and one update per address remains; of an address for
the whole tile, one by the first thread.

Elements that are masked off contribute what changes nothing. A total that changes nothing is not updated: the
address may lie outside the array where everything was masked off.

Sums are reduced in 32 bits, and handed on so where updates are collected (``passes.updates``). A reduction
may need threadgroup memory; what would need much of it stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from enceladus.errors import Location
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DType, tile_type
from enceladus.passes.affine import uses_of
from enceladus.passes.updates import COMMUTATIVE, Manner, accumulator

#: Threadgroup memory that reductions of this pass may take, in bytes.
_BUDGET = 16384

_BINARY = {kind: BinaryKind(kind.value) for kind in COMMUTATIVE}


def run(function: Function, manners: Mapping[Value, Manner]) -> Function:
    """Rewrite ``function`` in place and return it."""
    if manners:
        _Combiner(function, manners).block(function.body)
    return function


class _Combiner:
    def __init__(self, function: Function, manners: Mapping[Value, Manner]):
        self.manners = manners
        self.num_warps = function.num_warps
        self.budget = _BUDGET
        self.loop_depth = 0
        self.uses = uses_of(function.body)
        self.out: list[Op] = []
        self.loc: Location | None = None
        self.same: dict[tuple[Value, int], bool] = {}
        #: (tile, axis) → the tile without the axis, made for the present update
        self.smaller: dict[tuple[Value, int], Value] = {}

    def emit(self, op: Op) -> Value:
        op.loc = self.loc
        op.results = tuple(Value(t, op) for t in op.result_types())
        self.out.append(op)
        return op.results[0]

    def block(self, block: Block) -> None:
        outer, self.out = self.out, []
        for op in block.ops:
            self.loop_depth += isinstance(op, ops.For)
            for nested in op.blocks if op.control_flow else ():
                self.block(nested)
            self.loop_depth -= isinstance(op, ops.For)
            if isinstance(op, exchange.ArrayAtomic) and self.may_combine(op):
                self.loc, self.smaller = op.loc, {}
                self.combine(op)
            self.out.append(op)
        block.ops, self.out = self.out, outer

    def may_combine(self, op: exchange.ArrayAtomic) -> bool:
        tile = not op.offset.type.is_scalar
        return tile and op.kind in COMMUTATIVE and not self.uses.get(op.results[0], 0)

    def combine(self, op: exchange.ArrayAtomic) -> None:
        """Put reductions before ``op`` and make it an update of what they leave."""
        before = op.offset.type.shape
        for axis in reversed(range(len(before))):
            if before[axis] > 1 and self.is_same_along(op.offset, axis) and self.can_afford(op, axis):
                self.reduce(op, axis)
        if op.offset.type.shape == before:
            return
        manner, dtype = self.manners[op.array], op.value.type.dtype
        if manner.kind is None and dtype is not manner.element:
            op.value = self.emit(ops.Cast(op.value, manner.element))
        op.results = (Value(op.value.type, op, op.results[0].name),)

    def can_afford(self, op: exchange.ArrayAtomic, axis: int) -> bool:
        """Whether the parts that SIMD groups hand each other fit the budget; then they are taken from it."""
        places = op.offset.type.numel // op.offset.type.shape[axis]
        size = 4 * places * self.num_warps * (2 if self.loop_depth else 1)  # in loops two halves take turns
        if size > self.budget:
            return False
        self.budget -= size
        return True

    def reduce(self, op: exchange.ArrayAtomic, axis: int) -> None:
        offset = self.without(op.offset, axis)
        assert offset is not None
        number = accumulator(self.manners[op.array].element)
        value = op.value
        if value.type.dtype is not number:
            value = self.emit(ops.Cast(value, number))
        guards, varying = [], []
        for part in _conjuncts(op.mask):
            smaller = self.without(part, axis)
            if smaller is None:
                varying.append(part)
            else:
                guards.append(smaller)
        if varying:
            nothing = self.constant(_neutral(op.kind, number), value.type.shape, number)
            value = self.emit(ops.Select(self.all_of(varying), value, nothing))
        block = _combine_block(_BINARY[op.kind], number, self.loc)
        total = self.emit(exchange.Reduce((value,), axis, block))
        if varying:
            if op.kind in (AtomicKind.MAX, AtomicKind.MIN) and number.is_floating():
                is_nan = self.emit(ops.Unary(UnaryKind.ISNAN, total))
                changes: Op = ops.Unary(UnaryKind.NOT, is_nan)
            else:
                neutral = self.constant(_neutral(op.kind, number), total.type.shape, number)
                changes = ops.Compare(CompareKind.NE, total, neutral)
            guards.append(self.emit(changes))
        op.offset, op.value = offset, total
        op.mask = self.all_of(guards) if guards else None

    def constant(self, value: int | float, shape: tuple[int, ...], dtype: DType) -> Value:
        scalar = self.emit(ops.Constant(value, dtype))
        return self.emit(ops.Splat(scalar, shape)) if shape else scalar

    def all_of(self, masks: list[Value]) -> Value:
        first, *others = masks
        for other in others:
            first = self.emit(ops.Binary(BinaryKind.AND, first, other))
        return first

    # ------------------------------------------------------------------------- without an axis

    def without(self, value: Value, axis: int) -> Value | None:
        """``value`` without ``axis``, along which it is the same everywhere; ``None`` if it is not."""
        return self.rebuild(value, axis) if self.is_same_along(value, axis) else None

    def is_same_along(self, value: Value, axis: int) -> bool:
        """Whether the elements of ``value`` provably do not depend on the index along ``axis``."""
        known = self.same.get((value, axis))
        if known is None:
            known = self.same[value, axis] = self.find_same(value, axis)
        return known

    def find_same(self, value: Value, axis: int) -> bool:
        op = value.owner
        match op:
            case ops.Splat():
                return True
            case ops.ExpandDims():
                return op.axis == axis or self.is_same_along(op.value, axis - (op.axis < axis))
            case ops.Broadcast():
                return self.is_same_along(op.value, axis)
            case ops.MakeRange():
                return op.end - op.start == 1
            case Op() if op.elementwise and op.pure:
                return all(self.is_same_along(v, axis) for v in op.operands if v.type.shape)
        return False

    def rebuild(self, value: Value, axis: int) -> Value:
        known = self.smaller.get((value, axis))
        if known is None:
            known = self.smaller[value, axis] = self.make_smaller(value, axis)
        return known

    def make_smaller(self, value: Value, axis: int) -> Value:
        op = value.owner
        shape = (*value.type.shape[:axis], *value.type.shape[axis + 1 :])
        match op:
            case ops.Splat():
                return self.emit(ops.Splat(op.value, shape)) if shape else op.value
            case ops.ExpandDims():
                if op.axis == axis:
                    return op.value
                inner = self.rebuild(op.value, axis - (op.axis < axis))
                if inner.type.is_scalar:
                    return self.emit(ops.Splat(inner, shape))
                return self.emit(ops.ExpandDims(inner, op.axis - (axis < op.axis)))
            case ops.Broadcast():
                inner = self.rebuild(op.value, axis)
                if inner.type.is_scalar:
                    return self.emit(ops.Splat(inner, shape)) if shape else inner
                return inner if inner.type.shape == shape else self.emit(ops.Broadcast(inner, shape))
            case ops.Hint():  # its promise is for all dimensions
                return self.rebuild(op.value, axis)
            case ops.MakeRange():  # of one element
                return self.emit(ops.Constant(op.start, op.dtype))
        assert isinstance(op, Op)
        mapping = {v: self.rebuild(v, axis) for v in op.operands if v.type.shape}
        copy = op.clone({})
        copy.replace_operands(mapping)
        copy.results = tuple(Value(tile_type(v.type.element, shape), copy, v.name) for v in op.results)
        self.out.append(copy)
        return copy.results[0]


def _conjuncts(mask: Value | None) -> list[Value]:
    """The masks whose "and" is ``mask``, broadcast ones taken apart as far as that is cheap."""
    if mask is None:
        return []
    op = mask.owner
    if isinstance(op, ops.Binary) and op.kind is BinaryKind.AND:
        return _conjuncts(op.lhs) + _conjuncts(op.rhs)
    return [mask]


def _neutral(kind: AtomicKind, dtype: DType) -> int | float:
    """What changes nothing: any number beats NaN."""
    match kind:
        case AtomicKind.MAX:
            return float("nan") if dtype.is_floating() else dtype.minimum
        case AtomicKind.MIN:
            return float("nan") if dtype.is_floating() else dtype.maximum
        case AtomicKind.AND:
            return -1 if dtype.is_int_signed() else dtype.maximum
    return 0.0 if dtype.is_floating() else 0


def _combine_block(kind: BinaryKind, dtype: DType, loc: Location | None) -> Block:
    a, b = Value(tile_type(dtype), None, "a"), Value(tile_type(dtype), None, "b")
    op = ops.Binary(kind, a, b)
    op.loc, op.results = loc, (Value(tile_type(dtype), op),)
    end = ops.Yield(op.results)
    end.loc, end.results = loc, ()
    return Block((a, b), [op, end])
