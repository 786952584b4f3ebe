"""Arithmetic of the tile IR on MLX arrays: one function a kind, keyed by the enum member.

MLX differs from the IR in corners that this module closes: ``//`` rounds down and division by zero is
undefined, shifts are undefined out of range, ``minimum`` returns NaN and takes no notice of the sign
of zero, and a float out of range of an integer type converts to whatever the machine gives.

Operands are of one element type and broadcast against each other. Constants carry their type, because
a bare Python number can change the type of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from enceladus.errors import InternalError
from enceladus.interpreter.semantics import evaluate
from enceladus.ir import ops
from enceladus.ir.core import Op
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DTYPES, DType, Kind, int1
from enceladus.mlx_bridge.targets.graph_math import FLOAT_FUNCTIONS, FLOAT_FUNCTIONS_2, trunc
from enceladus.mlx_bridge.targets.graph_math import fma as fma_float
from enceladus.mlx_bridge.targets.graph_memory import Data, to_mlx

ArrayFunction = Callable[..., mx.array]
Table = Mapping[Any, ArrayFunction]

#: Element type → MLX type.
MLX_DTYPES: dict[DType, mx.Dtype] = {
    dtype: mx.bool_ if dtype is int1 else getattr(mx, dtype.name) for dtype in DTYPES.values()
}

_UNSIGNED = {8: mx.uint8, 16: mx.uint16, 32: mx.uint32, 64: mx.uint64}


def unary(kind: UnaryKind, x: mx.array, dtype: DType) -> mx.array:
    """``kind`` applied to ``x`` of element type ``dtype``."""
    return _find(_table(dtype, _FLOAT_UNARY, _INTEGER_UNARY, _BOOL_UNARY), kind, dtype)(x)


def binary(kind: BinaryKind, x: mx.array, y: mx.array, dtype: DType) -> mx.array:
    """``kind`` applied to ``x`` and ``y``, both of element type ``dtype``."""
    return _find(_table(dtype, _FLOAT_BINARY, _INTEGER_BINARY, _BOOL_BINARY), kind, dtype)(x, y)


def compare(kind: CompareKind, x: mx.array, y: mx.array) -> mx.array:
    """``x kind y`` as bool_; with NaN only NE is true."""
    return _COMPARE[kind](x, y)


def fma(a: mx.array, b: mx.array, c: mx.array, dtype: DType) -> mx.array:
    """``a * b + c`` rounded once; integers wrap, int1 modulo 2."""
    if dtype is int1:
        return (a & b) ^ c
    return fma_float(a, b, c) if dtype.kind is Kind.FLOAT else a * b + c


def cast(x: mx.array, source: DType, target: DType) -> mx.array:
    """Convert numbers as ``ir.ops.Cast`` says. Integers reach 16-bit floats by way of float32."""
    if source is target:
        return x
    to = MLX_DTYPES[target]
    if target is int1:
        return x != _like(x, 0)
    if target.kind is Kind.FLOAT:
        return (x if target.bits == 32 else x.astype(mx.float32)).astype(to)
    if source.kind is not Kind.FLOAT:
        return x.astype(to)
    # The derivative of a step function is 0; MLX would pass it through the conversion.
    whole = trunc(mx.stop_gradient(x).astype(mx.float32))
    below = whole < float(target.minimum)  # the bounds are powers of two or 0: exact in float32
    above = whole >= float(target.maximum + 1)
    inside = ~(below | above | mx.isnan(whole))
    result = mx.where(inside, whole, 0.0).astype(to)
    result = mx.where(below, _constant(target.minimum, target), result)
    return mx.where(above, _constant(target.maximum, target), result)


def bitcast(x: mx.array, target: DType) -> mx.array:
    """The same bits as ``target``, which has the same width. The derivative is 0."""
    return mx.stop_gradient(x).view(MLX_DTYPES[target])


def _table(dtype: DType, floats: Table, integers: Table, booleans: Table) -> Table:
    if dtype.kind is Kind.FLOAT:
        return floats
    return booleans if dtype is int1 else integers


def _find(table: Table, kind: UnaryKind | BinaryKind, dtype: DType) -> ArrayFunction:
    function = table.get(kind)
    if function is None:
        raise InternalError(f"the graph engine does not support {kind.value} of {dtype}")
    return function


def _constant(value: int, dtype: DType) -> mx.array:
    return mx.array(np.asarray(value, dtype.name))  # MLX takes no Python int of 2^63 or more


def _like(x: mx.array, value: int) -> mx.array:
    return mx.array(value, x.dtype)


# ------------------------------------------------------------------------------------ integers


def _is_signed(x: mx.array) -> bool:
    return mx.issubdtype(x.dtype, mx.signedinteger)


def _bits(x: mx.array) -> int:
    return 8 * x.dtype.size


def _absolute(x: mx.array) -> mx.array:
    return mx.where(x < _like(x, 0), -x, x) if _is_signed(x) else x


def _idiv(x: mx.array, y: mx.array) -> mx.array:
    zero, one = _like(x, 0), _like(x, 1)
    if not _is_signed(x):
        return mx.where(y == zero, zero, x // mx.where(y == zero, one, y))
    # The smallest by -1 overflows, in C a trap: divide by 1 and negate, which wraps.
    minus = y == _like(x, -1)
    divisor = mx.where((y == zero) | minus, one, y)
    quotient = x // divisor
    inexact = quotient * divisor != x
    quotient = quotient + (inexact & ((x < zero) != (divisor < zero))).astype(x.dtype)
    quotient = mx.where(minus, -x, quotient)
    return mx.where(y == zero, zero, quotient)


def _irem(x: mx.array, y: mx.array) -> mx.array:
    return x - _idiv(x, y) * y


def _amount(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
    """Where the shift amount is in range, and the amounts with all others replaced by 0."""
    legal = y < _like(x, _bits(x))
    if _is_signed(x):
        legal = legal & (y >= _like(x, 0))
    return legal, mx.where(legal, y, _like(x, 0))


def _shl(x: mx.array, y: mx.array) -> mx.array:
    legal, amount = _amount(x, y)
    return mx.where(legal, mx.left_shift(x, amount), _like(x, 0))


def _shr(x: mx.array, y: mx.array) -> mx.array:
    legal, amount = _amount(x, y)
    zero = _like(x, 0)
    fill = mx.where(x < zero, _like(x, -1), zero) if _is_signed(x) else zero
    return mx.where(legal, mx.right_shift(x, amount), fill)


def _umulhi(x: mx.array, y: mx.array) -> mx.array:
    bits = _bits(x)
    a, b = (v.astype(_UNSIGNED[bits]).astype(mx.uint64) for v in (x, y))
    if bits != 64:
        return mx.right_shift(a * b, mx.array(bits, mx.uint64)).astype(x.dtype)
    low, half = mx.array(0xFFFFFFFF, mx.uint64), mx.array(32, mx.uint64)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    cross = (a_low * b_low >> half) + a_high * b_low  # below 2^64: no carry is lost
    high = a_high * b_high + (cross >> half) + ((cross & low) + a_low * b_high >> half)
    return high.astype(x.dtype)


def _popc_32(x: mx.array) -> mx.array:
    """Set bits of uint32: sums of neighbouring fields of 1, 2, 4 bits, then all octets by a product."""

    def u(value: int) -> mx.array:
        return mx.array(value, mx.uint32)

    x = x - ((x >> u(1)) & u(0x55555555))
    x = (x & u(0x33333333)) + ((x >> u(2)) & u(0x33333333))
    x = (x + (x >> u(4))) & u(0x0F0F0F0F)
    return (x * u(0x01010101)) >> u(24)


def _popc(x: mx.array) -> mx.array:
    bits = _bits(x)
    x = x.astype(_UNSIGNED[bits])
    count = _popc_32(x.astype(mx.uint32))
    if bits == 64:
        count = count + _popc_32((x >> mx.array(32, mx.uint64)).astype(mx.uint32))
    return count.astype(mx.int32)


def _clz(x: mx.array) -> mx.array:
    bits = _bits(x)
    x = x.astype(_UNSIGNED[bits])
    shift = 1
    while shift < bits:  # copy the highest set bit into all lower ones
        x = x | (x >> _like(x, shift))
        shift *= 2
    return mx.array(bits, mx.int32) - _popc(x)


def _identity(x: mx.array) -> mx.array:
    return x


_INTEGER_UNARY: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.NEG: mx.negative,
    UnaryKind.NOT: mx.bitwise_invert,
    UnaryKind.ABS: _absolute,
    UnaryKind.POPC: _popc,
    UnaryKind.CLZ: _clz,
}

_INTEGER_BINARY: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.ADD: mx.add,
    BinaryKind.SUB: mx.subtract,
    BinaryKind.MUL: mx.multiply,
    BinaryKind.IDIV: _idiv,
    BinaryKind.IREM: _irem,
    BinaryKind.AND: mx.bitwise_and,
    BinaryKind.OR: mx.bitwise_or,
    BinaryKind.XOR: mx.bitwise_xor,
    BinaryKind.SHL: _shl,
    BinaryKind.SHR: _shr,
    BinaryKind.MIN: mx.minimum,
    BinaryKind.MAX: mx.maximum,
    BinaryKind.MIN_NAN: mx.minimum,
    BinaryKind.MAX_NAN: mx.maximum,
    BinaryKind.UMULHI: _umulhi,
}

# ------------------------------------------------------------------- int1: arithmetic modulo 2


def _and_not(x: mx.array, y: mx.array) -> mx.array:
    return x & ~y


_BOOL_UNARY: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.NEG: _identity,
    UnaryKind.NOT: mx.logical_not,
    UnaryKind.ABS: _identity,
    UnaryKind.POPC: lambda x: x.astype(mx.int32),
    UnaryKind.CLZ: lambda x: mx.logical_not(x).astype(mx.int32),
}

_BOOL_BINARY: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.ADD: mx.bitwise_xor,
    BinaryKind.SUB: mx.bitwise_xor,
    BinaryKind.MUL: mx.bitwise_and,
    BinaryKind.IDIV: mx.bitwise_and,
    BinaryKind.IREM: _and_not,
    BinaryKind.AND: mx.bitwise_and,
    BinaryKind.OR: mx.bitwise_or,
    BinaryKind.XOR: mx.bitwise_xor,
    BinaryKind.SHL: _and_not,
    BinaryKind.SHR: _and_not,
    BinaryKind.MIN: mx.bitwise_and,
    BinaryKind.MAX: mx.bitwise_or,
    BinaryKind.MIN_NAN: mx.bitwise_and,
    BinaryKind.MAX_NAN: mx.bitwise_or,
}

# -------------------------------------------------------------------------------------- floats


# Equal operands differ at most in the sign of zero; the sums below get it right. They add only zeros, and no
# derivative, to MLX's result: of equal operands the second one gets the whole gradient.


def _minimum_nan(x: mx.array, y: mx.array) -> mx.array:
    chosen = mx.minimum(x, y)
    are_zero = (x == y) & (x == _like(x, 0))
    return mx.where(are_zero, -(mx.stop_gradient(-x + -y) + -chosen), chosen)


def _maximum_nan(x: mx.array, y: mx.array) -> mx.array:
    chosen = mx.maximum(x, y)
    are_zero = (x == y) & (x == _like(x, 0))
    return mx.where(are_zero, mx.stop_gradient(x + y) + chosen, chosen)


def _number(choose: ArrayFunction) -> ArrayFunction:
    """``choose``, but a NaN gives way to the other operand."""
    return lambda x, y: mx.where(mx.isnan(x), y, mx.where(mx.isnan(y), x, choose(x, y)))


_FLOAT_UNARY: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.NEG: mx.negative,
    UnaryKind.ABS: mx.abs,
    UnaryKind.ISNAN: mx.isnan,
    UnaryKind.ISINF: mx.isinf,
    **FLOAT_FUNCTIONS,
}

# MLX computes 16-bit sums, products and quotients in float32 and rounds them, as the IR asks.
_FLOAT_BINARY: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.ADD: mx.add,
    BinaryKind.SUB: mx.subtract,
    BinaryKind.MUL: mx.multiply,
    BinaryKind.DIV: mx.divide,
    BinaryKind.MIN: _number(_minimum_nan),
    BinaryKind.MAX: _number(_maximum_nan),
    BinaryKind.MIN_NAN: _minimum_nan,
    BinaryKind.MAX_NAN: _maximum_nan,
    **FLOAT_FUNCTIONS_2,
}

_COMPARE: dict[CompareKind, ArrayFunction] = {
    CompareKind.EQ: mx.equal,
    CompareKind.NE: mx.not_equal,
    CompareKind.LT: mx.less,
    CompareKind.LE: mx.less_equal,
    CompareKind.GT: mx.greater,
    CompareKind.GE: mx.greater_equal,
}


def order_keys(x: mx.array, nan_is_least: bool) -> mx.array:
    """Integers that compare as the floats ``x`` do, -0 below +0; NaN the least of them, or the greatest."""
    x = mx.stop_gradient(x)
    signed, bits = (mx.int32, 32) if x.dtype == mx.float32 else (mx.int16, 16)
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    pattern = x.view(signed)
    keys = mx.where(pattern < _like(pattern, 0), pattern ^ _like(pattern, greatest), pattern)
    return mx.where(mx.isnan(x), _like(pattern, least if nan_is_least else greatest), keys)


# ------------------------------------------------------------------------------ by operation

#: Elementwise operation → its function of the operation and its operands.
ELEMENTWISE: dict[type[Op], ArrayFunction] = {
    ops.Unary: lambda op, x: unary(op.kind, x, op.value.type.dtype),
    ops.Binary: lambda op, x, y: binary(op.kind, x, y, op.lhs.type.dtype),
    ops.Compare: lambda op, x, y: compare(op.kind, x, y),
    ops.Select: lambda op, condition, x, y: mx.where(condition, x, y),
    ops.Fma: lambda op, a, b, c: fma(a, b, c, op.a.type.dtype),
    ops.Cast: lambda op, x: cast(x, op.value.type.dtype, op.dtype),
    ops.Bitcast: lambda op, x: bitcast(x, op.dtype),
    ops.Hint: lambda op, x: x,
}


def perform(op: Op, *operands: Data) -> Data:
    """A pure elementwise operation: in NumPy where all operands are known, else in MLX."""
    if not any(isinstance(x, mx.array) for x in operands):
        result = evaluate(op, *operands)  # type: ignore[arg-type]
        assert isinstance(result, np.ndarray)  # no pointers: they are resolved
        return result
    function = ELEMENTWISE.get(type(op))
    if function is None:
        raise InternalError(f"{op.mnemonic} is not an elementwise operation")
    return function(op, *map(to_mlx, operands))
