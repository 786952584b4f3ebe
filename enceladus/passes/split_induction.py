"""Turn tiles that advance by a scalar each iteration into a scalar that does.

Before: ``for …: t = t + splat(s)`` carries a whole tile, which costs registers and hides where the tile
points. After: the loop carries the scalar sum ``c`` (from 0), the tile is ``initial + splat(c)`` inside
and after the loop. Applies to integer tiles only; exact, since integer addition wraps associatively.
Typical are offsets such as ``ptrs += BLOCK``. The carried tile is left to ``dce``.
"""

from __future__ import annotations

from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.ops import BinaryKind


def run(function: Function) -> Function:
    """Rewrite loops of ``function`` in place and return it."""
    _block(function.body)
    return function


def _block(block: Block) -> None:
    rewritten: list[Op] = []
    renamed: dict[Value, Value] = {}
    for op in block.ops:
        _rename(op, renamed)
        for nested in op.blocks:
            _block(nested)
        if isinstance(op, ops.For):
            before, after, names = _split(op)
            rewritten.extend(before)
            rewritten.append(op)
            rewritten.extend(after)
            renamed.update(names)
        else:
            rewritten.append(op)
    block.ops = rewritten


def _rename(op: Op, renamed: dict[Value, Value]) -> None:
    if renamed:
        op.replace_operands(renamed)
        for nested in op.blocks:
            for inner in nested.walk():
                inner.replace_operands(renamed)


def _split(loop: ops.For) -> tuple[list[Op], list[Op], dict[Value, Value]]:
    terminator = loop.body.terminator
    assert isinstance(terminator, ops.Yield)
    before: list[Op] = []
    after: list[Op] = []
    renamed: dict[Value, Value] = {}
    inside: dict[Value, Value] = {}
    prologue: list[Op] = []
    for index, tile in enumerate(loop.body.arguments[1:]):
        step = _scalar_step(tile, terminator.values[index])
        if step is None:
            continue
        shape, dtype = tile.type.shape, tile.type.dtype
        zero = _emit(ops.Constant(0, dtype), before, loop)
        total = Value(zero.type, loop.body, tile.name and f"{tile.name}_advance")
        loop.body.arguments = (*loop.body.arguments, total)
        loop.initial = (*loop.initial, zero)
        tail: list[Op] = []
        following = _emit(ops.Binary(BinaryKind.ADD, total, step), tail, loop)
        loop.body.ops[-1:-1] = tail
        terminator.values = (*terminator.values, following)
        final = Value(zero.type, loop, total.name)
        result = loop.results[index]
        loop.results = (*loop.results, final)
        start = loop.initial[index]
        splat = _emit(ops.Splat(total, shape), prologue, loop)
        inside[tile] = _emit(ops.Binary(BinaryKind.ADD, splat, start), prologue, loop, tile.name)
        splat = _emit(ops.Splat(final, shape), after, loop)
        renamed[result] = _emit(ops.Binary(BinaryKind.ADD, splat, start), after, loop, tile.name)
    for op in loop.body.walk():
        op.replace_operands(inside)
    loop.body.ops[:0] = prologue
    return before, after, renamed


def _scalar_step(tile: Value, following: Value) -> Value | None:
    """The scalar ``s`` where ``following`` is ``tile + splat(s)``."""
    if tile.type.is_scalar or not tile.type.dtype.is_int() or tile.type.dtype.is_bool():
        return None
    add = following.owner
    if not isinstance(add, ops.Binary) or add.kind is not BinaryKind.ADD:
        return None
    for mine, other in ((add.lhs, add.rhs), (add.rhs, add.lhs)):
        if mine is tile and isinstance(other.owner, ops.Splat):
            return other.owner.value
    return None


def _emit(op: Op, into: list[Op], loop: ops.For, name: str = "") -> Value:
    op.loc = loop.loc
    op.results = tuple(Value(t, op, name) for t in op.result_types())
    into.append(op)
    return op.results[0]
