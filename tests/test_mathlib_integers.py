"""Integer operations and conversions of ``codegen.mathlib``, compiled as C++.

References are Python's integers; undefined behaviour is counted and must not happen.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from enceladus.codegen import mathlib
from enceladus.ir.ops import BinaryKind, UnaryKind
from enceladus.ir.types import (
    DTYPES,
    DType,
    Kind,
    bfloat16,
    float16,
    float32,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)
from tests import measure_accuracy
from tests.mathlib_cases import (
    FLOATS,
    INTEGER_UNARY,
    INTEGERS,
    PROOFS,
    conversions,
    legal_binary,
    operations,
)
from tests.measure_accuracy import all_16_bit, widened
from tests.portable_cpp import NUMPY_TYPES, RELAXED, Library

FUNCTIONS = operations((int1, *INTEGERS)) | conversions()
FUNCTIONS |= {("select", t): (mathlib.select(t), (int1, t, t), t) for t in FLOATS}
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    return Library(FUNCTIONS, tmp_path_factory.mktemp("mathlib"))


def test_texts_compile_without_a_warning(library):
    assert library.warnings == []


# ----------------------------------------------------------------------------------------- integers


def corners(dtype: DType) -> list[int]:
    """Small numbers, limits, powers of two and their neighbours."""
    if dtype is int1:
        return [0, 1]
    values = {0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, -1, -2, -3, -7, -8, -31, -32, -33, -64, -100}
    values |= {dtype.bits - 1, dtype.bits, dtype.bits + 1}
    for limit in (dtype.minimum, dtype.maximum):
        values |= {limit, limit - 1, limit + 1, limit // 2, limit // 3}
    return sorted(v for v in values if dtype.minimum <= v <= dtype.maximum)


def quotient(x: int, y: int) -> int:
    """x / y towards zero, and x / 0 = 0."""
    if y == 0:
        return 0
    magnitude = abs(x) // abs(y)
    return magnitude if (x < 0) == (y < 0) else -magnitude


def exact(kind: BinaryKind, x: int, y: int, dtype: DType) -> int:
    """The documented result before it is wrapped into ``dtype``."""
    in_range = 0 <= y < dtype.bits
    mask = (1 << dtype.bits) - 1
    match kind:
        case BinaryKind.ADD:
            return x + y
        case BinaryKind.SUB:
            return x - y
        case BinaryKind.MUL:
            return x * y
        case BinaryKind.IDIV:
            return quotient(x, y)
        case BinaryKind.IREM:
            return x - quotient(x, y) * y
        case BinaryKind.AND:
            return x & y
        case BinaryKind.OR:
            return x | y
        case BinaryKind.XOR:
            return x ^ y
        case BinaryKind.SHL:
            return x << y if in_range else 0
        case BinaryKind.SHR:
            return x >> y if in_range else -(x < 0)
        case BinaryKind.MIN | BinaryKind.MIN_NAN:
            return min(x, y)
        case BinaryKind.MAX | BinaryKind.MAX_NAN:
            return max(x, y)
        case BinaryKind.UMULHI:
            return (x & mask) * (y & mask) >> dtype.bits
    raise AssertionError(kind)


def holds(proof: dict, kind: BinaryKind, x: int, y: int, dtype: DType) -> bool:
    """Whether ``proof`` is true of these operands."""
    division = kind in (BinaryKind.IDIV, BinaryKind.IREM)
    shift = kind in (BinaryKind.SHL, BinaryKind.SHR)
    value = exact(kind, x, y, dtype)
    if proof.get("may_overflow") is False and not dtype.minimum <= value <= dtype.maximum:
        return False
    if proof.get("may_overflow") is False and kind is BinaryKind.SHL and x < 0:
        return False  # C++ before 20 has no shifts of negative numbers; Metal does
    if division and proof.get("divisor_known_nonzero") and y == 0:
        return False
    if division and proof.get("both_nonnegative") and min(x, y) < 0:
        return False
    if division and "divisor" in proof and proof["divisor"] != y:
        return False
    return not (shift and proof.get("amount_known_in_range") and not 0 <= y < dtype.bits)


@pytest.mark.parametrize("dtype", [int1, *INTEGERS], ids=str)
def test_integer_operations_at_the_corners(library, dtype):
    before = library.undefined_behaviour
    numbers = NUMPY_TYPES[dtype.name]
    for kind, proof in itertools.product(BinaryKind, PROOFS if dtype in INTEGERS else ({},)):
        if not legal_binary(kind, dtype):
            continue
        values = corners(dtype)
        cases = [(x, y) for x in values for y in values if holds(proof, kind, x, y, dtype)]
        if not cases:
            continue
        got = library(
            (kind, dtype, *proof.items()), *(np.array(v, numbers) for v in zip(*cases, strict=True))
        )
        expected = np.array([dtype.wrap(exact(kind, x, y, dtype)) for x, y in cases], numbers)
        for case, g, e in zip(cases, got, expected, strict=True):
            assert g == e, f"{kind.value}{case} with {proof} gave {g}, expected {e}"
    for kind in INTEGER_UNARY:
        values = corners(dtype)
        mask = (1 << dtype.bits) - 1
        functions = {
            UnaryKind.NEG: lambda x: dtype.wrap(-x), UnaryKind.NOT: lambda x: dtype.wrap(~x),
            UnaryKind.ABS: lambda x: dtype.wrap(abs(x)),
            UnaryKind.POPC: lambda x, m=mask: (x & m).bit_count(),
            UnaryKind.CLZ: lambda x, m=mask: dtype.bits - (x & m).bit_length(),
        }  # fmt: skip
        got = library((kind, dtype, False), np.array(values, numbers))
        assert got.tolist() == [functions[kind](x) for x in values], kind
    assert library.undefined_behaviour == before


@pytest.mark.parametrize("dtype", [int1, *INTEGERS], ids=str)
def test_integer_fma_wraps(library, dtype):
    before = library.undefined_behaviour
    cases = list(itertools.product(corners(dtype)[::3], corners(dtype)[::2], corners(dtype)[::3]))
    numbers = NUMPY_TYPES[dtype.name]
    got = library(("fma", dtype), *(np.array(v, numbers) for v in zip(*cases, strict=True)))
    assert got.tolist() == [dtype.wrap(a * b + c) for a, b, c in cases]
    assert library.undefined_behaviour == before


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_select_keeps_every_value(library, dtype):
    if dtype.kind is Kind.FLOAT:
        values = np.array([-0.0, 1.5, INF, -2.0], np.float32).astype(NUMPY_TYPES[dtype.name])
    else:
        values = np.array(corners(dtype), NUMPY_TYPES[dtype.name])
    other = values[::-1].copy()
    condition = np.arange(values.size) % 2 == 0
    assert np.array_equal(
        library(("select", dtype), condition, values, other), np.where(condition, values, other)
    )


# -------------------------------------------------------------------------------------------- casts


def saturated(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Float to integer: truncate, saturate, NaN to 0; by Python's integers."""
    bound_low, bound_high = dtype.minimum, dtype.maximum
    whole = [0 if math.isnan(v) else v if math.isinf(v) else int(v) for v in widened(x).tolist()]
    return np.array([int(min(max(v, bound_low), bound_high)) for v in whole], NUMPY_TYPES[dtype.name])


