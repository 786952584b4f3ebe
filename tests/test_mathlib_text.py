"""The texts of ``codegen.mathlib``: constants, parentheses, refusals and the header."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Expression, Precedence, Spelling, binary, unary
from enceladus.codegen.mathlib_spelling import shortest_float32
from enceladus.errors import InternalError
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import (
    DTYPES,
    DType,
    Kind,
    bfloat16,
    float16,
    float32,
    int1,
    int8,
    int32,
    int64,
    uint32,
)
from tests.mathlib_cases import (
    FLOATS,
    INTEGERS,
    conversions,
    legal_binary,
    legal_unary,
    operations,
)
from tests.portable_cpp import NUMPY_TYPES, Library

# ------------------------------------------------------------------------------------- constants


def some_constants() -> list[tuple[bool | int | float, DType]]:
    found: list[tuple[bool | int | float, DType]] = [(True, int1), (False, int1)]
    for dtype in INTEGERS:
        values = {
            0,
            1,
            5,
            dtype.minimum,
            dtype.minimum + 1,
            dtype.maximum,
            dtype.maximum - 1,
            dtype.maximum // 3,
        }
        values |= {1 << 31, (1 << 31) - 1, -(1 << 31), -(1 << 31) - 1, 1 << 40, -(1 << 40), -5}
        found += [(v, dtype) for v in sorted(values) if dtype.minimum <= v <= dtype.maximum]
    generator = np.random.default_rng(5)
    bits = generator.integers(0, 1 << 32, 60, dtype=np.uint32).view(np.float32)
    floats = [float(x) for x in bits if np.isfinite(x)]
    floats += [
        0.0,
        -0.0,
        0.1,
        1 / 3,
        1.0,
        -2.5,
        16777216.0,
        1e10,
        65504.0,
        65519.0,
        65520.0,
        3.4028235e38,
        1e39,
    ]
    floats += [
        1e-45,
        1.1754944e-38,
        1e-50,
        math.inf,
        -math.inf,
        math.nan,
        0.7071067811865476,
        2.0**-24,
        2.0**-25,
    ]
    return found + [(v, dtype) for v in floats for dtype in FLOATS]


CONSTANTS = some_constants()


# -------------------------------------------------------------------------- expressions in expressions


def some_trees() -> list[tuple[object, Expression]]:
    """Random int32 expressions (values small enough not to overflow), as Python functions and as texts."""
    generator = random.Random(6)
    kinds = {
        BinaryKind.ADD: lambda a, b: a + b, BinaryKind.SUB: lambda a, b: a - b,
        BinaryKind.AND: lambda a, b: a & b, BinaryKind.OR: lambda a, b: a | b,
        BinaryKind.XOR: lambda a, b: a ^ b, BinaryKind.SHR: lambda a, b: a >> (b & 3),
        BinaryKind.MIN: min,
    }  # fmt: skip
    comparisons = {CompareKind.LT: lambda a, b: a < b, CompareKind.EQ: lambda a, b: a == b}
    booleans = {
        BinaryKind.AND: lambda a, b: a and b, BinaryKind.OR: lambda a, b: a or b,
        BinaryKind.XOR: lambda a, b: a != b,
    }  # fmt: skip

    def number(depth: int):
        choice = generator.random()
        if depth == 0 or choice < 0.1:
            if generator.random() < 0.3:
                value = generator.choice([-3, 0, 2, 7])
                return (lambda v: value), mathlib.literal(value, int32)
            index = generator.randrange(3)
            return (lambda v: v[index]), Expression(f"v{index}")
        if choice < 0.25:
            f, e = number(depth - 1)
            if generator.random() < 0.5:
                return (lambda v: -f(v)), unary(UnaryKind.NEG, int32, may_overflow=False)(e)
            return (lambda v: ~f(v)), unary(UnaryKind.NOT, int32)(e)
        if choice < 0.45:
            c, ce = condition(depth - 1)
            (f, fe), (g, ge) = number(depth - 1), number(depth - 1)
            return (lambda v: f(v) if c(v) else g(v)), mathlib.select(int32)(ce, fe, ge)
        kind = generator.choice(list(kinds))
        apply = kinds[kind]
        (f, fe), (g, ge) = number(depth - 1), number(depth - 1)
        if kind is BinaryKind.SHR:
            ge = binary(BinaryKind.AND, int32)(ge, mathlib.literal(3, int32))
        spelling = binary(kind, int32, may_overflow=False, amount_known_in_range=True)
        return (lambda v: apply(f(v), g(v))), spelling(fe, ge)

    def condition(depth: int):
        depth = max(depth, 1)
        if depth > 1 and generator.random() < 0.5:
            if generator.random() < 0.3:
                f, e = condition(depth - 1)
                return (lambda v: not f(v)), unary(UnaryKind.NOT, int1)(e)
            kind = generator.choice(list(booleans))
            apply = booleans[kind]
            (f, fe), (g, ge) = condition(depth - 1), condition(depth - 1)
            return (lambda v: bool(apply(f(v), g(v)))), binary(kind, int1)(fe, ge)
        kind = generator.choice(list(comparisons))
        apply = comparisons[kind]
        (f, fe), (g, ge) = number(depth - 1), number(depth - 1)
        return (lambda v: apply(f(v), g(v))), mathlib.compare(kind, int32)(fe, ge)

    return [number(4) for _ in range(60)]


TREES = some_trees()


def functions() -> dict:
    """Constants as functions of a bool that does not matter, expressions as functions of three int32."""
    found: dict = {}
    for index, (value, dtype) in enumerate(CONSTANTS):
        text = mathlib.constant(value, dtype)
        spelling = Spelling(f"{{0}} ? {text} : {text}", Precedence.TERNARY, (Precedence.OR,))
        found["constant", index] = (spelling, (int1,), dtype)
    for index, (_, expression) in enumerate(TREES):
        text = expression.text.replace("v0", "{0}").replace("v1", "{1}").replace("v2", "{2}")
        spelling = Spelling(text, expression.precedence, (Precedence.ATOM,) * 3)
        found["tree", index] = (spelling, (int32,) * 3, int32)
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Library:
    return Library(functions(), tmp_path_factory.mktemp("mathlib"))


def test_texts_compile_without_a_warning(library):
    assert library.warnings == []


def test_every_kind_and_type_has_a_text_or_is_refused():
    for dtype in DTYPES.values():
        for kind in UnaryKind:
            if not legal_unary(kind, dtype):
                with pytest.raises(InternalError):
                    unary(kind, dtype)
        for kind in BinaryKind:
            if not legal_binary(kind, dtype):
                with pytest.raises(InternalError):
                    binary(kind, dtype)
    with pytest.raises(InternalError, match="reinterpret int1 as int8"):
        mathlib.bitcast(int1, int8)
    with pytest.raises(InternalError, match="reinterpret"):
        mathlib.bitcast(int8, float16)


# ---------------------------------------------------------------------------- constants and expressions


def test_constants_arrive_bit_for_bit(library):
    for index, (value, dtype) in enumerate(CONSTANTS):
        got = library(("constant", index), np.array([True]))[0]
        with np.errstate(all="ignore"):
            if dtype.kind is not Kind.FLOAT:
                expected = (
                    NUMPY_TYPES[dtype.name](value)
                    if dtype is int1
                    else np.array(value, NUMPY_TYPES[dtype.name])
                )
            elif dtype is bfloat16:
                expected = np.float32(value).astype(NUMPY_TYPES["bfloat16"])
            else:
                expected = np.float64(value).astype(NUMPY_TYPES[dtype.name])
        if value == value:
            assert got.tobytes() == expected.tobytes(), (value, dtype, mathlib.constant(value, dtype))
        else:
            assert np.isnan(got), (value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.5, float32, "0.5f"), (0.7071067811865476, float32, "0.70710677f"), (1e-7, float32, "1e-7f"),
        (3, float32, "3.0f"), (-0.0, float32, "(-0.0f)"), (1e10, float32, "1e10f"),
        (math.inf, float32, "as_type<float>(0x7f800000u)"),
        (math.nan, float32, "as_type<float>(0x7fc00000u)"),
        (0.1, float16, "half(0.099975586f)"), (0.5, bfloat16, "bfloat16_t(0.5f)"),
        (-(1 << 31), int32, "(-2147483647 - 1)"), (-5, int32, "(-5)"), (5, uint32, "5u"),
        (5, int64, "int64_t(5)"),
        (1 << 40, int64, "int64_t(1099511627776l)"), (True, int1, "true"),
    ],
    ids=str,
)  # fmt: skip
def test_constants_are_short(value, dtype, text):
    assert mathlib.constant(value, dtype) == text


def test_constants_that_do_not_fit_are_our_mistake():
    for value, dtype in ((128, int8), (-1, uint32), (1.5, int32)):
        with pytest.raises(InternalError, match="does not fit"):
            mathlib.constant(value, dtype)


def test_decimals_are_the_shortest_that_read_back():
    generator = np.random.default_rng(8)
    for x in generator.integers(1, 0x7F800000, 2000, dtype=np.uint32).view(np.float32):
        text = shortest_float32(float(x))
        assert np.float32(text) == x
        assert len(text.replace(".0", "")) <= len(repr(float(np.float64(str(x)))).replace(".0", "")) + 4


def test_expressions_nest_with_the_right_parentheses(library):
    values = list(itertools.product((-9, 0, 4, 1000), repeat=3))
    columns = [np.array(v, np.int32) for v in zip(*values, strict=True)]
    before = library.undefined_behaviour
    for index, (function, expression) in enumerate(TREES):
        got = library(("tree", index), *columns)
        assert got.tolist() == [function(v) for v in values], expression.text
    assert library.undefined_behaviour == before


def test_parentheses_only_where_needed():
    a, b, c = (Expression(n) for n in "abc")
    add, mul = (binary(k, float32) for k in (BinaryKind.ADD, BinaryKind.MUL))
    assert add(mul(a, b), c).text == "a * b + c"
    assert mul(add(a, b), c).text == "(a + b) * c"
    assert add(a, add(b, c)).text == "a + (b + c)"
    assert unary(UnaryKind.NEG, float32)(mathlib.literal(-1.0, float32)).text == "-(-1.0f)"
    less = mathlib.compare(CompareKind.LT, int32)
    plain = binary(BinaryKind.ADD, int32, may_overflow=False)
    both = binary(BinaryKind.AND, int1)
    assert both(less(plain(a, b), c), less(b, c)).text == "a + b < c && b < c"
    assert unary(UnaryKind.EXP, float32)(add(a, b)).text == "precise::exp(a + b)"
    assert unary(UnaryKind.EXP, float32, True)(a).text == "fast::exp(a)"
    assert unary(UnaryKind.EXP, float16)(a).text == "half(precise::exp(float(a)))"
    assert binary(BinaryKind.DIV, float32)(a, b).text == "precise::divide(a, b)"


# ------------------------------------------------------------------------------------------- header


def test_header_is_deterministic_and_in_order():
    names = mathlib.all_helpers()
    assert mathlib.header(names) == mathlib.header(reversed(names))
    assert mathlib.header([]) == ""
    text = mathlib.header(["log1p", "erf", "erf"])
    assert text.isascii() and text.endswith("\n") and text.startswith("namespace enceladus {")
    assert text.count("float erf(") == 1 and "expm1" not in text
    for name in names:
        for needed in mathlib.helper(name).needs:
            whole = mathlib.header([name])
            assert whole.index(f" {needed}(") < whole.index(f" {name}(")
    with pytest.raises(InternalError, match="no helper function"):
        mathlib.header(["shl_float32"])


def test_every_helper_is_used_by_some_spelling():
    used = {
        name
        for spelling, _, _ in (operations(tuple(DTYPES.values())) | conversions()).values()
        for name in spelling.needs
    }
    assert used == set(mathlib.all_helpers())
