"""Every decided corner of the arithmetic, with expected values written by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest

from enceladus.errors import InternalError
from enceladus.interpreter import arithmetic
from enceladus.interpreter.arrays import NUMPY_DTYPES, BoundArray, Pointers, constant, dtype_of
from enceladus.interpreter.program import _EFFECTS
from enceladus.interpreter.semantics import EVALUATORS, evaluate
from enceladus.ir import exchange, ops
from enceladus.ir.core import OPERATIONS, Value
from enceladus.ir.ops import BinaryKind as B
from enceladus.ir.ops import CompareKind as C
from enceladus.ir.ops import UnaryKind as U
from enceladus.ir.types import (
    DTYPES,
    bfloat16,
    float16,
    float32,
    int1,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    tile_type,
    uint8,
    uint16,
    uint32,
    uint64,
)

INF, NAN = math.inf, math.nan
MIN8, MIN32, MIN64 = -(2**7), -(2**31), -(2**63)
FLOATS = (float16, bfloat16, float32)
INTEGERS = tuple(t for t in DTYPES.values() if not t.is_floating() and t is not int1)


def value(dtype, shape=()):
    return Value(tile_type(dtype, shape))


def check(result, expected, dtype):
    """Same element type, same values, same sign of zero; NaN equals NaN."""
    assert result.dtype == NUMPY_DTYPES[dtype]
    as_python = result.tolist()
    assert [_key(x) for x in as_python] == [_key(x) for x in expected], f"{as_python} is not {expected}"


def _key(x):
    return "nan" if x != x else (x, math.copysign(1, x))


def unary(kind, dtype, values):
    return evaluate(ops.Unary(kind, value(dtype, (len(values),))), np.array(values, NUMPY_DTYPES[dtype]))


def binary(kind, dtype, xs, ys):
    tile = value(dtype, (len(xs),))
    return evaluate(ops.Binary(kind, tile, tile), *(np.array(v, NUMPY_DTYPES[dtype]) for v in (xs, ys)))


def cast(source, target, values):
    return evaluate(ops.Cast(value(source, (len(values),)), target), np.array(values, NUMPY_DTYPES[source]))


UNARY = [
    (U.NEG, int8, [5, MIN8], [-5, MIN8], int8),
    (U.NEG, uint8, [1, 0], [255, 0], uint8),
    (U.NEG, int64, [MIN64, 7], [MIN64, -7], int64),
    (U.NEG, float32, [0.0, -0.0, INF], [-0.0, 0.0, -INF], float32),
    (U.NEG, bfloat16, [0.0, 1.5], [-0.0, -1.5], bfloat16),
    (U.NOT, int1, [True, False], [False, True], int1),
    (U.NOT, int16, [0, -1, 5], [-1, 0, -6], int16),
    (U.NOT, uint16, [0, 5], [65535, 65530], uint16),
    (U.ABS, int8, [-3, MIN8], [3, MIN8], int8),
    (U.ABS, int32, [MIN32], [MIN32], int32),
    (U.ABS, uint8, [200], [200], uint8),
    (U.ABS, float32, [-0.0, -INF, -2.5], [0.0, INF, 2.5], float32),
    (U.SQRT, float32, [4.0, -1.0, INF, -0.0], [2.0, NAN, INF, -0.0], float32),
    (U.RSQRT, float32, [4.0, 0.0, -0.0, -1.0, INF], [0.5, INF, -INF, NAN, 0.0], float32),
    (U.EXP, float32, [0.0, -INF, INF, 1000.0, -1000.0], [1.0, 0.0, INF, INF, 0.0], float32),
    (U.EXP2, float32, [10.0, -1.0], [1024.0, 0.5], float32),
    (U.EXP, float16, [12.0, 1.0], [INF, 2.71875], float16),
    (U.LOG, float32, [1.0, 0.0, -1.0], [0.0, -INF, NAN], float32),
    (U.LOG2, float32, [8.0], [3.0], float32),
    (U.LOG10, float32, [1000.0], [3.0], float32),
    (U.EXPM1, float32, [-0.0, -INF], [-0.0, -1.0], float32),
    (U.LOG1P, float32, [-0.0, -1.0], [-0.0, -INF], float32),
    (U.TANH, float32, [-0.0, 1e30, -1e30], [-0.0, 1.0, -1.0], float32),
    (U.ERF, float32, [0.0, -0.0, 10.0, -INF, NAN], [0.0, -0.0, 1.0, -1.0, NAN], float32),
    (U.SIN, float32, [INF, -0.0], [NAN, -0.0], float32),
    (U.ASIN, float32, [2.0, 0.0], [NAN, 0.0], float32),
    (U.FLOOR, float32, [-0.5, 1.5, -0.0], [-1.0, 1.0, -0.0], float32),
    (U.CEIL, float32, [-0.5, 1.5], [-0.0, 2.0], float32),
    (U.TRUNC, float32, [-1.7, 1.7, -0.5], [-1.0, 1.0, -0.0], float32),
    (U.RINT, float32, [0.5, 1.5, 2.5, -0.5], [0.0, 2.0, 2.0, -0.0], float32),
    (U.ROUND, float32, [0.5, 2.5, -0.5, -2.5, 0.49999997, -0.0], [1, 3, -1, -3, 0.0, -0.0], float32),
    (U.ISNAN, float16, [NAN, INF, 1.0], [True, False, False], int1),
    (U.ISINF, bfloat16, [NAN, -INF, 1.0], [False, True, False], int1),
    (U.POPC, int8, [-1, 0, 5], [8, 0, 2], int32),
    (U.POPC, uint64, [2**64 - 1, 2**63], [64, 1], int32),
    (U.POPC, int1, [True, False], [1, 0], int32),
    (U.CLZ, int32, [0, 1, -1], [32, 31, 0], int32),
    (U.CLZ, uint16, [0, 255], [16, 8], int32),
    (U.CLZ, int64, [0, 1, 2**40], [64, 63, 23], int32),
]


@pytest.mark.parametrize(
    ("kind", "dtype", "values", "expected", "result"), UNARY, ids=[f"{r[0].value}-{r[1]}" for r in UNARY]
)
def test_unary_corners(kind, dtype, values, expected, result):
    if kind is U.ROUND:
        expected = [float(x) for x in expected]
    check(unary(kind, dtype, values), expected, result)


BINARY = [
    (B.ADD, int8, [127, -128], [1, -1], [-128, 127]),
    (B.ADD, uint32, [2**32 - 1], [1], [0]),
    (B.SUB, uint8, [0], [1], [255]),
    (B.MUL, int64, [2**62], [4], [0]),
    (B.MUL, int16, [300], [300], [24464]),
    (B.IDIV, int32, [7, -7, 7, -7], [2, 2, -2, -2], [3, -3, -3, 3]),
    (B.IDIV, int32, [5, 0, -5], [0, 0, 0], [0, 0, 0]),
    (B.IDIV, int32, [MIN32, MIN32], [-1, 1], [MIN32, MIN32]),
    (B.IDIV, int64, [MIN64, MIN64 + 1], [-1, 2], [MIN64, -(2**62) + 1]),
    (B.IDIV, uint64, [2**64 - 1, 9], [2, 0], [2**63 - 1, 0]),
    (B.IREM, int32, [7, -7, 7, -7], [2, 2, -2, -2], [1, -1, 1, -1]),
    (B.IREM, int32, [5, -5, MIN32], [0, 0, -1], [5, -5, 0]),
    (B.IREM, uint8, [200, 200], [7, 0], [4, 200]),
    (B.AND, int1, [True, True], [True, False], [True, False]),
    (B.OR, int1, [False, True], [False, False], [False, True]),
    (B.XOR, int32, [6], [3], [5]),
    (B.SHL, int32, [1, 1, 1, 3], [31, 32, -1, 1], [MIN32, 0, 0, 6]),
    (B.SHL, uint8, [255, 255], [1, 8], [254, 0]),
    (B.SHR, int32, [-8, 8, -8, 8, -8, 8], [1, 1, 32, 32, -1, -1], [-4, 4, -1, 0, -1, 0]),
    (B.SHR, uint32, [2**31, 2**31], [31, 32], [1, 0]),
    (B.SHR, int64, [MIN64, MIN64], [63, 64], [-1, -1]),
    (B.MIN, float32, [NAN, 1.0, NAN, 0.0, -0.0], [2.0, NAN, NAN, -0.0, 0.0], [2.0, 1.0, NAN, -0.0, -0.0]),
    (B.MAX, float32, [NAN, 1.0, NAN, 0.0, -0.0], [2.0, NAN, NAN, -0.0, 0.0], [2.0, 1.0, NAN, 0.0, 0.0]),
    (B.MIN_NAN, float16, [NAN, 1.0, 3.0], [2.0, NAN, 2.0], [NAN, NAN, 2.0]),
    (B.MAX_NAN, bfloat16, [NAN, 1.0, 3.0], [2.0, NAN, 2.0], [NAN, NAN, 3.0]),
    (B.MIN, uint8, [200], [3], [3]),
    (B.MAX, int8, [-1], [-128], [-1]),
    (B.DIV, float32, [1.0, -1.0, 0.0, 1.0], [0.0, 0.0, 0.0, INF], [INF, -INF, NAN, 0.0]),
    (B.ADD, float16, [65504.0, 2048.0], [65504.0, 1.0], [INF, 2048.0]),
    (B.ADD, bfloat16, [256.0, 256.0], [1.0, 3.0], [256.0, 260.0]),  # ties to even at 8 bits
    (B.MUL, bfloat16, [3.0], [1.0078125], [3.03125]),  # 3.0234375 is halfway: to even
    (B.POW, float32, [2.0, -2.0, -2.0, 1.0, NAN], [10.0, 3.0, 0.5, NAN, 0.0], [1024.0, -8.0, NAN, 1.0, 1.0]),
    (B.ATAN2, float32, [0.0, -0.0], [1.0, 1.0], [0.0, -0.0]),
    (B.UMULHI, uint32, [2**32 - 1, 2**31], [2**32 - 1, 2], [2**32 - 2, 1]),
    (B.UMULHI, int32, [-1], [-1], [-2]),
    (B.UMULHI, uint64, [2**64 - 1, 2**63, 2**33 + 5], [2**64 - 1, 6, 2**40 + 7], [2**64 - 2, 3, 2**9]),
    (B.UMULHI, int64, [-1], [2], [1]),
]


@pytest.mark.parametrize(
    ("kind", "dtype", "xs", "ys", "expected"), BINARY, ids=[f"{r[0].value}-{r[1]}" for r in BINARY]
)
def test_binary_corners(kind, dtype, xs, ys, expected):
    check(binary(kind, dtype, xs, ys), expected, dtype)


COMPARISONS = {
    C.EQ: [False, True, False, True],
    C.NE: [True, False, True, False],
    C.LT: [True, False, False, False],
    C.LE: [True, True, False, True],
    C.GT: [False, False, False, False],
    C.GE: [False, True, False, True],
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", C)
def test_comparisons_with_nan_and_zeros(kind, dtype):
    tile = value(dtype, (4,))
    xs, ys = (np.array(v, NUMPY_DTYPES[dtype]) for v in ([1, 2, NAN, -0.0], [2, 2, 1, 0.0]))
    check(evaluate(ops.Compare(kind, tile, tile), xs, ys), COMPARISONS[kind], int1)


CASTS = [
    (int32, int8, [300, -129, 255], [44, 127, -1]),
    (int8, uint64, [-1], [2**64 - 1]),
    (uint64, int32, [2**63 + 5], [5]),
    (int32, int1, [0, 2, -1, 256], [False, True, True, True]),
    (int1, int32, [True, False], [1, 0]),
    (int1, float16, [True], [1.0]),
    (float32, int1, [0.0, -0.0, 0.5, NAN], [False, False, True, True]),
    (float32, int32, [1.9, -1.9, 3e9, -3e9, NAN, INF, -INF], [1, -1, 2**31 - 1, MIN32, 0, 2**31 - 1, MIN32]),
    (float32, int8, [127.9, 128.0, -128.9, -129.0], [127, 127, -128, -128]),
    (float32, uint8, [-0.9, -1.0, 255.9, 256.0, NAN], [0, 0, 255, 255, 0]),
    (float32, int64, [2.0**62, 2.0**63, -(2.0**63), -INF], [2**62, 2**63 - 1, MIN64, MIN64]),
    (float32, uint64, [2.0**63, 2.0**64, -5.0], [2**63, 2**64 - 1, 0]),
    (float16, int16, [INF, -2.5], [32767, -2]),
    (bfloat16, uint32, [2.0**32, NAN, 7.5], [2**32 - 1, 0, 7]),
    (int32, float32, [2**24 + 1, 2**24 + 3], [2.0**24, 2.0**24 + 4]),
    (uint64, float32, [2**64 - 1], [2.0**64]),
    (int32, float16, [65519, 65520, 2049], [65504.0, INF, 2048.0]),
    (int32, bfloat16, [257, 259], [256.0, 260.0]),
    (float32, float16, [1e6, 1e-9, -1e-9, NAN, 1 + 2**-11], [INF, 0.0, -0.0, NAN, 1.0]),
    (float32, bfloat16, [3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, NAN], [INF, 1.0, 1 + 2**-6, NAN]),
    (float16, bfloat16, [1.00390625], [1.0]),
]


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"), CASTS, ids=[f"{r[0]}-{r[1]}" for r in CASTS]
)
def test_cast_corners(source, target, values, expected):
    check(cast(source, target, values), expected, target)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division_agrees_with_exact_integers(dtype):
    corners = [dtype.minimum, dtype.minimum + 1, 0, 1, 2, 7, dtype.maximum - 1, dtype.maximum]
    corners += [-1, -2, -7] if dtype.is_int_signed() else []
    xs, ys = [x for x in corners for _ in corners], corners * len(corners)

    def quotient(x, y):
        return 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)

    quotients = [dtype.wrap(quotient(x, y)) for x, y in zip(xs, ys, strict=True)]
    remainders = [dtype.wrap(x - quotient(x, y) * y) for x, y in zip(xs, ys, strict=True)]
    check(binary(B.IDIV, dtype, xs, ys), quotients, dtype)
    check(binary(B.IREM, dtype, xs, ys), remainders, dtype)


@pytest.mark.parametrize("dtype", [uint64, int64, uint32, int32], ids=str)
def test_umulhi_agrees_with_exact_integers(dtype):
    generator = np.random.default_rng(0)
    xs, ys = generator.integers(
        dtype.minimum, dtype.maximum, (2, 200), NUMPY_DTYPES[dtype], endpoint=True
    ).tolist()
    unsigned = (1 << dtype.bits) - 1
    expected = [
        dtype.wrap((x & unsigned) * (y & unsigned) >> dtype.bits) for x, y in zip(xs, ys, strict=True)
    ]
    check(binary(B.UMULHI, dtype, xs, ys), expected, dtype)


def test_fma_rounds_once():
    generator = np.random.default_rng(1)
    cases = generator.standard_normal((3, 4000)).astype(np.float32)
    cases[2] *= np.float32(2.0) ** generator.integers(-60, 60, 4000).astype(np.float32)
    tile = value(float32, (4000,))
    result = evaluate(ops.Fma(tile, tile, tile), *cases)
    assert result.dtype == np.float32
    for got, (x, y, z) in zip(result, cases.T.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        neighbours = [Fraction(float(np.nextafter(got, np.float32(side)))) for side in (-INF, INF)]
        error = abs(Fraction(float(got)) - exact)
        assert all(error <= abs(other - exact) for other in neighbours), (x, y, z)


@pytest.mark.parametrize(("c", "expected"), [(2.0**-80, 2**24 + 2), (-(2.0**-80), 2**24), (0.0, 2**24)])
def test_fma_sees_what_float64_drops(c, expected):
    # 24929 * 673 = 2^24 + 1 lies halfway between two float32; only c says which is nearer.
    tile = value(float32)
    for sign in (1, -1):
        operands = (np.asarray(v, np.float32) for v in (sign * 24929, 673, sign * c))
        assert float(evaluate(ops.Fma(tile, tile, tile), *operands)) == sign * expected


def test_fma_of_special_values_and_integers():
    tile = value(float32, (4,))
    operands = ([INF, INF, 1.0, 1e38], [1.0, 0.0, NAN, 1e38], [-INF, 1.0, 1.0, 0.0])
    check(
        evaluate(ops.Fma(tile, tile, tile), *(np.array(v, np.float32) for v in operands)),
        [NAN, NAN, NAN, INF], float32,
    )  # fmt: skip
    integer = value(int8, (1,))
    wrapped = evaluate(ops.Fma(integer, integer, integer), *(np.array([v], np.int8) for v in (100, 2, 60)))
    check(wrapped, [4], int8)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_erf_keeps_relative_accuracy(dtype):
    xs = np.array([1e-30, 1e-8, 1e-3, 0.5, 1.0, 2.0, 3.5], NUMPY_DTYPES[dtype])
    expected = [float(np.float32(math.erf(x)).astype(NUMPY_DTYPES[dtype])) for x in xs.astype(float).tolist()]
    check(unary(U.ERF, dtype, xs), expected, dtype)


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        (float32, int32, 1.0, 0x3F800000), (int32, float32, -(2**31), -0.0), (float16, uint16, 1.0, 0x3C00),
        (bfloat16, int16, -2.0, -0x4000), (int64, uint64, -1, 2**64 - 1),
    ],
    ids=str,
)  # fmt: skip
def test_bitcast(source, target, before, after):
    result = evaluate(ops.Bitcast(value(source), target), constant(before, source))
    check(result.reshape(1), [after], target)


def test_select_takes_values_as_they_are():
    tile = value(float32, (3,))
    op = ops.Select(value(int1, (3,)), tile, tile)
    on_true, on_false = np.array([1, NAN, -0.0], np.float32), np.array([NAN, 2, 3], np.float32)
    check(evaluate(op, np.array([True, False, True]), on_true, on_false), [1.0, 2.0, -0.0], float32)


def test_one_bit_arithmetic_wraps_modulo_two():
    check(binary(B.ADD, int1, [1, 1, 0], [1, 0, 0]), [False, True, False], int1)
    check(binary(B.MUL, int1, [1, 1], [1, 0]), [True, False], int1)
    check(binary(B.SHL, int1, [1, 1], [0, 1]), [True, False], int1)
    check(binary(B.IDIV, int1, [1, 1], [1, 0]), [True, False], int1)
    check(unary(U.NEG, int1, [1, 0]), [True, False], int1)


def test_shapes_take_leading_axes():
    scalars = np.arange(3, dtype=np.int32)
    assert evaluate(ops.Splat(value(int32), (4,)), scalars).tolist() == [[i] * 4 for i in range(3)]
    tile = np.arange(6, dtype=np.int32).reshape(3, 2)
    column = evaluate(ops.ExpandDims(value(int32, (2,)), 1), tile)
    assert column.shape == (3, 2, 1)
    assert evaluate(ops.ExpandDims(value(int32, (2,)), 0), tile).shape == (3, 1, 2)
    wide = evaluate(ops.Broadcast(value(int32, (2, 1)), (2, 4)), column)
    assert wide.shape == (3, 2, 4) and wide[2, 1].tolist() == [5] * 4
    assert evaluate(ops.ExpandDims(value(int32, (2,)), 0), np.array([7, 8])).tolist() == [[7, 8]]


def test_range_and_constants():
    assert evaluate(ops.MakeRange(3, 7, int64)).tolist() == [3, 4, 5, 6]
    assert evaluate(ops.MakeRange(0, 2)).dtype == np.int32
    assert evaluate(ops.Constant(2**64 - 1, uint64)) == np.uint64(2**64 - 1)
    assert float(evaluate(ops.Constant(0.1, bfloat16))) == 0.10009765625
    assert evaluate(ops.Constant(True, int1)).dtype == np.bool_


def test_pointer_arithmetic_is_exact_in_64_bits():
    array = BoundArray("x_ptr", np.zeros(4, np.float32))
    pointer = value(pointer_type(float32), (2,))
    start = Pointers(array, np.array([0, 2**40]))
    moved = evaluate(ops.AddPointer(pointer, value(int32, (2,))), start, np.array([-3, 2**31 - 1], np.int32))
    assert moved.offsets.tolist() == [-3, 2**40 + 2**31 - 1]
    assert moved.array is array


def test_every_operation_has_a_meaning_here():
    control = {ops.For, ops.If, ops.Yield}
    tile_ir = {
        op for op in OPERATIONS if op.__module__ in (ops.__name__, exchange.__name__)
    }  # not the laid-out stage
    assert tile_ir == set(EVALUATORS) | set(_EFFECTS) | control


def test_every_kind_has_a_meaning_here():
    assert set(arithmetic.FLOAT_UNARY) | set(arithmetic.INTEGER_UNARY) | set(arithmetic.BIT_COUNTS) == set(U)
    assert set(arithmetic.FLOAT_BINARY) | set(arithmetic.INTEGER_BINARY) == set(B)
    assert set(arithmetic.COMPARE) == set(C)


@pytest.mark.parametrize("kind", list(arithmetic.FLOAT_UNARY))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scalars_stay_zero_dimensional_arrays(kind, dtype):
    result = evaluate(ops.Unary(kind, value(dtype)), constant(0.25, dtype))
    assert isinstance(result, np.ndarray) and result.shape == ()
    op = ops.Unary(kind, value(dtype))
    assert result.dtype == NUMPY_DTYPES[op.result_types()[0].dtype]


@pytest.mark.parametrize("kind", list(arithmetic.INTEGER_BINARY))
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_operations_keep_their_type(kind, dtype):
    if kind is B.UMULHI and dtype.bits < 32:
        pytest.skip("not legal")
    for shape in ((), (2,)):
        tile = value(dtype, shape)
        result = evaluate(
            ops.Binary(kind, tile, tile), *(np.full(shape, v, NUMPY_DTYPES[dtype]) for v in (100, 3))
        )
        assert result.shape == shape and dtype_of(result) is dtype


def test_a_kind_on_a_wrong_type_is_our_bug():
    with pytest.raises(InternalError, match="has no meaning"):
        unary(U.SIN, int32, [1])
    with pytest.raises(InternalError, match="has no meaning"):
        binary(B.DIV, int32, [1], [1])
