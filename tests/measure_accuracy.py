"""Measure the accuracy of every float32 function of ``codegen.mathlib``.

``python -m tests.measure_accuracy`` prints the table of docs/numerics.md. The texts are compiled as C++ over
the C mathematics library, so rows of functions that Metal provides show this machine's library; rows marked
*own text* show our algorithms. The last column repeats the measurement with the compiler free to do what
Metal's math mode "relaxed" allows (zero operands left out: their sign may be lost).
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from enceladus.codegen import mathlib
from enceladus.ir.ops import BinaryKind, UnaryKind
from enceladus.ir.types import DType, float32
from tests.portable_cpp import NUMPY_TYPES, RELAXED, STRICT, Library
from tests.tolerances import FLOAT32_ULP, ulp_error

_erf = np.frompyfunc(math.erf, 1, 1)

#: The exact functions, on float64.
REFERENCE: dict[UnaryKind | BinaryKind, Callable[..., Any]] = {
    UnaryKind.NEG: np.negative, UnaryKind.ABS: np.abs, UnaryKind.FLOOR: np.floor, UnaryKind.CEIL: np.ceil,
    UnaryKind.TRUNC: np.trunc, UnaryKind.RINT: np.rint,
    UnaryKind.ROUND: lambda x: np.trunc(x + np.copysign(0.5, x)),
    UnaryKind.SQRT: np.sqrt, UnaryKind.RSQRT: lambda x: 1.0 / np.sqrt(x),
    UnaryKind.EXP: np.exp, UnaryKind.EXP2: np.exp2, UnaryKind.EXPM1: np.expm1, UnaryKind.LOG: np.log,
    UnaryKind.LOG2: np.log2, UnaryKind.LOG10: np.log10, UnaryKind.LOG1P: np.log1p, UnaryKind.SIN: np.sin,
    UnaryKind.COS: np.cos, UnaryKind.TAN: np.tan, UnaryKind.ASIN: np.arcsin, UnaryKind.ACOS: np.arccos,
    UnaryKind.ATAN: np.arctan, UnaryKind.SINH: np.sinh, UnaryKind.COSH: np.cosh, UnaryKind.TANH: np.tanh,
    UnaryKind.ERF: lambda x: np.asarray(_erf(x), np.float64),
    BinaryKind.ADD: np.add, BinaryKind.SUB: np.subtract, BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: np.divide,
    BinaryKind.POW: np.power, BinaryKind.ATAN2: np.arctan2,
    BinaryKind.MIN: np.fmin, BinaryKind.MAX: np.fmax, BinaryKind.MIN_NAN: np.minimum,
    BinaryKind.MAX_NAN: np.maximum,
}  # fmt: skip


def reference(kind: UnaryKind | BinaryKind, *operands: np.ndarray) -> np.ndarray:
    """The exact result in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(REFERENCE[kind](*(x.astype(np.float64) for x in operands)))


def specials() -> np.ndarray:
    """Zeros, infinities, NaN, limits of the format, and the neighbourhoods of powers of two."""
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    towards = [np.nextafter(powers, np.float32(limit)) for limit in (0.0, np.inf)]
    powers = np.concatenate([powers, *towards])
    named = np.array([0.0, np.inf, np.nan, 3.4028235e38, 88.5, 88.73, 89.3, 89.5, 103.9, 104.1], np.float32)
    positive = np.concatenate([powers, named])
    return np.concatenate([positive, -positive])


def samples(count: int, seed: int = 0) -> np.ndarray:
    """About ``count`` float32: half uniform in their bits (all exponents), the rest dense around 0."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 32, count // 2, dtype=np.uint32).view(np.float32)
    parts = [bits, specials()]
    for width in (1.0, 4.0, 20.0, 120.0):
        parts.append(random.uniform(-width, width, count // 8).astype(np.float32))
    return np.concatenate(parts)


def all_16_bit(dtype: DType) -> np.ndarray:
    """Every float16 or bfloat16."""
    return np.arange(1 << 16, dtype=np.uint16).view(NUMPY_TYPES[dtype.name])


def widened(x: np.ndarray) -> np.ndarray:
    """Any number as float32 (signalling NaN without a warning)."""
    with np.errstate(all="ignore"):
        return x.astype(np.float32)


def pairs(kind: BinaryKind, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands for a function of two numbers."""
    x, y = samples(count, 1), samples(count, 2)
    order = np.random.default_rng(3).permutation(x.size)
    x, y = x, y[order]
    if kind is BinaryKind.POW:  # mostly results that are finite, and whole exponents for negative bases
        with np.errstate(all="ignore"):
            limit = 128.0 / np.maximum(np.abs(np.log2(np.abs(x.astype(np.float64)))), 1e-6)
            scaled = np.random.default_rng(4).uniform(-1, 1, x.size) * np.nan_to_num(limit, nan=1.0)
            y = np.where(np.arange(x.size) % 4 == 0, y, scaled.astype(np.float32))
            y = np.where(x < 0, np.rint(y), y).astype(np.float32)
    return x, y


def operands(kind: UnaryKind | BinaryKind, count: int) -> tuple[np.ndarray, ...]:
    return (samples(count),) if isinstance(kind, UnaryKind) else pairs(kind, count)


def float_functions(fast: bool = False) -> dict[Any, Any]:
    """Every float32 function of the table, as input of :class:`Library`; keys are kinds."""
    functions = {}
    for kind in FLOAT32_ULP:
        if isinstance(kind, UnaryKind):
            functions[kind] = (mathlib.unary(kind, float32, fast), (float32,), float32)
        else:
            functions[kind] = (mathlib.binary(kind, float32, fast), (float32, float32), float32)
    return functions


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    functions = float_functions()
    with tempfile.TemporaryDirectory() as strict, tempfile.TemporaryDirectory() as relaxed:
        libraries = [Library(functions, Path(strict), STRICT), Library(functions, Path(relaxed), RELAXED)]
    print("| function | text | bound | measured | worst operand | measured, relaxed |")
    print("|---|---|---|---|---|---|")
    for kind, (spelling, _, _) in functions.items():
        inputs = operands(kind, count)
        exact = reference(kind, *inputs)
        errors = [ulp_error(library(kind, *inputs), exact) for library in libraries]
        errors[1][np.any([x == 0 for x in inputs], axis=0)] = 0.0
        own = " (own text)" if spelling.needs else ""
        text = spelling(*(mathlib.Expression(n) for n in "xy"[: len(inputs)])).text
        worst = ", ".join(f"{x[errors[0].argmax()]:.9g}" for x in inputs) if errors[0].max() else ""
        print(
            f"| {kind.value} | `{text}`{own} | {FLOAT32_ULP[kind]} | {errors[0].max():.2f} "
            f"| {worst} | {errors[1].max():.2f} |"
        )


if __name__ == "__main__":
    main()
