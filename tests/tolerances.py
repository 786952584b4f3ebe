"""The one table of accuracy: how many units in the last place an engine's float32 result may be off.

``FLOAT32_ULP`` binds every engine (Metal with ``precise::`` functions, MLX operations, NumPy). The numbers
for Metal's own functions are those Apple promises (Metal Shading Language Specification, table 8.1); they are
0.5 where the result is correctly rounded and 0 where it is exact. 16-bit floats compute in float32 and round
once: within 1 ulp of the type, exact where float32 is correctly rounded (``ulp_bound``).

``HELPER_ULP`` is tighter: what our own functions keep when the library functions they call are those of a
C library (within 1 ulp).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from enceladus.ir.ops import BinaryKind, UnaryKind
from enceladus.ir.types import DType, bfloat16, float16, float32

FLOAT32_ULP: dict[UnaryKind | BinaryKind, float] = {
    UnaryKind.NEG: 0, UnaryKind.ABS: 0, UnaryKind.FLOOR: 0, UnaryKind.CEIL: 0, UnaryKind.TRUNC: 0,
    UnaryKind.RINT: 0, UnaryKind.ROUND: 0,
    UnaryKind.SQRT: 0.5, UnaryKind.RSQRT: 2,
    UnaryKind.EXP: 4, UnaryKind.EXP2: 4, UnaryKind.EXPM1: 4,
    UnaryKind.LOG: 4, UnaryKind.LOG2: 4, UnaryKind.LOG10: 4, UnaryKind.LOG1P: 4,
    UnaryKind.SIN: 4, UnaryKind.COS: 4, UnaryKind.TAN: 6,
    UnaryKind.ASIN: 4, UnaryKind.ACOS: 4, UnaryKind.ATAN: 5,
    UnaryKind.SINH: 4, UnaryKind.COSH: 4, UnaryKind.TANH: 5, UnaryKind.ERF: 4,
    BinaryKind.ADD: 0.5, BinaryKind.SUB: 0.5, BinaryKind.MUL: 0.5, BinaryKind.DIV: 0.5,
    BinaryKind.MIN: 0, BinaryKind.MAX: 0, BinaryKind.MIN_NAN: 0, BinaryKind.MAX_NAN: 0,
    BinaryKind.POW: 16, BinaryKind.ATAN2: 6,
}  # fmt: skip

#: Our own functions over a good C library.
HELPER_ULP: dict[str, float] = {"erf": 1.5, "expm1": 2.0, "log1p": 1.5, "fast_tanh": 2.5}

NUMPY_FLOATS: dict[DType, Any] = {
    float16: np.float16,
    bfloat16: ml_dtypes.bfloat16,
    float32: np.float32,
}

# (digits of the significand, exponent of the smallest normal number, largest finite number)
_FORMATS = {
    float16: (11, -14, 65504.0),
    bfloat16: (8, -126, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
    float32: (24, -126, float(np.finfo(np.float32).max)),
}


def ulp_bound(kind: UnaryKind | BinaryKind, dtype: DType) -> float:
    """How far a result of ``kind`` on ``dtype`` may be from the exact one, in ulp of ``dtype``."""
    bound = FLOAT32_ULP[kind]
    return bound if dtype is float32 or bound <= 0.5 else 1.0


def ulp_error(got: Any, reference: Any, dtype: DType = float32, *, flush: bool = False) -> np.ndarray:
    """The error of ``got`` (``dtype``) against ``reference`` (float64) in ulp of ``dtype``, elementwise.

    Infinity where one is NaN and the other is not, or where an overflow is missed or invented; an overflow
    is right where the reference lies beyond the last finite number by half an ulp, and counts below that as
    the next number. ``flush``: where the reference is below the smallest normal number, zero is right too.
    """
    digits, smallest, largest = _FORMATS[dtype]
    step = 2.0 ** (int(np.frexp(largest)[1]) - digits)  # spacing of the largest numbers
    with np.errstate(all="ignore"):  # signalling NaN
        got = np.asarray(got).astype(np.float64)
        reference = np.asarray(reference, dtype=np.float64)
    agree = np.isinf(got) & (np.sign(got) == np.sign(reference))
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(reference)  # reference = f * 2^exponent, 0.5 <= f < 1
        error = np.abs(got - reference) / np.ldexp(1.0, np.maximum(exponent - 1, smallest) - (digits - 1))
        # Infinity counts as the number after the last finite one.
        error = np.where(agree, np.maximum(largest + step - np.abs(reference), 0.0) / step, error)
        # An exact result between limit and infinity overflows when rounded.
        error = np.where(agree & (np.abs(reference) >= largest + step / 2), 0.0, error)
    error = np.where(np.isinf(reference) & ~agree, np.inf, error)
    error = np.where(np.isnan(got) != np.isnan(reference), np.inf, error)
    error = np.where(np.isnan(got) & np.isnan(reference), 0.0, error)
    if flush:
        error = np.where((np.abs(reference) < 2.0**smallest) & (got == 0), 0.0, error)
    return error
