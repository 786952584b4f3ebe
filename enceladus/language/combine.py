"""Functions on scalars: those that reductions and scans combine with, and those that are mapped over tiles.

A function is *traced* once on scalars of the right types. What it recorded is checked to be plain arithmetic
and becomes straight-line code: of a run-time ``if`` both sides are computed and chosen between. That code is
the block of a ``Reduce`` or ``Scan``, or is repeated on whole tiles by ``map_elementwise``.

The engines decide how a user's function is called, so they hand it over as an :class:`Inlinable`: the front
end walks its source, and so does the interpreter, because a trace has no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from enceladus.errors import CompilationError, Location
from enceladus.ir.builder import IRBuilder, current_emitter, use_emitter
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.ops import Assume, Binary, BinaryKind, Constant, For, If, Load, Select, Store, Yield
from enceladus.ir.types import DType, int64, tile_type
from enceladus.language import semantic
from enceladus.language.builtin import describe
from enceladus.language.tensor import raw, tensor

F = TypeVar("F", bound=Callable[..., Any])


class Inlinable:
    """A user's function under ``@enceladus.jit``, as the engine at work can run it: ``call(*tiles)``."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]):
        self.name = name
        self.call = call


def takes_functions(function: F) -> F:
    """Mark a builtin that takes users' functions: engines hand them over as :class:`Inlinable`."""
    function.__enceladus_takes_functions__ = True  # type: ignore[attr-defined]
    return function


