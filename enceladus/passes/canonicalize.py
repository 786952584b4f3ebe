"""Fold, scalarize, merge equal operations and hoist: one walk that leaves the IR smaller.

After: no operation on constants that folds; no tile operation whose operands are all splats (the scalar
is computed once and splatted); no two equal pure operations where one dominates the other; scalar
arithmetic that does not change in a loop stands before it. Integer folding is exact (it wraps);
floating-point arithmetic is never folded or reassociated, so rounding stays the engine's.
Does not remove dead operations (``dce`` does) and does not hoist loads (a loop may not run at all).
"""

from __future__ import annotations

from enceladus.errors import Location
from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.ops import BinaryKind as B
from enceladus.ir.ops import CompareKind, UnaryKind
from enceladus.ir.types import DType, PointerType, float32, int1

_COMMUTATIVE = {B.ADD, B.MUL, B.AND, B.OR, B.XOR, B.MIN, B.MAX, B.MIN_NAN, B.MAX_NAN}

_FOLD = {
    B.ADD: lambda a, b, t: a + b,
    B.SUB: lambda a, b, t: a - b,
    B.MUL: lambda a, b, t: a * b,
    B.AND: lambda a, b, t: a & b,
    B.OR: lambda a, b, t: a | b,
    B.XOR: lambda a, b, t: a ^ b,
    B.MIN: lambda a, b, t: min(a, b),
    B.MAX: lambda a, b, t: max(a, b),
    B.MIN_NAN: lambda a, b, t: min(a, b),
    B.MAX_NAN: lambda a, b, t: max(a, b),
    B.IDIV: lambda a, b, t: _idiv(a, b),
    B.IREM: lambda a, b, t: a - _idiv(a, b) * b,
    B.SHL: lambda a, b, t: a << b if 0 <= b < t.bits else 0,
    B.SHR: lambda a, b, t: a >> b if 0 <= b < t.bits else (-1 if a < 0 else 0),
}

_COMPARE = {
    CompareKind.EQ: lambda a, b: a == b,
    CompareKind.NE: lambda a, b: a != b,
    CompareKind.LT: lambda a, b: a < b,
    CompareKind.LE: lambda a, b: a <= b,
    CompareKind.GT: lambda a, b: a > b,
    CompareKind.GE: lambda a, b: a >= b,
}


