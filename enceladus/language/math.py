"""``tl.math``: the mathematics of ``tl`` under Triton's second name, and functions that only live here.

The latter correspond to Triton's ``libdevice``. All work element by element and broadcast; floats only
unless said otherwise, in the (promoted) type of the operands.
"""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.ops import Binary, BinaryKind, Unary, UnaryKind
from enceladus.ir.types import PointerType
from enceladus.language import semantic
from enceladus.language.builtin import builtin
from enceladus.language.creation import require_tensor
from enceladus.language.elementwise import (
    PropagateNan,
    abs,
    cdiv,
    ceil,
    clamp,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    fdiv,
    float_operands,
    float_unary,
    floor,
    fma,
    log,
    log2,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    sqrt_rn,
    tanh,
    where,
)
from enceladus.language.missing import missing_name
from enceladus.language.tensor import raw, tensor

__all__ = [  # noqa: RUF022 - a block, not a column
    "PropagateNan", "abs", "acos", "asin", "atan", "atan2", "cdiv", "ceil", "clamp", "clz", "cos",
    "cosh", "div_rn", "erf", "exp", "exp2", "expm1", "fdiv", "floor", "fma", "isinf", "isnan", "log",
    "log10", "log1p", "log2", "maximum", "minimum", "popc", "pow", "rint", "round", "rsqrt", "sigmoid",
    "sin", "sinh", "sqrt", "sqrt_rn", "tan", "tanh", "trunc", "umulhi", "where",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing_name("tl.math", name, __all__)


@builtin
def pow(x: Any, y: Any) -> tensor:
    """``x`` to the power ``y``; one of them must be a float. Source: ``libdevice.pow``."""
    return tensor(semantic.emit(Binary(BinaryKind.POW, *float_operands("tl.math.pow", x, y))))


@builtin
def atan2(y: Any, x: Any) -> tensor:
    """The angle of the point ``(x, y)``, from -π to π. Source: ``libdevice.atan2``."""
    return tensor(semantic.emit(Binary(BinaryKind.ATAN2, *float_operands("tl.math.atan2", y, x))))


@builtin
def log1p(x: Any) -> tensor:
    """``log(1 + x)``, accurate near 0. Source: ``libdevice.log1p``."""
    return float_unary("tl.math.log1p", UnaryKind.LOG1P, x)


@builtin
def expm1(x: Any) -> tensor:
    """``exp(x) - 1``, accurate near 0. Source: ``libdevice.expm1``."""
    return float_unary("tl.math.expm1", UnaryKind.EXPM1, x)


@builtin
def log10(x: Any) -> tensor:
    """The logarithm to base 10. Source: ``libdevice.log10``."""
    return float_unary("tl.math.log10", UnaryKind.LOG10, x)


@builtin
def tan(x: Any) -> tensor:
    """The tangent. Source: ``libdevice.tan``."""
    return float_unary("tl.math.tan", UnaryKind.TAN, x)


@builtin
def asin(x: Any) -> tensor:
    """The inverse sine. Source: ``libdevice.asin``."""
    return float_unary("tl.math.asin", UnaryKind.ASIN, x)


@builtin
def acos(x: Any) -> tensor:
    """The inverse cosine. Source: ``libdevice.acos``."""
    return float_unary("tl.math.acos", UnaryKind.ACOS, x)


@builtin
def atan(x: Any) -> tensor:
    """The inverse tangent. Source: ``libdevice.atan``."""
    return float_unary("tl.math.atan", UnaryKind.ATAN, x)


@builtin
def sinh(x: Any) -> tensor:
    """The hyperbolic sine. Source: ``libdevice.sinh``."""
    return float_unary("tl.math.sinh", UnaryKind.SINH, x)


@builtin
def cosh(x: Any) -> tensor:
    """The hyperbolic cosine. Source: ``libdevice.cosh``."""
    return float_unary("tl.math.cosh", UnaryKind.COSH, x)


@builtin
def rint(x: Any) -> tensor:
    """The nearest integer as a float, halves to even. Source: ``libdevice.rint``."""
    return float_unary("tl.math.rint", UnaryKind.RINT, x)


@builtin
def round(x: Any) -> tensor:
    """The nearest integer as a float, halves away from zero. Source: ``libdevice.round``."""
    return float_unary("tl.math.round", UnaryKind.ROUND, x)


@builtin
def trunc(x: Any) -> tensor:
    """The integer part, towards zero, as a float. Source: ``libdevice.trunc``."""
    return float_unary("tl.math.trunc", UnaryKind.TRUNC, x)


@builtin
def isnan(x: Any) -> tensor:
    """int1: whether ``x`` is NaN. Source: ``libdevice.isnan``."""
    return float_unary("tl.math.isnan", UnaryKind.ISNAN, x)


@builtin
def isinf(x: Any) -> tensor:
    """int1: whether ``x`` is infinite. Source: ``libdevice.isinf``."""
    return float_unary("tl.math.isinf", UnaryKind.ISINF, x)


def _bits(name: str, kind: UnaryKind, x: Any) -> tensor:
    value = require_tensor(name, "x", x).value
    element = value.type.element
    if isinstance(element, PointerType) or element.is_floating() or element.is_bool():
        raise CompilationError(
            f"{name} needs integers, got {element}",
            "look at a float's bits with `.to(tl.uint32, bitcast=True)`",
        )
    return tensor(semantic.emit(Unary(kind, value)))


@builtin
def popc(x: Any) -> tensor:
    """int32: the number of set bits of an integer. Source: ``libdevice.popc``."""
    return _bits("tl.math.popc", UnaryKind.POPC, x)


@builtin
def clz(x: Any) -> tensor:
    """int32: the number of leading zero bits of an integer; its width for 0. Source: ``libdevice.clz``."""
    return _bits("tl.math.clz", UnaryKind.CLZ, x)


@builtin
def umulhi(x: Any, y: Any) -> tensor:
    """The high half of the product of two 32- or 64-bit integers taken as unsigned.

    Source: Triton's ``tl.umulhi``.
    """
    a, b = semantic.broadcast(*semantic.promote("tl.umulhi", raw(x), raw(y)))
    element = a.type.dtype
    if not element.is_int() or element.bits < 32:
        raise CompilationError(f"tl.umulhi needs 32- or 64-bit integers, got {element}", "cast to tl.uint32")
    return tensor(semantic.emit(Binary(BinaryKind.UMULHI, a, b)))