@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_float_to_integer_truncates_and_saturates(library, target):
    before = library.undefined_behaviour
    edges = [float(target.minimum), float(target.maximum), 0.5, -0.5, 0.99999994, -0.99999994, -1.0, 2.5e9]
    x = np.array(edges, np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(INF)), np.nextafter(x, np.float32(-INF))])
    x = np.concatenate([x, measure_accuracy.samples(20_000)])
    assert np.array_equal(library(("cast", float32, target), x), saturated(x, target))
    for dtype in (float16, bfloat16):
        x = all_16_bit(dtype)
        assert np.array_equal(library(("cast", dtype, target), x), saturated(x, target)), dtype
    assert library.undefined_behaviour == before


@pytest.mark.parametrize("source", [int1, *INTEGERS], ids=str)
def test_integers_convert(library, source):
    values = corners(source)
    if source.bits == 64:  # ties and near ties of float32
        values += [
            v
            for v in ((1 << 24) + 1, (1 << 53) + (1 << 29) + 1, (1 << 40) + (1 << 16))
            if v <= source.maximum
        ]
    x = np.array(values, NUMPY_TYPES[source.name])
    for target in INTEGERS:
        got = library(("cast", source, target), x)
        assert got.tolist() == [target.wrap(v) for v in values], target
    assert library(("cast", source, int1), x).tolist() == [v != 0 for v in values]
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
        assert np.array_equal(library(("cast", source, float32), x), single)
        assert np.array_equal(library(("cast", source, float16), x), single.astype(np.float16))
    # To bfloat16 by way of float32: (2^24 + 2^16) + 1 rounds to a tie first, and then to even.
    assert np.array_equal(library(("cast", source, bfloat16), x), single.astype(NUMPY_TYPES["bfloat16"]))


