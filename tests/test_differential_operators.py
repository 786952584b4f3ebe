"""Operators on all pairs of dtypes, and casts between all of them, in every engine against NumPy.

The references restate the rules of promotion and of the odd corners (``docs/numerics.md``) in plain Python
integers and float64, apart from the code they test.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import enceladus
from enceladus.ir.types import DTYPES, DType, Kind, bfloat16, float16, float32, int1, int32
from tests.engines import ENGINES, assert_same, kernel_from_source, numpy_dtype, run_everywhere
from tests.test_differential_builtins import operands
from tests.tolerances import ulp_error

ALL = tuple(DTYPES.values())
NUMBERS = tuple(t for t in ALL if t is not int1)
SIZE = 300
BLOCK = 256


def promoted(a: DType, b: DType) -> DType:
    """Triton's table of promotion, written as cases."""
    if a is b:
        return a
    if int1 in (a, b):
        return a if b is int1 else b
    floats = [t for t in (a, b) if t.is_floating()]
    if floats:
        if len(floats) == 2 and {a, b} != {float32}:
            return float32  # two different float types: float32 is one of them, or the way out
        return floats[0]
    if a.kind is b.kind:
        return max(a, b, key=lambda t: t.bits)
    unsigned, signed = (a, b) if a.kind is Kind.UNSIGNED else (b, a)
    return unsigned if unsigned.bits >= signed.bits else signed


# ------------------------------------------------------------------------ exact integer references


def _shl(x: int, n: int, t: DType) -> int:
    return x << n if 0 <= n < t.bits else 0


def _shr(x: int, n: int, t: DType) -> int:
    return x >> n if 0 <= n < t.bits else (-1 if x < 0 else 0)


def _idiv(x: int, y: int, t: DType) -> int:
    if y == 0:
        return 0
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


Integer = Callable[[int, int, DType], int]
INTEGER: dict[str, Integer] = {
    "+": lambda x, y, t: x + y,
    "-": lambda x, y, t: x - y,
    "*": lambda x, y, t: x * y,
    "//": _idiv,
    "%": lambda x, y, t: x - _idiv(x, y, t) * y,
    "&": lambda x, y, t: x & y,
    "|": lambda x, y, t: x | y,
    "^": lambda x, y, t: x ^ y,
    "<<": _shl,
    ">>": _shr,
}
FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
OPERATORS = (*INTEGER, "/", *COMPARE)


def refused(symbol: str, a: DType, b: DType) -> bool:
    """Whether the language refuses the operator on these dtypes."""
    common = promoted(a, b)
    if common is int1:
        return symbol in ("+", "-", "//", "%", "<<", ">>")
    if common.is_floating():
        return symbol in ("//", "%", "&", "|", "^", "<<", ">>")
    return symbol in ("//", "%") and {a.kind, b.kind} == {Kind.SIGNED, Kind.UNSIGNED}


def result_dtype(symbol: str, a: DType, b: DType) -> DType:
    if symbol in COMPARE:
        return int1
    common = promoted(a, b)
    return float32 if symbol == "/" and not common.is_floating() else common


def to_common(values: np.ndarray, dtype: DType, common: DType) -> Any:
    """Operands in the common type: a list of Python ints, or float64 numbers that it holds exactly."""
    if common.is_floating():
        if dtype.is_floating():
            return values.astype(np.float64)
        # Integers round to the common type: large ones lose digits, and overflow 16-bit floats.
        with np.errstate(over="ignore"):
            return to_float(values, common).astype(np.float64)
    if common is int1:
        return [int(v) for v in values]
    return [common.wrap(int(v)) for v in values]


def to_float(values: np.ndarray, target: DType) -> np.ndarray:
    """Integers rounded once, to nearest even, to a float type."""
    if target is bfloat16:
        # ml_dtypes goes through float32: round to odd at 20 digits first, so that it cannot matter.
        return np.array([_round_to_odd(int(v)) for v in values], np.float64).astype(numpy_dtype(target))
    if target is float16:
        return np.array([_round_to_odd(int(v)) for v in values], np.float64).astype(np.float16)
    return values.astype(np.float32)


