"""Write atomic updates: of tiles inside their groups, of scalars by the first thread.

A thread that holds a copy of another's elements updates nothing. Where old values are used, it needs them all
the same: they make a trip through threadgroup memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Expression, Precedence
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.laid_out import SharedLoad, SharedStore, TileGroup
from enceladus.ir.types import pointer_type
from enceladus.passes.updates import ATOMICS, Atomic

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter
    from enceladus.codegen.group import GroupWriter

_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def _operands(op: Atomic) -> list[Value]:
    return [op.value] if isinstance(op, exchange.ArrayAtomic) else [op.compare, op.value]


def _mask(op: Atomic) -> Value | None:
    return op.mask if isinstance(op, exchange.ArrayAtomic) else None


def _call(
    body: BodyWriter, op: Atomic, offset: Expression, operands: list[Expression], uses_old: bool
) -> str:
    """The call of the helper that updates one element; its value is the old one if ``uses_old``."""
    manner = body.updates[op.array]
    kind = op.kind if isinstance(op, exchange.ArrayAtomic) else None
    output = body.output_name(op.array)
    arguments = [output if offset.text == "0" else f"{output} + {offset.inside(Precedence.ADD)}"]
    given, wanted = op.value.type.dtype, manner.element
    if uses_old or manner.kind is None:
        arguments.append(f"{body.input_name(op.array)}[{offset.text}]")
    else:
        wanted = manner.number
    for operand in operands:
        spelling = mathlib.cast(given, wanted)
        body.expressions.needs.update(spelling.needs)
        arguments.append(spelling(operand).text)
    return f"{body.atomics.name(kind, manner, uses_old)}({', '.join(arguments)})"


def _or_zero(op: Atomic, mask: Expression | None, call: str) -> str:
    """The old value, which is 0 where nothing is updated."""
    if mask is None:
        return call
    dtype = op.results[0].type.dtype
    zero = mathlib.literal(0.0 if dtype.is_floating() else 0, dtype)
    return mathlib.select(dtype)(mask, Expression(call, Precedence.CALL), zero).text


def update_element(group: GroupWriter, op: Atomic) -> None:
    """Inside a group: update this element. An old value that is used is the group's only result."""
    body = group.body
    masked = _mask(op)
    mask = None if masked is None else group.value(masked)
    offset = group.value(op.offset)
    operands = [group.value(v) for v in _operands(op)]
    result = op.results[0]
    uses_old = group.uses.get(result, 0) > 0
    group.each.statement(op.loc)
    call = _call(body, op, offset, operands, uses_old)
    conditions = [group.copies] if group.guard_stores else []
    if uses_old:
        target = group.register(group.destinations[0])
        group.remember(result, Expression(target))
        text = f"{target} = {_or_zero(op, mask, call)};"
    else:
        if mask is not None:
            conditions.append(mask.inside(Precedence.AND if conditions else Precedence.ANY))
        text = f"{call};"
    group.each.line(f"if ({' && '.join(conditions)}) {text}" if conditions else text)


def hand_to_copies(body: BodyWriter, group: TileGroup) -> None:
    """After a group: give old values to the threads that hold copies of the elements."""
    if not group.layout.has_copies or not any(isinstance(op, ATOMICS) for op in group.body.ops):
        return
    for value in group.results:
        slot = body.new_slot()
        if body.loop_depth:  # others may still be reading what the previous iteration left
            body.writer.line(_BARRIER)
        body.group(_like(group, [SharedStore(value, slot), ops.Yield()], ()))
        body.writer.line(_BARRIER)
        load = SharedLoad(slot, pointer_type(value.type.dtype), value.type.shape)
        load.results = (Value(value.type, load),)
        body.group(_like(group, [load, ops.Yield(load.results)], (value,)))


def _like(group: TileGroup, inner: list[Op], results: tuple[Value, ...]) -> TileGroup:
    """A group of the same layout that holds ``inner`` and makes ``results``."""
    for op in inner:
        op.loc = None
        if not op.result_types():
            op.results = ()
    made = TileGroup(group.layout, Block((), inner))
    made.loc, made.results = group.loc, results
    return made


def update_scalar(body: BodyWriter, op: Atomic) -> None:
    """The first thread updates the element; if the old value is used, all threads get it."""
    out = body.writer
    masked = _mask(op)
    mask = None if masked is None else body.scalar(masked)
    result = op.results[0]
    uses_old = body.uses.get(result, 0) > 0
    call = _call(body, op, body.scalar(op.offset), [body.scalar(v) for v in _operands(op)], uses_old)
    out.statement(op.loc)
    thread = body.thread()
    if not uses_old:
        guard = "" if mask is None else f" && {mask.inside(Precedence.AND)}"
        out.line(f"if ({thread} == 0{guard}) {call};")
        return
    dtype = result.type.dtype
    slot, turn = body.partials(dtype, 1)
    place = f"{slot}[{turn or '0'}]"
    out.line(f"if ({thread} == 0) {place} = {_or_zero(op, mask, call)};")
    out.line(_BARRIER)
    name = body.names.unique(result.name or "old")
    out.line(f"const {mathlib.type_name(dtype)} {name} = {place};")
    if turn:  # the next time round writes where nobody still reads
        out.line(f"{turn} ^= 1;")
    body.scalars[result] = Expression(name)
