"""Every arithmetic operation of the graph engine × element type, against NumPy, corner values included."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from enceladus.errors import InternalError
from enceladus.interpreter.semantics import evaluate
from enceladus.ir import exchange, ops
from enceladus.ir.core import OPERATIONS, Value
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import (
    DTYPES,
    DType,
    Kind,
    bfloat16,
    float16,
    float32,
    int1,
    int32,
    tile_type,
    uint32,
    uint64,
)  # fmt: skip
from enceladus.mlx_bridge.targets import graph, graph_math
from tests.graph_helpers import Kernel, numpy_type, to_mx, to_np

FLOATS = [float16, bfloat16, float32]
INTEGERS = [d for d in DTYPES.values() if d.kind in (Kind.SIGNED, Kind.UNSIGNED)]
ALL = list(DTYPES.values())

#: Largest error in ulp of the element type; functions not listed are exact.
ULPS = {
    UnaryKind.EXP: 1, UnaryKind.EXP2: 1, UnaryKind.EXPM1: 1, UnaryKind.LOG: 1, UnaryKind.LOG2: 1,
    UnaryKind.LOG10: 1, UnaryKind.LOG1P: 1, UnaryKind.RSQRT: 1, UnaryKind.SIN: 1, UnaryKind.COS: 1,
    UnaryKind.TAN: 1, UnaryKind.ASIN: 1, UnaryKind.ACOS: 1, UnaryKind.ATAN: 1, UnaryKind.SINH: 1,
    UnaryKind.COSH: 1, UnaryKind.TANH: 1, UnaryKind.ERF: 2, BinaryKind.POW: 1, BinaryKind.ATAN2: 1,
}  # fmt: skip


def corners(dtype: DType) -> np.ndarray:
    """About 40 values of ``dtype`` where something could go wrong, and some ordinary ones."""
    rng = np.random.default_rng(zlib.crc32(dtype.name.encode()))
    if dtype is int1:
        return np.array([False, True])
    if dtype.kind is not Kind.FLOAT:
        top, bottom = dtype.maximum, dtype.minimum
        values = [0, 1, 2, 3, 5, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, top, top - 1, top // 2]
        values += [bottom, bottom + 1, top // 3] + ([-1, -2, -3, -7, bottom // 2] if bottom else [])
        ordinary = rng.integers(bottom, top, 16, dtype=numpy_type(dtype), endpoint=True)
        return np.concatenate([np.array(values, numpy_type(dtype)), ordinary])
    values = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 3.7, -3.7, 2, 127, 128, -128]
    values += [-129, 255.5, 65504, -65504, 88.5, -87.5, -103, 89, 1e5, 12345.678, 1e-3, -1e-5, 1e-7, 6e-8]
    values += [1e-30, -1e-38]
    values += [2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, 1e30, -3e38, 3e-45, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        chosen = np.concatenate([np.array(values), rng.normal(size=20) * 3]).astype(np.float32)
        return chosen.astype(numpy_type(dtype))


def launch(make, inputs: list[np.ndarray], dtypes: list[DType]) -> tuple[np.ndarray, np.ndarray]:
    """``make(*values)`` on one program, computed by the graph engine and by NumPy."""
    size = 1 << (len(inputs[0]) - 1).bit_length()
    padded = [np.concatenate([x, np.repeat(x[:1], size - len(x))]) for x in inputs]
    kernel = Kernel()
    arrays = [kernel.array(d, f"x{i}") for i, d in enumerate(dtypes)]
    offsets = kernel.range(size)
    op = make(*(kernel.load(a, offsets) for a in arrays))
    result = kernel.emit(op)
    out = kernel.array(result.type.dtype, "out")
    kernel.store(out, offsets, result)
    index = len(arrays)
    old = to_mx(np.zeros(size, numpy_type(result.type.dtype)))
    got = graph.run(kernel.function(), (1, 1, 1), [*map(to_mx, padded), old], {index: old})[index]
    return to_np(got), evaluate(op, *padded)


def pairs(dtype: DType, count: int = 2) -> list[np.ndarray]:
    columns = zip(*itertools.product(corners(dtype), repeat=count), strict=True)
    return [np.array(column, numpy_type(dtype)) for column in columns]


def ulp_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance in representable numbers; NaN and infinities must agree."""
    kind = {2: np.int16, 4: np.int32}[got.dtype.itemsize]

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = x.view(kind).astype(np.int64)
        return np.where(bits < 0, -(bits & np.iinfo(kind).max), bits)

    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
    return float(np.abs(ordered(got) - ordered(expected))[~is_nan].max(initial=0))


def assert_same(got: np.ndarray, expected: np.ndarray, ulps: float = 0) -> None:
    assert got.dtype == expected.dtype
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return
    if ulps == 0:  # the sign of zero counts
        zeros = expected == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))
    assert ulp_error(got, expected) <= ulps


def has_meaning(kind: UnaryKind | BinaryKind, dtype: DType) -> bool:
    if kind is BinaryKind.UMULHI and dtype.bits < 32:
        return False
    one = Value(tile_type(dtype, (1,)))
    op = ops.Unary(kind, one) if isinstance(kind, UnaryKind) else ops.Binary(kind, one, one)
    try:
        evaluate(op, *[np.ones(1, numpy_type(dtype))] * len(op.operands))
    except InternalError:
        return False
    return True


