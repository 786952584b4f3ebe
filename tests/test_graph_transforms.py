"""The graph engine inside mx.compile, mx.grad, mx.vmap and mx.export_function, and under a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from enceladus.ir import ops
from enceladus.ir.core import Block, Value
from enceladus.ir.ops import BinaryKind, UnaryKind
from enceladus.ir.types import float16, float32, int32
from enceladus.mlx_bridge.targets import graph
from tests.graph_helpers import Kernel

ArrayFunction = Callable[..., mx.array]


def elementwise(make: Callable[..., Value], count: int, block: int = 16) -> ArrayFunction:
    """``make(kernel, *tiles)`` as a function of ``count`` MLX arrays of one shape."""
    k = Kernel()
    arrays = [k.array(float32, f"x{i}") for i in range(count)]
    out, n = k.array(float32, "out"), k.scalar(int32, "n")
    offsets = k.offsets(block)
    mask = k.less(offsets, n)
    k.store(out, offsets, make(k, *(k.load(a, offsets, mask) for a in arrays)), mask)
    function = k.function()

    def call(*inputs: mx.array) -> mx.array:
        x = inputs[0]
        grid = (-(-x.size // block), 1, 1)
        return graph.run(function, grid, [*inputs, x, x.size], {count: mx.zeros(x.shape)})[count]

    return call


def gelu(k: Kernel, x: Value) -> Value:
    erf = k.emit(ops.Unary(UnaryKind.ERF, k.mul(x, 0.7071067811865476)))
    return k.mul(k.mul(x, 0.5), k.add(erf, 1.0))


def exact_gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.erf(x * 0.7071067811865476))


X = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32) * 2


def close(a: mx.array, b: mx.array) -> None:
    assert a.shape == b.shape
    np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-6)


def test_lazy() -> None:
    """A launch inside a trace must not evaluate anything: MLX raises if it does."""
    compiled = mx.compile(elementwise(gelu, 1))
    x = mx.array(X)
    close(compiled(x), exact_gelu(x))
    close(compiled(x + 1), exact_gelu(x + 1))


def test_compiled_results_are_the_same_bits() -> None:
    """Fusing must not contract the products and sums that fma and the functions rely on."""

    def body(k: Kernel, a: Value, b: Value, c: Value) -> Value:
        product = k.mul(a, b)
        minus = k.emit(ops.Unary(UnaryKind.NEG, product))
        rounding = k.emit(ops.Fma(a, b, minus))
        return k.add(k.emit(ops.Fma(rounding, b, c)), k.emit(ops.Unary(UnaryKind.SIN, c)))

    call = elementwise(body, 3)
    inputs = [mx.array(X * scale) for scale in (1.1, 0.7, 1e-7)]
    np.testing.assert_array_equal(np.array(mx.compile(call)(*inputs)), np.array(call(*inputs)))


def test_grad() -> None:
    x = mx.array(X)
    call = elementwise(gelu, 1)
    for transform in (mx.grad, lambda f: mx.compile(mx.grad(f)), lambda f: mx.grad(mx.compile(f))):
        close(transform(lambda x: (call(x) ** 2).sum())(x), mx.grad(lambda x: (exact_gelu(x) ** 2).sum())(x))
    got, expected = (
        mx.grad(lambda x, f=f: mx.grad(lambda x: f(x).sum())(x).sum())(x) for f in (call, exact_gelu)
    )
    np.testing.assert_allclose(np.array(got), np.array(expected), atol=1e-4)


DERIVATIVES = {
    UnaryKind.EXP: mx.exp, UnaryKind.EXP2: lambda x: mx.power(2.0, x), UnaryKind.EXPM1: mx.expm1,
    UnaryKind.LOG: mx.log, UnaryKind.LOG2: mx.log2, UnaryKind.LOG10: mx.log10, UnaryKind.LOG1P: mx.log1p,
    UnaryKind.SQRT: mx.sqrt, UnaryKind.RSQRT: mx.rsqrt, UnaryKind.SIN: mx.sin, UnaryKind.COS: mx.cos,
    UnaryKind.TAN: mx.tan, UnaryKind.ASIN: mx.arcsin, UnaryKind.ACOS: mx.arccos, UnaryKind.ATAN: mx.arctan,
    UnaryKind.SINH: mx.sinh, UnaryKind.COSH: mx.cosh, UnaryKind.TANH: mx.tanh, UnaryKind.ERF: mx.erf,
    UnaryKind.ABS: mx.abs, UnaryKind.NEG: mx.negative, UnaryKind.FLOOR: mx.floor, UnaryKind.CEIL: mx.ceil,
    UnaryKind.TRUNC: mx.floor, UnaryKind.RINT: mx.round, UnaryKind.ROUND: mx.round,
}  # fmt: skip


@pytest.mark.parametrize("kind", list(DERIVATIVES), ids=lambda kind: kind.value)
def test_derivative_of_each_function(kind: UnaryKind) -> None:
    x = mx.array(np.linspace(0.05, 0.95, 40, dtype=np.float32))
    call = elementwise(lambda k, v: k.emit(ops.Unary(kind, v)), 1)
    close(mx.grad(lambda x: call(x).sum())(x), mx.grad(lambda x: DERIVATIVES[kind](x).sum())(x))


def test_derivatives_of_erf_have_no_holes() -> None:
    x = mx.array(np.array([0, -0.0, 1e-30, 0.921875, -0.92, 3, -6, 50, -1e30, np.inf], np.float32))
    call = elementwise(lambda k, v: k.emit(ops.Unary(UnaryKind.ERF, v)), 1)
    got = np.array(mx.grad(lambda x: call(x).sum())(x))
    expected = 2 / np.sqrt(np.pi) * np.exp(-np.minimum(np.array(x).astype(np.float64) ** 2, 700))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


TWO_OPERANDS = {
    "div": (lambda k, x, y: k.emit(ops.Binary(BinaryKind.DIV, x, y)), mx.divide),
    "pow": (lambda k, x, y: k.emit(ops.Binary(BinaryKind.POW, x, y)), mx.power),
    "atan2": (lambda k, x, y: k.emit(ops.Binary(BinaryKind.ATAN2, x, y)), mx.arctan2),
    "max": (lambda k, x, y: k.emit(ops.Binary(BinaryKind.MAX, x, k.mul(y, 1.5))),
            lambda x, y: mx.maximum(x, 1.5 * y)),
    "select": (lambda k, x, y: k.emit(ops.Select(k.less(x, y), k.mul(x, x), y)),
               lambda x, y: mx.where(x < y, x * x, y)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(TWO_OPERANDS))
def test_derivatives_of_two_operands(name: str) -> None:
    a, b = (mx.array(np.abs(X) + shift) for shift in (0.1, 0.2))
    make, reference = TWO_OPERANDS[name]
    call = elementwise(make, 2)
    got = mx.grad(lambda x, y: call(x, y).sum(), argnums=(0, 1))(a, b)
    expected = mx.grad(lambda x, y: reference(x, y).sum(), argnums=(0, 1))(a, b)
    for g, e in zip(got, expected, strict=True):
        close(g, e)


def test_derivatives_of_fma() -> None:
    a, b, c = (mx.array(np.abs(X) + shift) for shift in (0.1, 0.2, 0.3))
    call = elementwise(lambda k, x, y, z: k.emit(ops.Fma(x, y, z)), 3)
    got = mx.grad(lambda x, y, z: call(x, y, z).sum(), argnums=(0, 1, 2))(a, b, c)
    for g, e in zip(got, (b, a, mx.ones_like(c)), strict=True):
        close(g, e)


def test_conversion_to_integers_has_derivative_zero() -> None:
    def body(k: Kernel, x: Value) -> Value:
        whole = k.cast(k.cast(x, int32), float32)
        bits = k.emit(ops.Bitcast(k.emit(ops.Bitcast(x, int32)), float32))
        return k.add(k.mul(x, 3.0), k.add(whole, bits))

    call = elementwise(body, 1)
    close(mx.grad(lambda x: call(x).sum())(mx.array(X)), mx.full(X.shape, 3.0))


def test_16_bit_derivative() -> None:
    k = Kernel()
    x, out = k.array(float16, "x"), k.array(float16, "out")
    lanes = k.range(8)
    k.store(out, lanes, k.emit(ops.Unary(UnaryKind.EXP, k.load(x, lanes))))
    function = k.function()
    values = mx.array(X[0, :8]).astype(mx.float16)
    grad = mx.grad(lambda v: graph.run(function, (1, 1, 1), [v, v], {1: v})[1].sum())(values)
    assert grad.dtype == mx.float16
    np.testing.assert_allclose(np.array(grad), np.exp(np.array(values)), rtol=2e-3)


def permute(stride: int) -> ArrayFunction:
    """out[(stride * i + 1) mod 16] = x[index[i]] for i < 12, else the old contents."""
    k = Kernel()
    x, index, out = k.array(float32, "x"), k.array(int32, "index"), k.array(float32, "out")
    lanes = k.offsets(4)
    at = k.binary(BinaryKind.AND, k.add(k.mul(lanes, stride), 1), 15)
    k.store(out, at, k.load(x, k.load(index, lanes)), k.less(lanes, 12))
    function = k.function()
    return lambda x, index, old: graph.run(function, (4, 1, 1), [x, index, old], {2: old})[2]


def reference_permute(x: np.ndarray, index: np.ndarray, old: np.ndarray, stride: int) -> np.ndarray:
    result = old.copy()
    lanes = np.arange(12)
    result[..., (stride * lanes + 1) % 16] = np.take_along_axis(x, index[..., :12], axis=-1)
    return result


@pytest.mark.parametrize("stride", [1, 3])
def test_gather_and_scatter_under_vmap_and_grad(stride: int) -> None:
    rng = np.random.default_rng(2)
    x, old = (rng.normal(size=(5, 16)).astype(np.float32) for _ in range(2))
    index = rng.integers(0, 16, (5, 16)).astype(np.int32)
    call = permute(stride)
    arrays = [mx.array(a) for a in (x, index, old)]
    got = mx.vmap(call)(*arrays)
    np.testing.assert_array_equal(np.array(got), reference_permute(x, index, old, stride))
    for axes in ((0, None, None), (None, 0, None), (None, None, 0), (0, 0, None)):
        inputs = [a if axis == 0 else a[1] for a, axis in zip(arrays, axes, strict=True)]
        rows = [[a[i] if axis == 0 else a for a, axis in zip(inputs, axes, strict=True)] for i in range(5)]
        expected = mx.stack([call(*row) for row in rows])
        np.testing.assert_array_equal(np.array(mx.vmap(call, in_axes=axes)(*inputs)), np.array(expected))
    weights = mx.array(rng.normal(size=16).astype(np.float32))
    grad = mx.grad(lambda x, i, o: (call(x, i, o) * weights).sum(), argnums=(0, 2))
    grad_x, grad_old = mx.vmap(grad)(*arrays)
    kept = np.ones(16, bool)
    kept[(stride * np.arange(12) + 1) % 16] = False
    np.testing.assert_allclose(np.array(grad_old), np.tile(np.where(kept, np.array(weights), 0), (5, 1)))
    expected_x = np.zeros_like(x)
    for row in range(5):
        np.add.at(expected_x[row], index[row, :12], np.array(weights)[(stride * np.arange(12) + 1) % 16])
    np.testing.assert_allclose(np.array(grad_x), expected_x, rtol=1e-5, atol=1e-6)


def test_vmap_of_functions_and_fma() -> None:
    def body(k: Kernel, x: Value) -> Value:
        return k.emit(ops.Fma(gelu(k, x), x, k.emit(ops.Unary(UnaryKind.COS, x))))

    call = elementwise(body, 1)
    x = mx.array(X)
    expected = mx.stack([call(row) for row in x])
    np.testing.assert_array_equal(np.array(mx.vmap(call)(x)), np.array(expected))
    np.testing.assert_array_equal(np.array(mx.vmap(call, in_axes=1, out_axes=1)(x.T)), np.array(expected).T)
    close(mx.compile(mx.vmap(call))(x), expected)


def test_export(tmp_path: Path) -> None:
    call = elementwise(gelu, 1)
    x = mx.array(X)
    path = str(tmp_path / "gelu.mlxfn")
    mx.export_function(path, call, x)
    [got] = mx.import_function(path)(x)
    close(got, exact_gelu(x))


def test_a_branch_on_traced_data_is_legal() -> None:
    k = Kernel()
    x, out = k.array(float32, "x"), k.array(float32, "out")
    pid = k.program_id()
    value = k.load(x, pid)
    blocks = []
    for factor in (2.0, -1.0):
        block = Block()
        with k.builder.inside(block):
            k.builder.emit(ops.Yield((k.mul(value, factor),)))
        blocks.append(block)
    [result] = k.builder.emit(ops.If(k.less(value, 0.0), *blocks))
    k.store(out, pid, result)
    function = k.function()
    x = mx.array(X[0])
    call = mx.compile(lambda x: graph.run(function, (x.size, 1, 1), [x, x], {1: x})[1])
    np.testing.assert_array_equal(np.array(call(x)), np.where(X[0] < 0, 2 * X[0], -X[0]))


def test_streams() -> None:
    x = mx.array(X)
    with mx.stream(mx.new_stream(mx.cpu)):
        close(elementwise(gelu, 1)(x), exact_gelu(x))
