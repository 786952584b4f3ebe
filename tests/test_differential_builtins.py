"""Every builtin on every legal dtype: interpreter, graph engine and host executor against NumPy.

References are computed in float64, or exactly for integers; tolerances come from ``tests.tolerances``.
Several builtins share a kernel, because each kernel costs a compile in the host executor. A function of
``tl`` or ``tl.math`` that no case here covers fails ``test_every_builtin_has_a_case``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.ir.ops import BinaryKind, UnaryKind
from enceladus.ir.types import DTYPES, DType, Kind, bfloat16, float16, float32, int1, int32, int64, uint32
from tests.engines import ENGINES, kernel_from_source, numpy_dtype, run_everywhere
from tests.test_differential_exchange import EXCHANGE_MODULES
from tests.tolerances import ulp_bound, ulp_error

FLOATS = (float16, bfloat16, float32)
SIGNED = tuple(t for t in DTYPES.values() if t.kind is Kind.SIGNED)
UNSIGNED = tuple(t for t in DTYPES.values() if t.kind is Kind.UNSIGNED)
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*INTEGERS, *FLOATS)
ALL = (int1, *NUMBERS)
BLOCK = 1024
SIZES = (1, 7, 1000, 1024)
LARGE = 98_432
#: MLX and Metal bind at most 31 buffers: three inputs, the scalars, and outputs.
OUTPUTS_PER_KERNEL = 16

Reference = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """``expression`` of tiles x, y, z (of one dtype) and what it must give.

    ``reference`` gets float64 arrays where the dtype is a float, else arrays of the dtype. ``ulp`` is a
    bound for float results (``None``: exact). ``out`` is the result's dtype if not that of the operands.
    ``covers``: the builtins that ``expression`` calls. ``offsets``: where the result is stored.
    ``zero_sign``: whether the sign of zero matters.
    """

    covers: tuple[str, ...]
    expression: str
    dtypes: tuple[DType, ...]
    reference: Reference
    ulp: Callable[[DType], float] | None = None
    out: DType | None = None
    offsets: str = "offs"
    zero_sign: bool = True


# ------------------------------------------------------------------------------------ references


def _idiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The truncated quotient; 0 where ``b`` is 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    inexact = a - quotient * safe != 0
    quotient = quotient + (inexact & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(0), quotient)


def _cdiv(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return _idiv(x + (y - y.dtype.type(1)), y)


def _bits(x: np.ndarray) -> list[int]:
    return [int(v) & ((1 << 8 * x.dtype.itemsize) - 1) for v in x]


def _umulhi(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    width = 8 * x.dtype.itemsize
    high = [a * b >> width for a, b in zip(_bits(x), _bits(y), strict=True)]
    return np.array(high, dtype=f"uint{width}").view(x.dtype)


def _round_away(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _erf(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


def _sigmoid(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    # A form that is accurate on both sides.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _clamp(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """For floats and integers: ``fmin`` and ``fmax`` drop NaN, and know integers."""
    return np.fmin(np.fmax(x, y), z)


def _rsqrt(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _first(function: Callable[[Any], Any]) -> Reference:
    return lambda x, y, z: function(x)


def _pair(function: Callable[[Any, Any], Any]) -> Reference:
    return lambda x, y, z: function(x, y)


def _bound(kind: UnaryKind | BinaryKind) -> Callable[[DType], float]:
    return lambda dtype: ulp_bound(kind, dtype)


def _exact(dtype: DType) -> float:
    return 0.0


def _fma_bound(dtype: DType) -> float:
    # Float32 rounds first; a tie can then be off by what float32 cannot see.
    return 0.5 if dtype is float32 else 0.5 + 2.0**-8


def _sigmoid_bound(dtype: DType) -> float:
    """``exp`` within its bound, then an addition and a division: no worse than their sum."""
    return ulp_bound(UnaryKind.EXP, dtype) + 2 if dtype is float32 else 1.0


def _unary(name: str, kind: UnaryKind, reference: Reference) -> Case:
    return Case((name,), f"{name}(x)", FLOATS, reference, _bound(kind))


def _constant(value: int) -> Reference:
    return lambda x, y, z: np.full(x.shape, value).astype(x.dtype)


U, B = UnaryKind, BinaryKind

CASES: tuple[Case, ...] = (
    # Mathematics.
    _unary("tl.exp", U.EXP, _first(np.exp)),
    _unary("tl.exp2", U.EXP2, _first(np.exp2)),
    _unary("tl.log", U.LOG, _first(np.log)),
    _unary("tl.log2", U.LOG2, _first(np.log2)),
    _unary("tl.sqrt", U.SQRT, _first(np.sqrt)),
    _unary("tl.sqrt_rn", U.SQRT, _first(np.sqrt)),
    _unary("tl.rsqrt", U.RSQRT, _rsqrt),
    _unary("tl.sin", U.SIN, _first(np.sin)),
    _unary("tl.cos", U.COS, _first(np.cos)),
    _unary("tl.tanh", U.TANH, _first(np.tanh)),
    _unary("tl.erf", U.ERF, _erf),
    _unary("tl.floor", U.FLOOR, _first(np.floor)),
    _unary("tl.ceil", U.CEIL, _first(np.ceil)),
    _unary("tl.math.log1p", U.LOG1P, _first(np.log1p)),
    _unary("tl.math.expm1", U.EXPM1, _first(np.expm1)),
    _unary("tl.math.log10", U.LOG10, _first(np.log10)),
    _unary("tl.math.tan", U.TAN, _first(np.tan)),
    _unary("tl.math.asin", U.ASIN, _first(np.arcsin)),
    _unary("tl.math.acos", U.ACOS, _first(np.arccos)),
    _unary("tl.math.atan", U.ATAN, _first(np.arctan)),
    _unary("tl.math.sinh", U.SINH, _first(np.sinh)),
    _unary("tl.math.cosh", U.COSH, _first(np.cosh)),
    _unary("tl.math.rint", U.RINT, _first(np.rint)),
    _unary("tl.math.round", U.ROUND, _round_away),
    _unary("tl.math.trunc", U.TRUNC, _first(np.trunc)),
    Case(("tl.sigmoid",), "tl.sigmoid(x)", FLOATS, _sigmoid, _sigmoid_bound),
    Case(("tl.div_rn",), "tl.div_rn(x, y)", FLOATS, _pair(np.divide), _bound(B.DIV)),
    Case(("tl.fdiv",), "tl.fdiv(x, y)", FLOATS, _pair(np.divide), _bound(B.DIV)),
    Case(("tl.math.pow",), "tl.math.pow(x, y)", FLOATS, _pair(np.power), _bound(B.POW)),
    Case(("tl.math.atan2",), "tl.math.atan2(x, y)", FLOATS, _pair(np.arctan2), _bound(B.ATAN2)),
    Case(("tl.fma",), "tl.fma(x, y, z)", FLOATS, lambda x, y, z: x * y + z, _fma_bound),
    Case(("tl.math.isnan",), "tl.math.isnan(x)", FLOATS, _first(np.isnan), out=int1),
    Case(("tl.math.isinf",), "tl.math.isinf(x)", FLOATS, _first(np.isinf), out=int1),
    # Bits.
    Case(("tl.math.popc",), "tl.math.popc(x)", INTEGERS,
         _first(lambda x: np.array([v.bit_count() for v in _bits(x)], np.int32)), out=int32),
    Case(("tl.math.clz",), "tl.math.clz(x)", INTEGERS,
         _first(lambda x: np.array([8 * x.dtype.itemsize - v.bit_length() for v in _bits(x)], np.int32)),
         out=int32),
    Case(("tl.umulhi",), "tl.umulhi(x, y)", tuple(t for t in INTEGERS if t.bits >= 32), _umulhi),
    Case(("tl.cdiv",), "tl.cdiv(x, y)", INTEGERS, _cdiv),
    Case(("tl.cdiv",), "tl.cdiv(x, y)", (int1,),
         lambda x, y, z: _cdiv(x.astype(np.int32), y.astype(np.int32), z), out=int32),
    # Choice and extrema.
    Case(("tl.abs",), "tl.abs(x)", ALL, _first(np.abs), _exact),
    Case(("tl.where",), "tl.where(x > y, y, z)", ALL, lambda x, y, z: np.where(x > y, y, z), _exact),
    Case(("tl.where",), "tl.where(x, y, z)", ALL, lambda x, y, z: np.where(x != 0, y, z), _exact),
    Case(("tl.maximum",), "tl.maximum(x, y)", NUMBERS, _pair(np.fmax), _exact, zero_sign=False),
    Case(("tl.minimum",), "tl.minimum(x, y)", NUMBERS, _pair(np.fmin), _exact, zero_sign=False),
    Case(("tl.maximum",), "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)", NUMBERS,
         _pair(np.maximum), _exact, zero_sign=False),
    Case(("tl.minimum",), "tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)", NUMBERS,
         _pair(np.minimum), _exact, zero_sign=False),
    Case(("tl.maximum",), "tl.maximum(x, y)", (int1,), _pair(np.logical_or)),
    Case(("tl.minimum",), "tl.minimum(x, y)", (int1,), _pair(np.logical_and)),
    Case(("tl.clamp",), "tl.clamp(x, y, z)", NUMBERS, _clamp, _exact, zero_sign=False),
    Case(("tl.clamp",), "tl.clamp(x, y, z, propagate_nan=tl.PropagateNan.ALL)", NUMBERS,
         lambda x, y, z: np.minimum(np.maximum(x, y), z), _exact, zero_sign=False),
    Case(("tl.clamp",), "tl.clamp(x, y, z)", (int1,), lambda x, y, z: (x | y) & z),
    # Methods that only live on tiles.
    Case(("tensor.logical_and",), "(x > y).logical_and(x > z)", ALL,
         lambda x, y, z: (x > y) & (x > z), out=int1),
    Case(("tensor.logical_or",), "(x > y).logical_or(x > z)", ALL,
         lambda x, y, z: (x > y) | (x > z), out=int1),
    Case(("tensor.logical_not",), "(x > y).logical_not()", ALL, lambda x, y, z: ~(x > y), out=int1),
    # New tiles, types and shapes.
    Case(("tl.zeros",), "tl.zeros((BLOCK,), DTYPE)", ALL, _constant(0), _exact),
    Case(("tl.full",), "tl.full((BLOCK,), 1, DTYPE)", ALL, _constant(1), _exact),
    Case(("tl.zeros_like",), "tl.zeros_like(x)", ALL, _constant(0), _exact),
    Case(("tl.full_like",), "tl.full_like(x, 1)", ALL, _constant(1), _exact),
    Case(("tl.cast",), "tl.cast(x, tl.int1)", ALL, lambda x, y, z: x != 0, out=int1),
    Case(("tensor.to",), "x.to(tl.int1)", ALL, lambda x, y, z: x != 0, out=int1),
    Case(("tl.broadcast_to",), "tl.broadcast_to(tl.full((1,), 1, DTYPE), (BLOCK,))", ALL,
         _constant(1), _exact),
    Case(("tl.expand_dims",), "tl.expand_dims(x, 0)", ALL, _first(lambda x: x), _exact,
         offsets="offs[None, :]"),
    # Positions and promises; x only fixes the size.
    Case(("tl.arange", "tl.program_id"), "tl.arange(0, BLOCK) + tl.program_id(0) * BLOCK", (int32,),
         _first(lambda x: np.arange(x.size, dtype=np.int32))),
    Case(("tl.num_programs",), "tl.zeros((BLOCK,), tl.int32) + tl.num_programs(0)", (int32,),
         _first(lambda x: np.full(x.shape, -(-x.size // BLOCK), np.int32))),
    Case(("tl.load", "tl.store", "tl.multiple_of", "tl.max_contiguous", "tl.max_constancy"),
         "tl.load(x_ptr + tl.max_constancy(tl.max_contiguous(tl.multiple_of(tl.program_id(0) * BLOCK, 16)"
         " + tl.arange(0, BLOCK), BLOCK), 1), mask=mask)", ALL, _first(lambda x: x), _exact),
)  # fmt: skip

#: Builtins that are statements: ``test_statements`` runs them.
STATEMENTS = ("tl.range", "tl.static_range", "tl.static_assert", "tl.static_print", "tl.assume",
              "tl.debug_barrier")  # fmt: skip
#: Names of ``tl`` that are no builtins.
NOT_BUILTINS = {
    "PointerType",
    "PropagateNan",
    "constexpr",
    "dtype",
    "math",
    "pointer_type",
    "tensor",
    *DTYPES,
}


# ----------------------------------------------------------------------------------------- inputs

_CORNERS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, math.inf, -math.inf, math.nan)


def _corners(dtype: DType) -> np.ndarray:
    target = numpy_dtype(dtype)
    if dtype is int1:
        return np.array([False, True])
    if dtype.is_floating():
        largest = {float16: 65504.0, bfloat16: 2.0**127, float32: 3.4e38}[dtype]
        smallest = {float16: 2.0**-14, bfloat16: 2.0**-126, float32: 2.0**-126}[dtype]
        return np.array([*_CORNERS, largest, -largest, smallest, -smallest]).astype(target)
    low, high = dtype.minimum, dtype.maximum
    signed = [-1, -2, -7, low, low + 1] if dtype.is_int_signed() else [high - 1, high // 2, high // 2 + 1]
    return np.array([0, 1, 2, 7, 8, high, high // 3, *signed], target)


def _random(dtype: DType, size: int, rng: np.random.Generator) -> np.ndarray:
    target = numpy_dtype(dtype)
    if dtype is int1:
        return rng.integers(0, 2, size).astype(bool)
    if dtype.is_floating():
        scale = 10.0 ** rng.uniform(-3, 2, size)
        return (rng.standard_normal(size) * scale).astype(target)
    bits = rng.integers(0, 1 << 64, size, np.uint64, endpoint=False)
    # Different magnitudes: most random 64-bit numbers are huge.
    bits >>= rng.integers(0, 64, size, np.uint64)
    return bits.astype(f"uint{dtype.bits}").view(target)


def operands(dtype: DType, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, z: pairs of corner values among random numbers, in random places."""
    rng = np.random.default_rng([size, *dtype.name.encode()])
    corners = _corners(dtype)
    pairs = np.stack(np.meshgrid(corners, corners), -1).reshape(-1, 2)
    extra = np.stack([_random(dtype, max(size, 64), rng) for _ in range(2)], -1)
    # Corner values keep a place of their own in every size; the smallest sizes get some of each.
    chosen = np.concatenate([rng.permutation(pairs)[: max(1, size // 2)], extra])[:size]
    chosen = rng.permutation(chosen)
    z = np.where(rng.random(size) < 0.2, rng.choice(corners, size), _random(dtype, size, rng))
    return np.ascontiguousarray(chosen[:, 0]), np.ascontiguousarray(chosen[:, 1]), z.astype(chosen.dtype)


# ---------------------------------------------------------------------------------------- kernels


def _groups(dtype: DType) -> list[list[Case]]:
    cases = [c for c in CASES if dtype in c.dtypes]
    step = OUTPUTS_PER_KERNEL
    return [cases[i : i + step] for i in range(0, len(cases), step)]


GROUPS = [(dtype, i) for dtype in ALL for i in range(len(_groups(dtype)))]


def _source(dtype: DType, cases: list[Case]) -> str:
    # Not specialized on n, so that all sizes share a text.
    lines = [
        "@enceladus.jit(do_not_specialize=['n'])",
        f"def kernel(x_ptr, y_ptr, z_ptr, {', '.join(f'out_{i}' for i in range(len(cases)))}, n,"
        " BLOCK: tl.constexpr, DTYPE: tl.constexpr):",
        "    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "    mask = offs < n",
        "    x = tl.load(x_ptr + offs, mask=mask)",
        "    y = tl.load(y_ptr + offs, mask=mask)",
        "    z = tl.load(z_ptr + offs, mask=mask)",
    ]
    for i, case in enumerate(cases):
        mask = case.offsets.replace("offs", "mask")
        lines.append(f"    tl.store(out_{i} + {case.offsets}, {case.expression}, mask={mask})")
    return "\n".join(lines) + "\n"


def check(dtype: DType, cases: list[Case], size: int, engines: tuple[str, ...] = ENGINES) -> None:
    """Run the cases in one kernel and compare each engine with the references."""
    x, y, z = operands(dtype, size)
    arguments: dict[str, Any] = {"x_ptr": x, "y_ptr": y, "z_ptr": z, "n": size}
    arguments |= {"BLOCK": BLOCK, "DTYPE": dtype}
    for i, case in enumerate(cases):
        arguments[f"out_{i}"] = enceladus.empty(size, case.out or dtype)
    kernel = kernel_from_source(_source(dtype, cases))
    results = run_everywhere(kernel, (-(-size // BLOCK),), arguments, engines=engines)
    wide = [v.astype(np.float64) for v in (x, y, z)] if dtype.is_floating() else [x, y, z]
    with np.errstate(all="ignore"):
        references = [np.asarray(case.reference(*wide)) for case in cases]
    for engine, outputs in results.items():
        for case, got, reference in zip(cases, outputs, references, strict=True):
            bad = _wrong(case, dtype, got, reference)
            if bad.any():
                k = int(np.flatnonzero(bad)[0])
                raise AssertionError(
                    f"{engine}: {case.expression} on {dtype}, n = {size}: x = {x[k]!r}, y = {y[k]!r}, "
                    f"z = {z[k]!r} give {got[k]!r}, expected {reference[k]!r} ({int(bad.sum())} wrong)"
                )


def _wrong(case: Case, dtype: DType, got: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Where ``got`` is not an acceptable result."""
    out = case.out or dtype
    assert got.dtype == numpy_dtype(out), case.expression
    if not out.is_floating():
        assert reference.dtype == got.dtype, case.expression
        return np.asarray(got != reference)
    assert case.ulp is not None
    # The reference is itself rounded to float64.
    bad = ulp_error(got, reference, out, flush=True) > case.ulp(dtype) + 1e-6
    if case.zero_sign:
        bad |= (reference == 0) & (np.signbit(got) != np.signbit(reference))
    return np.asarray(bad)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "group"), GROUPS, ids=lambda v: str(v))
def test_builtins(dtype: DType, group: int, size: int) -> None:
    check(dtype, _groups(dtype)[group], size)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "group"), GROUPS, ids=lambda v: str(v))
def test_builtins_on_large_arrays(dtype: DType, group: int) -> None:
    check(dtype, _groups(dtype)[group], LARGE)


# ------------------------------------------------------------------------------- the table is whole


#: Modules whose builtins ``test_differential_exchange`` covers.
ELSEWHERE = {f"enceladus.language.{m}" for m in EXCHANGE_MODULES}


def _functions(module: Any, prefix: str) -> dict[str, Any]:
    names = {n: getattr(module, n) for n in module.__all__ if n not in NOT_BUILTINS}
    return {f"{prefix}.{n}": f for n, f in names.items()}


def test_every_builtin_has_a_case() -> None:
    covered = {name for case in CASES for name in case.covers} | set(STATEMENTS)
    functions = _functions(tl, "tl") | _functions(tl.math, "tl.math")
    methods = {
        f"tensor.{name}": value
        for name, value in vars(tl.tensor).items()
        if not name.startswith("_") and isinstance(value, FunctionType)
    }
    known = {id(f) for name, f in (functions | methods).items() if name in covered}
    missing = [
        name
        for name, f in (functions | methods).items()
        if id(f) not in known and f.__module__ not in ELSEWHERE
    ]
    assert not missing, f"no case covers {', '.join(missing)}"
    assert not covered - set(functions) - set(methods), "cases cover names that do not exist"


def test_cases_cover_the_dtypes_they_can() -> None:
    """A case does not leave out a dtype on which its expression compiles."""
    for case in CASES:
        if "tl.program_id" in case.covers or "tl.num_programs" in case.covers:
            continue
        listed = {t for c in CASES if c.covers == case.covers for t in c.dtypes}
        for dtype in ALL:
            if dtype in listed:
                continue
            kernel = kernel_from_source(_source(dtype, [case]))
            arrays = [enceladus.zeros(8, dtype)] * 3 + [enceladus.empty(8, case.out or dtype)]
            try:
                kernel.warmup(*arrays, 8, BLOCK=BLOCK, DTYPE=dtype)
            except enceladus.CompilationError:
                continue
            raise AssertionError(f"{case.expression} compiles on {dtype} and is not tested on it")


# -------------------------------------------------------------------------------------- statements


@enceladus.jit
def statements_kernel(x_ptr, out_ptr, n, steps, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 16, "blocks are large")
    tl.static_print("block", BLOCK)
    tl.assume(n > 0)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    for i in tl.static_range(1, 4):
        x += i
    for i in tl.range(0, steps, 2):
        x = x * 3 + i
    tl.debug_barrier()
    tl.store(out_ptr + offs, x, mask=mask)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_statements(dtype: DType, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    x, _, _ = operands(dtype, size)
    expected = x + x.dtype.type(6)
    wide = np.promote_types(x.dtype, np.int32) if dtype.bits < 32 else x.dtype
    expected = expected.astype(wide)
    for i in range(0, 5, 2):
        expected = (expected * wide.type(3) + wide.type(i)).astype(wide)
    kernel = enceladus.JITFunction(statements_kernel.fn)
    arguments = {"x_ptr": x.astype(wide), "out_ptr": enceladus.empty(size, wide), "n": size, "steps": 5}
    first = (x.astype(wide) + wide.type(6)).astype(wide)
    for i in range(0, 5, 2):
        first = (first * wide.type(3) + wide.type(i)).astype(wide)
    results = run_everywhere(kernel, (-(-size // 64),), {**arguments, "BLOCK": 64})
    for engine, (got,) in results.items():
        np.testing.assert_array_equal(got, first, err_msg=engine)
    assert capsys.readouterr().out.splitlines().count("block 64") >= 1


def test_failed_static_assert() -> None:
    arguments = {"x_ptr": np.zeros(8, np.int32), "out_ptr": np.zeros(8, np.int32), "n": 8, "steps": 1}
    for engine in ENGINES:
        with pytest.raises(enceladus.CompilationError, match="blocks are large"):
            run_everywhere(statements_kernel, (1,), {**arguments, "BLOCK": 8}, engines=(engine,))


def test_builtins_is_the_module() -> None:
    """Nothing of ``tl`` hides a Python builtin by accident."""
    shadowed = {n for n in tl.__all__ if hasattr(builtins, n)}
    assert shadowed == {"abs", "all", "any", "max", "min", "range", "sum"}
    assert {int64, uint32} <= set(INTEGERS)
