"""Builtins that compute element by element: choice, extrema, and mathematics."""

from __future__ import annotations

from enum import Enum
from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.ops import Binary, BinaryKind, Fma, Select, Unary, UnaryKind
from enceladus.ir.types import DType, PointerType, float32, int1
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe, host_builtin
from enceladus.language.creation import require_tensor
from enceladus.language.tensor import raw, tensor, tensor_method


class PropagateNan(Enum):
    """What ``minimum`` and ``maximum`` do with NaN: ``NONE`` takes the other operand, ``ALL`` gives NaN."""

    NONE = "none"
    ALL = "all"


# -------------------------------------------------------------------------------- choice, extrema


@builtin
def where(condition: Any, x: Any, y: Any) -> tensor:
    """``x`` where ``condition`` holds, else ``y``; both are evaluated. All three broadcast together.

    ``x`` and ``y`` are promoted to their common type; a condition that is not int1 asks "is it not zero?".
    Source: Triton's ``tl.where``.
    """
    test = semantic.truth(raw(condition), "tl.where")
    on_true, on_false = semantic.promote("tl.where", raw(x), raw(y))
    return tensor(semantic.emit(Select(*semantic.broadcast(test, on_true, on_false))))


def _is_number(x: Any) -> bool:
    """Whether ``x`` is a Python number other than NaN, so that it can be computed with at compile time."""
    return isinstance(x, (bool, int, float)) and x == x


def _nan_mode(name: str, mode: Any) -> bool:
    if not isinstance(mode, PropagateNan):
        raise CompilationError(
            f"{name}: `propagate_nan` must be tl.PropagateNan.NONE or .ALL, got {describe(mode)}"
        )
    return mode is PropagateNan.ALL


def _extremum(name: str, largest: bool, propagate: bool, x: Any, y: Any) -> Value:
    a, b = semantic.broadcast(*semantic.promote(name, x, y))
    if a.type.element is int1:
        return semantic.emit(Binary(BinaryKind.OR if largest else BinaryKind.AND, a, b))
    if propagate and a.type.element.is_floating():
        return semantic.emit(Binary(BinaryKind.MAX_NAN if largest else BinaryKind.MIN_NAN, a, b))
    return semantic.emit(Binary(BinaryKind.MAX if largest else BinaryKind.MIN, a, b))


@builtin
def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """The larger of ``x`` and ``y`` in their common type. Of two Python numbers: a Python number.

    Source: Triton's ``tl.maximum``.
    """
    propagate = _nan_mode("tl.maximum", propagate_nan)
    if _is_number(x) and _is_number(y):
        return max(x, y)
    return tensor(_extremum("tl.maximum", True, propagate, raw(x), raw(y)))


@builtin
def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> Any:
    """The smaller of ``x`` and ``y`` in their common type. Of two Python numbers: a Python number.

    Source: Triton's ``tl.minimum``.
    """
    propagate = _nan_mode("tl.minimum", propagate_nan)
    if _is_number(x) and _is_number(y):
        return min(x, y)
    return tensor(_extremum("tl.minimum", False, propagate, raw(x), raw(y)))


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """``minimum(maximum(x, min), max)`` in the common type of all three.

    A NaN in ``x`` gives ``min``, or NaN with ``PropagateNan.ALL``. Source: Triton's ``tl.clamp``.
    """
    propagate = _nan_mode("tl.clamp", propagate_nan)
    value, low, high = semantic.promote("tl.clamp", raw(x), raw(min), raw(max))
    raised = _extremum("tl.clamp", True, propagate, value, low)
    return tensor(_extremum("tl.clamp", False, propagate, raised, high))


@tensor_method
@builtin
def abs(x: Any) -> Any:
    """The absolute value, in the type of ``x``; the smallest signed integer stays itself.

    Source: Triton's ``tl.abs``.
    """
    if _is_number(x):
        return x if x > 0 else 0 - x
    return tensor(semantic.absolute(require_tensor("tl.abs", "x", x).value))