def test_large_integers_reach_bfloat16_through_float32(library):
    x = np.array([(1 << 24) + (1 << 16) + 1], np.int32)
    assert float(library(("cast", int32, bfloat16), x)[0]) == 1 << 24


@pytest.mark.parametrize("target", [float16, bfloat16], ids=str)
def test_float32_narrows_to_nearest_even(library, target):
    every = widened(all_16_bit(target))
    every = every[np.isfinite(every)]
    # Each number, the midpoint to the next one, and the floats around the midpoint.
    above = np.sort(every)
    middle = ((above[:-1].astype(np.float64) + above[1:]) / 2).astype(np.float32)
    x = np.concatenate(
        [every, middle, np.nextafter(middle, np.float32(INF)), np.nextafter(middle, np.float32(-INF))]
    )
    x = np.concatenate([x, measure_accuracy.samples(50_000)])
    with np.errstate(all="ignore"):
        expected = x.astype(NUMPY_TYPES[target.name])
    got = library(("cast", float32, target), x)
    assert np.array_equal(widened(got), widened(expected), equal_nan=True)
    signs = ~np.isnan(widened(expected))
    assert np.array_equal(np.signbit(widened(got))[signs], np.signbit(widened(expected))[signs])


@pytest.mark.parametrize(("source", "target"), [(float16, bfloat16), (bfloat16, float16)], ids=str)
def test_16_bit_floats_convert_through_float32(library, source, target):
    x = all_16_bit(source)
    with np.errstate(all="ignore"):
        expected = widened(widened(x).astype(NUMPY_TYPES[target.name]))
    assert np.array_equal(widened(library(("cast", source, target), x)), expected, equal_nan=True)
    assert np.array_equal(library(("cast", source, float32), x), widened(x), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_to_bool_asks_whether_it_is_not_zero(library, dtype):
    x = np.array([0.0, -0.0, 1.0, -0.25, NAN, INF], np.float32).astype(NUMPY_TYPES[dtype.name])
    assert library(("cast", dtype, int1), x).tolist() == [False, False, True, True, True, True]


def test_bitcasts_keep_bits(library):
    x = np.array([0x80000000, 0x3F800000, 0xFFFFFFFF, 7], np.uint32)
    for target in (int32, float32):
        assert library(("bitcast", uint32, target), x).view(np.uint32).tolist() == x.tolist()
    x16 = np.arange(0, 1 << 16, 257, dtype=np.uint16)
    for target in (float16, bfloat16):
        got = library(("bitcast", DTYPES["uint16"], target), x16)
        assert got.view(np.uint16).tolist() == x16.tolist()
    x64 = np.array([1 << 63, 5], np.uint64)
    assert library(("bitcast", uint64, int64), x64).view(np.uint64).tolist() == x64.tolist()


def test_casts_survive_what_relaxed_mode_allows(tmp_path):
    library = Library({t: (mathlib.cast(float32, t), (float32,), t) for t in INTEGERS}, tmp_path, RELAXED)
    x = measure_accuracy.samples(20_000)
    for dtype in INTEGERS:
        assert np.array_equal(library(dtype, x), saturated(x, dtype)), dtype
