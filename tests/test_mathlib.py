"""Float functions of ``codegen.mathlib``, compiled as C++ and compared with exact references.

One test a corner of docs/numerics.md.
"""

from __future__ import annotations

import math
import platform

import numpy as np
import pytest

from enceladus.codegen.mathlib import unary
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import (
    bfloat16,
    float16,
    float32,
)
from tests import measure_accuracy
from tests.mathlib_cases import (
    FLOATS,
    operations,
)
from tests.measure_accuracy import all_16_bit, widened
from tests.portable_cpp import NUMPY_TYPES, RELAXED, Library
from tests.tolerances import FLOAT32_ULP, HELPER_ULP, ulp_bound, ulp_error


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    return Library(operations(FLOATS), tmp_path_factory.mktemp("mathlib"))


def test_texts_compile_without_a_warning(library):
    assert library.warnings == []


# ------------------------------------------------------------------------------------------ floats


@pytest.mark.parametrize("kind", [k for k in FLOAT32_ULP if isinstance(k, UnaryKind)], ids=lambda k: k.value)
def test_float32_functions_keep_their_accuracy(library, kind):
    x = measure_accuracy.samples(300_000)
    got = library((kind, float32, False), x)
    error = ulp_error(got, measure_accuracy.reference(kind, x))
    bound = min(FLOAT32_ULP[kind], HELPER_ULP.get(kind.value, math.inf))
    worst = error.argmax()
    assert error[worst] <= bound, f"{kind.value}({x[worst]!r}) = {got[worst]!r}"


