"""Run-time loops: which variables they carry, and with which types.

A loop's operation needs to know the carried variables and their types before its body exists, but Python
only shows them afterwards. So the body is walked under an assumption, and walked again where that was wrong:

* tiles that the body assigns are carried with the type they have before the loop;
* a number that the body computes from itself (``n += 1``) is carried as int32, float32 or int1;
* any other compile-time value is assumed to be the same after each iteration.

Each retry gives one more number a run-time type or a wider meaning, so there are few. A variable whose
type differs between iterations has no value at the start of one, nor after the loop: reading it there is
the error, so a scratch variable may be used again for something else.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enceladus.frontend.function import MISSING
from enceladus.frontend.merge import Mismatch, mismatch_hint
from enceladus.frontend.values import (
    Undefined,
    common_number_dtype,
    describe,
    is_number,
    is_tensor,
    item_name,
    number_fits,
    rebuild,
    same_constant,
    tensor,
)
from enceladus.ir.core import Block, Value
from enceladus.ir.ops import For, Yield
from enceladus.ir.types import TileType, tile_type
from enceladus.language import semantic

if TYPE_CHECKING:
    from enceladus.frontend.statements import Statements

_MAX_ATTEMPTS = 16


def loop_bounds(frame: Statements, node: ast.expr, *bounds: Any) -> tuple[Value, Value, Value]:
    """Start, stop and step as values of one integer type.

    That is the promoted type of the run-time bounds; of literals alone, the index type.
    """
    raw = tuple([b.value if isinstance(b, tensor) else b for b in bounds])
    for bound, value in zip(bounds, raw, strict=True):
        what = "a loop's bounds must be integer scalars"
        if isinstance(value, Value):
            element = value.type.element
            if not value.type.is_scalar or element.is_ptr() or not element.is_int() or element.is_bool():
                raise frame.error(node, f"{what}, not {describe(bound)}", "convert it with .to(tl.int32)")
        elif not isinstance(value, int) or isinstance(value, bool):
            raise frame.error(node, f"{what}, not {describe(bound)}")
    if raw[2] == 0 and not isinstance(raw[2], Value):
        raise frame.error(node, "a loop's step must not be zero")
    dtype = frame.apply(node, semantic.common_dtype, "range", raw)
    if not any(isinstance(value, Value) for value in raw):
        dtype = semantic.promote_types(dtype, frame.emitter.index_dtype)
    lower, upper, step = [frame.apply(node, semantic.materialize, value, dtype, "range") for value in raw]
    return lower, upper, step


@dataclass(slots=True)
class Slot:
    """One leaf of a variable that the loop's body assigns.

    ``initial`` is its value before the loop. ``type`` is its type as a carried value; ``None`` where it
    is assumed to stay the compile-time value it is. ``adopted``: a number took the type that an iteration
    ended with, which it does once. In the attempt under way, ``argument`` is its value
    at the start of an iteration and ``final`` the value handed to the next one.
    """

    name: str
    initial: Any
    type: TileType | None
    adopted: bool = False
    argument: Value | None = None
    final: Value | None = None


@dataclass(slots=True)
class Variable:
    """A variable that exists before the loop and is assigned in it.

    ``undefined`` is set once an iteration was seen to leave it without a value that the next could use.
    """

    name: str
    initial: Any
    slots: list[Slot]
    undefined: Undefined | None = None


class Loop:
    """Builds one run-time ``for``."""

    def __init__(self, frame: Statements, node: ast.For, lower: Value, upper: Value, step: Value):
        assert isinstance(node.target, ast.Name)
        self.frame = frame
        self.node = node
        self.target = node.target.id
        self.bounds = (lower, upper, step)
        self.assigned = frame.kernel.assigned_names(node, (node.body,))
        self.variables = [
            self._variable(name, frame.scope[name])
            for name in self.assigned
            if name != self.target and type(frame.scope.get(name, MISSING)) not in (type(MISSING), Undefined)
        ]
        self.slots = [slot for variable in self.variables for slot in variable.slots]

    def run(self) -> None:
        """Walk the body, emit the operation, and leave the carried variables' results in the scope."""
        frame = self.frame
        outer = frame.scope
        frame.depth += 1
        for _ in range(_MAX_ATTEMPTS):
            frame.scope = scope = dict(outer)
            block = self._start(scope)
            with frame.emitter.inside(block):
                frame.body(self.node.body)
                settled = self._compare(frame.scope)
            if settled:
                break
        else:
            raise frame.error(self.node.target, "the types of this loop's variables do not settle",
                              "initialise them with tl.full or tl.zeros and a dtype")  # fmt: skip
        frame.depth -= 1
        frame.scope = outer
        self._finish(block, outer)

    # -------------------------------------------------------------------------------- the attempt

    def _variable(self, name: str, initial: Any) -> Variable:
        slots: list[Slot] = []
        computed = _is_computed_from_itself(name, self.node.body)

        def add(name: str, value: Any) -> None:
            if isinstance(value, tuple):
                for index, item in enumerate(value):
                    add(item_name(name, index, value), item)
                return
            type_: TileType | None = None
            if isinstance(value, tensor):
                type_ = value.value.type
            elif computed and is_number(value):
                type_ = self._number_type(value, value)
            slots.append(Slot(name, value, type_))

        add(name, initial)
        return Variable(name, initial, slots)

    def _start(self, scope: dict[str, Any]) -> Block:
        """A new body block with its arguments; the names in ``scope`` stand for them."""
        index = Value(self.bounds[0].type, name=self.target)
        arguments = [index]
        for slot in self.slots:
            slot.argument = slot.final = None
            if slot.type is not None:
                slot.argument = Value(slot.type, name=slot.name)
                arguments.append(slot.argument)
        for variable in self.variables:
            if variable.undefined is not None:
                scope[variable.name] = variable.undefined
                continue
            values = [s.initial if s.argument is None else tensor(s.argument) for s in variable.slots]
            scope[variable.name] = _fill(variable.initial, iter(values))
        scope[self.target] = tensor(index)
        return Block(tuple(arguments))

    def _compare(self, scope: dict[str, Any]) -> bool:
        """Whether the iteration ended as assumed; otherwise the assumptions are changed."""
        settled = True
        for variable in self.variables:
            if variable.undefined is not None:
                continue
            final = scope[variable.name]
            try:
                if type(final) is Undefined:
                    raise Mismatch(final.reason, final.hint)
                found = _flatten_like(variable.initial, final)
                if found is None:
                    raise self._mismatch(variable.name, variable.initial, final)
                for slot, value in zip(variable.slots, found, strict=True):
                    settled &= self._compare_slot(slot, value)
            except Mismatch as error:
                variable.undefined = Undefined(error.reason, error.hint)
                for slot in variable.slots:
                    slot.type = None
                settled = False
        return settled

    def _compare_slot(self, slot: Slot, final: Any) -> bool:
        if slot.type is None:
            if same_constant(slot.initial, final):
                return True
            if not is_number(slot.initial):
                raise self._mismatch(slot.name, slot.initial, final)
            if is_tensor(final):
                slot.type, slot.adopted = self._adopt(slot, final), True
            elif is_number(final):
                slot.type = self._number_type(slot.initial, final, slot.name)
            else:
                raise self._mismatch(slot.name, slot.initial, final)
            return False
        if is_tensor(final):
            if final.value.type == slot.type:
                slot.final = final.value
                return True
            if not is_number(slot.initial):
                raise self._mismatch(slot.name, slot.initial, final)
            type_ = self._adopt(slot, final)
            if slot.adopted:
                raise self._mismatch(slot.name, slot.initial, final)
            slot.type, slot.adopted = type_, True
            return False
        if not is_number(final) or not slot.type.is_scalar or slot.type.element.is_ptr():
            raise self._mismatch(slot.name, slot.initial, final)
        if number_fits(final, slot.type.dtype):
            slot.final = self.frame.apply(self.node.target, semantic.materialize, final, slot.type.dtype)
            return True
        if not is_number(slot.initial):
            raise self._mismatch(slot.name, slot.initial, final)
        slot.type = self._number_type(slot.initial, final, slot.name)
        return False

    def _adopt(self, slot: Slot, final: tensor) -> TileType:
        """The type of ``final`` for a variable that starts as a number, if that number can have it."""
        type_ = final.value.type
        if type_.is_scalar and not type_.element.is_ptr() and number_fits(slot.initial, type_.dtype):
            return type_
        raise self._mismatch(slot.name, slot.initial, final)

    def _number_type(self, a: Any, b: Any, name: str = "") -> TileType:
        dtype = common_number_dtype(a, b)
        if dtype is None:
            raise self._mismatch(name, a, b)
        return tile_type(dtype)

    # --------------------------------------------------------------------------------- the result

    def _finish(self, block: Block, scope: dict[str, Any]) -> None:
        frame = self.frame
        emitter = frame.emitter
        emitter.location = frame.locate(self.node.target)
        index = block.arguments[0]
        kept: list[Slot] = []
        unchanged: dict[Value, Value] = {}
        initial: list[Value] = []
        for slot in self.slots:
            if slot.argument is None:
                continue
            if slot.final is slot.argument and is_tensor(slot.initial):
                unchanged[slot.argument] = slot.initial.value
                continue
            kept.append(slot)
            number = not is_tensor(slot.initial)
            value = self._initial_constant(slot) if number else slot.initial.value
            initial.append(value)
        with emitter.inside(block):
            emitter.emit(Yield(tuple([slot.final for slot in kept if slot.final is not None])))
        block.arguments = (index, *[slot.argument for slot in kept if slot.argument is not None])
        if unchanged:
            for op in block.walk():
                op.replace_operands(unchanged)
        emitter.location = frame.locate(self.node.target)
        results = emitter.emit(For(*self.bounds, tuple(initial), block))
        by_slot = {}
        for slot, result in zip(kept, results, strict=True):
            result.name = slot.name
            by_slot[id(slot)] = tensor(result)
        for variable in self.variables:
            if variable.undefined is not None:
                scope[variable.name] = variable.undefined
                continue
            values = iter([by_slot.get(id(slot), slot.initial) for slot in variable.slots])
            scope[variable.name] = _fill(variable.initial, values)
        self._forget_inner_names(scope)

    def _initial_constant(self, slot: Slot) -> Value:
        assert slot.type is not None
        return self.frame.apply(self.node.target, semantic.materialize, slot.initial, slot.type.dtype)

    def _forget_inner_names(self, scope: dict[str, Any]) -> None:
        line = self.node.lineno
        carried = {variable.name for variable in self.variables}
        for name in self.assigned:
            if name not in carried:
                reason = f"is defined only inside the loop in line {line}"
                scope[name] = Undefined(reason, f"assign {name!r} before the loop")
        reason = f"is the variable of the loop in line {line} and has no value after it"
        scope[self.target] = Undefined(reason, "assign it to another variable in the loop")

    def _mismatch(self, name: str, before: Any, after: Any) -> Mismatch:
        line = self.node.lineno
        reason = f"is {describe(before)} before the loop in line {line}, {describe(after)} after an iteration"
        return Mismatch(reason, mismatch_hint(name, before, after))


def _fill(template: Any, values: Any) -> Any:
    """``template`` with its leaves replaced, in order, by the iterator's items."""
    if isinstance(template, tuple):
        return rebuild(template, [_fill(item, values) for item in template])
    return next(values)


def _flatten_like(template: Any, value: Any) -> list[Any] | None:
    """The leaves of ``value`` where ``template`` has its own; ``None`` if the tuples differ in form."""
    if not isinstance(template, tuple):
        return None if isinstance(value, tuple) else [value]
    if type(value) is not type(template) or len(value) != len(template):
        return None
    found: list[Any] = []
    for part, item in zip(template, value, strict=True):
        inner = _flatten_like(part, item)
        if inner is None:
            return None
        found.extend(inner)
    return found


def _is_computed_from_itself(name: str, body: list[ast.stmt]) -> bool:
    """Whether a statement assigns ``name`` and reads it, as ``n += 1`` and ``n = n + 1`` do."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign):
                if isinstance(node.target, ast.Name) and node.target.id == name:
                    return True
            elif isinstance(node, ast.Assign) and _names(node.targets, name) and _names([node.value], name):
                return True
    return False


def _names(nodes: list[ast.expr], name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for node in nodes for n in ast.walk(node))