@tensor_method
@host_builtin
def cdiv(x: Any, div: Any) -> Any:
    """``(x + div - 1) // div``: ``x / div`` rounded up for ``x >= 0``, ``div > 0``. Integers only.

    Two Python integers give a Python integer, also outside kernels.

    Source: Triton's ``tl.cdiv``.
    """
    if isinstance(x, tensor) or isinstance(div, tensor):
        dtype = semantic.common_dtype("tl.cdiv", (raw(x), raw(div)))
        if dtype.is_floating():
            raise CompilationError(
                f"tl.cdiv needs integers, got {dtype}", "write `tl.ceil(x / y)` for floats"
            )
        return (x + (div - 1)) // div
    if not isinstance(x, int) or not isinstance(div, int):
        raise CompilationError(
            f"tl.cdiv needs integers, got {describe(x)} and {describe(div)}",
            "write `tl.ceil(x / y)` for floats",
        )
    if div == 0:
        raise CompilationError("tl.cdiv: division by zero")
    return -(-x // div)


@tensor_method
@builtin
def logical_and(x: Any, y: Any) -> tensor:
    """Whether both are true: int1 operands, int1 result. Source: Triton's ``x.logical_and(y)``."""
    return _logical("logical_and", BinaryKind.AND, x, y)


@tensor_method
@builtin
def logical_or(x: Any, y: Any) -> tensor:
    """Whether one is true: int1 operands, int1 result. Source: Triton's ``x.logical_or(y)``."""
    return _logical("logical_or", BinaryKind.OR, x, y)


@tensor_method
@builtin
def logical_not(x: Any) -> tensor:
    """Whether ``x`` is false: int1 operand, int1 result. Source: Triton's ``not`` on tiles."""
    return tensor(semantic.invert(_require_bool("logical_not", x)))


def _require_bool(name: str, x: Any) -> Value:
    value: Value = require_tensor(name, "x", x).value
    if value.type.element is not int1:
        raise CompilationError(f"{name} needs int1, got {describe(x)}", "compare first: `x != 0`")
    return value


def _logical(name: str, kind: BinaryKind, x: Any, y: Any) -> tensor:
    return tensor(semantic.bitwise(kind, _require_bool(name, x), _require_bool(name, y)))


# ------------------------------------------------------------------------------------ mathematics


def _require_float(name: str, dtype: DType | PointerType) -> None:
    if isinstance(dtype, PointerType):
        raise CompilationError(f"{name} does not work on pointers", "`tl.load` the values first")
    if not dtype.is_floating():
        raise CompilationError(f"{name} needs floats, got {dtype}", "convert it first: `.to(tl.float32)`")


def _float_operand(name: str, x: Any) -> Value:
    value: Value = require_tensor(name, "x", x).value
    _require_float(name, value.type.element)
    return value


def float_operands(name: str, *operands: Any) -> tuple[Value, ...]:
    """All operands in their common type, which must be a float type, and in their common shape."""
    plain = [raw(x) for x in operands]
    _require_float(name, semantic.common_dtype(name, tuple(plain)))
    return semantic.broadcast(*semantic.promote(name, *plain))


def float_unary(name: str, kind: UnaryKind, x: Any) -> tensor:
    return tensor(semantic.emit(Unary(kind, _float_operand(name, x))))


@builtin
def fma(x: Any, y: Any, z: Any) -> tensor:
    """``x * y + z`` rounded once, for floats in their common type. Source: Triton's ``tl.fma``."""
    return tensor(semantic.emit(Fma(*float_operands("tl.fma", x, y, z))))


@builtin
def div_rn(x: Any, y: Any) -> tensor:
    """``x / y`` correctly rounded, for floats; the same as ``/``. Source: Triton's ``tl.div_rn``."""
    return tensor(semantic.emit(Binary(BinaryKind.DIV, *float_operands("tl.div_rn", x, y))))


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: Any = False) -> tensor:
    """``x / y`` for floats, correctly rounded with either ``ieee_rounding``. Source: Triton's ``tl.fdiv``."""
    return tensor(semantic.emit(Binary(BinaryKind.DIV, *float_operands("tl.fdiv", x, y))))


