"""The NumPy meaning of every arithmetic kind, one function a kind, keyed by the enum member.

Functions take and return arrays of one element type and work at any shape. They run under
``np.errstate(all="ignore")``, which ``semantics.evaluate`` sets: wrapping and NaN are results here,
not accidents. float16 and bfloat16 never reach a float function: callers widen them to float32 and
round the result once.

Functions of calculus are computed in float64 and rounded to float32, so they are within half an ulp of the
true value but for rare ties: this is the reference that the other engines are measured against.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from enceladus.interpreter.arrays import NUMPY_DTYPES
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DType, Kind, bfloat16, float16, int1

ArrayFunction = Callable[..., np.ndarray]

_UNSIGNED = {1: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def widen(x: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32; float32 unchanged."""
    return x.astype(np.float32, copy=False)


def unary(kind: UnaryKind, x: np.ndarray, dtype: DType) -> np.ndarray:
    """``kind`` applied to ``x`` of element type ``dtype``."""
    if dtype.kind is Kind.FLOAT:
        result = FLOAT_UNARY[kind](widen(x))
        return result if result.dtype == np.bool_ else result.astype(NUMPY_DTYPES[dtype])
    if kind in BIT_COUNTS:
        return BIT_COUNTS[kind](x.view(_UNSIGNED[dtype.bits]), dtype.bits)
    if dtype is int1:
        # One bit wraps modulo 2: −x and |x| are x.
        return ~x if kind is UnaryKind.NOT else _one_bit(INTEGER_UNARY[kind](x.view(np.uint8)))
    return INTEGER_UNARY[kind](x)


