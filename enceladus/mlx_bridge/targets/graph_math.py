"""Functions of calculus on MLX arrays, for the graph engine.

Every function takes float16, bfloat16 or float32 arrays of any shape, returns the same type, and is
made of MLX operations, so it is lazy and can be differentiated and vectorized.

MLX's own functions on the CPU are between 0.5 and 3 ulp of float32 in most of their range, but ``exp``
overflows early (88.22 instead of 88.72) and flushes small results to 0, ``sin`` and ``cos`` lose all digits
for large arguments, and ``erf`` has no relative accuracy near 0. The CPU has float64, so functions are
computed there and rounded once. But MLX computes ``exp``, ``sin``, ``cos`` and ``erf`` of float64 in float32
all the same: ``exp`` therefore is a power of e, and ``sin`` and ``cos`` come from ``tan`` of half the
argument.

GPUs have no float64: there MLX's float32 function is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

from enceladus.ir.ops import BinaryKind, UnaryKind

ArrayFunction = Callable[..., mx.array]


def has_float64() -> bool:
    """Whether the device in force has float64: only the CPU does."""
    return mx.default_device().type == mx.DeviceType.cpu


def _accurate(native: ArrayFunction, in_float64: ArrayFunction | None = None) -> ArrayFunction:
    """``in_float64`` (default: ``native``), rounded once, where there is one; else ``native`` in float32."""
    double = in_float64 or native

    def function(*operands: mx.array) -> mx.array:
        dtype = operands[0].dtype
        if has_float64():
            return double(*(x.astype(mx.float64) for x in operands)).astype(dtype)
        return native(*(x.astype(mx.float32) for x in operands)).astype(dtype)

    return function


def _in_float32(function: ArrayFunction) -> ArrayFunction:
    """``function`` in float32 with the result rounded to the operand's type."""

    def rounded(*operands: mx.array) -> mx.array:
        dtype = operands[0].dtype
        return function(*(x.astype(mx.float32) for x in operands)).astype(dtype)

    return rounded


def _power_of(base: float) -> ArrayFunction:
    return lambda x: mx.power(mx.array(base, x.dtype), x)


def _sin(x: mx.array) -> mx.array:
    t = mx.tan(x * 0.5)
    return (t + t) / (t * t + 1.0)


def _cos(x: mx.array) -> mx.array:
    t = mx.tan(x * 0.5)
    return (1.0 - t) * (1.0 + t) / (t * t + 1.0)


#: erf(x) = x + x * P(x*x) below the split, 1 - exp(-t - t * Q(t)) with t = |x| above it; highest power first.
_ERF_SPLIT = 0.921875
_ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_LARGE = (
    -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2,
    -1.06777877e-1, -6.34846687e-1, -1.28717512e-1,
)  # fmt: skip


def _horner(x: mx.array, coefficients: tuple[float, ...]) -> mx.array:
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total


def _erf(x: mx.array) -> mx.array:
    # Each side gets arguments on which it is finite, so that neither spoils the other's derivative. That of
    # the polynomials is within 1e-6, the second one within 1e-4 (``mx.custom_function`` cannot be exported).
    magnitude = mx.abs(x)
    is_large = magnitude > _ERF_SPLIT
    small = mx.where(is_large, 0.0, x)
    t = mx.where(is_large, mx.minimum(magnitude, 5.0), 1.0)
    near = small + small * _horner(small * small, _ERF_SMALL)
    far = 1.0 - mx.exp(t * _horner(t, _ERF_LARGE) - t)
    return mx.where(is_large, mx.where(x < 0, -far, far), near)


def trunc(x: mx.array) -> mx.array:
    """``x`` without its fraction; keeps the sign of zero."""
    return mx.where(x < 0, mx.ceil(x), mx.floor(x))


def _round_half_away(x: mx.array) -> mx.array:
    whole = trunc(x)
    away = mx.where(x < 0, mx.array(-1, x.dtype), mx.array(1, x.dtype))
    return mx.where(mx.abs(x - whole) >= 0.5, whole + away, whole)


def _rsqrt(x: mx.array) -> mx.array:
    return 1.0 / mx.sqrt(x)


#: Functions of one float operand.
FLOAT_FUNCTIONS: dict[UnaryKind, ArrayFunction] = {
    UnaryKind.EXP: _accurate(mx.exp, _power_of(math.e)),
    UnaryKind.EXP2: _in_float32(_power_of(2.0)),
    UnaryKind.EXPM1: _accurate(mx.expm1),
    UnaryKind.LOG: _accurate(mx.log),
    UnaryKind.LOG2: _accurate(mx.log2),
    UnaryKind.LOG10: _accurate(mx.log10),
    UnaryKind.LOG1P: _accurate(mx.log1p),
    UnaryKind.SQRT: _in_float32(mx.sqrt),
    UnaryKind.RSQRT: _accurate(mx.rsqrt, _rsqrt),
    UnaryKind.SIN: _accurate(mx.sin, _sin),
    UnaryKind.COS: _accurate(mx.cos, _cos),
    UnaryKind.TAN: _accurate(mx.tan),
    UnaryKind.ASIN: _accurate(mx.arcsin),
    UnaryKind.ACOS: _accurate(mx.arccos),
    UnaryKind.ATAN: _accurate(mx.arctan),
    UnaryKind.SINH: _accurate(mx.sinh),
    UnaryKind.COSH: _accurate(mx.cosh),
    UnaryKind.TANH: _accurate(mx.tanh),
    UnaryKind.ERF: _in_float32(_erf),
    UnaryKind.FLOOR: mx.floor,
    UnaryKind.CEIL: mx.ceil,
    UnaryKind.TRUNC: trunc,
    UnaryKind.RINT: mx.round,
    UnaryKind.ROUND: _in_float32(_round_half_away),
}

#: Functions of two float operands.
FLOAT_FUNCTIONS_2: dict[BinaryKind, ArrayFunction] = {
    BinaryKind.POW: _accurate(mx.power),
    BinaryKind.ATAN2: _accurate(mx.arctan2),
}


def fma(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
    """``a * b + c`` of floats, rounded once to float32 (16-bit types: and then to the type).

    On the CPU this is exact rounding for every operand: the product of two float32 is exact in float64,
    and the sum is rounded to odd there, which survives the second rounding. A GPU has no float64;
    there it is MLX's product and sum, each rounded.
    """
    dtype = a.dtype
    if not has_float64():
        a, b, c = (x.astype(mx.float32) for x in (a, b, c))
        return (a * b + c).astype(dtype)
    product = a.astype(mx.float64) * b.astype(mx.float64)
    addend = c.astype(mx.float64)
    total = product + addend
    # The derivative is that of ``total``; the correction is at most one step of float64.
    total = total + mx.stop_gradient(_odd_correction(*map(mx.stop_gradient, (product, addend, total))))
    return total.astype(mx.float32).astype(dtype)


def _odd_correction(product: mx.array, addend: mx.array, total: mx.array) -> mx.array:
    """What to add to ``total`` so that it is the exact sum rounded to odd."""
    part = total - product
    error = (product - (total - part)) + (addend - part)  # Knuth's TwoSum: exact
    bits = total.view(mx.int64)
    one = mx.array(1, mx.int64)
    is_even = (bits & one) == mx.array(0, mx.int64)
    step = mx.isfinite(total) & (error != 0.0) & is_even
    towards_infinity = (error > 0.0) == (total > 0.0)
    neighbour = mx.where(towards_infinity, bits + one, bits - one).view(mx.float64)
    return mx.where(step, neighbour - total, mx.array(-0.0, mx.float64))  # adding -0 keeps every sign