@tensor_method
@builtin
def exp(x: Any) -> tensor:
    """e to the power ``x``, for floats. Source: Triton's ``tl.exp``."""
    return float_unary("tl.exp", UnaryKind.EXP, x)


@tensor_method
@builtin
def exp2(x: Any) -> tensor:
    """2 to the power ``x``, for floats. Source: Triton's ``tl.exp2``."""
    return float_unary("tl.exp2", UnaryKind.EXP2, x)


@tensor_method
@builtin
def log(x: Any) -> tensor:
    """The natural logarithm, for floats. Source: Triton's ``tl.log``."""
    return float_unary("tl.log", UnaryKind.LOG, x)


@tensor_method
@builtin
def log2(x: Any) -> tensor:
    """The logarithm to base 2, for floats. Source: Triton's ``tl.log2``."""
    return float_unary("tl.log2", UnaryKind.LOG2, x)


@tensor_method
@builtin
def sqrt(x: Any) -> tensor:
    """The square root, correctly rounded, for floats. Source: Triton's ``tl.sqrt``."""
    return float_unary("tl.sqrt", UnaryKind.SQRT, x)


@tensor_method
@builtin
def sqrt_rn(x: Any) -> tensor:
    """The square root, correctly rounded, for floats, like ``sqrt``. Source: Triton's ``tl.sqrt_rn``."""
    return float_unary("tl.sqrt_rn", UnaryKind.SQRT, x)


@tensor_method
@builtin
def rsqrt(x: Any) -> tensor:
    """One over the square root, for floats. Source: Triton's ``tl.rsqrt``."""
    return float_unary("tl.rsqrt", UnaryKind.RSQRT, x)


@tensor_method
@builtin
def sin(x: Any) -> tensor:
    """The sine, for floats. Source: Triton's ``tl.sin``."""
    return float_unary("tl.sin", UnaryKind.SIN, x)


@tensor_method
@builtin
def cos(x: Any) -> tensor:
    """The cosine, for floats. Source: Triton's ``tl.cos``."""
    return float_unary("tl.cos", UnaryKind.COS, x)


@builtin
def tanh(x: Any) -> tensor:
    """The hyperbolic tangent, for floats. Source: Triton's ``libdevice.tanh``."""
    return float_unary("tl.tanh", UnaryKind.TANH, x)


@tensor_method
@builtin
def erf(x: Any) -> tensor:
    """The error function, for floats. Source: Triton's ``tl.erf``."""
    return float_unary("tl.erf", UnaryKind.ERF, x)


@tensor_method
@builtin
def floor(x: Any) -> tensor:
    """The largest integer not above ``x``, as a float. Source: Triton's ``tl.floor``."""
    return float_unary("tl.floor", UnaryKind.FLOOR, x)


@tensor_method
@builtin
def ceil(x: Any) -> tensor:
    """The smallest integer not below ``x``, as a float. Source: Triton's ``tl.ceil``."""
    return float_unary("tl.ceil", UnaryKind.CEIL, x)


@tensor_method
@builtin
def sigmoid(x: Any) -> tensor:
    """``1 / (1 + exp(-x))`` for floats; 16-bit floats compute it in float32 and round once.

    Source: Triton's ``tl.sigmoid``.
    """
    value = _float_operand("tl.sigmoid", x)
    wide = tensor(semantic.cast(value, float32))
    result: tensor = 1.0 / (1.0 + tensor(semantic.emit(Unary(UnaryKind.EXP, (-wide).value))))
    return tensor(semantic.cast(result.value, value.type.dtype))
