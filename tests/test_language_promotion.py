"""Which type an operation computes in: tables written by hand, not computed from the rules."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

import enceladus.language as tl
from enceladus.ir.ops import BinaryKind, Cast, Constant
from enceladus.ir.types import DTYPES
from enceladus.language import semantic
from tests.language_helpers import kernel, refused

# Columns as rows. i1 = int1, i8…i64, u8…u64, f16, bf = bfloat16, f32.
TABLE = """
     i1  i8  i16 i32 i64 u8  u16 u32 u64 f16 bf  f32
i1   i1  i8  i16 i32 i64 u8  u16 u32 u64 f16 bf  f32
i8   i8  i8  i16 i32 i64 u8  u16 u32 u64 f16 bf  f32
i16  i16 i16 i16 i32 i64 i16 u16 u32 u64 f16 bf  f32
i32  i32 i32 i32 i32 i64 i32 i32 u32 u64 f16 bf  f32
i64  i64 i64 i64 i64 i64 i64 i64 i64 u64 f16 bf  f32
u8   u8  u8  i16 i32 i64 u8  u16 u32 u64 f16 bf  f32
u16  u16 u16 u16 i32 i64 u16 u16 u32 u64 f16 bf  f32
u32  u32 u32 u32 u32 i64 u32 u32 u32 u64 f16 bf  f32
u64  u64 u64 u64 u64 u64 u64 u64 u64 u64 f16 bf  f32
f16  f16 f16 f16 f16 f16 f16 f16 f16 f16 f16 f32 f32
bf   bf  bf  bf  bf  bf  bf  bf  bf  bf  f32 bf  f32
f32  f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32
"""
SHORT = {"bf": "bfloat16", "i": "int", "u": "uint", "f": "float"}


def _name(short: str) -> str:
    return "bfloat16" if short == "bf" else SHORT[short[0]] + short[1:]


def _table() -> list[tuple[str, str, str]]:
    header, *rows = [line.split() for line in TABLE.strip().splitlines()]
    return [(_name(row[0]), _name(b), _name(r)) for row in rows for b, r in zip(header, row[1:], strict=True)]


PAIRS = _table()


def test_the_table_has_every_pair():
    assert {(a, b) for a, b, _ in PAIRS} == set(itertools.product(DTYPES, DTYPES))


@pytest.mark.parametrize("a,b,expected", PAIRS)
def test_two_tiles(a, b, expected):
    with kernel() as k:
        x, y = k.tile(a, 4), k.tile(b, 4)
        assert (x * y).dtype is DTYPES[expected]
        assert (x == y).dtype is tl.int1
        assert {op.dtype.name for op in k.ops if isinstance(op, Cast)} <= {expected}
        assert len([op for op in k.ops if isinstance(op, Cast)]) == 2 * ((a != expected) + (b != expected))


@pytest.mark.parametrize("a,b,expected", PAIRS)
def test_divisions(a, b, expected):
    floats = expected.startswith(("float", "bfloat"))
    with kernel() as k:
        x, y = k.tile(a, 4), k.tile(b, 4)
        assert (x / y).dtype is (DTYPES[expected] if floats else tl.float32)
        for op in (operator.floordiv, operator.mod):
            if floats:
                with refused("needs integers"):
                    op(x, y)
            elif {a[:3], b[:3]} == {"int", "uin"} and "int1" not in (a, b):
                with refused("signs differ", "cast one of them"):
                    op(x, y)
            elif expected == "int1":
                with refused("int1"):
                    op(x, y)
            else:
                assert op(x, y).dtype is DTYPES[expected]


@pytest.mark.parametrize("a,b,expected", PAIRS)
def test_bits(a, b, expected):
    with kernel() as k:
        x, y = k.tile(a, 4), k.tile(b, 4)
        for op in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
            if DTYPES[expected].is_floating():
                with refused("needs integers", "bitcast=True"):
                    op(x, y)
            elif expected == "int1" and op in (operator.lshift, operator.rshift):
                with refused("int1"):
                    op(x, y)
            else:
                assert op(x, y).dtype is DTYPES[expected]


LITERALS = [
    # tile, literal, type of the operation
    ("int1", True, "int1"),
    ("int1", 1, "int32"),
    ("int1", 1 << 31, "int64"),
    ("int1", 1 << 63, "uint64"),
    ("int1", 1.0, "float32"),
    ("int8", 127, "int8"),
    ("int8", -128, "int8"),
    ("int8", True, "int8"),
    ("uint8", 255, "uint8"),
    ("int32", -(2**31), "int32"),
    ("int64", 2**62, "int64"),
    ("uint64", 2**64 - 1, "uint64"),
    ("int16", 0.5, "float32"),
    ("uint64", 0.5, "float32"),
    ("float16", 3, "float16"),
    ("float16", 0.1, "float16"),
    ("float16", 65504, "float16"),
    ("float16", 1e6, "float32"),
    ("float16", 70000, "float32"),
    ("float16", float("-inf"), "float16"),
    ("float16", True, "float16"),
    ("bfloat16", 1e30, "bfloat16"),
    ("bfloat16", 3.4e38, "float32"),
    ("float32", 2**40, "float32"),
    ("float32", 1e40, "float32"),
]


@pytest.mark.parametrize("dtype,literal,expected", LITERALS)
def test_literals(dtype, literal, expected):
    with kernel() as k:
        x = k.tile(dtype, 4)
        assert (x * literal).dtype is DTYPES[expected]
        assert (literal * x).dtype is DTYPES[expected]
        assert tl.where(k.tile("int1", 4), x, literal).dtype is DTYPES[expected]
        assert tl.maximum(literal, x).dtype is DTYPES[expected]
        assert {op.dtype.name for op in k.ops if isinstance(op, Constant)} == {expected}


OUT_OF_RANGE = [
    ("int8", 128, "128 is out of range for int8 (-128 to 127)", ".to(tl.int32)"),
    ("uint8", 256, "out of range for uint8 (0 to 255)", ".to(tl.int32)"),
    ("uint32", -1, "-1 is out of range for uint32", ".to(tl.int64)"),
    ("int32", 2**31, "out of range for int32", ".to(tl.int64)"),
    ("int64", 2**64, "does not fit 64 bits", ""),
]


@pytest.mark.parametrize("dtype,literal,reason,hint", OUT_OF_RANGE)
def test_literals_that_do_not_fit(dtype, literal, reason, hint):
    with kernel() as k:
        x = k.tile(dtype, 4)
        for op in (operator.add, operator.lt, operator.and_):
            with refused(reason, hint):
                op(x, literal)
            with refused(reason, hint):
                op(literal, x)


def test_integers_divide_as_float32():
    with kernel() as k:
        assert (k.tile("int64", 4) / 3).dtype is tl.float32
        assert (1 / k.tile("int8")).dtype is tl.float32
        assert (k.tile("int32") / k.tile("float16")).dtype is tl.float16
        assert [op.value for op in k.ops if isinstance(op, Constant)] == [3.0, 1.0]


def test_several_operands_promote_independently_of_their_order():
    with kernel() as k:
        x, y = k.tile("float16", 4), k.tile("bfloat16", 4)
        for args in itertools.permutations((x, y, 1)):
            assert tl.clamp(*args).dtype is tl.float32
        ints = k.tile("int32", 4)
        for args in itertools.permutations((ints, 0, 0.5)):
            assert tl.clamp(*args).dtype is tl.float32
        assert tl.fma(x, 2, 0.5).dtype is tl.float16
        assert tl.fma(x, ints, 0.5).dtype is tl.float16


def test_int1_arithmetic():
    with kernel() as k:
        p, q = k.tile("int1", 4), k.tile("int1", 4)
        assert (p * q).dtype is tl.int1
        assert k.names == ["and"]
        for op in (operator.add, operator.sub):
            with refused("int1", ".to(tl.int32)"):
                op(p, q)
            with refused("int1"):
                op(p, True)
        with refused("int1", "~x"):
            _ = -p
        assert (p + 1).dtype is tl.int32
        assert (~p).dtype is tl.int1
        assert tl.maximum(p, q).dtype is tl.int1
        assert k.names[-1] == "or"


def test_unary_minus_and_not():
    with kernel() as k:
        assert (-k.tile("uint32", 4)).dtype is tl.uint32
        assert (-k.tile("float16", 4)).dtype is tl.float16
        assert (~k.tile("int8", 4)).dtype is tl.int8
        with refused("`~` needs integers", "compare first"):
            _ = ~k.tile("float32", 4)
        with refused("pointers"):
            _ = -k.tile("*float32")


# ----------------------------------------------------------------------------- pointers


def test_pointers_move_by_integers():
    with kernel() as k:
        p = k.tile("*float16")
        for offset in (k.tile("int8", 8), k.tile("uint64", 8), k.tile("int32", 8), k.tile("int1", 8)):
            for moved in (p + offset, offset + p, p - offset):
                assert str(moved.type) == "8x*float16"
        assert (p + 3).dtype is p.dtype
        assert (3 + p).dtype is p.dtype
        assert (p - 3).shape == ()
        assert [op.value for op in k.ops if isinstance(op, Constant)] == [3, 3, -3]


@pytest.mark.parametrize(
    "dtype,wide,expected",
    [
        ("int8", False, tl.int32),
        ("int32", False, tl.int32),
        ("int32", True, tl.int64),
        ("uint16", False, tl.int32),
        ("uint32", False, tl.int64),
        ("uint64", False, tl.int64),
        ("int64", False, tl.int64),
    ],
)
def test_subtracted_offsets_are_negated_in_a_type_that_can(dtype, wide, expected):
    with kernel(wide) as k:
        _ = k.tile("*float32") - k.tile(dtype)
        negated = [op for op in k.ops if op.mnemonic == "unary"]
        assert [op.value.type.element for op in negated] == [expected]


def test_what_pointers_cannot_do():
    with kernel() as k:
        p, q = k.tile("*float32"), k.tile("*float32")
        for bad in (lambda: p + k.tile("float32"), lambda: p + 1.0, lambda: 1.5 + p):
            with refused("whole elements", ".to(tl.int32)"):
                bad()
        with refused("`-` does not work on pointers", "offsets"):
            _ = p - q
        for op in (
            operator.add,
            operator.mul,
            operator.truediv,
            operator.floordiv,
            operator.eq,
            operator.and_,
        ):
            with refused("pointers"):
                op(p, q)
        for op in (operator.mul, operator.lt, operator.mod):
            with refused("pointers"):
                op(p, 2)
        with refused("pointers"):
            _ = 2 - p
        with refused("pointers", "offsets"):
            tl.where(True, p, q)
        with refused("pointer cannot be cast"):
            p.to(tl.int64)
        with refused("cannot be bitcast"):
            p.to(tl.int64, bitcast=True)
        with refused("pointer"):
            p.to(tl.pointer_type(tl.uint8))


# ------------------------------------------------------------------------- literal values


def test_float_literals_are_rounded_once():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.standard_normal(2000) * 10.0 ** rng.integers(-46, 40, 2000),
            [0.0, -0.0, 0.1, 65504.0, 65519.999, 65520.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-150],
            [float("inf"), -float("inf"), 3.4028235677973366e38, 1.0 + 2.0**-8, 1.0 + 2.0**-8 + 2.0**-40],
        ]
    )
    with np.errstate(all="ignore"):
        for dtype, reference in ((tl.float32, np.float32), (tl.float16, np.float16)):
            for value in values:
                got, expected = semantic.round_to(float(value), dtype), float(reference(value))
                assert (got, np.signbit(got)) == (expected, np.signbit(expected)), value
    assert np.isnan(semantic.round_to(float("nan"), tl.float16))
    # The library goes through float32; doubles that are exact in float32 round once there too.
    for value in rng.standard_normal(2000).astype(np.float32):
        assert semantic.round_to(float(value), tl.bfloat16) == float(ml_dtypes.bfloat16(value))
    # Through float32 this would become a tie and round down to even.
    assert semantic.round_to(1.0 + 2.0**-8 + 2.0**-40, tl.bfloat16) == 1.0 + 2.0**-7
    assert semantic.round_to(2.0**-133, tl.bfloat16) == 2.0**-133
    assert semantic.round_to(2.0**-134, tl.bfloat16) == 0.0
    assert semantic.round_to(3.4e38, tl.bfloat16) == float("inf")


def test_numpy_scalars_are_literals():
    with kernel() as k:
        x = k.tile("float16", 4)
        assert (x * np.float32(0.5)).dtype is tl.float16
        assert (np.float64(0.5) * x).dtype is tl.float16
        assert (np.int64(2) + k.tile("int8", 4)).dtype is tl.int8


@pytest.mark.parametrize(
    "bad,words", [(None, "None"), ("s", "'s'"), ((1, 2), "(1, 2)"), (object(), "object")]
)
def test_other_objects_are_refused(bad, words):
    with kernel() as k:
        x = k.tile("float32", 4)
        for op in (operator.add, operator.truediv, operator.lt, operator.and_):
            with refused(words):
                op(x, bad)


def test_same_types_are_not_cast():
    with kernel() as k:
        x = k.tile("float16", 4)
        _ = x + x
        assert x.to(tl.float16).value is x.value
        assert k.names == [BinaryKind.ADD.value]
