"""Rewrite pointer arithmetic as array accesses: ``Load(p + i)`` becomes ``ArrayLoad(p, i)``.

Before: pointers are values and may be carried by loops, merged by branches and selected.
After: no value of pointer type is computed; every access names its kernel argument and an integer
offset; ``verifier.Stage.ARRAY`` holds. What was carried is the offset.

MLX binds inputs in the ``device`` or the ``constant`` address space, so a pointer that could belong
to one of two arrays has no type in Metal: such merges are refused. Cost: one walk.
"""

from __future__ import annotations

from enceladus.errors import CompilationError, InternalError, Location
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.types import DType, PointerType, TileType, int32, int64, tile_type

_ONE_ARRAY = (
    "each memory access must be known to belong to one array parameter at compile time; load from both "
    "and choose between the values with tl.where, or branch around the loads"
)


def run(function: Function) -> Function:
    """Rewrite ``function`` in place and return it."""
    _Resolver().block(function.body)
    return function


class _Resolver:
    def __init__(self) -> None:
        #: pointer value → (kernel argument, offset value or None for 0)
        self.parts: dict[Value, tuple[Value, Value | None]] = {}
        self.out: list[Op] = []
        self.loc: Location | None = None

    def emit(self, op: Op) -> Value:
        op.loc = self.loc
        op.results = tuple(Value(t, op) for t in op.result_types())
        self.out.append(op)
        return op.results[0] if op.results else None  # type: ignore[return-value]

    def block(self, block: Block) -> None:
        outer, self.out = self.out, []
        for value in block.arguments:
            if _is_pointer(value):
                self.parts.setdefault(value, (value, None))
        for op in block.ops:
            self.loc = op.loc
            self.op(op)
        block.ops, self.out = self.out, outer

    # ------------------------------------------------------------------------- operations

    def op(self, op: Op) -> None:
        match op:
            case ops.For():
                self.loop(op)
                return
            case ops.If():
                self.branch(op)
                return
        match op:
            case ops.AddPointer():
                self.add(op)
            case ops.Load():
                array, offset = self.access(op.pointer)
                self.replace(op, ops.ArrayLoad(array, offset, op.mask, op.other))
            case ops.Store():
                array, offset = self.access(op.pointer)
                self.emit(ops.ArrayStore(array, offset, op.value, op.mask))
            case exchange.Atomic():
                array, offset = self.access(op.pointer)
                self.replace(op, exchange.ArrayAtomic(op.kind, array, offset, op.value, op.mask))
            case exchange.AtomicCas():
                array, offset = self.access(op.pointer)
                self.replace(op, exchange.ArrayAtomicCas(array, offset, op.compare, op.value))
            case _ if op.results and _is_pointer(op.results[0]):
                self.pointer_op(op)
            case _ if any(_is_pointer(v) for v in op.operands) and not isinstance(op, ops.Yield):
                raise CompilationError(
                    "a pointer can only be moved by an offset, loaded from and stored to", _ONE_ARRAY, op.loc
                )
            case _:
                self.out.append(op)

    def replace(self, old: Op, new: Op) -> None:
        """Put ``new`` in the place of ``old``, with its results."""
        new.loc, new.results = old.loc, old.results
        for value in new.results:
            value.owner = new
        self.out.append(new)

    def access(self, pointer: Value) -> tuple[Value, Value]:
        array, offset = self.parts[pointer]
        if offset is None:
            offset = self.zero(pointer.type.shape)
        return array, offset

    def zero(self, shape: tuple[int, ...], dtype: DType = int32) -> Value:
        value = self.emit(ops.Constant(0, dtype))
        return self.emit(ops.Splat(value, shape)) if shape else value

    def add(self, op: ops.AddPointer) -> None:
        array, old = self.parts[op.pointer]
        new = self.as_offset(op.offset)
        if old is not None:
            dtype = old.type.dtype if old.type.dtype.bits >= new.type.dtype.bits else new.type.dtype
            new = self.emit(ops.Binary(ops.BinaryKind.ADD, self.cast(old, dtype), self.cast(new, dtype)))
        if not new.name:
            new.name = op.results[0].name and f"{op.results[0].name}_offset"
        self.parts[op.results[0]] = (array, new)

    def as_offset(self, value: Value) -> Value:
        """``value`` as int32 or int64: in the 32-bit variant a valid offset is below 2^31."""
        dtype = value.type.dtype
        if dtype in (int32, int64):
            return value
        return self.cast(value, int64 if dtype.bits == 64 else int32)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.type.dtype is dtype else self.emit(ops.Cast(value, dtype))

    def pointer_op(self, op: Op) -> None:
        """Shape operations, hints and selections act on the offset."""
        result = op.results[0]
        match op:
            case (
                ops.Splat()
                | ops.Broadcast()
                | ops.ExpandDims()
                | ops.Hint()
                | exchange.Reshape()
                | exchange.Transpose()
                | exchange.Pick()
            ):
                array, offset = self.parts[op.value]
                if offset is None and isinstance(op, ops.Hint):
                    self.parts[result] = (array, None)
                    return
                if offset is None:
                    self.parts[result] = (array, self.zero(result.type.shape))
                    return
                op.value = offset
                op.results = tuple(
                    Value(t, op, v.name) for t, v in zip(op.result_types(), op.results, strict=True)
                )
                self.out.append(op)
                self.parts[result] = (array, op.results[0])
            case ops.Select():
                (array, a), (other, b) = self.parts[op.on_true], self.parts[op.on_false]
                if array is not other:
                    raise CompilationError(
                        f"this chooses between pointers into {array.name!r} and {other.name!r}",
                        _ONE_ARRAY,
                        op.loc,
                    )
                a, b = self.same_type(a, b, result.type)
                self.parts[result] = (array, self.emit(ops.Select(op.condition, a, b)))
            case ops.Bitcast() | ops.Cast():
                raise CompilationError(
                    "a pointer cannot be cast to another type",
                    "view the array as the other type before the launch (mx.view)",
                    op.loc,
                )
            case ops.Load() | _:
                raise InternalError(f"{op.mnemonic} computes a pointer")

    def same_type(self, a: Value | None, b: Value | None, like: TileType) -> tuple[Value, Value]:
        a = self.zero(like.shape) if a is None else a
        b = self.zero(like.shape) if b is None else b
        dtype = a.type.dtype if a.type.dtype.bits >= b.type.dtype.bits else b.type.dtype
        return self.cast(a, dtype), self.cast(b, dtype)

    # ----------------------------------------------------------------------- control flow

    def loop(self, op: ops.For) -> None:
        carried = list(op.body.arguments[1:])
        initial = list(op.initial)
        roots: list[Value | None] = [None] * len(carried)
        for i, (value, start) in enumerate(zip(carried, initial, strict=True)):
            if not _is_pointer(value):
                continue
            array, offset = self.parts[start]
            roots[i] = array
            present = self.zero(value.type.shape) if offset is None else offset
            wide = self._carried_dtype(op, i, present.type.dtype)
            initial[i] = self.cast(present, wide)
            argument = Value(
                tile_type(wide, value.type.shape), op.body, value.name and f"{value.name}_offset"
            )
            carried[i] = argument
            self.parts[value] = (array, argument)
        op.initial = tuple(initial)
        op.body.arguments = (op.body.arguments[0], *carried)
        self.block(op.body)
        results = list(op.results)
        finals = list(op.body.terminator.operands)
        self.fix_yield(op.body, finals, roots, [v.type for v in carried], op)
        for i, root in enumerate(roots):
            if root is not None:
                result = Value(carried[i].type, op, carried[i].name)
                self.parts[results[i]] = (root, result)
                results[i] = result
        op.results = tuple(results)
        self.out.append(op)

    def _carried_dtype(self, op: ops.For, index: int, start: DType) -> DType:
        """int64 where the loop advances the pointer by 64-bit amounts."""
        step = op.body.terminator.operands[index]
        while isinstance(step.owner, ops.AddPointer):
            if step.owner.offset.type.dtype.bits == 64:
                return int64
            step = step.owner.pointer
        return start

    def branch(self, op: ops.If) -> None:
        self.block(op.then_block)
        self.block(op.else_block)
        first, second = list(op.then_block.terminator.operands), list(op.else_block.terminator.operands)
        roots: list[Value | None] = [None] * len(first)
        types = [v.type for v in first]
        results = list(op.results)
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if not _is_pointer(a):
                continue
            (array, x), (other, y) = self.parts[a], self.parts[b]
            if array is not other:
                raise CompilationError(
                    f"after this branch the pointer belongs to {array.name!r} or to {other.name!r}",
                    _ONE_ARRAY,
                    op.loc,
                )
            widths = [int32.bits if v is None else v.type.dtype.bits for v in (x, y)]
            roots[i] = array
            types[i] = tile_type(int64 if max(widths) == 64 else int32, a.type.shape)
        self.fix_yield(op.then_block, first, roots, types, op)
        self.fix_yield(op.else_block, second, roots, types, op)
        for i, root in enumerate(roots):
            if root is not None:
                result = Value(types[i], op, results[i].name and f"{results[i].name}_offset")
                self.parts[results[i]] = (root, result)
                results[i] = result
        op.results = tuple(results)
        self.out.append(op)

    def fix_yield(
        self, block: Block, values: list[Value], roots: list[Value | None], types: list[TileType], op: Op
    ) -> None:
        """Replace yielded pointers by their offsets, of the agreed type."""
        terminator = block.ops.pop()
        outer, self.out, self.loc = self.out, block.ops, terminator.loc
        for i, root in enumerate(roots):
            if root is None:
                continue
            array, offset = self.parts[values[i]]
            if array is not root:
                raise CompilationError(
                    f"this loop moves a pointer from {root.name!r} to {array.name!r}", _ONE_ARRAY, op.loc
                )
            present = self.zero(types[i].shape) if offset is None else offset
            values[i] = self.cast(present, types[i].dtype)
        self.out = outer
        assert isinstance(terminator, ops.Yield)
        terminator.values = tuple(values)
        block.ops.append(terminator)


def _is_pointer(value: Value) -> bool:
    return isinstance(value.type.element, PointerType)