@pytest.mark.parametrize("kind", [k for k in FLOAT32_ULP if isinstance(k, BinaryKind)], ids=lambda k: k.value)
def test_float32_functions_of_two_numbers_keep_their_accuracy(library, kind):
    x, y = measure_accuracy.pairs(kind, 200_000)
    got = library((kind, float32), x, y)
    error = ulp_error(got, measure_accuracy.reference(kind, x, y))
    worst = error.argmax()
    assert error[worst] <= FLOAT32_ULP[kind] + 1e-6, (
        f"{kind.value}({x[worst]!r}, {y[worst]!r}) = {got[worst]!r}"
    )


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_every_16_bit_number_is_right_within_one_ulp(library, dtype):
    x = all_16_bit(dtype)
    for kind in FLOAT32_ULP:
        if isinstance(kind, UnaryKind):
            error = ulp_error(
                library((kind, dtype, False), x), measure_accuracy.reference(kind, widened(x)), dtype
            )
            worst = error.argmax()
            assert error[worst] <= ulp_bound(kind, dtype) + 1e-4, f"{kind.value}({x[worst]!r})"


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_16_bit_arithmetic_rounds_each_result_once(library, dtype):
    generator = np.random.default_rng(7)
    x, y = (
        generator.integers(0, 1 << 16, 200_000, dtype=np.uint16).view(NUMPY_TYPES[dtype.name]) for _ in "xy"
    )
    for kind in (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.DIV):
        exact = measure_accuracy.reference(kind, widened(x), widened(y))
        error = ulp_error(library((kind, dtype), x, y), exact, dtype)
        assert error.max() <= 0.5 + 1e-4, kind
    for v in (x, y):  # C libraries differ about x^0 where x is a signalling NaN
        v[np.isnan(widened(v))] = 1
    for kind in (BinaryKind.POW, BinaryKind.ATAN2):
        exact = measure_accuracy.reference(kind, widened(x), widened(y))
        assert ulp_error(library((kind, dtype), x, y), exact, dtype).max() <= 1.0, kind


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("kind", "operand", "expected"),
    [
        (UnaryKind.ERF, 0.0, 0.0), (UnaryKind.ERF, -0.0, -0.0), (UnaryKind.ERF, INF, 1.0),
        (UnaryKind.ERF, -INF, -1.0), (UnaryKind.ERF, 3e38, 1.0), (UnaryKind.ERF, NAN, NAN),
        (UnaryKind.EXPM1, 0.0, 0.0), (UnaryKind.EXPM1, -0.0, -0.0), (UnaryKind.EXPM1, INF, INF),
        (UnaryKind.EXPM1, -INF, -1.0), (UnaryKind.EXPM1, 3e38, INF), (UnaryKind.EXPM1, -3e38, -1.0),
        (UnaryKind.EXPM1, NAN, NAN), (UnaryKind.EXPM1, 88.9, INF),
        (UnaryKind.LOG1P, 0.0, 0.0), (UnaryKind.LOG1P, -0.0, -0.0), (UnaryKind.LOG1P, -1.0, -INF),
        (UnaryKind.LOG1P, -1.5, NAN), (UnaryKind.LOG1P, INF, INF), (UnaryKind.LOG1P, -INF, NAN),
        (UnaryKind.LOG1P, NAN, NAN),
        (UnaryKind.TANH, INF, 1.0), (UnaryKind.TANH, -100.0, -1.0), (UnaryKind.TANH, -0.0, -0.0),
        (UnaryKind.TANH, NAN, NAN), (UnaryKind.TANH, 3e38, 1.0),
        (UnaryKind.NEG, 0.0, -0.0), (UnaryKind.ABS, -0.0, 0.0), (UnaryKind.SQRT, -1.0, NAN),
        (UnaryKind.ROUND, 0.49999997, 0.0), (UnaryKind.ROUND, 2.5, 3.0), (UnaryKind.ROUND, -2.5, -3.0),
        (UnaryKind.RINT, 2.5, 2.0), (UnaryKind.RINT, 3.5, 4.0), (UnaryKind.TRUNC, -1.7, -1.0),
        (UnaryKind.FLOOR, -0.0, -0.0), (UnaryKind.ROUND, 8388609.0, 8388609.0),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("fast", [False, True], ids=["relaxed", "fast"])
def test_special_operands(library, kind, operand, expected, fast):
    got = library((kind, float32, fast), np.array([operand], np.float32))[0]
    assert np.array_equal(got, np.float32(expected), equal_nan=True), got
    assert math.isnan(expected) or math.copysign(1, got) == math.copysign(1, expected), got


def test_fast_tanh_keeps_digits_near_zero_and_does_not_overflow(library):
    x = measure_accuracy.samples(300_000)
    error = ulp_error(
        library((UnaryKind.TANH, float32, True), x), measure_accuracy.reference(UnaryKind.TANH, x)
    )
    assert error.max() <= HELPER_ULP["fast_tanh"]
    assert "fast_tanh" in unary(UnaryKind.TANH, float32, True).needs


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fast", [False, True], ids=["relaxed", "fast"])
def test_isnan_and_isinf(library, dtype, fast):
    x = measure_accuracy.samples(10_000) if dtype is float32 else all_16_bit(dtype)
    assert np.array_equal(library((UnaryKind.ISNAN, dtype, fast), x), np.isnan(widened(x)))
    assert np.array_equal(library((UnaryKind.ISINF, dtype, fast), x), np.isinf(widened(x)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_minimum_and_maximum_of_nan(library, dtype):
    values = np.array([NAN, 1.0, -2.0, INF, -INF, 0.0], np.float32).astype(NUMPY_TYPES[dtype.name])
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    for kind, function in (
        (BinaryKind.MIN, np.fmin), (BinaryKind.MAX, np.fmax), (BinaryKind.MIN_NAN, np.minimum),
        (BinaryKind.MAX_NAN, np.maximum),
    ):  # fmt: skip
        expected = function(widened(x), widened(y))
        assert np.array_equal(widened(library((kind, dtype), x, y)), expected, equal_nan=True), kind


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_comparisons_with_nan(library, dtype):
    values = np.array([NAN, 1.0, -0.0, 0.0, INF], np.float32).astype(NUMPY_TYPES[dtype.name])
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    for kind, function in (
        (CompareKind.EQ, np.equal), (CompareKind.NE, np.not_equal), (CompareKind.LT, np.less),
        (CompareKind.LE, np.less_equal), (CompareKind.GT, np.greater), (CompareKind.GE, np.greater_equal),
    ):  # fmt: skip
        assert np.array_equal(library((kind, dtype), x, y), function(widened(x), widened(y))), kind


def test_fma_rounds_once(library):
    x = np.array([1 + 2.0**-12], np.float32)
    got = library(("fma", float32), x, x, np.array([-(1 + 2.0**-11)], np.float32))
    assert got[0] == np.float32(2.0**-24)
    half = x.astype(np.float16) * 0 + np.float16(1 + 2.0**-10)
    assert library(("fma", float16), half, half, -half)[0] == np.float16(2.0**-10 + 2.0**-20)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs a CPU mode of x86-64")
def test_accuracy_survives_flushed_denormals(library):
    x = measure_accuracy.samples(200_000)
    normal = ~(np.abs(x) < np.float32(1.1754944e-38))
    for kind in (UnaryKind.ERF, UnaryKind.EXPM1, UnaryKind.LOG1P):
        with library.flushing():
            tiny = library((BinaryKind.MUL, float32), np.ones(1, np.float32), np.array([1e-40], np.float32))
            got = library((kind, float32, False), x)
        assert tiny[0] == 0
        error = ulp_error(got, measure_accuracy.reference(kind, x), flush=True)[normal]
        assert error.max() <= HELPER_ULP[kind.value], kind


def test_accuracy_survives_what_relaxed_mode_allows(tmp_path):
    functions = measure_accuracy.float_functions()
    library = Library({k: v for k, v in functions.items() if v[0].needs}, tmp_path, RELAXED)
    for kind in (UnaryKind.ERF, UnaryKind.EXPM1, UnaryKind.LOG1P):
        x = measure_accuracy.samples(200_000)
        error = ulp_error(library(kind, x), measure_accuracy.reference(kind, x))
        assert error.max() <= HELPER_ULP[kind.value], kind
    x, y = measure_accuracy.pairs(BinaryKind.MIN, 100_000)
    for kind in (BinaryKind.MIN_NAN, BinaryKind.MAX_NAN):
        assert np.array_equal(library(kind, x, y), measure_accuracy.reference(kind, x, y), equal_nan=True)
