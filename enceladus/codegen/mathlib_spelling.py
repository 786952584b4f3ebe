"""How values are written in Metal Shading Language: expressions with precedence, types, literals.

An :class:`Expression` is text plus how tightly it binds; a :class:`Spelling` is a template that puts
operands into an expression and adds parentheses only where they are needed (or where C's precedence is
famous for being misread: shifts, bitwise operators, ``&&`` inside ``||``).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from enceladus.errors import InternalError
from enceladus.ir.types import DType, Kind, bfloat16, float16, float32


class Precedence(IntEnum):
    """How tightly an expression binds, loosest first (C++'s grammar)."""

    ANY = 0  # as a function's argument or a statement's right-hand side
    TERNARY = 1
    OR = 2
    AND = 3
    BIT_OR = 4
    BIT_XOR = 5
    BIT_AND = 6
    EQUALITY = 7
    RELATIONAL = 8
    SHIFT = 9
    ADD = 10
    MUL = 11
    UNARY = 12
    CALL = 13  # calls, conversions, subscripts
    ATOM = 14  # names and literals without a sign


class Expression(NamedTuple):
    """A piece of MSL and its precedence."""

    text: str
    precedence: Precedence = Precedence.ATOM

    def inside(self, least: Precedence) -> str:
        """The text for a place where anything looser than ``least`` needs parentheses."""
        return self.text if self.precedence >= least else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Spelling:
    """An expression template.

    ``text`` names operands ``{0}``, ``{1}``, ``{2}``, each exactly once, so no operand is computed twice.
    ``operands[i]`` is the loosest precedence that operand ``i`` may have without parentheses. ``needs``
    lists the helpers that must be in the kernel's header (see :func:`enceladus.codegen.mathlib.header`).
    """

    text: str
    precedence: Precedence
    operands: tuple[Precedence, ...]
    needs: tuple[str, ...] = ()

    def __call__(self, *operands: Expression) -> Expression:
        """Put ``operands`` in."""
        if len(operands) != len(self.operands):
            raise InternalError(f"{self.text!r} takes {len(self.operands)} operands, not {len(operands)}")
        if self.text == "{0}":
            return operands[0]
        texts = [o.inside(least) for o, least in zip(operands, self.operands, strict=True)]
        return Expression(self.text.format(*texts), self.precedence)


def call(text: str, *needs: str, arity: int = 1) -> Spelling:
    """A spelling of call form: every operand stands alone between parentheses or commas."""
    return Spelling(text, Precedence.CALL, (Precedence.ANY,) * arity, needs)


def infix(operator: str, precedence: Precedence) -> Spelling:
    """``{0} operator {1}``, grouping to the left."""
    operands: tuple[Precedence, Precedence]
    if precedence in (Precedence.ADD, Precedence.MUL):
        operands = (precedence, Precedence(precedence + 1))
    elif precedence in (Precedence.EQUALITY, Precedence.RELATIONAL):
        operands = (Precedence.ADD, Precedence.ADD)
    elif precedence is Precedence.AND:
        operands = (Precedence.AND, Precedence.EQUALITY)
    elif precedence is Precedence.OR:
        operands = (Precedence.EQUALITY, Precedence.EQUALITY)
    else:  # shifts and bitwise operators: be explicit about everything but signs
        operands = (Precedence.UNARY, Precedence.UNARY)
    return Spelling(f"{{0}} {operator} {{1}}", precedence, operands)


# --------------------------------------------------------------------------------------- types

_TYPE_NAMES = {
    "int1": "bool", "int32": "int", "uint32": "uint", "float16": "half", "bfloat16": "bfloat16_t",
    "float32": "float",
}  # fmt: skip


def type_name(dtype: DType) -> str:
    """The MSL type of ``dtype``: ``bool``, ``int8_t``, ``int``, ``uint64_t``, ``half``, ``bfloat16_t`` …"""
    return _TYPE_NAMES.get(dtype.name) or f"{dtype.name}_t"


def unsigned_name(dtype: DType) -> str:
    """The unsigned MSL type that holds the bits of integer ``dtype`` and does not promote to ``int``."""
    return "uint64_t" if dtype.bits == 64 else "uint"


# ------------------------------------------------------------------------------------- literals


def round_to_float32(value: float) -> float:
    """``value`` rounded to float32 (nearest, ties to even; overflow to infinity)."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def round_to(value: float, dtype: DType) -> float:
    """``value`` rounded to floating ``dtype``: float16 at once, bfloat16 through float32 (as NumPy does)."""
    if math.isnan(value) or math.isinf(value):
        return value
    if dtype is float16:
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    value = round_to_float32(value)
    if dtype is float32 or math.isinf(value):
        return value
    if dtype is not bfloat16:
        raise InternalError(f"{dtype} is not a floating type")
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def shortest_float32(value: float) -> str:
    """The shortest decimal that a compiler reads back as the float32 ``value`` (finite), without suffix.

    A decimal is accepted only if it lies strictly between the midpoints to both neighbours; the
    midpoints are float64 numbers, so rounding the decimal to float64 first cannot hide a wrong digit.
    """
    magnitude = abs(value)
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if magnitude == 0.0:
        return f"{sign}0.0"
    (bits,) = struct.unpack("<I", struct.pack("<f", magnitude))
    below = struct.unpack("<f", struct.pack("<I", bits - 1))[0]
    above = struct.unpack("<f", struct.pack("<I", bits + 1))[0]
    if math.isinf(above):  # beyond the largest float32 the spacing goes on
        above = magnitude + (magnitude - below)
    low, high = (magnitude + below) / 2, (magnitude + above) / 2
    text = ""
    for digits in range(1, 10):
        text = f"{magnitude:.{digits}g}"
        if low < float(text) < high:
            break
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    elif "." not in text:
        text += ".0"
    return sign + text


@lru_cache(maxsize=4096)
def _float_literal(bits: int, dtype: DType) -> Expression:
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    if math.isnan(value):
        text, precedence = "as_type<float>(0x7fc00000u)", Precedence.CALL
    elif math.isinf(value):
        text = "as_type<float>(0x7f800000u)" if value > 0 else "as_type<float>(0xff800000u)"
        precedence = Precedence.CALL
    else:
        text = shortest_float32(value) + "f"
        precedence = Precedence.UNARY if text[0] == "-" else Precedence.ATOM
    if dtype is not float32:
        text, precedence = f"{type_name(dtype)}({text})", Precedence.CALL
    return Expression(text, precedence)


def literal(value: bool | int | float, dtype: DType) -> Expression:
    """The constant ``value`` of type ``dtype``.

    Floats are rounded to ``dtype`` here and written as the shortest decimal, so the compiler's own
    rounding has nothing left to decide. Integers must fit ``dtype`` (``InternalError`` otherwise).
    """
    if dtype.kind is Kind.FLOAT:
        # The bits, not the value, are the cache key: 0.0 == -0.0.
        (bits,) = struct.unpack("<I", struct.pack("<f", round_to(float(value), dtype)))
        return _float_literal(bits, dtype)
    if dtype.kind is Kind.BOOL:
        return Expression("true" if value else "false")
    number = int(value)
    if number != value or not dtype.minimum <= number <= dtype.maximum:
        raise InternalError(f"constant {value!r} does not fit {dtype}")
    if dtype.name == "int32":
        if number == dtype.minimum:  # 2147483648 would be a 64-bit literal
            return Expression("-2147483647 - 1", Precedence.ADD)
        return Expression(str(number), Precedence.UNARY if number < 0 else Precedence.ATOM)
    if dtype.name == "uint32":
        return Expression(f"{number}u")
    name = type_name(dtype)
    if dtype.bits < 64 or -(1 << 31) < number < (1 << 31):
        return Expression(f"{name}({number})", Precedence.CALL)
    if number == dtype.minimum:
        return Expression(f"{name}(-9223372036854775807l - 1)", Precedence.CALL)
    suffix = "l" if dtype.kind is Kind.SIGNED else "ul"
    return Expression(f"{name}({number}{suffix})", Precedence.CALL)


def constant(value: bool | int | float, dtype: DType) -> str:
    """The text of :func:`literal`, safe as an operand of any operator (signed ones in parentheses)."""
    return literal(value, dtype).inside(Precedence.CALL)