def _idiv(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def run(function: Function) -> Function:
    """Canonicalize ``function`` in place and return it."""
    _Canonicalizer().block(function.body)
    return function


class _Scope:
    """Where operations go while a block is walked, and the equal ones seen so far."""

    __slots__ = ("available", "is_loop", "ops", "parent", "values")

    def __init__(self, parent: _Scope | None, is_loop: bool = False):
        self.parent = parent
        self.is_loop = is_loop
        self.ops: list[Op] = []
        self.available: dict[object, tuple[Value, ...]] = {}
        self.values: set[Value] = set()  #: defined in this block; kept for loops only


class _Canonicalizer:
    def __init__(self) -> None:
        self.mapping: dict[Value, Value] = {}
        self.scope = _Scope(None)
        self.loc: Location | None = None

    # ---------------------------------------------------------------------------- walking

    def block(self, block: Block, is_loop: bool = False) -> None:
        self.scope = _Scope(self.scope, is_loop)
        self.scope.values.update(block.arguments)
        for op in block.ops:
            self.visit(op)
        block.ops = self.scope.ops
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def visit(self, op: Op) -> None:
        op.replace_operands(self.mapping)
        self.loc = op.loc
        if isinstance(op, ops.For):
            self.block(op.body, is_loop=True)
        elif isinstance(op, ops.If):
            taken = constant_of(op.condition)
            if taken is not None:
                self.inline(op, op.then_block if taken else op.else_block)
                return
            self.block(op.then_block)
            self.block(op.else_block)
        elif op.block_fields and op.pure:
            self.closed(op)
            return
        elif op.pure and op.results:
            result = self.simplify(op)
            if result is None:
                result = self.add_pure(op)
            old = op.results[0]
            if result is not old:
                if old.name and not result.name:
                    result.name = old.name
                self.mapping[old] = result
            return
        self.append(op)

    def closed(self, op: Op) -> None:
        """An operation with a function of scalars in a block, perhaps with several results."""
        outer, self.scope = self.scope, _Scope(None)  # nothing from outside may enter the block
        for block in op.blocks:
            self.block(block)
        self.scope = outer
        self.loc = op.loc
        known = self.place(op)
        if known is not op.results:
            for old, new in zip(op.results, known, strict=True):
                new.name = new.name or old.name
                self.mapping[old] = new

    def inline(self, op: ops.If, block: Block) -> None:
        for inner in block.ops[:-1]:
            self.visit(inner)
        terminator = block.terminator
        terminator.replace_operands(self.mapping)
        self.mapping.update(zip(op.results, terminator.operands, strict=True))

    def append(self, op: Op) -> None:
        self.scope.ops.append(op)
        self.scope.values.update(op.results)

    def add_pure(self, op: Op) -> Value:
        """:meth:`place` for an operation with one result."""
        return self.place(op)[0]

    def place(self, op: Op) -> tuple[Value, ...]:
        """Reuse an equal operation if one dominates; otherwise place ``op``, as far out as it may stand."""
        key = _key(op)
        scope: _Scope | None = self.scope
        while scope is not None:
            found = scope.available.get(key)
            if found is not None:
                return found
            scope = scope.parent
        target = self.scope
        if op.results[0].type.is_scalar and not isinstance(op, ops.ArrayLoad):
            while (
                target.is_loop
                and target.parent is not None
                and not any(v in target.values for v in op.operands)
            ):
                target = target.parent
        target.ops.append(op)
        target.available[key] = op.results
        target.values.update(op.results)
        return op.results

    def emit(self, op: Op, name: str = "") -> Value:
        """Add a new operation, simplified in turn."""
        op.loc = self.loc
        op.results = tuple(Value(t, op, name) for t in op.result_types())
        simple = self.simplify(op)
        return self.add_pure(op) if simple is None else simple

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        return self.emit(ops.Constant(value, dtype))

    # ------------------------------------------------------------------------- rewriting

    def simplify(self, op: Op) -> Value | None:
        """A value equal to ``op``'s result, or ``None`` to keep the operation."""
        match op:
            case ops.Binary():
                return self.binary(op)
            case ops.Compare():
                a, b = constant_of(op.lhs), constant_of(op.rhs)
                if a is not None and b is not None and op.lhs.type.dtype.is_int():
                    return self.constant(_COMPARE[op.kind](a, b), int1)
                return self.over_splats(op)
            case ops.Cast():
                return self.cast(op)
            case ops.Splat() if not op.shape:
                return op.value
            case ops.Broadcast():
                return self.broadcast(op)
            case ops.ExpandDims() if isinstance(op.value.owner, ops.Splat):
                return self.emit(ops.Splat(op.value.owner.value, op.results[0].type.shape))
            case ops.Select():
                chosen = constant_of(op.condition)
                if chosen is None and isinstance(op.condition.owner, ops.Splat):
                    chosen = constant_of(op.condition.owner.value)
                if chosen is not None:
                    return op.on_true if chosen else op.on_false
                return op.on_true if op.on_true is op.on_false else self.over_splats(op)
            case ops.Unary():
                value = constant_of(op.value)
                if value is not None and op.kind is UnaryKind.NOT and op.value.type.dtype.is_int():
                    dtype = op.value.type.dtype
                    return self.constant(not value if dtype is int1 else dtype.wrap(~int(value)), dtype)
                if value is not None and op.kind is UnaryKind.NEG:
                    dtype = op.value.type.dtype
                    return self.constant(-value if dtype.is_floating() else dtype.wrap(-int(value)), dtype)
                return self.over_splats(op)
            case ops.Fma() | ops.Bitcast():
                return self.over_splats(op)
            case ops.ArrayLoad():
                return self.load(op)
        return None

    def binary(self, op: ops.Binary) -> Value | None:
        kind, lhs, rhs = op.kind, op.lhs, op.rhs
        a, b = constant_of(lhs), constant_of(rhs)
        dtype = lhs.type.element
        if isinstance(dtype, PointerType) or dtype.is_floating():
            return self.over_splats(op)
        if a is not None and b is not None and kind in _FOLD:
            value = _FOLD[kind](int(a), int(b), dtype)
            return self.constant(bool(value & 1) if dtype is int1 else dtype.wrap(value), dtype)
        if a is None and isinstance(lhs.owner, ops.Splat):
            a = constant_of(lhs.owner.value)
        if b is None and isinstance(rhs.owner, ops.Splat):
            b = constant_of(rhs.owner.value)
        if b is not None and dtype is not int1:
            if b == 0 and kind in (B.ADD, B.SUB, B.OR, B.XOR, B.SHL, B.SHR):
                return lhs
            if b == 1 and kind in (B.MUL, B.IDIV):
                return lhs
            if b == 0 and kind in (B.MUL, B.AND):
                return rhs
        if a is not None and dtype is not int1:
            if a == 0 and kind in (B.ADD, B.OR, B.XOR):
                return rhs
            if a == 1 and kind is B.MUL:
                return rhs
            if a == 0 and kind in (B.MUL, B.AND):
                return lhs
        if dtype is int1 and kind in (B.AND, B.OR):
            absorbing = kind is B.OR
            for known, other, same in ((a, rhs, lhs), (b, lhs, rhs)):
                if known is not None:
                    return same if bool(known) == absorbing else other
            if lhs is rhs:
                return lhs
        return self.over_splats(op) or self.reassociate(op)

    def reassociate(self, op: ops.Binary) -> Value | None:
        """``s1 + (s2 + tile)`` → ``(s1 + s2) + tile`` for integer splats: scalars are added once."""
        if op.kind is not B.ADD or op.lhs.type.is_scalar:
            return None
        for splat, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            inner = other.owner
            if (
                not isinstance(splat.owner, ops.Splat)
                or not isinstance(inner, ops.Binary)
                or inner.kind is not B.ADD
            ):
                continue
            for inner_splat, tile in ((inner.lhs, inner.rhs), (inner.rhs, inner.lhs)):
                if isinstance(inner_splat.owner, ops.Splat):
                    total = self.emit(ops.Binary(B.ADD, splat.owner.value, inner_splat.owner.value))
                    return self.emit(ops.Binary(B.ADD, self.emit(ops.Splat(total, op.lhs.type.shape)), tile))
        return None

    def over_splats(self, op: Op) -> Value | None:
        """An elementwise operation on splats only is a splat of the scalar operation."""
        shape = op.results[0].type.shape
        if not shape or not all(isinstance(v.owner, ops.Splat) for v in op.operands):
            return None
        mapping = {v: v.owner.value for v in op.operands}  # type: ignore[union-attr]
        scalar = type(op)(
            **{name: getattr(op, name) for name in op.attribute_fields},
            **{name: mapping[getattr(op, name)] for name in op.operand_fields},
        )
        return self.emit(ops.Splat(self.emit(scalar), shape))

    def cast(self, op: ops.Cast) -> Value | None:
        source, target = op.value.type.dtype, op.dtype
        if source is target:
            return op.value
        value = constant_of(op.value)
        if value is not None and source.is_int():
            if target is int1:
                return self.constant(value != 0, int1)
            if target.is_int():
                return self.constant(target.wrap(int(value)), target)
            if target is float32 and abs(int(value)) <= 1 << 24:
                return self.constant(float(value), float32)
        return self.over_splats(op)

    def broadcast(self, op: ops.Broadcast) -> Value | None:
        if op.value.type.shape == op.shape:
            return op.value
        inner = op.value.owner
        if isinstance(inner, ops.Splat):
            return self.emit(ops.Splat(inner.value, op.shape))
        if isinstance(inner, ops.Broadcast):
            return self.emit(ops.Broadcast(inner.value, op.shape))
        return None

    def load(self, op: ops.ArrayLoad) -> Value | None:
        """A mask that is always true is no mask; ``other`` without a mask has no meaning."""
        mask = op.mask
        if mask is not None:
            known = constant_of(mask.owner.value if isinstance(mask.owner, ops.Splat) else mask)
            if known:
                op.mask = None
        if op.mask is None:
            op.other = None
        return None


def constant_of(value: Value) -> bool | int | float | None:
    """The compile-time number behind a scalar value, or ``None``."""
    return value.owner.value if isinstance(value.owner, ops.Constant) else None


def _key(op: Op) -> object:
    operands = tuple(map(id, op.operands))
    if isinstance(op, ops.Constant):
        return (ops.Constant, repr(op.value), op.dtype)
    if isinstance(op, ops.Binary) and op.kind in _COMMUTATIVE and operands[0] > operands[1]:
        operands = (operands[1], operands[0])
    if isinstance(op, ops.ArrayLoad):  # optional operands must not be confused
        operands = (id(op.array), id(op.offset), id(op.mask), id(op.other))
    if op.block_fields:
        return (type(op), operands, op.attributes, *map(_block_key, op.blocks))
    return (type(op), operands, op.attributes)


def _block_key(block: Block) -> object:
    """Equal for closed blocks that compute the same in the same way."""
    numbers = {value: number for number, value in enumerate(block.arguments)}
    parts: list[object] = [tuple([v.type for v in block.arguments])]
    for op in block.ops:
        if op.block_fields:
            return id(block)
        attributes = repr(op.attributes) if isinstance(op, ops.Constant) else op.attributes
        parts.append((type(op), tuple([numbers[v] for v in op.operands]), attributes))
        for value in op.results:
            numbers[value] = len(numbers)
    return tuple(parts)