def _round_to_odd(value: int, digits: int = 20) -> int:
    extra = max(0, abs(value).bit_length() - digits)
    kept = abs(value) >> extra
    if kept << extra != abs(value):
        kept |= 1
    return (kept << extra) * (1 if value >= 0 else -1)


def expected(symbol: str, a: DType, b: DType, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Float64 values for float results (not rounded to the result's type), else the exact result."""
    common = promoted(a, b)
    if symbol == "/" and not common.is_floating():
        common = float32
    left, right = to_common(x, a, common), to_common(y, b, common)
    with np.errstate(all="ignore"):
        if symbol in COMPARE:
            return np.array([COMPARE[symbol](p, q) for p, q in zip(left, right, strict=True)], bool)
        if common.is_floating():
            return np.asarray(FLOAT[symbol](left, right))
    function = INTEGER[symbol]
    exact = [function(p, q, common) for p, q in zip(left, right, strict=True)]
    if common is int1:
        return np.array(exact, bool)
    return np.array([common.wrap(v) for v in exact], numpy_dtype(common))


def _source(expressions: list[str]) -> str:
    outputs = ", ".join(f"out_{i}" for i in range(len(expressions)))
    lines = [
        "@enceladus.jit",
        f"def kernel(x_ptr, y_ptr, {outputs}, n, BLOCK: tl.constexpr):",
        "    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "    mask = offs < n",
        "    x = tl.load(x_ptr + offs, mask=mask)",
        "    y = tl.load(y_ptr + offs, mask=mask)",
    ]
    lines += [f"    tl.store(out_{i} + offs, {e}, mask=mask)" for i, e in enumerate(expressions)]
    return "\n".join(lines) + "\n"


def run(
    expressions: list[str], dtypes: list[DType], x: np.ndarray, y: np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Engine → results of the expressions of x and y, stored as ``dtypes``."""
    kernel = kernel_from_source(_source(expressions))
    arguments: dict[str, Any] = {"x_ptr": x, "y_ptr": y, "n": x.size, "BLOCK": BLOCK}
    arguments |= {f"out_{i}": enceladus.empty(x.size, t) for i, t in enumerate(dtypes)}
    return run_everywhere(kernel, (-(-x.size // BLOCK),), arguments, host_schedules=("forward",))


def check(got: np.ndarray, want: np.ndarray, dtype: DType, what: str, x: np.ndarray, y: np.ndarray) -> None:
    assert got.dtype == numpy_dtype(dtype), what
    if dtype.is_floating():
        # float64 is far wider than two rounded float32 operands need, except for sums of distant numbers.
        bad = ulp_error(got, want, dtype, flush=True) > 0.5 + 1e-6
        bad |= (want == 0) & (np.signbit(got) != np.signbit(want))
    else:
        bad = got != want
    if bad.any():
        k = int(np.flatnonzero(bad)[0])
        raise AssertionError(
            f"{what}: x = {x[k]!r}, y = {y[k]!r} give {got[k]!r}, expected {want[k]!r} "
            f"({int(bad.sum())} wrong)"
        )


FAST_PAIRS = [(a, b) for a in ALL for b in ALL if (ALL.index(a) + ALL.index(b)) % 8 == 0 or a is b]
SLOW_PAIRS = [(a, b) for a in ALL for b in ALL if (a, b) not in FAST_PAIRS]


def check_operators(a: DType, b: DType) -> None:
    x, y = operands(a, SIZE)[0], operands(b, SIZE)[1]
    symbols = [s for s in OPERATORS if not refused(s, a, b)]
    expressions = [f"x {s} y" for s in symbols]
    dtypes = [result_dtype(s, a, b) for s in symbols]
    references = [expected(s, a, b, x, y) for s in symbols]
    for engine, outputs in run(expressions, dtypes, x, y).items():
        for symbol, dtype, got, want in zip(symbols, dtypes, outputs, references, strict=True):
            check(got, want, dtype, f"{engine}: {a} {symbol} {b}", x, y)


@pytest.mark.parametrize(("a", "b"), FAST_PAIRS, ids=str)
def test_operators(a: DType, b: DType) -> None:
    check_operators(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), SLOW_PAIRS, ids=str)
def test_operators_on_more_pairs(a: DType, b: DType) -> None:
    check_operators(a, b)


@pytest.mark.parametrize("a", ALL, ids=str)
def test_refused_operators(a: DType) -> None:
    """What the table calls refused is refused, and nothing else."""
    for b in ALL:
        arrays = [enceladus.zeros(8, a), enceladus.zeros(8, b)]
        for symbol in OPERATORS:
            if not refused(symbol, a, b):
                continue
            kernel = kernel_from_source(_source([f"x {symbol} y"]))
            with pytest.raises(enceladus.CompilationError):
                kernel.warmup(*arrays, enceladus.empty(8, result_dtype(symbol, a, b)), 8, BLOCK=BLOCK)


# -------------------------------------------------------------------------------- result types


@pytest.mark.parametrize("a", ALL, ids=str)
def test_result_dtypes(a: DType) -> None:
    """The type of every legal operator's result, asserted while compiling."""
    for b in ALL:
        lines = [
            "@enceladus.jit",
            "def kernel(x_ptr, y_ptr, out_ptr):",
            "    x = tl.load(x_ptr)",
            "    y = tl.load(y_ptr)",
        ]
        for symbol in OPERATORS:
            if not refused(symbol, a, b):
                want = result_dtype(symbol, a, b)
                lines.append(f"    tl.static_assert((x {symbol} y).dtype == tl.{want}, '{a} {symbol} {b}')")
        lines.append("    tl.store(out_ptr, 1)")
        kernel = kernel_from_source("\n".join(lines) + "\n")
        kernel.warmup(enceladus.zeros(8, a), enceladus.zeros(8, b), enceladus.empty(1, int32))


# ------------------------------------------------------------------------------------- unary


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_unary_operators(dtype: DType) -> None:
    x, y, _ = operands(dtype, SIZE)
    if dtype is int1:
        expressions, wants = ["~x", "abs(x)", "x == False"], [~x, x, ~x]
    elif dtype.is_floating():
        expressions, wants = ["-x", "+x", "abs(x)", "0 - x"], [-x, x, np.abs(x), x.dtype.type(0) - x]
    else:
        with np.errstate(over="ignore"):
            expressions, wants = ["-x", "+x", "abs(x)", "~x"], [0 - x, x, np.abs(x), ~x]
    for engine, outputs in run(expressions, [dtype] * len(expressions), x, y).items():
        for expression, got, want in zip(expressions, outputs, wants, strict=True):
            assert_same(got, want, f"{engine}: {expression} on {dtype}")


# ------------------------------------------------------------------------------------ literals


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_literals(dtype: DType) -> None:
    """Literals on either side: constants fold and divisors, shifts and factors get short forms."""
    x, y, _ = operands(dtype, SIZE)
    with np.errstate(all="ignore"):
        if dtype.is_floating():
            one = np.float32
            wide = x.astype(one)
            table = {"x * 2": wide * one(2), "1 - x": one(1) - wide, "x / 3": wide / one(3),
                     "x + 0": wide + one(0), "x - 0": wide - one(0), "x * 0": wide * one(0),
                     "x * 1": wide, "x * -1": -wide, "0.0 + x": one(0) + wide,
                     "x / 1": wide, "x - x": wide - wide}  # fmt: skip
            wants = [v.astype(x.dtype) for v in table.values()]
        else:
            symbols = ["x // 4", "x % 4", "x // 7", "x % 7", "x // 1", "x % 1", "x // 0", "x % 0", "7 // x",
                       "100 % x", "x << 3", "x >> 3", "x << 0", "x >> 0", "1 << x", "x * 0", "x & 0",
                       "x | 0", "x * 1", "x - x",
                       f"x >> {dtype.bits}", f"x << {dtype.bits - 1}", f"x >> {dtype.bits - 1}"]  # fmt: skip
            if dtype.is_int_signed():
                symbols += [
                    "x // -1",
                    "x % -1",
                    "x // -4",
                    "x % -4",
                    "x // -7",
                    "x * -1",
                    "x >> -1",
                    "x << -1",
                ]
            table = dict.fromkeys(symbols)
            wants = [_literal_reference(e, x, dtype) for e in symbols]
    expressions = list(table)
    for start in range(0, len(expressions), 16):
        part = slice(start, start + 16)
        results = run(expressions[part], [dtype] * len(expressions[part]), x, y)
        for engine, outputs in results.items():
            for expression, got, want in zip(expressions[part], outputs, wants[part], strict=True):
                assert_same(got, want, f"{engine}: {expression} on {dtype}")


def _literal_reference(expression: str, x: np.ndarray, dtype: DType) -> np.ndarray:
    left, symbol, right = expression.split()
    values = []
    for v in x:
        a, b = (int(v) if part == "x" else int(part) for part in (left, right))
        values.append(dtype.wrap(INTEGER[symbol](a, b, dtype)))
    return np.array(values, x.dtype)


# --------------------------------------------------------------------------------------- casts


def cast_reference(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """What a cast gives: the documented answer in every corner."""
    out = numpy_dtype(target)
    if target is int1:
        return np.asarray(x != 0)
    if source is int1:
        return x.astype(np.int64).astype(out)
    if target.is_floating():
        if source.is_floating():
            with np.errstate(over="ignore"):
                return x.astype(np.float64).astype(out)
        with np.errstate(over="ignore"):
            return to_float(x, target)
    if not source.is_floating():
        return np.array([target.wrap(int(v)) for v in x], out)
    values = []
    for v in x.astype(np.float64):
        if np.isnan(v):
            values.append(0)
        elif np.isinf(v):
            values.append(target.maximum if v > 0 else target.minimum)
        else:
            values.append(min(max(int(v), target.minimum), target.maximum))
    return np.array(values, out)


def cast_operands(source: DType) -> np.ndarray:
    x = operands(source, SIZE)[0]
    if source.is_floating():
        near = [2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        edges = np.array(
            [s * v for v in near for s in (1, -1)] + [0.99, -0.99, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-9]
        )
        with np.errstate(over="ignore"):
            x = np.concatenate([edges.astype(x.dtype), x])
    elif source is not int1:
        # Halfway between neighbours of float16, bfloat16 and float32, and just beside.
        edges = [
            v
            for k in (8, 11, 24)
            for m in (1, 3)
            for e in (0, 1, 5)
            for v in (((1 << k) + m) << e, (((1 << k) + m) << (e + 8)) + 1, (((1 << k) + m) << (e + 8)) - 1)
        ]
        x = np.concatenate([np.array([source.wrap(v) for v in edges], x.dtype), x])
    return np.ascontiguousarray(x)


@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts(source: DType) -> None:
    x = cast_operands(source)
    expressions = [f"x.to(tl.{t})" for t in ALL]
    for engine, outputs in run(expressions, list(ALL), x, x).items():
        for target, got in zip(ALL, outputs, strict=True):
            assert_same(got, cast_reference(x, source, target), f"{engine}: {source} to {target}")


@pytest.mark.parametrize("source", ALL, ids=str)
def test_bitcasts(source: DType) -> None:
    x = operands(source, SIZE)[0]
    targets = [t for t in ALL if t.bits == source.bits and (t is int1) == (source is int1)]
    expressions = [f"x.to(tl.{t}, bitcast=True)" for t in targets]
    for engine, outputs in run(expressions, targets, x, x).items():
        for target, got in zip(targets, outputs, strict=True):
            assert_same(got, x.view(numpy_dtype(target)), f"{engine}: {source} as {target}")


@pytest.mark.parametrize("source", ALL, ids=str)
def test_stores_convert(source: DType) -> None:
    """A store casts to the element type of its array."""
    x = cast_operands(source)
    targets = list(ALL)
    for engine, outputs in run(["x"] * len(targets), targets, x, x).items():
        for target, got in zip(targets, outputs, strict=True):
            assert_same(got, cast_reference(x, source, target), f"{engine}: {source} stored as {target}")


def test_all_engines_ran() -> None:
    x = np.arange(8, dtype=np.int32)
    assert tuple(run(["x"], [int32], x, x)) == ENGINES
