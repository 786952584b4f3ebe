"""Reductions and scans with any combine block, on whole tiles, for NumPy and for MLX alike.

A combine block says what two scalars give. Here it is applied to whole halves of a tile at once, in an
order that keeps earlier elements on the left: any associative block is right, commutative or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from enceladus.errors import CompilationError, InternalError
from enceladus.ir import ops
from enceladus.ir.core import Block, Op, Value
from enceladus.ir.exchange import Reduce, Scan
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind

Array = Any  #: ``np.ndarray`` or ``mx.array``


@dataclass(frozen=True, slots=True)
class Arrays:
    """What is needed of an array library.

    ``apply(op, *operands)`` performs a pure elementwise operation; ``choose(condition, a, b)`` is a select;
    ``concatenate(arrays, axis)`` and ``broadcast_to(array, shape)`` are NumPy's.
    """

    apply: Callable[..., Array]
    choose: Callable[[Array, Array, Array], Array]
    concatenate: Callable[[list[Array], int], Array]
    broadcast_to: Callable[[Array, tuple[int, ...]], Array]


#: Kinds whose two operands may change places.
_COMMUTATIVE = frozenset({
    BinaryKind.ADD, BinaryKind.MUL, BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR,
    BinaryKind.MIN, BinaryKind.MAX, BinaryKind.MIN_NAN, BinaryKind.MAX_NAN,
})  # fmt: skip


def single_kinds(op: Reduce | Scan) -> list[BinaryKind] | None:
    """For each input the one commutative operation that combines it, or ``None`` if the block does more."""
    count = len(op.inputs)
    arguments = op.combine.arguments
    kinds = []
    for i, value in enumerate(op.combine.terminator.operands):
        made = value.owner
        if not isinstance(made, ops.Binary) or made.kind not in _COMMUTATIVE:
            return None
        if (made.lhs, made.rhs) not in (pair := (arguments[i], arguments[count + i]), pair[::-1]):
            return None
        kinds.append(made.kind)
    return kinds


def extreme_with_index(op: Reduce) -> bool | None:
    """Whether the block keeps the larger of two values (else: the smaller) together with its index.

    Of equal values the one with the smaller index stays, and any number beats NaN. ``None``: neither.
    """
    if len(op.inputs) != 2:
        return None
    a, i, b, j = op.combine.arguments
    value, index = (v.owner for v in op.combine.terminator.operands)
    if not isinstance(value, ops.Select) or not isinstance(index, ops.Select):
        return None
    condition = value.condition
    if value.operands != (condition, a, b) or index.operands != (condition, i, j):
        return None
    names = {a: "a", i: "i", b: "b", j: "j"}
    found = _expression(condition, names)
    is_float = op.inputs[0].type.dtype.is_floating()
    for largest in (True, False):
        if found == _wins(largest, is_float):
            return largest
    return None


def _wins(largest: bool, is_float: bool) -> object:
    """``a`` stays, as an :func:`_expression`."""
    kind = BinaryKind
    better: object = (CompareKind.LT, "b", "a") if largest else (CompareKind.LT, "a", "b")
    equal: object = (CompareKind.EQ, frozenset("ab"))
    if is_float:
        nan_a, nan_b = (UnaryKind.ISNAN, "a"), (UnaryKind.ISNAN, "b")
        only_b = (kind.AND, frozenset({(UnaryKind.NOT, nan_a), nan_b}))
        better = (kind.OR, frozenset({better, only_b}))
        equal = (kind.OR, frozenset({equal, (kind.AND, frozenset({nan_a, nan_b}))}))
    tie = (kind.AND, frozenset({equal, (CompareKind.LT, "i", "j")}))
    return (kind.OR, frozenset({better, tie}))


def _expression(value: Value, names: dict[Value, str]) -> object:
    """What computes ``value``, as nested tuples in which commuted operands compare equal."""
    if value in names:
        return names[value]
    op = value.owner
    if isinstance(op, ops.Unary):
        return (op.kind, _expression(op.value, names))
    if not isinstance(op, ops.Binary | ops.Compare):
        return op
    x, y = _expression(op.lhs, names), _expression(op.rhs, names)
    if op.kind in _COMMUTATIVE or op.kind in (CompareKind.EQ, CompareKind.NE):
        return (op.kind, frozenset({x, y}))
    return (CompareKind.LT, y, x) if op.kind is CompareKind.GT else (op.kind, x, y)


def reduce(op: Reduce, inputs: Sequence[Array], axis: int, arrays: Arrays) -> list[Array]:
    """Combine neighbours until one element is left. ``inputs`` have one shape; ``axis`` counts in it."""
    tiles = list(inputs)
    while (size := tiles[0].shape[axis]) > 1:
        even = size // 2 * 2
        earlier = [x[_part(axis, 0, even, 2)] for x in tiles]
        later = [x[_part(axis, 1, even, 2)] for x in tiles]
        shape = earlier[0].shape
        combined = [arrays.broadcast_to(x, shape) for x in block(op.combine, [*earlier, *later], arrays)]
        if size != even:
            rest = [x[_part(axis, even, size)] for x in tiles]
            combined = [arrays.concatenate([x, r], axis) for x, r in zip(combined, rest, strict=True)]
        tiles = combined
    return [x[_at(axis, 0)] for x in tiles]


def scan(op: Scan, inputs: Sequence[Array], axis: int, arrays: Arrays) -> list[Array]:
    """Inclusive prefixes in logarithmically many steps (Hillis and Steele). ``inputs`` have one shape."""
    tiles = list(inputs)
    size = tiles[0].shape[axis]
    if op.reverse:
        tiles = [x[_part(axis, None, None, -1)] for x in tiles]
    distance = 1
    while distance < size:
        earlier = [x[_part(axis, 0, size - distance)] for x in tiles]
        later = [x[_part(axis, distance, size)] for x in tiles]
        combined = block(op.combine, [*earlier, *later], arrays)
        tiles = [
            arrays.concatenate([x[_part(axis, 0, distance)], arrays.broadcast_to(new, old.shape)], axis)
            for x, new, old in zip(tiles, combined, later, strict=True)
        ]
        distance *= 2
    return [x[_part(axis, None, None, -1)] for x in tiles] if op.reverse else tiles


def block(combine: Block, arguments: Sequence[Array], arrays: Arrays) -> list[Array]:
    """What ``combine`` yields, element by element; ``arguments`` broadcast against each other.

    Of an ``If`` both sides are computed and chosen between. Raises ``CompilationError`` for a loop,
    ``InternalError`` for an operation with an effect.
    """
    values = dict(zip(combine.arguments, arguments, strict=True))
    return _run(combine, values, arrays)


def _run(body: Block, values: dict[Value, Array], arrays: Arrays) -> list[Array]:
    def read(value: Value) -> Array:
        if value not in values:
            # A pass may have moved a constant out of the block.
            made = value.owner
            if not isinstance(made, Op) or not made.pure:
                raise InternalError(f"a combine block uses {value!r}, which is not its own")
            values[value] = arrays.apply(made, *map(read, made.operands))
        return values[value]

    for op in body.ops:
        match op:
            case ops.Yield():
                return [read(v) for v in op.values]
            case ops.If():
                sides = [_run(side, values, arrays) for side in op.blocks]
                condition = read(op.condition)
                for result, a, b in zip(op.results, *sides, strict=True):
                    values[result] = a if a is b else arrays.choose(condition, a, b)
            case ops.For():
                raise CompilationError(
                    "a combine function with a loop that is not unrolled",
                    "write the loop with tl.static_range, or run on a GPU",
                    op.loc,
                )
            case ops.Assume():
                pass
            case _:
                values[op.result] = arrays.apply(op, *map(read, op.operands))
    raise InternalError("a combine block does not end in yield")


def _part(axis: int, start: int | None, end: int | None, step: int = 1) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, end, step))


def _at(axis: int, index: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, index)
