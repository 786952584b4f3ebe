"""Give every program a place in a batch: one more grid axis for each level of ``enceladus.vmap``.

Before: stage ``ARRAY``; the kernel handles one example. After: grid axis ``3 + level`` is the example's
index on that level, and every access to an array that is batched there is moved by that index times the
elements of one example, a new scalar argument called :func:`step_name`. ``program_id`` and
``num_programs`` of axes 0 to 2 are what they were, so the kernel sees one example. Masks are not touched:
they speak of the example. Arrays that a level does not batch are shared by its examples.

Must run before ``split_induction`` and ``canonicalize``, which move the starts out of loops. Cost: one walk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.types import int32, int64, tile_type

#: Grid axes of the kernel itself; those of the batch follow.
GRID_AXES = 3

_ACCESSES = (ops.ArrayLoad, ops.ArrayStore, exchange.ArrayAtomic, exchange.ArrayAtomicCas)


def step_name(array: str, level: int) -> str:
    """The scalar argument with the elements from one example of ``array`` to the next; no identifier."""
    return f"{array}.batch{level}"


def run(function: Function, levels: Sequence[Collection[str]]) -> Function:
    """Rewrite ``function`` in place and return it.

    ``levels``: the names of the arrays that are batched on each level, the outermost level first.
    """
    batched = [v for v in function.arguments if any(v.name in level for level in levels)]
    writer = _Writer(function)
    starts: dict[Value, Value] = {}
    for array in batched:
        start: Value | None = None
        for level, names in enumerate(levels):
            if array.name in names:
                part = writer.start(array, level)
                start = part if start is None else writer.add(start, part)
        assert start is not None
        start.name = f"{array.name}_start"
        starts[array] = start
    prologue = writer.taken()
    _rewrite(function.body, starts, writer)
    function.body.ops[:0] = prologue
    return function


def _rewrite(block: Block, starts: dict[Value, Value], writer: _Writer) -> None:
    """Move the accesses in ``block`` and the blocks inside it."""
    moved: list[Op] = []
    for op in block.ops:
        if isinstance(op, _ACCESSES) and op.array in starts:
            writer.loc = op.loc
            op.offset = writer.moved(op.offset, starts[op.array])
            moved += writer.taken()
        for inner in op.blocks:
            _rewrite(inner, starts, writer)
        moved.append(op)
    block.ops = moved


class _Writer:
    """Emits operations; ``taken`` hands them over."""

    def __init__(self, function: Function):
        self.function = function
        self.dtype = int64 if function.wide else int32
        self.loc = function.body.ops[0].loc if function.body.ops else None
        self.out: list[Op] = []
        self.ids: dict[int, Value] = {}

    def emit(self, op: Op) -> Value:
        op.loc = self.loc
        op.results = tuple(Value(t, op) for t in op.result_types())
        self.out.append(op)
        return op.results[0]

    def taken(self) -> list[Op]:
        out, self.out = self.out, []
        return out

    def start(self, array: Value, level: int) -> Value:
        """Where the program's example of ``array`` begins, counting ``level`` alone."""
        step = Value(tile_type(self.dtype), self.function.body, step_name(array.name, level))
        self.function.body.arguments = (*self.function.body.arguments, step)
        if level not in self.ids:
            self.ids[level] = self.emit(ops.ProgramId(GRID_AXES + level, self.dtype))
            self.ids[level].name = f"example{level or ''}"
        return self.emit(ops.Binary(ops.BinaryKind.MUL, self.ids[level], step))

    def add(self, a: Value, b: Value) -> Value:
        return self.emit(ops.Binary(ops.BinaryKind.ADD, a, b))

    def cast(self, value: Value) -> Value:
        return value if value.type.dtype is int64 else self.emit(ops.Cast(value, int64))

    def moved(self, offset: Value, start: Value) -> Value:
        """``offset + start``, in 64 bits if either is."""
        if offset.type.dtype is not start.type.dtype:
            offset, start = self.cast(offset), self.cast(start)
        shape = offset.type.shape
        return self.add(offset, self.emit(ops.Splat(start, shape)) if shape else start)