def hand_over(
    args: Iterable[Any], kwargs: Mapping[str, Any], inlinable: Callable[[Any], Inlinable | None]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a builtin that takes functions: each one as ``inlinable`` makes it, if it does."""

    def made(value: Any) -> Any:
        function = inlinable(value)
        return value if function is None else function

    return [made(value) for value in args], {key: made(value) for key, value in kwargs.items()}


def _callable(name: str, argument: str, function: Any) -> tuple[str, Callable[..., Any]]:
    """A function argument's name and what to call."""
    if isinstance(function, Inlinable):
        return f"`{function.name}`", function.call
    if hasattr(function, "__enceladus_builtin__"):
        return f"`tl.{function.__name__}`", function
    found = f"`{function.__name__}`" if hasattr(function, "__name__") else describe(function)
    raise CompilationError(
        f"{name}: `{argument}` must be a kernel function, got {found}",
        "define it with `def` and decorate it with @enceladus.jit",
    )


# ---------------------------------------------------------------------------------------- tracing


def _trace(
    name: str, who: str, function: Callable[..., Any], arguments: Sequence[Value]
) -> tuple[list[Op], tuple[Any, ...], bool]:
    """What ``function`` records and returns on scalars: operations, results, whether they came as a tuple."""
    emitter = current_emitter()
    assert emitter is not None
    if not isinstance(emitter, IRBuilder):
        builder = IRBuilder(Block(), wide=emitter.index_dtype is int64, num_warps=emitter.num_warps)
        builder.location = emitter.location
        emitter = builder
    location = emitter.location
    body = Block()
    with use_emitter(emitter), emitter.inside(body):
        result = function(*map(tensor, arguments))
    emitter.location = location
    for op in body.ops:
        _check(name, who, op)
    return body.ops, result if isinstance(result, tuple) else (result,), isinstance(result, tuple)


def _check(name: str, who: str, op: Op) -> None:
    """Refuse what is not arithmetic on scalars."""
    if isinstance(op, If):
        for block in op.blocks:
            for inner in block.ops[:-1]:
                _check(name, who, inner)
    elif isinstance(op, For):
        _refuse(f"{name}: {who} contains a run-time loop", "unroll it with tl.static_range", op.loc)
    elif any(v.type.shape for v in op.results):
        _refuse(
            f"{name}: {who} makes a tile, but it is called on scalars",
            "use numbers and its arguments",
            op.loc,
        )
    elif isinstance(op, (Load, Store)) or not (op.pure or isinstance(op, Assume)):
        _refuse(
            f"{name}: {who} has an effect ({op.mnemonic}), but it may only compute",
            "load before, and store after",
            op.loc,
        )
    elif not op.elementwise and not isinstance(op, (Constant, Assume)):
        _refuse(
            f"{name}: {who} depends on more than its arguments ({op.mnemonic})",
            "compute that before and pass it as one more input",
            op.loc,
        )


def _refuse(reason: str, hint: str, location: Location | None) -> NoReturn:
    raise CompilationError(reason, hint, location)


def _repeat(ops: Iterable[Op], values: dict[Value, Value]) -> None:
    """Emit traced operations on the values that stand for the traced scalars, which may be tiles."""
    for op in ops:
        if isinstance(op, Assume):
            continue
        if isinstance(op, If):
            _repeat(op.then_block.ops[:-1], values)
            _repeat(op.else_block.ops[:-1], values)
            sides = zip(op.then_block.terminator.operands, op.else_block.terminator.operands, strict=True)
            condition = values[op.condition]
            for result, (a, b) in zip(op.results, sides, strict=True):
                values[result] = semantic.emit(Select(*semantic.broadcast(condition, values[a], values[b])))
            continue
        fields = {field: getattr(op, field) for field in op.attribute_fields}
        if op.operand_fields:
            operands = semantic.broadcast(*[values[v] for v in op.operands])
            fields.update(zip(op.operand_fields, operands, strict=True))
        (result,) = op.results
        made = values[result] = semantic.emit(type(op)(**fields))
        made.name = result.name


# ----------------------------------------------------------------------------------------- blocks


def binary_block(kind: BinaryKind, dtype: DType) -> Block:
    """The combine block of one operation: ``a <kind> b``."""
    a, b = Value(tile_type(dtype)), Value(tile_type(dtype))
    op = Binary(kind, a, b)
    op.results = (Value(a.type, op),)
    end = Yield(op.results)
    end.results = ()
    op.loc = end.loc = _location()
    return Block((a, b), [op, end])


def _location() -> Location | None:
    emitter = current_emitter()
    return None if emitter is None else emitter.location


def combine_block(name: str, function: Any, dtypes: Sequence[DType]) -> Block:
    """The combine block of ``function(a_1 … a_n, b_1 … b_n)``, which returns n values of ``dtypes``.

    Raises ``CompilationError`` for a function that returns another number of values or other types, or
    that does more than compute.
    """
    who, call = _callable(name, "combine_fn", function)
    arguments = tuple([Value(tile_type(dtype)) for dtype in (*dtypes, *dtypes)])
    ops, results, _ = _trace(name, who, call, arguments)
    if len(results) == 1 and results[0] is None:
        raise CompilationError(f"{name}: {who} returns nothing", "end it with `return`")
    if len(results) != len(dtypes):
        raise CompilationError(
            f"{name}: {who} returns {len(results)} value{'s' * (len(results) != 1)} for {len(dtypes)} "
            f"input{'s' * (len(dtypes) != 1)}",
            "return one combined value for each input",
        )
    block = Block(arguments)
    builder = IRBuilder(block)
    builder.location = _location()
    with use_emitter(builder):
        if any(isinstance(op, (If, Assume)) for op in ops):
            values = {v: v for v in arguments}
            _repeat(ops, values)
        else:
            block.ops.extend(ops)
            values = {}
        finals = []
        for number, (result, dtype) in enumerate(zip(results, dtypes, strict=True)):
            item = raw(result)
            if isinstance(item, Value):
                item = values.get(item, item)
                _keeps_type(name, who, number, len(dtypes), item, dtype)
            else:
                item = semantic.materialize(item, dtype, f"{name}: the result of {who}")
            finals.append(item)
        builder.emit(Yield(tuple(finals)))
    return block


def _keeps_type(name: str, who: str, number: int, count: int, value: Value, dtype: DType) -> None:
    if value.type.element is dtype and not value.type.shape:
        return
    which = f" (value {number})" if count > 1 else ""
    raise CompilationError(
        f"{name}: {who} combines two {dtype} into a {value.type}{which}; it must keep the type",
        f"convert its result with .to(tl.{dtype}), or the input with .to(tl.{value.type.element}) before",
    )


# ----------------------------------------------------------------------------------------- mapping


def mapped(name: str, function: Any, inputs: tuple[Value, ...]) -> Any:
    """``function`` of scalars, applied to the elements of tiles of one shape: a tile, or a tuple of them."""
    who, call = _callable(name, "scalar_fn", function)
    arguments = [Value(tile_type(v.type.element)) for v in inputs]
    ops, results, several = _trace(name, who, call, arguments)
    values = dict(zip(arguments, inputs, strict=True))
    _repeat(ops, values)
    shape = inputs[0].type.shape
    finals = []
    for result in results:
        item = raw(result)
        found = values[item] if isinstance(item, Value) else semantic.materialize(item, None, name)
        finals.append(tensor(semantic.broadcast_to(found, shape)))
    return tuple(finals) if several else finals[0]