def binary(kind: BinaryKind, x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    """``kind`` applied to ``x`` and ``y``, both of element type ``dtype``."""
    if dtype.kind is Kind.FLOAT:
        return FLOAT_BINARY[kind](widen(x), widen(y)).astype(NUMPY_DTYPES[dtype], copy=False)
    if dtype is int1:
        return _one_bit(INTEGER_BINARY[kind](x.view(np.uint8), y.view(np.uint8), dtype))
    return INTEGER_BINARY[kind](x, y, dtype)


def compare(kind: CompareKind, x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    """``x kind y`` as bool_; with NaN only NE is true."""
    if dtype.kind is Kind.FLOAT:
        x, y = widen(x), widen(y)
    return COMPARE[kind](x, y)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: DType) -> np.ndarray:
    """``a * b + c`` rounded once to float32 (16-bit types: and then to the type); integers wrap."""
    if dtype is int1:
        return (a & b) ^ c
    if dtype.kind is not Kind.FLOAT:
        return a * b + c
    product = widen(a).astype(np.float64) * widen(b).astype(np.float64)  # 48 bits: exact
    addend = widen(c).astype(np.float64)
    total = product + addend
    # Rounding to float64 and then to float32 could round twice. Rounding to odd first cannot: take
    # the rounding error (Knuth's TwoSum) and, where there is one and the last bit is even, step to
    # the neighbour on the error's side.
    part = total - product
    error = (product - (total - part)) + (addend - part)
    step = np.isfinite(total) & (error != 0) & (np.asarray(total).view(np.int64) & 1 == 0)
    total = np.where(step, np.nextafter(total, np.copysign(np.inf, error)), total)
    return total.astype(np.float32).astype(NUMPY_DTYPES[dtype], copy=False)


def cast(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Convert numbers as ``ir.ops.Cast`` says. Integers reach 16-bit floats by way of float32."""
    if source is target:
        return x
    to = NUMPY_DTYPES[target]
    if target is int1:
        return widen(x) != 0 if source.kind is Kind.FLOAT else x != 0
    if target.kind is Kind.FLOAT:
        return x.astype(np.float32).astype(to) if target in (float16, bfloat16) else x.astype(to)
    if source.kind is not Kind.FLOAT:
        return x.astype(to)
    whole = np.trunc(x.astype(np.float64))  # −2^63, 2^63 and 2^64 are exact in float64
    below, above = whole < float(target.minimum), whole >= float(target.maximum + 1)
    inside = ~(below | above | np.isnan(whole))
    result = np.where(inside, whole, 0).astype(to)
    result = np.where(below, to.type(target.minimum), result)
    return np.where(above, to.type(target.maximum), result)


# ------------------------------------------------------------------------------------ integers


def _one_bit(x: np.ndarray) -> np.ndarray:
    return (x & np.uint8(1)).astype(np.bool_)


def _idiv(x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    one, zero = x.dtype.type(1), x.dtype.type(0)
    quotient = x // np.where(y == 0, one, y)
    if dtype.kind is Kind.SIGNED:
        # NumPy rounds down; C rounds towards zero.
        inexact = quotient * y != x
        quotient = quotient + (inexact & ((x < 0) != (y < 0))).astype(x.dtype)
        quotient = np.where(y == -1, zero - x, quotient)
    return np.where(y == 0, zero, quotient)


def _irem(x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    return x - _idiv(x, y, dtype) * y


def _amount(y: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Where the shift amount is in range, and the amounts with all others replaced by 0."""
    legal = (y >= 0) & (y < y.dtype.type(dtype.bits))
    return legal, np.where(legal, y, y.dtype.type(0))


def _shl(x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    legal, amount = _amount(y, dtype)
    return np.where(legal, x << amount, x.dtype.type(0))


def _shr(x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    legal, amount = _amount(y, dtype)
    return np.where(legal, x >> amount, -(x < 0).astype(x.dtype))


def _umulhi(x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    bits = dtype.bits
    if bits != 64:
        wide_x, wide_y = (v.view(_UNSIGNED[bits]).astype(np.uint64) for v in (x, y))
        return (wide_x * wide_y >> np.uint64(bits)).astype(_UNSIGNED[bits]).view(x.dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = x.view(np.uint64), y.view(np.uint64)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    cross = (a_low * b_low >> half) + a_high * b_low  # below 2^64: no carry is lost
    high = a_high * b_high + (cross >> half) + ((cross & low) + a_low * b_high >> half)
    return np.asarray(high).view(x.dtype)


def _popc(x: np.ndarray, bits: int) -> np.ndarray:
    octets = np.ascontiguousarray(x)[..., None].view(np.uint8)
    count = np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.int32)
    return count.reshape(x.shape)


def _clz(x: np.ndarray, bits: int) -> np.ndarray:
    shift = 1
    while shift < bits:  # copy the highest set bit into all lower ones
        x = x | x >> x.dtype.type(shift)
        shift *= 2
    return np.int32(bits) - _popc(np.asarray(x), bits)


BIT_COUNTS: dict[UnaryKind, ArrayFunction] = {UnaryKind.POPC: _popc, UnaryKind.CLZ: _clz}

INTEGER_UNARY: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.NOT: np.invert,
    UnaryKind.ABS: np.absolute,
}

INTEGER_BINARY: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.ADD: lambda x, y, dtype: x + y,
    BinaryKind.SUB: lambda x, y, dtype: x - y,
    BinaryKind.MUL: lambda x, y, dtype: x * y,
    BinaryKind.IDIV: _idiv,
    BinaryKind.IREM: _irem,
    BinaryKind.AND: lambda x, y, dtype: x & y,
    BinaryKind.OR: lambda x, y, dtype: x | y,
    BinaryKind.XOR: lambda x, y, dtype: x ^ y,
    BinaryKind.SHL: _shl,
    BinaryKind.SHR: _shr,
    BinaryKind.MIN: lambda x, y, dtype: np.minimum(x, y),
    BinaryKind.MAX: lambda x, y, dtype: np.maximum(x, y),
    BinaryKind.MIN_NAN: lambda x, y, dtype: np.minimum(x, y),
    BinaryKind.MAX_NAN: lambda x, y, dtype: np.maximum(x, y),
    BinaryKind.UMULHI: _umulhi,
}

# -------------------------------------------------------------------------------------- floats

_erf_object = np.frompyfunc(math.erf, 1, 1)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf_object(x), np.float64)


def _round_away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(0.5, x))  # exact: x is float64 and came from float32


def _in_float64(function: ArrayFunction) -> ArrayFunction:
    """``function`` computed in float64 and rounded to float32."""

    def rounded(*operands: np.ndarray) -> np.ndarray:
        return function(*(x.astype(np.float64) for x in operands)).astype(np.float32)

    return rounded


def _signed_zero_first(choose: np.ufunc, sign_of_zero: np.ufunc) -> ArrayFunction:
    """``choose``, but of two zeros take the one that −0 < +0 says; NumPy leaves that open."""

    def function(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        zeros = (x == 0) & (y == 0)
        zero = np.where(sign_of_zero(np.signbit(x), np.signbit(y)), np.float32(-0.0), np.float32(0.0))
        return np.where(zeros, zero, choose(x, y))

    return function


FLOAT_UNARY: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.ABS: np.absolute,
    UnaryKind.EXP: _in_float64(np.exp),
    UnaryKind.EXP2: _in_float64(np.exp2),
    UnaryKind.EXPM1: _in_float64(np.expm1),
    UnaryKind.LOG: _in_float64(np.log),
    UnaryKind.LOG2: _in_float64(np.log2),
    UnaryKind.LOG10: _in_float64(np.log10),
    UnaryKind.LOG1P: _in_float64(np.log1p),
    UnaryKind.SQRT: np.sqrt,
    UnaryKind.RSQRT: _in_float64(lambda x: 1.0 / np.sqrt(x)),
    UnaryKind.SIN: _in_float64(np.sin),
    UnaryKind.COS: _in_float64(np.cos),
    UnaryKind.TAN: _in_float64(np.tan),
    UnaryKind.ASIN: _in_float64(np.arcsin),
    UnaryKind.ACOS: _in_float64(np.arccos),
    UnaryKind.ATAN: _in_float64(np.arctan),
    UnaryKind.SINH: _in_float64(np.sinh),
    UnaryKind.COSH: _in_float64(np.cosh),
    UnaryKind.TANH: _in_float64(np.tanh),
    UnaryKind.ERF: _in_float64(_erf),
    UnaryKind.FLOOR: np.floor,
    UnaryKind.CEIL: np.ceil,
    UnaryKind.TRUNC: np.trunc,
    UnaryKind.RINT: np.rint,
    UnaryKind.ROUND: _in_float64(_round_away),
    UnaryKind.ISNAN: np.isnan,
    UnaryKind.ISINF: np.isinf,
}

FLOAT_BINARY: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: np.divide,
    BinaryKind.MIN: _signed_zero_first(np.fmin, np.logical_or),
    BinaryKind.MAX: _signed_zero_first(np.fmax, np.logical_and),
    BinaryKind.MIN_NAN: _signed_zero_first(np.minimum, np.logical_or),
    BinaryKind.MAX_NAN: _signed_zero_first(np.maximum, np.logical_and),
    BinaryKind.POW: _in_float64(np.power),
    BinaryKind.ATAN2: _in_float64(np.arctan2),
}

COMPARE: dict[CompareKind, ArrayFunction] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}
