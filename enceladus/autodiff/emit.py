"""A builder with a vocabulary for derivatives: constants like a tile, sums over axes, loads and stores."""

from __future__ import annotations

from enceladus.ir import ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.exchange import Atomic, AtomicKind, Reduce
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DType, tile_type


class Emit:
    """Emits operations of stage ``TILE``; operands of one operation have one shape."""

    def __init__(self, builder: IRBuilder):
        self.builder = builder

    def op(self, op: Op) -> Value:
        """Emit ``op``; its first result (``None`` where it has none)."""
        results = self.builder.emit(op)
        return results[0] if results else None  # type: ignore[return-value]

    def full(self, number: float, dtype: DType, shape: tuple[int, ...]) -> Value:
        scalar = self.op(ops.Constant(number if dtype.is_floating() else int(number), dtype))
        return self.op(ops.Splat(scalar, shape)) if shape else scalar

    def like(self, number: float, value: Value) -> Value:
        """``number`` in the type and shape of ``value``."""
        return self.full(number, value.type.dtype, value.type.shape)

    def binary(self, kind: BinaryKind, a: Value, b: Value) -> Value:
        return self.op(ops.Binary(kind, a, b))

    def add(self, a: Value, b: Value) -> Value:
        return self.binary(BinaryKind.ADD, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.binary(BinaryKind.SUB, a, b)

    def mul(self, a: Value, b: Value | float) -> Value:
        return self.binary(BinaryKind.MUL, a, b if isinstance(b, Value) else self.like(b, a))

    def div(self, a: Value, b: Value | float) -> Value:
        return self.binary(BinaryKind.DIV, a, b if isinstance(b, Value) else self.like(b, a))

    def unary(self, kind: UnaryKind, x: Value) -> Value:
        return self.op(ops.Unary(kind, x))

    def neg(self, x: Value) -> Value:
        return self.unary(UnaryKind.NEG, x)

    def compare(self, kind: CompareKind, a: Value, b: Value) -> Value:
        return self.op(ops.Compare(kind, a, b))

    def either(self, a: Value, b: Value) -> Value:
        return self.binary(BinaryKind.OR, a, b)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.op(ops.Select(condition, a, b))

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.op(ops.Cast(x, dtype))

    # --------------------------------------------------------------------------------- shapes

    def sum(self, x: Value, axis: int) -> Value:
        """The sum along ``axis``, without the axis."""
        if isinstance(x.owner, ops.ExpandDims) and x.owner.axis == axis:
            return x.owner.value
        scalar = tile_type(x.type.element)
        block = Block((Value(scalar), Value(scalar)))
        with self.builder.inside(block):
            total = self.add(*block.arguments)
            self.op(ops.Yield((total,)))
        return self.op(Reduce((x,), axis, block))

    def sum_all(self, x: Value) -> Value:
        """The sum of all elements, a scalar."""
        while x.type.shape:
            x = self.sum(x, len(x.type.shape) - 1)
        return x

    def unreduce(self, x: Value, axis: int, shape: tuple[int, ...]) -> Value:
        """``x``, which lacks ``axis`` of ``shape``, repeated along it."""
        if len(shape) == 1:
            return self.op(ops.Splat(x, shape))
        expanded = self.op(ops.ExpandDims(x, axis))
        return expanded if shape[axis] == 1 else self.op(ops.Broadcast(expanded, shape))

    # --------------------------------------------------------------------------------- memory

    def pointer(self, array: Value, offset: Value) -> Value:
        """``array + offset``, a tile of the offset's shape."""
        shape = offset.type.shape
        base = self.op(ops.Splat(array, shape)) if shape else array
        return self.op(ops.AddPointer(base, offset))

    def load(self, array: Value, offset: Value, mask: Value | None, other: Value | None = None) -> Value:
        return self.op(ops.Load(self.pointer(array, offset), mask, other))

    def store(self, array: Value, offset: Value, value: Value, mask: Value | None) -> None:
        self.op(ops.Store(self.pointer(array, offset), value, mask))

    def atomic_add(self, array: Value, offset: Value, value: Value, mask: Value | None) -> None:
        self.op(Atomic(AtomicKind.ADD, self.pointer(array, offset), value, mask))