UNARY_CASES = [(k, d) for k in UnaryKind for d in ALL if has_meaning(k, d)]
BINARY_CASES = [(k, d) for k in BinaryKind for d in ALL if has_meaning(k, d)]


def case_id(value: object) -> str:
    return getattr(value, "value", None) or str(value)


def test_tables_have_no_hole() -> None:
    # Pointers are resolved before, alignment is a question of code generation.
    pointer_stage = {ops.AddPointer, ops.Load, ops.Store, ops.IsAligned, exchange.Atomic, exchange.AtomicCas}
    known = {op for op in OPERATIONS if op.__module__ in (ops.__name__, exchange.__name__)}
    assert known - pointer_stage == set(graph.HANDLERS)
    assert {k for k, _ in UNARY_CASES} == set(UnaryKind)
    assert {k for k, _ in BINARY_CASES} == set(BinaryKind)


@pytest.mark.parametrize(("kind", "dtype"), UNARY_CASES, ids=case_id)
def test_unary(kind: UnaryKind, dtype: DType) -> None:
    got, expected = launch(lambda x: ops.Unary(kind, x), [corners(dtype)], [dtype])
    assert_same(got, expected, ULPS.get(kind, 0))


@pytest.mark.parametrize(("kind", "dtype"), BINARY_CASES, ids=case_id)
def test_binary(kind: BinaryKind, dtype: DType) -> None:
    got, expected = launch(lambda x, y: ops.Binary(kind, x, y), pairs(dtype), [dtype, dtype])
    assert_same(got, expected, ULPS.get(kind, 0))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("kind", list(CompareKind), ids=case_id)
def test_compare(kind: CompareKind, dtype: DType) -> None:
    got, expected = launch(lambda x, y: ops.Compare(kind, x, y), pairs(dtype), [dtype, dtype])
    assert_same(got, expected)


@pytest.mark.parametrize("target", ALL, ids=str)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_cast(source: DType, target: DType) -> None:
    got, expected = launch(lambda x: ops.Cast(x, target), [corners(source)], [source])
    assert_same(got, expected)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    values = pairs(dtype)
    third = np.resize(np.roll(corners(dtype), 3), len(values[0]))
    got, expected = launch(ops.Fma, [*values, third], [dtype] * 3)
    assert_same(got, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_cancellation(dtype: DType) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=4096).astype(numpy_type(dtype)) for _ in range(2))
    c = (-(a.astype(np.float32) * b.astype(np.float32))).astype(numpy_type(dtype))
    got, expected = launch(ops.Fma, [a, b, c], [dtype] * 3)
    assert np.count_nonzero(expected.astype(np.float32)) > 1000
    assert_same(got, expected)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_select(dtype: DType) -> None:
    values = pairs(dtype)
    condition = np.arange(len(values[0])) % 3 == 0
    got, expected = launch(ops.Select, [condition, *values], [int1, dtype, dtype])
    assert_same(got, expected)


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for s in ALL for t in ALL if s.bits == t.bits and s.bits > 1], ids=case_id
)
def test_bitcast(source: DType, target: DType) -> None:
    got, expected = launch(lambda x: ops.Bitcast(x, target), [corners(source)], [source])
    bits = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(bits), expected.view(bits))


@pytest.mark.parametrize("kind", [k for k in ULPS if isinstance(k, UnaryKind)], ids=case_id)
def test_accuracy_over_the_whole_range(kind: UnaryKind) -> None:
    """Tiny, ordinary and huge arguments of both signs, evenly over the exponents."""
    rng = np.random.default_rng(11)
    x = np.concatenate([
        rng.integers(0, 2**32, 12288, dtype=np.uint32).view(np.float32),
        rng.uniform(-100, 100, 2048).astype(np.float32),
        rng.normal(size=2048).astype(np.float32),
    ])  # fmt: skip
    got, expected = launch(lambda v: ops.Unary(kind, v), [x], [float32])
    assert_same(got, expected, ULPS[kind])


def test_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs: MLX's own float32 functions."""
    monkeypatch.setattr(graph_math, "has_float64", lambda: False)
    x = np.linspace(0.01, 0.99, 500, dtype=np.float32)
    y = x[::-1].copy()
    for kind in ULPS:
        if isinstance(kind, UnaryKind):
            got, expected = launch(lambda v, k=kind: ops.Unary(k, v), [x], [float32])
        else:
            got, expected = launch(lambda v, w, k=kind: ops.Binary(k, v, w), [x, y], [float32] * 2)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    got, expected = launch(ops.Fma, [x, y, x], [float32] * 3)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_random_integer_pairs() -> None:
    rng = np.random.default_rng(3)
    for dtype in (int32, uint32, uint64):
        x, y = (rng.integers(dtype.minimum, dtype.maximum, 1024, numpy_type(dtype)) for _ in range(2))
        for kind in (BinaryKind.UMULHI, BinaryKind.IDIV, BinaryKind.IREM, BinaryKind.MUL):
            inputs = [x, y >> y.dtype.type(9)]
            got, expected = launch(lambda a, b, k=kind: ops.Binary(k, a, b), inputs, [dtype] * 2)
            assert_same(got, expected)


def test_unknown_kind_is_our_bug() -> None:
    with pytest.raises(InternalError, match="graph engine does not support popc of float32"):
        launch(lambda x: ops.Unary(UnaryKind.POPC, x), [np.ones(1, np.float32)], [float32])
