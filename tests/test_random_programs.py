"""Random elementwise programs agree in every engine.

A program is generated as Python source, statement by statement, with the type and shape of every expression
known, so that it always compiles. Its arithmetic is exact in all engines (integers; floats rounded correctly
after each operation), so results must agree bit for bit; functions that are only good to a few ulp appear in
the last store alone, with a tolerance. Set ``RANDOM_PROGRAMS=500`` for a longer run with fresh randomness.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import enceladus
from enceladus.ir.ops import UnaryKind
from enceladus.ir.types import DTYPES, DType, float32, int1, int32
from tests.engines import assert_same, kernel_from_source, numpy_dtype, run_everywhere
from tests.test_differential_builtins import operands
from tests.test_differential_operators import promoted
from tests.tolerances import ulp_bound, ulp_error

EXAMPLES = int(os.environ.get("RANDOM_PROGRAMS", "0"))
DTYPES_ALL = tuple(DTYPES.values())
NUMBERS = tuple(t for t in DTYPES_ALL if t is not int1)
FLOATS = tuple(t for t in NUMBERS if t.is_floating())
FUNCTIONS = {"exp": UnaryKind.EXP, "tanh": UnaryKind.TANH, "erf": UnaryKind.ERF, "sin": UnaryKind.SIN}
MAX_OUTPUTS = 16
Draw = Callable[[Any], Any]

#: A shape is named by the variables that span it: a scalar, the tile, or in two dimensions a row or column.
SCALAR, TILE, ROW, COLUMN = "scalar", "tile", "row", "column"


class Program:
    """Source of a kernel, and what to call it with.

    ``tolerances``: bound in ulp of each output; ``None``: exact. Not a dataclass, whose arrays Hypothesis
    would print.
    """

    def __init__(
        self,
        source: str,
        grid: tuple[int, ...],
        arguments: dict[str, Any],
        num_warps: int,
        tolerances: list[float | None],
    ):
        self.source, self.grid, self.arguments = source, grid, arguments
        self.num_warps, self.tolerances = num_warps, tolerances

    def __repr__(self) -> str:
        plain = {k: v for k, v in self.arguments.items() if not isinstance(v, np.ndarray)}
        return f"\n{self.source}\n# grid {self.grid}, num_warps {self.num_warps}, {plain}\n"


@dataclass
class Writer:
    """Writes one program; ``variables`` maps (dtype, shape) to the names that are defined."""

    draw: Draw
    two_dimensional: bool
    inputs: list[DType]
    lines: list[str] = field(default_factory=list)
    variables: dict[tuple[DType, str], list[str]] = field(default_factory=dict)
    depth: int = 1
    count: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def define(self, name: str, dtype: DType, shape: str) -> None:
        self.variables.setdefault((dtype, shape), []).append(name)

    def choose(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)

    # ------------------------------------------------------------------------------ expressions

    def shape_text(self, shape: str) -> str:
        if self.two_dimensional:
            return {TILE: "(BM, BN)", ROW: "(1, BN)", COLUMN: "(BM, 1)"}[shape]
        return "(BLOCK,)"

    def other_shape(self, shape: str) -> str:
        """A shape that broadcasts to ``shape``."""
        if shape == SCALAR or self.chance(50):
            return shape
        if shape == TILE and self.two_dimensional:
            return str(self.choose((SCALAR, ROW, COLUMN)))
        return SCALAR

    def leaf(self, dtype: DType, shape: str) -> str:
        names = self.variables.get((dtype, shape), [])
        if names and self.chance(80):
            return str(self.choose(names))
        if shape == SCALAR:
            if dtype is int1:
                return "(s_int > 3)"
            return f"{self.choose(('s_int', 'pid', 's_float'))}.to(tl.{dtype})"
        if dtype is int1:
            return f"({self.leaf(int32, shape)} > {self.draw(st.integers(0, 40))})"
        if self.chance(30):
            return f"tl.full({self.shape_text(shape)}, {self.literal(dtype)}, tl.{dtype})"
        known = [(d, n) for (d, s), ns in self.variables.items() if s == shape for n in ns]
        return f"{self.choose(n for _, n in known)}.to(tl.{dtype})"

    def literal(self, dtype: DType) -> str:
        if dtype.is_floating():
            return str(self.choose(("0.5", "2.0", "-1.5", "3", "0.0", "100.0", "0.1")))
        low = -100 if dtype.is_int_signed() else 0
        return str(self.draw(st.integers(low, 100)))

    def narrower(self, dtype: DType) -> DType:
        """A dtype whose combination with ``dtype`` gives ``dtype``."""
        return self.choose(t for t in DTYPES_ALL if promoted(dtype, t) is dtype)  # type: ignore[no-any-return]

    def expression(self, dtype: DType, shape: str, depth: int) -> str:
        """Source of an expression of exactly this dtype and shape."""
        if depth == 0 or self.chance(15):
            return self.leaf(dtype, shape)
        d = depth - 1
        if self.chance(12):
            a, b = self.expression(dtype, shape, d), self.expression(dtype, shape, d)
            return f"({a} if {self.expression(int1, SCALAR, 1)} else {b})"
        if self.chance(12):
            condition = self.expression(int1, self.other_shape(shape), d)
            return (
                f"tl.where({condition}, {self.expression(dtype, shape, d)}, {self.operand(dtype, shape, d)})"
            )
        if dtype is int1:
            return self.condition(shape, d)
        if self.chance(20):
            return f"{self.expression(self.choose(DTYPES_ALL), shape, d)}.to(tl.{dtype})"
        a = self.expression(dtype, shape, d)
        if dtype.is_floating():
            return self.float_operation(dtype, a, shape, d)
        return self.integer_operation(dtype, a, shape, d)

    def operand(self, dtype: DType, shape: str, depth: int) -> str:
        """Something that may be combined with an expression of ``dtype`` and ``shape``."""
        if dtype is not int1 and self.chance(25):
            return self.literal(dtype)
        return self.expression(self.narrower(dtype), self.other_shape(shape), depth)

    def float_operation(self, dtype: DType, a: str, shape: str, d: int) -> str:
        kind = self.choose(("binary", "binary", "unary", "extremum", "fma", "clamp"))
        if kind == "unary":
            name = self.choose(("-", "tl.abs", "tl.floor", "tl.ceil", "tl.sqrt", "tl.math.rint",
                                "tl.math.trunc", "tl.math.round"))  # fmt: skip
            return f"({name}({a}))"
        if kind == "fma" and dtype is float32:
            b, c = (self.expression(dtype, shape, 0) for _ in range(2))
            return f"tl.fma({a}, {b}, {c})"
        if kind in ("extremum", "clamp"):
            # Adding zero: which of two zeros is the larger is not specified.
            b = self.expression(dtype, shape, 0)
            if kind == "clamp":
                return f"(tl.clamp({a}, {b}, {self.literal(dtype)}) + 0.0)"
            nan = self.choose(("", ", propagate_nan=tl.PropagateNan.ALL"))
            return f"(tl.{self.choose(('maximum', 'minimum'))}({a}, {b}{nan}) + 0.0)"
        return f"({a} {self.choose('+-*/')} {self.operand(dtype, shape, d)})"

    def integer_operation(self, dtype: DType, a: str, shape: str, d: int) -> str:
        kind = self.choose(("binary", "binary", "bits", "shift", "divide", "unary", "extremum"))
        if kind == "unary":
            return f"({self.choose(('-{}', '~{}', 'tl.abs({})')).format(a)})"
        if kind == "extremum":
            return f"tl.{self.choose(('maximum', 'minimum'))}({a}, {self.operand(dtype, shape, d)})"
        if kind == "divide":  # signs must agree
            b = self.literal(dtype) if self.chance(50) else self.expression(dtype, self.other_shape(shape), d)
            return f"({a} {self.choose(('//', '%'))} {b})"
        symbols = {"binary": "+-*", "bits": "&|^", "shift": ("<<", ">>")}[kind]
        return f"({a} {self.choose(symbols)} {self.operand(dtype, shape, d)})"

    def condition(self, shape: str, d: int) -> str:
        kind = self.choose(("compare", "compare", "logic", "not", "isnan"))
        if kind == "not":
            return f"(~{self.expression(int1, shape, d)})"
        if kind == "logic":
            a, b = self.expression(int1, shape, d), self.expression(int1, self.other_shape(shape), d)
            symbols = ("&", "|", "^", "and", "or") if shape == SCALAR and "(" not in b else ("&", "|", "^")
            return f"({a} {self.choose(symbols)} {b})"
        if kind == "isnan":
            return f"tl.math.isnan({self.expression(self.choose(FLOATS), shape, d)})"
        dtype = self.choose(NUMBERS)
        symbol = self.choose(("==", "!=", "<", "<=", ">", ">="))
        return f"({self.expression(dtype, shape, d)} {symbol} {self.operand(dtype, shape, d)})"

    # ------------------------------------------------------------------------------- statements

    def statements(self, budget: int, nesting: int) -> None:
        for _ in range(self.draw(st.integers(1 if self.depth > 1 else 3, budget))):
            kind = self.choose(("assign", "assign", "load", "if", "for", "for", "again", "again", "store"))
            if kind == "if" and nesting:
                self.branch(budget, nesting)
            elif kind == "for" and nesting:
                self.loop(budget, nesting)
            elif kind == "load":
                self.load()
            elif kind == "store":
                self.store()
            elif kind == "again":
                self.reassign()
            else:
                self.assign()

    def new_name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def assign(self) -> None:
        dtype = self.choose(DTYPES_ALL)
        shape = self.choose((TILE, TILE, SCALAR, *((ROW, COLUMN) if self.two_dimensional else ())))
        text, name = self.expression(dtype, shape, 3), self.new_name()
        self.line(f"{name} = {text}")
        self.define(name, dtype, shape)

    def reassign(self) -> None:
        own = [(d, s, n) for (d, s), names in self.variables.items() for n in names if n[0] == "v"]
        if not own:
            self.assign()
            return
        dtype, shape, name = self.choose(own)
        self.line(f"{name} = {self.expression(dtype, shape, 2)}")

    def load(self) -> None:
        index = self.draw(st.integers(0, len(self.inputs) - 1))
        dtype, name = self.inputs[index], self.new_name()
        if self.chance(40):  # gather from anywhere
            text = self.expression(int32, TILE, 2)
            self.line(f"at = tl.maximum({text}, 0) % total")
            self.line(f"{name} = tl.load(x{index} + at)")
        else:
            mask = f"mask & {self.expression(int1, TILE, 1)}" if self.chance(40) else "mask"
            other = f", other={self.expression(dtype, SCALAR, 0)}" if self.chance(40) else ""
            self.line(f"{name} = tl.load(x{index} + offs, mask={mask}{other})")
        self.define(name, dtype, TILE)

    def store(self) -> None:
        """Into an output that later stores may write again."""
        mask = f"mask & {self.expression(int1, self.other_shape(TILE), 1)}" if self.chance(60) else "mask"
        self.line(f"tl.store(early + offs, {self.expression(int32, TILE, 2)}, mask={mask})")

    def block(self, budget: int, nesting: int) -> None:
        """An indented block; what it defines is unknown outside."""
        outer = {key: list(names) for key, names in self.variables.items()}
        self.depth += 1
        self.statements(max(1, budget // 2), nesting - 1)
        self.depth -= 1
        self.variables = outer

    def branch(self, budget: int, nesting: int) -> None:
        self.line(f"if {self.expression(int1, SCALAR, 2)}:")
        self.block(budget, nesting)
        if self.chance(50):
            self.line("else:")
            self.block(budget, nesting)

    def loop(self, budget: int, nesting: int) -> None:
        outer = {key: list(names) for key, names in self.variables.items()}
        name = f"k{self.count}"
        self.count += 1
        if self.chance(30):
            self.line(f"for {name} in tl.static_range({self.draw(st.integers(0, 3))}):")
        else:
            bounds = self.choose(
                ("steps", "3", "1, steps", "steps, -1, -1", "0, 5, steps", "0, steps * 2, 2")
            )
            self.line(f"for {name} in range({bounds}):")
            self.define(name, int32, SCALAR)
        self.block(budget, nesting)
        self.variables = outer


@st.composite
def programs(draw: Draw) -> Program:
    """A program with inputs of random dtypes, and data with corner values."""
    two = draw(st.booleans())
    inputs = draw(st.lists(st.sampled_from(DTYPES_ALL), min_size=1, max_size=3))
    writer = Writer(draw, two, inputs)
    arguments: dict[str, Any] = {}
    if two:
        m, n = draw(st.integers(1, 40)), draw(st.integers(1, 40))
        bm, bn = (draw(st.sampled_from((1, 4, 16, 32))) for _ in range(2))
        grid: tuple[int, ...] = (-(-m // bm), -(-n // bn))
        arguments |= {"M": m, "N": n, "BM": bm, "BN": bn}
        total, parameters = m * n, "M, N, BM: tl.constexpr, BN: tl.constexpr"
        writer.line("rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]")
        writer.line("cols = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]")
        writer.line("offs = rows * N + cols")
        writer.line("mask = (rows < M) & (cols < N)")
        writer.define("rows", int32, COLUMN)
        writer.define("cols", int32, ROW)
    else:
        total = draw(st.integers(1, 600))
        block = draw(st.sampled_from((1, 16, 64, 128, 256)))
        grid = (-(-total // block),)
        arguments |= {"BLOCK": block}
        parameters = "BLOCK: tl.constexpr"
        writer.line("offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)")
        writer.line("mask = offs < total")
    writer.line("pid = tl.program_id(0)")
    writer.define("offs", int32, TILE)
    writer.define("mask", int1, TILE)
    writer.define("pid", int32, SCALAR)
    writer.define("s_int", int32, SCALAR)
    writer.define("s_float", float32, SCALAR)
    for i, dtype in enumerate(inputs):
        writer.line(f"v_{i} = tl.load(x{i} + offs, mask=mask)")
        writer.define(f"v_{i}", dtype, TILE)
        arguments[f"x{i}"] = operands(dtype, total)[i]
    writer.statements(6, 2)

    # Every variable is looked at.
    own = [(d, n) for (d, _), names in writer.variables.items() for n in names if n[0] == "v"][-MAX_OUTPUTS:]
    tolerances: list[float | None] = []
    for i, (dtype, name) in enumerate(own):
        writer.line(f"tl.store(out{i} + offs, {name}, mask=mask)")
        arguments[f"out{i}"] = enceladus.empty(total, dtype)
        tolerances.append(None)
    function = draw(st.sampled_from(sorted(FUNCTIONS)))
    # The argument may be large; sine is only good near zero.
    writer.line(f"last = tl.clamp({writer.expression(float32, TILE, 2)}, -50.0, 50.0)")
    writer.line(f"tl.store(approximate + offs, tl.{function}(last), mask=mask)")
    arguments["approximate"] = enceladus.empty(total, float32)
    tolerances.append(2 * ulp_bound(FUNCTIONS[function], float32))
    arguments["early"] = np.full(total, 7, np.int32)
    tolerances.append(None)
    arguments["total"] = total
    arguments["s_int"] = draw(st.sampled_from((0, 1, 5, 16, -3)))
    arguments["s_float"] = draw(st.sampled_from((0.0, 0.3, -2.5, 1e10)))
    arguments["steps"] = draw(st.integers(1, 4))

    names = [f"x{i}" for i in range(len(inputs))] + [f"out{i}" for i in range(len(own))]
    names += ["approximate", "early", "total", "s_int", "s_float", "steps"]
    head = f"@enceladus.jit\ndef kernel({', '.join(names)}, {parameters}):\n"
    warps = draw(st.sampled_from((1, 2, 4)))
    return Program(head + "\n".join(writer.lines) + "\n", grid, arguments, warps, tolerances)


def check(program: Program) -> None:
    kernel = kernel_from_source(program.source)
    results = run_everywhere(kernel, program.grid, program.arguments, num_warps=program.num_warps)
    reference = results.pop("interpreter")
    for engine, outputs in results.items():
        for index, (got, want) in enumerate(zip(outputs, reference, strict=True)):
            tolerance = program.tolerances[index]
            what = f"{engine} and interpreter, output {index}"
            if tolerance is None:
                assert_same(got, want, what)
            else:
                error = ulp_error(got, want.astype(np.float64), float32, flush=True)
                assert error.max() <= tolerance, f"{what}: {error.max()} ulp at {int(error.argmax())}"


def _settings(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )


@_settings(12)
@given(programs())
def test_random_programs(program: Program) -> None:
    check(program)


@pytest.mark.slow
@_settings(100)
@given(programs())
def test_more_random_programs(program: Program) -> None:
    check(program)


def test_generated_dtypes_are_all_reachable() -> None:
    """The operands of the corner-value generator have the dtypes that programs ask for."""
    for dtype in DTYPES_ALL:
        assert all(x.dtype == numpy_dtype(dtype) for x in operands(dtype, 50))
