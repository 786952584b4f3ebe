"""What the example kernels cost by their text: no GPU needed, and no clock but for the compile time.

    python benchmarks/static_cost.py

For each kernel, with the tile and the SIMD groups that its example chooses for the size in its name:

- body: bytes of the body's text
- barriers: ``threadgroup_barrier`` in the text; "+n in loops" are those that a run-time loop repeats
- simd: calls of SIMD-group functions (``simd_sum``, ``simd_shuffle_xor``, ...) in the text
- shared: bytes of threadgroup memory
- registers: a thread's, as ``explain`` estimates them
- read, written: accesses to elements in device memory, per element of the rows that a program handles, and
  how many of them are moved by vectors. Counted by walking the laid-out IR, which the text follows, for
  program 0: scalars are computed, so loops take their turns and branches their side; addresses count as
  aligned; masked-off elements do not count; a value from memory is unknown (a mask that depends on it
  counts as true). A tile that the text reads twice counts twice.
- compile: median milliseconds from the Python function to the body, in a warmed process
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import enceladus
from enceladus.compiler import compile_function
from enceladus.frontend.function import KernelFunction
from enceladus.interpreter.arrays import NUMPY_DTYPES
from enceladus.interpreter.semantics import EVALUATORS, evaluate
from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.laid_out import ContinueIf
from enceladus.mlx_bridge.compilation import build, compile_kernel
from enceladus.mlx_bridge.jit import JITFunction

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import bias_gelu  # noqa: E402
import cross_entropy  # noqa: E402
import gelu  # noqa: E402
import layer_norm  # noqa: E402
import reductions  # noqa: E402
import rms_norm  # noqa: E402
import softmax  # noqa: E402
import swiglu  # noqa: E402
import vector_add  # noqa: E402
from rows import choose_tile  # noqa: E402

F32, I32 = mx.float32, mx.int32


@dataclass(frozen=True)
class Case:
    """A kernel with the arguments of one launch. ``elements``: what one program handles."""

    name: str
    kernel: JITFunction
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    elements: int
    grid: tuple[int, ...] = (64,)
    num_warps: int = 4


@dataclass
class Accesses:
    """Array → elements read and written by one program, by vectors and one by one."""

    vector_reads: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    single_reads: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    vector_writes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    single_writes: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def reads(self, array: str) -> float:
        return self.vector_reads[array] + self.single_reads[array]

    def writes(self, array: str) -> float:
        return self.vector_writes[array] + self.single_writes[array]


@dataclass(frozen=True)
class Cost:
    """The row of one case. ``accesses`` are per element."""

    body: str
    barriers: int
    barriers_in_loops: int
    simd: int
    threadgroup_bytes: int
    registers: int
    accesses: Accesses
    compile_ms: float | None


class _Walk:
    """Executes the scalar and index part of laid-out IR for program 0, and counts accesses."""

    def __init__(self, function: Function, scalars: dict[str, Any], grid: tuple[int, ...]):
        self.grid = grid
        self.accesses = Accesses()
        self.known: dict[Value, Any] = {}
        self.active: Any = None  # in a group, after ``ContinueIf``: the elements that are left
        for argument in function.arguments:
            if argument.name in scalars:
                self.known[argument] = np.asarray(scalars[argument.name], NUMPY_DTYPES[argument.type.dtype])
        self.block(function.body)

    def block(self, block: Block) -> list[Any]:
        """Run the operations; the data that its terminator yields, None for what is unknown."""
        for op in block.ops:
            if op.terminator:
                return [self.known.get(v) for v in op.operands]
            self.operation(op)
        return []

    def operation(self, op: Op) -> None:
        match op:
            case ops.For():
                self.loop(op)
            case ops.If():
                condition = self.known.get(op.condition)
                side = op.then_block if condition is None or condition else op.else_block
                self.learn(op.results, self.block(side))
            case ops.ArrayLoad():
                self.access(op, self.accesses.vector_reads, self.accesses.single_reads)
            case ops.ArrayStore():
                self.access(op, self.accesses.vector_writes, self.accesses.single_writes)
            case ContinueIf():
                condition = self.known.get(op.condition)
                self.active = condition if self.active is None else self.active & condition
            case ops.ProgramId():
                self.learn(op.results, [np.int32(0)])
            case ops.NumPrograms():
                self.learn(op.results, [np.int32((*self.grid, 1, 1)[op.axis])])
            case ops.IsAligned():
                self.learn(op.results, [np.True_])
            case _ if op.blocks:  # a group, whose operations stand for all elements of the tile
                self.active = None
                for nested in op.blocks:
                    self.block(nested)
                self.active = None
            case _ if type(op) in EVALUATORS and op.results:
                operands = [self.known.get(v) for v in op.operands]
                exact = not op.results[0].type.element.is_floating()
                if exact and all(x is not None for x in operands):
                    self.learn(op.results, [evaluate(op, *operands)])
                else:
                    self.learn(op.results, [None] * len(op.results))

    def learn(self, values: Iterable[Value], data: Iterable[Any]) -> None:
        for value, known in zip(values, data, strict=True):
            self.known.pop(value, None)
            if known is not None:
                self.known[value] = known

    def loop(self, op: ops.For) -> None:
        bounds = [self.known.get(v) for v in (op.lower, op.upper, op.step)]
        if any(b is None for b in bounds):
            raise ValueError(f"the turns of the loop at {op.loc} depend on data")
        carried = [self.known.get(v) for v in op.initial]
        first, *arguments = op.body.arguments
        for turn in range(*(int(b) for b in bounds)):
            self.learn([first], [np.asarray(turn, NUMPY_DTYPES[first.type.dtype])])
            self.learn(arguments, carried)
            carried = self.block(op.body)
        self.learn(op.results, carried)

    def access(
        self, op: ops.ArrayLoad | ops.ArrayStore, by_vector: dict[str, float], single: dict[str, float]
    ) -> None:
        shape = op.offset.type.shape
        mask = self.known.get(op.mask) if op.mask is not None else None
        executed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        if self.active is not None:
            executed = executed & self.active
        (by_vector if op.vector > 1 else single)[op.array.name] += float(np.count_nonzero(executed))
        if isinstance(op, ops.ArrayLoad):
            self.learn(op.results, [None])


def count_in_loops(body: str, what: str) -> int:
    """How many lines with ``what`` stand inside a loop that is not unrolled."""
    found, ends, previous = 0, [], ""
    for line in body.splitlines():
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if ends and text == "}" and indent == ends[-1]:
            ends.pop()
        elif text.startswith("for (") and text.endswith("{") and previous != "#pragma unroll":
            ends.append(indent)
        elif ends and what in text:
            found += 1
        previous = text
    return found


def measure(case: Case, repeats: int = 0) -> Cost:
    """What ``case`` costs; its compile time only where there are ``repeats``."""
    warm = case.kernel.warmup(*case.arguments, grid=case.grid, num_warps=case.num_warps, **case.constants)
    scalars = {
        parameter.name: value
        for parameter, value in zip(case.kernel.kernel_function.parameters, case.arguments, strict=False)
        if isinstance(value, int | float)
    }
    last: list[Function] = []
    compiled = compile_function(
        build(KernelFunction(case.kernel.fn), warm.key),
        math_mode=warm.key.math_mode,
        listener=lambda _name, function: last.append(function),
    )
    accesses = _Walk(last[-1], scalars, case.grid).accesses
    for table in vars(accesses).values():
        for name in table:
            table[name] /= case.elements
    text = compiled.body
    return Cost(
        body=text,
        barriers=text.count("threadgroup_barrier("),
        barriers_in_loops=count_in_loops(text, "threadgroup_barrier("),
        simd=text.count("simd_"),
        threadgroup_bytes=compiled.threadgroup_bytes,
        registers=compiled.registers,
        accesses=accesses,
        compile_ms=median_ms(lambda: compile_kernel(KernelFunction(case.kernel.fn), warm.key), repeats),
    )


def median_ms(call: Callable[[], object], repeats: int) -> float | None:
    """Median milliseconds of a call, after one that does not count."""
    times = []
    for _ in range(repeats + 1 if repeats else 0):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:]) if times else None


def cases() -> list[Case]:
    """The kernels of the examples, each with a size that fills its tiles, some with a ragged one too."""
    found = []

    def add(
        name: str, kernel: JITFunction, arguments: tuple[Any, ...], elements: int, **options: Any
    ) -> None:
        constants = {key: value for key, value in options.items() if key.isupper()}
        rest = {key: value for key, value in options.items() if not key.isupper()}
        found.append(Case(name, kernel, arguments, constants, elements, **rest))

    n = 64 * 1024
    x, flat = mx.zeros((n,)), enceladus.empty((n,), F32)
    add("vector add", vector_add.add_kernel, (x, x, flat, n), 1024, BLOCK=1024)
    add("gelu", gelu.gelu_kernel, (x, flat, n), 1024, BLOCK=1024)
    add("swiglu", swiglu.swiglu_kernel, (x, x, flat, n), 1024, BLOCK=1024)

    def rows(n_cols: int, dtype: mx.Dtype = F32) -> tuple[mx.array, enceladus.FreshArray, mx.array]:
        return mx.zeros((64, n_cols), dtype), enceladus.empty((64, n_cols), dtype), mx.zeros((n_cols,), dtype)

    def tile(n_cols: int, **options: Any) -> dict[str, Any]:
        block, num_warps = choose_tile(n_cols, **options)
        return {"BLOCK": block, "num_warps": num_warps}

    x, out, w = rows(1024)
    add("bias gelu 1024", bias_gelu.bias_gelu_kernel, (x, w, out, 1024), 1024, BLOCK=1024, grid=(64, 1))
    for n_cols, dtype, note in (
        (512, F32, ""),
        (4096, F32, ""),
        (4096, mx.float16, " float16"),
        (1000, F32, ""),
    ):
        x, out, _ = rows(n_cols, dtype)
        add(f"softmax {n_cols}{note}", softmax.softmax_kernel, (x, out, n_cols), n_cols, **tile(n_cols))
    long = 32_768
    x, out, w = rows(long)
    add(f"softmax {long}", softmax.online_softmax_kernel, (x, out, long), long, **tile(long))
    numbers = enceladus.empty((64,), F32)
    add(f"logsumexp {long}", reductions.logsumexp_kernel, (x, numbers, long), long, **tile(long))
    square, sums = mx.zeros((1024, 1024)), enceladus.empty((4, 1024), F32)
    add(
        "column sum 1024 x 1024",
        reductions.column_sum_kernel,
        (square, sums, 1024, 1024, 256),
        256 * 128,
        ROWS=32,
        COLS=128,
        grid=(4, 8),
    )

    stats = mx.zeros((64,))
    for n_cols, norm, root in (
        (4096, layer_norm.layer_norm_kernel, rms_norm.rms_norm_kernel),
        (long, layer_norm.long_layer_norm_kernel, rms_norm.long_rms_norm_kernel),
    ):
        x, out, w = rows(n_cols)
        arguments = (x, w, w, out, numbers, numbers, n_cols, 1e-5)
        add(f"layer norm {n_cols}", norm, arguments, n_cols, **tile(n_cols))
        add(f"rms norm {n_cols}", root, (x, w, out, numbers, n_cols, 1e-5), n_cols, **tile(n_cols))
    x, out, w = rows(4096)
    shares = enceladus.empty((16, 4096), F32)
    options = tile(4096, carries_tiles=True)
    arguments = (x, x, w, stats, stats, out, shares, shares, 64, 4096)
    kernel = layer_norm.layer_norm_backward_kernel
    add("layer norm backward 4096", kernel, arguments, 4 * 4096, grid=(16,), **options)
    kernel, arguments = rms_norm.rms_norm_backward_kernel, (x, x, w, stats, out, shares, 64, 4096)
    add("rms norm backward 4096", kernel, arguments, 4 * 4096, grid=(16,), **options)

    x, out, w = rows(long)
    options = tile(long, carries_tiles=True)
    kernel, arguments = layer_norm.long_input_gradient_kernel, (x, x, w, stats, stats, out, long)
    add(f"layer norm dx {long}", kernel, arguments, long, **options)
    kernel, arguments = rms_norm.long_input_gradient_kernel, (x, x, w, stats, out, long)
    add(f"rms norm dx {long}", kernel, arguments, long, **options)
    shares, options = enceladus.empty((16, long), F32), {"BLOCK": 512, "grid": (16, long // 512)}
    kernel = layer_norm.long_parameter_gradient_kernel
    arguments = (x, x, stats, stats, shares, shares, 64, long)
    add(f"layer norm dw, db {long}", kernel, arguments, 4 * 512, **options)
    kernel, arguments = rms_norm.long_weight_gradient_kernel, (x, x, stats, shares, 64, long)
    add(f"rms norm dw {long}", kernel, arguments, 4 * 512, **options)

    targets = mx.zeros((64,), I32)
    for n_cols in (4096, long):
        x, out, _ = rows(n_cols)
        options = {"SMOOTHING": 0.0, "ONE_BLOCK": n_cols <= 4096, **tile(n_cols)}
        arguments = (x, targets, stats, numbers, out, n_cols, -100)
        add(f"cross entropy {n_cols}", cross_entropy.cross_entropy_kernel, arguments, n_cols, **options)
    return found


def per_element(vectors: dict[str, float], singles: dict[str, float]) -> str:
    """``accesses (by vectors)`` of all arrays together."""
    fast = math.fsum(vectors.values())
    return f"{fast + math.fsum(singles.values()):.2f} ({fast:.2f})"


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="compiles of each kernel")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their name")
    arguments = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, MLX {mx.__version__}, Enceladus {enceladus.__version__}")
    print("read, written: accesses per element (by vectors); compile: median ms\n")
    heads = (
        "kernel",
        "warps",
        "body",
        "barriers",
        "simd",
        "shared",
        "registers",
        "read",
        "written",
        "compile",
    )
    rows = [heads]
    for case in cases():
        if arguments.only not in case.name:
            continue
        cost = measure(case, arguments.repeats)
        looped = f" +{cost.barriers_in_loops} in loops" if cost.barriers_in_loops else ""
        rows.append(
            (
                case.name,
                str(case.num_warps),
                str(len(cost.body)),
                f"{cost.barriers - cost.barriers_in_loops}{looped}",
                str(cost.simd),
                str(cost.threadgroup_bytes),
                str(cost.registers),
                per_element(cost.accesses.vector_reads, cost.accesses.single_reads),
                per_element(cost.accesses.vector_writes, cost.accesses.single_writes),
                "" if cost.compile_ms is None else f"{cost.compile_ms:.2f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())


if __name__ == "__main__":
    main()
