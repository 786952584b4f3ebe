"""The graph engine: tile IR evaluated as MLX operations over all programs at once.

Input is a function after ``passes.resolve_pointers``. A value becomes one array with the program axis
first and the tile's dimensions behind it. Each dimension is full or 1: what is the same in all programs,
or along a dimension, is held once and broadcasts where it meets something that is not.

What depends only on program ids, scalars and constants is computed in NumPy while the graph is built, by
the interpreter's semantics; what depends on arrays is a lazy MLX array. So offsets and masks are usually
known, and a load of a contiguous range is a slice. The result is legal in ``mx.compile``, ``mx.grad``,
``mx.vmap`` and ``mx.export_function``, and runs on the device and stream in force.

Loops are unrolled, so their bounds must not depend on array data. Where programs disagree about a
branch or a trip count, both sides are computed and a mask of active programs guards what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from enceladus.errors import CompilationError, InternalError
from enceladus.interpreter.arrays import NUMPY_DTYPES, constant
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.types import DType, PointerType
from enceladus.mlx_bridge.targets import graph_arithmetic as arithmetic
from enceladus.mlx_bridge.targets import graph_atomics, graph_exchange
from enceladus.mlx_bridge.targets.graph_memory import ArrayContents, Data, both, flatten, load, to_mlx

#: What an operation does: its result, or ``None`` where it has none or several (then it sets them itself).
Handler = Callable[["Evaluator", Any], Data | None]

#: Elements that one tile may have over all programs evaluated together.
MAX_ELEMENTS = 1 << 24


def run(
    function: Function,
    grid: tuple[int, ...],
    arguments: Sequence[mx.array | int | float | bool],
    initial: Mapping[int, mx.array],
    max_elements: int = MAX_ELEMENTS,
) -> dict[int, mx.array]:
    """The contents of every written array after running ``function`` on ``grid``; lazy, nothing is mutated.

    ``arguments``: one per ``function.arguments``. For a pointer an ``mx.array`` of its element type and any
    shape, read in row-major order; for a scalar a Python number, or an ``mx.array`` of one element, whose
    value then must not decide a loop. ``initial``: index of each written argument → its contents
    before the launch, which give the result's shape and type. ``max_elements`` bounds a tile's size over
    the programs evaluated together; larger grids are evaluated in chunks.

    Raises ``CompilationError`` for a loop whose bounds depend on array data, ``ValueError`` for an array of
    2^31 elements or more, ``InternalError`` for an operation or an argument that has no business here.
    """
    names = [value.name or f"argument {i}" for i, value in enumerate(function.arguments)]
    if len(arguments) != len(names):
        raise InternalError(f"{function.name} takes {len(names)} arguments, got {len(arguments)}")
    flats: dict[Value, mx.array] = {}
    scalars: dict[Value, Data] = {}
    for value, argument, name in zip(function.arguments, arguments, names, strict=True):
        if isinstance(value.type.element, PointerType):
            flats[value] = _flat_array(argument, value.type.element.element, name)
        else:
            scalars[value] = _scalar(argument, value.type.dtype, name)
    contents: dict[Value, ArrayContents] = {}
    for i, array in initial.items():
        value = function.arguments[i]
        assert isinstance(value.type.element, PointerType)
        contents[value] = ArrayContents(_flat_array(array, value.type.element.element, names[i]))
    for programs in _chunks(function, grid, max_elements):
        evaluator = Evaluator(function, grid, programs, flats, contents)
        evaluator.values.update(scalars)
        evaluator.block(function.body)
    return {i: contents[function.arguments[i]].finish().reshape(array.shape) for i, array in initial.items()}


def _flat_array(array: mx.array | int | float | bool, dtype: DType, name: str) -> mx.array:
    if not isinstance(array, mx.array) or array.dtype != arithmetic.MLX_DTYPES[dtype]:
        found = array.dtype if isinstance(array, mx.array) else type(array).__name__
        raise InternalError(f"array argument {name!r} is {found} where the kernel was compiled for {dtype}")
    return flatten(array, name)


def _scalar(value: mx.array | int | float | bool, dtype: DType, name: str) -> Data:
    if not isinstance(value, mx.array):
        return constant(value, dtype).reshape(1)
    if value.size != 1 or value.dtype != arithmetic.MLX_DTYPES[dtype]:
        found = f"{value.dtype} of shape {value.shape}"
        raise InternalError(f"scalar argument {name!r} is {found} where the kernel was compiled for {dtype}")
    return value.reshape(1)


def _chunks(function: Function, grid: tuple[int, ...], max_elements: int) -> Iterator[np.ndarray]:
    """The linear indices of the programs that are evaluated together, in order."""
    largest = max((v.type.numel for op in function.walk() for v in op.results), default=1)
    count = prod(grid)
    step = max(1, max_elements // largest)
    for first in range(0, count, step):
        yield np.arange(first, min(first + step, count), dtype=np.int64)


class Evaluator:
    """Evaluates a block for some programs. ``values`` holds every value computed so far.

    ``active`` is None where all programs run the present block, else int1 of shape (programs,): which do.
    """

    __slots__ = ("active", "contents", "flats", "function", "grid", "ids", "programs", "used", "values")

    def __init__(
        self,
        function: Function,
        grid: tuple[int, ...],
        programs: np.ndarray,
        flats: dict[Value, mx.array],
        contents: dict[Value, ArrayContents],
    ):
        self.function = function
        self.grid = grid
        self.programs = programs
        self.flats = flats
        self.contents = contents
        self.values: dict[Value, Data] = {}
        self.active: Data | None = None
        self.ids: dict[int, np.ndarray] = {}
        self.used: set[Value] | None = None

    def block(self, block: Block) -> None:
        for op in block.ops:
            handler = HANDLERS.get(type(op))
            if handler is None:
                raise InternalError(f"the graph engine does not support {op.mnemonic}")
            result = handler(self, op)
            if result is not None:
                self.values[op.results[0]] = result

    def operand(self, value: Value | None) -> Data | None:
        return None if value is None else self.values[value]

    def written(self, array: Value) -> ArrayContents:
        """The contents of an array that the kernel writes."""
        contents = self.contents.get(array)
        if contents is None:
            raise InternalError(f"the kernel stores to {array.name!r}, which was not passed as written")
        return contents

    def guarded(self, mask: Value | None, rank: int) -> Data | None:
        """The mask of an access to a tile of ``rank`` dimensions, false in programs that do not get here."""
        data = self.operand(mask)
        return data if self.active is None else both(data, _align(self.active, rank))

    def is_used(self, value: Value) -> bool:
        """Whether any operation reads ``value``."""
        if self.used is None:
            self.used = {v for op in self.function.walk() for v in op.operands}
        return value in self.used

    def program_id(self, axis: int) -> np.ndarray:
        """int64 index on a grid axis, shape (programs,), or (1,) where it is the same in all of them."""
        found = self.ids.get(axis)
        if found is None:
            index = self.programs
            for size in self.grid[:axis]:
                index = index // size
            if axis < len(self.grid) - 1:
                index = index % self.grid[axis]
            uniform = index.size == 1 or (index[0] == index[-1] and bool((index == index[0]).all()))
            found = self.ids[axis] = index[:1] if uniform else index
        return found


# --------------------------------------------------------------------------- pure operations


def _program_id(self: Evaluator, op: ops.ProgramId) -> Data:
    return self.program_id(op.axis).astype(NUMPY_DTYPES[op.dtype])


def _num_programs(self: Evaluator, op: ops.NumPrograms) -> Data:
    return np.full((1,), self.grid[op.axis], np.int64).astype(NUMPY_DTYPES[op.dtype])


def _source(self: Evaluator, op: Op) -> Data:
    """Constants and ranges: the same in all programs."""
    return arithmetic.perform(op)[None]


def _splat(self: Evaluator, op: ops.Splat) -> Data:
    value = self.values[op.value]
    return value.reshape((*value.shape, *(1,) * len(op.shape)))


def _expand_dims(self: Evaluator, op: ops.ExpandDims) -> Data:
    value = self.values[op.value]
    axis = op.axis + 1
    return value.reshape((*value.shape[:axis], 1, *value.shape[axis:]))


def _same(self: Evaluator, op: ops.Broadcast) -> Data:
    """The operand: a dimension of 1 broadcasts by itself."""
    return self.values[op.value]


def _elementwise(self: Evaluator, op: Op) -> Data:
    return arithmetic.perform(op, *(self.values[v] for v in op.operands))


# ------------------------------------------------------------------------------------- memory


def _array_load(self: Evaluator, op: ops.ArrayLoad) -> Data:
    return load(self.flats[op.array], self.values[op.offset], self.operand(op.mask), self.operand(op.other))


def _array_store(self: Evaluator, op: ops.ArrayStore) -> None:
    mask = self.guarded(op.mask, len(op.offset.type.shape))
    self.written(op.array).store(self.values[op.offset], self.values[op.value], mask)


def _nothing(self: Evaluator, op: Op) -> None:
    """No effect here: programs do not run in parallel, and promises are not needed."""


# ------------------------------------------------------------------------------- control flow


def _not(a: Data) -> Data:
    return ~a if isinstance(a, np.ndarray) else mx.logical_not(a)


def _align(per_program: Data, rank: int) -> Data:
    """A scalar of every program, shaped to broadcast against tiles of ``rank`` dimensions."""
    return per_program.reshape((*per_program.shape, *(1,) * rank)) if rank else per_program


def _merge(condition: Data, on_true: Data, on_false: Data) -> Data:
    """``on_true`` in the programs where ``condition`` holds, else ``on_false``."""
    if on_true is on_false:
        return on_true
    condition = _align(condition, on_true.ndim - 1)
    if all(isinstance(x, np.ndarray) for x in (condition, on_true, on_false)):
        return np.where(condition, on_true, on_false)
    return mx.where(to_mlx(condition), to_mlx(on_true), to_mlx(on_false))


def _branch(self: Evaluator, op: ops.If) -> None:
    condition = self.values[op.condition]
    known = condition
    if isinstance(self.active, np.ndarray) and isinstance(condition, np.ndarray):
        known = np.broadcast_to(condition, np.broadcast_shapes(condition.shape, self.active.shape))
        known = known[np.broadcast_to(self.active, known.shape)]
    if isinstance(known, np.ndarray) and (known.all() or not known.any()):
        block = op.then_block if known.all() else op.else_block
        self.block(block)
        results = [self.values[v] for v in block.terminator.operands]
    else:
        outer = self.active
        sides = []
        for block, chosen in ((op.then_block, condition), (op.else_block, _not(condition))):
            self.active = both(outer, chosen)
            self.block(block)
            sides.append([self.values[v] for v in block.terminator.operands])
        self.active = outer
        results = [_merge(condition, a, b) for a, b in zip(*sides, strict=True)]
    self.values.update(zip(op.results, results, strict=True))


def _loop(self: Evaluator, op: ops.For) -> None:
    lower, upper, step = (self.values[v] for v in (op.lower, op.upper, op.step))
    if isinstance(lower, mx.array) or isinstance(upper, mx.array) or isinstance(step, mx.array):
        raise CompilationError(
            "the number of iterations of this loop depends on array data, which the graph engine (CPU) does "
            "not know while it builds the graph",
            "loop up to a bound known at the launch (a Python number) and mask the iterations that are too "
            "many, or run with ENCELADUS_INTERPRET=1 or on a GPU",
            op.loc,
        )
    trips = _trip_counts(lower, upper, step, wide=op.lower.type.dtype.bits == 64)
    outer = self.active
    relevant = trips
    if isinstance(outer, np.ndarray):  # what other programs would do is of no interest
        shape = np.broadcast_shapes(outer.shape, trips.shape)
        relevant = np.broadcast_to(trips, shape)[np.broadcast_to(outer, shape)]
    most, fewest = int(relevant.max(initial=0)), int(relevant.min(initial=trips.max()))
    carried = [self.values[v] for v in op.initial]
    for i in range(most):
        running = trips > i if i >= fewest else None
        if running is not None:
            self.active = both(outer, running)
        induction = lower + np.asarray(i).astype(lower.dtype) * step
        self.values.update(zip(op.body.arguments, (induction, *carried), strict=True))
        self.block(op.body)
        new = [self.values[v] for v in op.body.terminator.operands]
        if running is not None:
            new = [_merge(running, a, b) for a, b in zip(new, carried, strict=True)]
        carried = new
    self.active = outer
    self.values.update(zip(op.results, carried, strict=True))


def _trip_counts(lower: np.ndarray, upper: np.ndarray, step: np.ndarray, wide: bool) -> np.ndarray:
    """How often a loop runs in each program, as int64."""
    exact: type = object if wide else np.int64  # 64-bit differences can overflow: Python ints
    lower, upper, step = (x.astype(exact) for x in (lower, upper, step))
    zero = step == 0
    count: np.ndarray = -((lower - upper) // np.where(zero, 1, step))  # the quotient rounded up
    return np.asarray(np.where(zero | (count < 0), 0, count)).astype(np.int64)


#: What each operation does; the only list of what this engine supports.
HANDLERS: dict[type[Op], Handler] = {
    ops.Constant: _source,
    ops.MakeRange: _source,
    ops.ProgramId: _program_id,
    ops.NumPrograms: _num_programs,
    ops.Splat: _splat,
    ops.ExpandDims: _expand_dims,
    ops.Broadcast: _same,
    **dict.fromkeys(arithmetic.ELEMENTWISE, _elementwise),
    ops.ArrayLoad: _array_load,
    ops.ArrayStore: _array_store,
    ops.For: _loop,
    ops.If: _branch,
    ops.Yield: _nothing,
    ops.Barrier: _nothing,
    ops.Assume: _nothing,
    exchange.Reduce: graph_exchange.reduce,
    exchange.Scan: graph_exchange.scan,
    exchange.Transpose: graph_exchange.transpose,
    exchange.Reshape: graph_exchange.reshape,
    exchange.Join: graph_exchange.join,
    exchange.Pick: graph_exchange.pick,
    exchange.Gather: graph_exchange.gather,
    exchange.Sort: graph_exchange.sort,
    exchange.Histogram: graph_exchange.histogram,
    exchange.ArrayAtomic: graph_atomics.atomic,
    exchange.ArrayAtomicCas: graph_atomics.compare_and_swap,
}
