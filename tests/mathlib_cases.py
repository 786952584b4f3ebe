"""What there is to test in ``codegen.mathlib``: legal kinds by type, and their functions for ``Library``."""

from __future__ import annotations

from typing import Any

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Spelling
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DTYPES, DType, Kind, bfloat16, float16, float32, int1, int32
from tests.tolerances import FLOAT32_ULP

FLOATS = (float16, bfloat16, float32)
INTEGERS = tuple(t for t in DTYPES.values() if t.kind in (Kind.SIGNED, Kind.UNSIGNED))
WIDE = tuple(t for t in INTEGERS if t.bits >= 32)
COUNTS = (UnaryKind.POPC, UnaryKind.CLZ)
CLASSIFY = (UnaryKind.ISNAN, UnaryKind.ISINF)
INTEGER_UNARY = (UnaryKind.NEG, UnaryKind.NOT, UnaryKind.ABS, *COUNTS)
INTEGER_BINARY = tuple(
    k for k in BinaryKind if k not in (BinaryKind.DIV, BinaryKind.POW, BinaryKind.ATAN2, BinaryKind.UMULHI)
)
#: Proofs that change a text, and for which operands they are true.
PROOFS: tuple[dict[str, Any], ...] = (
    {},
    {"may_overflow": False},
    {"divisor_known_nonzero": True},
    {"divisor_known_nonzero": True, "both_nonnegative": True},
    {"amount_known_in_range": True},
    {"amount_known_in_range": True, "may_overflow": False},
    *({"divisor": d} for d in (-7, -1, 0, 1, 3)),
)


def result_type(kind: UnaryKind, dtype: DType) -> DType:
    return int32 if kind in COUNTS else int1 if kind in CLASSIFY else dtype


def legal_unary(kind: UnaryKind, dtype: DType) -> bool:
    if dtype.kind is Kind.FLOAT:
        return kind in FLOAT32_ULP or kind in CLASSIFY
    return kind in INTEGER_UNARY


def legal_binary(kind: BinaryKind, dtype: DType) -> bool:
    if dtype.kind is Kind.FLOAT:
        return kind in FLOAT32_ULP
    return kind in INTEGER_BINARY or (kind is BinaryKind.UMULHI and dtype in WIDE)


Functions = dict[Any, tuple[Spelling, tuple[DType, ...], DType]]


def operations(dtypes: tuple[DType, ...]) -> Functions:
    """Every arithmetic operation on ``dtypes``, with every proof that applies to their integers."""
    functions: Functions = {}
    for dtype in dtypes:
        for kind in UnaryKind:
            for fast in (False, True):
                if legal_unary(kind, dtype):
                    spelling = mathlib.unary(kind, dtype, fast)
                    functions[kind, dtype, fast] = (spelling, (dtype,), result_type(kind, dtype))
        for binary in BinaryKind:
            if legal_binary(binary, dtype):
                for proof in PROOFS if dtype in INTEGERS else ({},):
                    spelling = mathlib.binary(binary, dtype, **proof)
                    functions[binary, dtype, *proof.items()] = (spelling, (dtype, dtype), dtype)
        for comparison in CompareKind:
            functions[comparison, dtype] = (mathlib.compare(comparison, dtype), (dtype, dtype), int1)
        functions["select", dtype] = (mathlib.select(dtype), (int1, dtype, dtype), dtype)
        functions["fma", dtype] = (mathlib.fma(dtype), (dtype, dtype, dtype), dtype)
    return functions


def conversions() -> Functions:
    """Every cast and every legal bitcast."""
    functions: Functions = {}
    for source in DTYPES.values():
        for target in DTYPES.values():
            functions["cast", source, target] = (mathlib.cast(source, target), (source,), target)
            if source is target or (source.bits == target.bits and int1 not in (source, target)):
                functions["bitcast", source, target] = (mathlib.bitcast(source, target), (source,), target)
    return functions
