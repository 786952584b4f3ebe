"""Hand-built tile IR for the tests of the graph engine, and NumPy ↔ MLX conversion."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np

from enceladus.interpreter.evaluate import evaluate_function
from enceladus.ir import ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.ir.types import DType, bfloat16, int1, int32, pointer_type, tile_type
from enceladus.mlx_bridge.targets import graph


class Kernel:
    """Builds one function: ``array`` and ``scalar`` declare its arguments, the rest emits operations."""

    def __init__(self, wide: bool = False):
        self.block = Block()
        self.builder = IRBuilder(self.block, wide=wide)

    def array(self, dtype: DType, name: str) -> Value:
        return self._argument(Value(tile_type(pointer_type(dtype)), self.block, name))

    def scalar(self, dtype: DType, name: str) -> Value:
        return self._argument(Value(tile_type(dtype), self.block, name))

    def _argument(self, value: Value) -> Value:
        self.block.arguments = (*self.block.arguments, value)
        return value

    def emit(self, op: Op) -> Value:
        results = self.builder.emit(op)
        return results[0] if results else None  # type: ignore[return-value]

    def program_id(self, axis: int = 0) -> Value:
        return self.emit(ops.ProgramId(axis, self.builder.index_dtype))

    def range(self, n: int) -> Value:
        return self.emit(ops.MakeRange(0, n, self.builder.index_dtype))

    def constant(self, value: float | int | bool, dtype: DType = int32) -> Value:
        return self.emit(ops.Constant(value, dtype))

    def binary(self, kind: BinaryKind, a: Value | float, b: Value | float) -> Value:
        """Operands may be Python numbers, and scalars meet tiles."""
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        a, b = (v if isinstance(v, Value) else self.constant(v, like.type.dtype) for v in (a, b))
        shape = a.type.shape or b.type.shape
        return self.emit(ops.Binary(kind, self.to_shape(a, shape), self.to_shape(b, shape)))

    def to_shape(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.emit(ops.Splat(value, shape)) if shape and value.type.is_scalar else value

    def add(self, a: Value | float, b: Value | float) -> Value:
        return self.binary(BinaryKind.ADD, a, b)

    def mul(self, a: Value | float, b: Value | float) -> Value:
        return self.binary(BinaryKind.MUL, a, b)

    def compare(self, kind: CompareKind, a: Value, b: Value | float) -> Value:
        b = b if isinstance(b, Value) else self.constant(b, a.type.dtype)
        return self.emit(ops.Compare(kind, a, self.to_shape(b, a.type.shape)))

    def less(self, a: Value, b: Value | float) -> Value:
        return self.compare(CompareKind.LT, a, b)

    def offsets(self, block: int) -> Value:
        return self.add(self.mul(self.program_id(), block), self.range(block))

    def load(
        self, array: Value, offset: Value, mask: Value | None = None, other: Value | None = None
    ) -> Value:
        return self.emit(ops.ArrayLoad(array, offset, mask, other))

    def store(self, array: Value, offset: Value, value: Value, mask: Value | None = None) -> None:
        self.emit(ops.ArrayStore(array, offset, value, mask))

    def cast(self, value: Value, dtype: DType) -> Value:
        return self.emit(ops.Cast(value, dtype))

    def function(self) -> Function:
        return Function("kernel", self.block)


def to_mx(array: np.ndarray) -> mx.array:
    return mx.array(array)


def to_np(array: mx.array) -> np.ndarray:
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def numpy_type(dtype: DType) -> np.dtype:
    return np.dtype(bool if dtype is int1 else ml_dtypes.bfloat16 if dtype is bfloat16 else dtype.name)


def both_engines(
    kernel: Kernel, grid: tuple[int, int, int], arguments: list, written: list[int], **options: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(graph, NumPy) contents of the written arrays. Arrays among ``arguments`` are NumPy arrays."""
    function = kernel.function()
    in_mlx = [to_mx(a) if isinstance(a, np.ndarray) else a for a in arguments]
    results = graph.run(function, grid, in_mlx, {i: in_mlx[i] for i in written}, **options)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    evaluate_function(function, grid, copies)
    return [(to_np(results[i]), copies[i]) for i in written]


def assert_engines_agree(
    kernel: Kernel, grid: tuple[int, int, int], arguments: list, written: list[int], **options: int
) -> list[np.ndarray]:
    """The contents of the written arrays, equal in the graph engine and in NumPy."""
    results = both_engines(kernel, grid, arguments, written, **options)
    for got, expected in results:
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    return [got for got, _ in results]
