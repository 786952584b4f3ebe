"""Derivatives of elementwise operations: from the gradient of a result to those of its operands.

A rule gets the emitter, the operation with its operands and result as they are *in the backward kernel*, and
the gradient ``g`` of the result; it returns one gradient for each operand (``None``: zero). Where MLX has
the operation, the rule is MLX's, ties and all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from enceladus.autodiff.emit import Emit
from enceladus.ir import ops
from enceladus.ir.core import Op, Value
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind

Gradients = Sequence[Value | None]
UnaryRule = Callable[[Emit, Value, Value, Value], Value]
BinaryRule = Callable[[Emit, Value, Value, Value, Value], tuple[Value | None, Value | None]]


def _abs(e: Emit, x: Value, y: Value, g: Value) -> Value:
    zero = e.like(0.0, x)
    signed = e.select(e.compare(CompareKind.LT, x, zero), e.neg(g), zero)
    return e.select(e.compare(CompareKind.GT, x, zero), g, signed)


def _one_minus_square(e: Emit, x: Value) -> Value:
    return e.sub(e.like(1.0, x), e.mul(x, x))


def _asin(e: Emit, x: Value, y: Value, g: Value) -> Value:
    return e.mul(g, e.unary(UnaryKind.RSQRT, _one_minus_square(e, x)))


def _erf(e: Emit, x: Value, y: Value, g: Value) -> Value:
    slope = e.mul(e.unary(UnaryKind.EXP, e.neg(e.mul(x, x))), 2 / math.sqrt(math.pi))
    return e.mul(g, slope)


def _rsqrt(e: Emit, x: Value, y: Value, g: Value) -> Value:
    return e.mul(e.mul(g, -0.5), e.div(y, x))


#: Kind → gradient of ``x`` for ``y = kind(x)``.
UNARY: dict[UnaryKind, UnaryRule] = {
    UnaryKind.NEG: lambda e, x, y, g: e.neg(g),
    UnaryKind.ABS: _abs,
    UnaryKind.EXP: lambda e, x, y, g: e.mul(g, y),
    UnaryKind.EXP2: lambda e, x, y, g: e.mul(g, e.mul(y, math.log(2))),
    UnaryKind.EXPM1: lambda e, x, y, g: e.mul(g, e.add(y, e.like(1.0, y))),
    UnaryKind.LOG: lambda e, x, y, g: e.div(g, x),
    UnaryKind.LOG2: lambda e, x, y, g: e.div(g, e.mul(x, math.log(2))),
    UnaryKind.LOG10: lambda e, x, y, g: e.div(g, e.mul(x, math.log(10))),
    UnaryKind.LOG1P: lambda e, x, y, g: e.div(g, e.add(x, e.like(1.0, x))),
    UnaryKind.SQRT: lambda e, x, y, g: e.div(e.mul(g, 0.5), y),
    UnaryKind.RSQRT: _rsqrt,
    UnaryKind.SIN: lambda e, x, y, g: e.mul(g, e.unary(UnaryKind.COS, x)),
    UnaryKind.COS: lambda e, x, y, g: e.neg(e.mul(g, e.unary(UnaryKind.SIN, x))),
    UnaryKind.TAN: lambda e, x, y, g: e.mul(g, e.add(e.mul(y, y), e.like(1.0, y))),
    UnaryKind.ASIN: _asin,
    UnaryKind.ACOS: lambda e, x, y, g: e.neg(_asin(e, x, y, g)),
    UnaryKind.ATAN: lambda e, x, y, g: e.div(g, e.add(e.mul(x, x), e.like(1.0, x))),
    UnaryKind.SINH: lambda e, x, y, g: e.mul(g, e.unary(UnaryKind.COSH, x)),
    UnaryKind.COSH: lambda e, x, y, g: e.mul(g, e.unary(UnaryKind.SINH, x)),
    UnaryKind.TANH: lambda e, x, y, g: e.mul(g, _one_minus_square(e, y)),
    UnaryKind.ERF: _erf,
}

#: Step functions: their derivative is 0 almost everywhere.
STEPS = frozenset({UnaryKind.FLOOR, UnaryKind.CEIL, UnaryKind.TRUNC, UnaryKind.RINT, UnaryKind.ROUND})


def _mul(e: Emit, a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    return e.mul(g, b), e.mul(g, a)


def _div(e: Emit, a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    to_a = e.div(g, b)
    return to_a, e.neg(e.mul(to_a, y))


def _atan2(e: Emit, a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    scaled = e.div(g, e.add(e.mul(a, a), e.mul(b, b)))
    return e.mul(scaled, b), e.neg(e.mul(scaled, a))


def _pow(e: Emit, a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value | None]:
    """Of a constant exponent: the gradient of the other kind is left to MLX, which has more cases."""
    return e.mul(g, e.mul(b, e.binary(BinaryKind.POW, a, e.sub(b, e.like(1.0, b))))), None


def _extreme(wins: CompareKind, numbers: bool) -> BinaryRule:
    """Of equal operands the second one gets the gradient; so it does where the first one is NaN."""

    def rule(e: Emit, a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
        to_a = e.compare(wins, a, b)
        if numbers:  # a NaN loses
            a_is_number = e.compare(CompareKind.EQ, a, a)
            b_is_nan = e.compare(CompareKind.NE, b, b)
            to_a = e.either(to_a, e.binary(BinaryKind.AND, a_is_number, b_is_nan))
        zero = e.like(0.0, g)
        return e.select(to_a, g, zero), e.select(to_a, zero, g)

    return rule


#: Kind → gradients of ``a`` and ``b`` for ``y = a kind b``.
BINARY: dict[BinaryKind, BinaryRule] = {
    BinaryKind.ADD: lambda e, a, b, y, g: (g, g),
    BinaryKind.SUB: lambda e, a, b, y, g: (g, e.neg(g)),
    BinaryKind.MUL: _mul,
    BinaryKind.DIV: _div,
    BinaryKind.POW: _pow,
    BinaryKind.ATAN2: _atan2,
    BinaryKind.MIN: _extreme(CompareKind.LT, numbers=True),
    BinaryKind.MAX: _extreme(CompareKind.GT, numbers=True),
    BinaryKind.MIN_NAN: _extreme(CompareKind.LT, numbers=False),
    BinaryKind.MAX_NAN: _extreme(CompareKind.GT, numbers=False),
}


def gradients(e: Emit, op: Op, operands: Sequence[Value], result: Value, g: Value) -> Gradients | None:
    """The gradients of the operands of an elementwise operation; ``None`` where there is no rule.

    ``operands`` and ``result`` are those of ``op`` in the backward kernel.
    """
    match op:
        case ops.Unary(kind=kind):
            if kind in STEPS:
                return (None,)
            unary = UNARY.get(kind)
            return None if unary is None else (unary(e, operands[0], result, g),)
        case ops.Binary(kind=kind):
            binary = BINARY.get(kind)
            return None if binary is None else binary(e, operands[0], operands[1], result, g)
        case ops.Fma():
            a, b, _ = operands
            return e.mul(g, b), e.mul(g, a), g
        case ops.Select():
            zero = e.like(0.0, g)
            return None, e.select(operands[0], g, zero), e.select(operands[0], zero, g)
        case ops.Cast():
            return (e.cast(g, op.value.type.dtype) if op.value.type.dtype.is_floating() else None,)
        case ops.Bitcast():  # refused where it matters (see ``activity``)
            return (None,)
        case ops.Hint():
            return (g,)
    return None
