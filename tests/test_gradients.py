"""Gradients through launches, against MLX's gradients of the same formula and against finite differences."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import engine, needs_host
from tests.gradient_helpers import (
    RNG,
    ArrayFunction,
    assert_finite_differences,
    assert_same_gradients,
    binary_kernel,
    launch_scaled_exp,
    normal,
    scaled_exp,
    two_outputs,
)

# --------------------------------------------------------------------------------- elementwise


@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_elementwise_with_ragged_masks(any_engine: str, size: int) -> None:
    arrays = normal(size), normal(size)
    assert_same_gradients(launch_scaled_exp, lambda x, y: mx.exp(x) * y * 2.5, arrays)


def test_float_arguments_are_those_of_the_launch(any_engine: str) -> None:
    """One plan serves all values of a float; the gradient must not keep the first one."""
    x, y = normal(70), normal(70)
    for scale in (2.0, -3.0, 2.0):
        assert_same_gradients(
            lambda x, y, s=scale: launch_scaled_exp(x, y, s), lambda x, y, s=scale: mx.exp(x) * y * s, (x, y)
        )


def test_value_and_grad_vjp_and_compile(any_engine: str) -> None:
    x, y = normal(70), normal(70)

    def reference(x: mx.array) -> mx.array:
        return (mx.exp(x) * y * 2.5).sum()

    def function(x: mx.array) -> mx.array:
        return launch_scaled_exp(x, y).sum()

    want = mx.grad(reference)(x)
    value, gradient = mx.value_and_grad(function)(x)
    np.testing.assert_allclose(value.item(), reference(x).item(), rtol=1e-5)
    np.testing.assert_allclose(np.array(gradient), np.array(want), rtol=1e-5)
    _, (pulled,) = mx.vjp(lambda x: launch_scaled_exp(x, y), [x], [mx.ones_like(x)])
    np.testing.assert_allclose(np.array(pulled), np.array(want), rtol=1e-5)
    if any_engine != "host":  # the host executor evaluates its inputs
        for transformed in (mx.compile(mx.grad(function)), mx.grad(mx.compile(function))):
            np.testing.assert_allclose(np.array(transformed(x)), np.array(want), rtol=1e-5)
    checkpointed = mx.grad(mx.checkpoint(function))(x)
    np.testing.assert_allclose(np.array(checkpointed), np.array(want), rtol=1e-5)


def test_second_order(any_engine: str) -> None:
    x, y = normal(70), normal(70)

    def twice(function: ArrayFunction) -> mx.array:
        return mx.grad(lambda x: (mx.grad(lambda x: (function(x, y) ** 2).sum())(x) ** 2).sum())(x)

    got, want = twice(launch_scaled_exp), twice(lambda x, y: mx.exp(x) * y * 2.5)
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-4)


def test_modules(any_engine: str) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = mx.array(np.linspace(-1, 1, 70, dtype=np.float32))

        def __call__(self, x: mx.array) -> mx.array:
            return launch_scaled_exp(x, self.weight)

    layer, x = Layer(), normal(70)
    _, gradients = nn.value_and_grad(layer, lambda x: layer(x).sum())(x)
    np.testing.assert_allclose(np.array(gradients["weight"]), np.array(2.5 * mx.exp(x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_16_bit(any_engine: str, dtype: mx.Dtype) -> None:
    arrays = normal(70, dtype=dtype), normal(70, dtype=dtype)
    assert_same_gradients(
        launch_scaled_exp,
        lambda x, y: (mx.exp(x.astype(mx.float32)) * y.astype(mx.float32) * 2.5).astype(dtype),
        arrays,
        rtol=3e-2,
        atol=3e-2,
    )


def test_two_outputs(any_engine: str) -> None:
    def function(x: mx.array) -> tuple[mx.array, ...]:
        fresh = enceladus.empty_like(x)
        return two_outputs[(2,)](x, fresh, fresh, x.size, BLOCK=64)

    x = normal(100)
    assert_same_gradients(function, lambda x: (mx.sin(x), mx.cos(2 * x)), (x,))
    assert_same_gradients(lambda x: function(x)[1], lambda x: mx.cos(2 * x), (x,))


#: name → (the expression in a kernel, the same in MLX)
OPERATIONS = {
    "abs": ("tl.abs(x) * y", lambda x, y: mx.abs(x) * y),
    "division": ("x / (y * y + 1)", lambda x, y: x / (y * y + 1)),
    "sigmoid": ("tl.sigmoid(x) * y", lambda x, y: mx.sigmoid(x) * y),
    "logarithm": ("tl.log(x * x + 1) - tl.sqrt(y * y + 1)",
                  lambda x, y: mx.log(x * x + 1) - mx.sqrt(y * y + 1)),
    "erf": ("tl.erf(x) * tl.rsqrt(y * y + 1)", lambda x, y: mx.erf(x) * mx.rsqrt(y * y + 1)),
    "fma": ("tl.fma(x, y, x)", lambda x, y: x * y + x),
    "maximum": ("tl.maximum(x, y) * y", lambda x, y: mx.maximum(x, y) * y),
    "minimum": ("tl.minimum(x, y * 2)", lambda x, y: mx.minimum(x, y * 2)),
    "where": ("tl.where(x > y, x * y, tl.exp2(y))", lambda x, y: mx.where(x > y, x * y, mx.power(2.0, y))),
    "floor": ("tl.floor(x) * y", lambda x, y: mx.floor(x) * y),
    "comparison": ("(x > y).to(tl.float32) * y", lambda x, y: (x > y).astype(mx.float32) * y),
    "integer": ("x.to(tl.int32).to(tl.float32) * y + x",
                lambda x, y: mx.stop_gradient(mx.where(x < 0, mx.ceil(x), mx.floor(x))) * y + x),
    "unused": ("y", lambda x, y: y + 0 * x),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(any_engine: str, name: str) -> None:
    expression, formula = OPERATIONS[name]
    assert_same_gradients(binary_kernel(expression), formula, (normal(100), normal(100)))


TIES = {"maximum": mx.maximum, "minimum": mx.minimum}


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("options", ["", ", propagate_nan=tl.PropagateNan.ALL"])
def test_of_equal_operands_the_second_gets_the_gradient(any_engine: str, name: str, options: str) -> None:
    """As in MLX, for zeros of either sign too."""
    x = mx.array([1.0, 1.0, 0.0, -0.0, 0.0, 2.0])
    y = mx.array([1.0, 2.0, 0.0, 0.0, -0.0, 1.0])
    function = binary_kernel(f"tl.{name}(x, y{options})")
    assert_same_gradients(function, TIES[name], (x, y), rtol=0, atol=0)


# ------------------------------------------------------------------------ rows and reductions


@enceladus.jit
def softmax_kernel(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride + cols, e / tl.sum(e, axis=0), mask=cols < n)


def softmax(x: mx.array) -> mx.array:
    rows, n = x.shape
    block = enceladus.next_power_of_2(n)
    return softmax_kernel[(rows,)](x, enceladus.empty_like(x), n, n, BLOCK=block)


@pytest.mark.parametrize("shape", [(3, 16), (5, 13), (2, 1)])
def test_softmax(any_engine: str, shape: tuple[int, int]) -> None:
    assert_same_gradients(softmax, lambda x: mx.softmax(x, axis=-1), (normal(*shape),))


def test_softmax_against_finite_differences(any_engine: str) -> None:
    def formula(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    assert_finite_differences(softmax, formula, RNG.normal(size=(3, 5)).astype(np.float32))


@enceladus.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    w = tl.load(w_ptr + cols, mask=mask)
    b = tl.load(b_ptr + cols, mask=mask)
    for i in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + i
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)
        mean = tl.sum(x, axis=0) / n
        centered = tl.where(mask, x - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centered * centered, axis=0) / n + eps)
        tl.store(out_ptr + row * n + cols, centered * scale * w + b, mask=mask)


@pytest.mark.parametrize("rows", [1, 2])
def test_layer_norm(any_engine: str, rows: int) -> None:
    """The weights are read by every row: their gradients are sums over programs."""

    def function(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        n = x.shape[1]
        block = enceladus.next_power_of_2(n)
        fresh = enceladus.empty_like(x)
        return layer_norm_kernel[(x.shape[0] // rows,)](x, w, b, fresh, n, 1e-5, ROWS=rows, BLOCK=block)

    arrays = normal(6, 20), normal(20), normal(20)
    assert_same_gradients(function, lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), arrays)


@enceladus.jit
def extremes_kernel(x_ptr, high_ptr, low_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols)
    tl.store(high_ptr + row, tl.max(x, axis=0))
    tl.store(low_ptr + row, tl.min(x, axis=0))


def test_equal_extremes_share_the_gradient(any_engine: str) -> None:
    """As in MLX."""

    def function(x: mx.array) -> tuple[mx.array, ...]:
        fresh = enceladus.empty((x.shape[0],), x.dtype)
        return extremes_kernel[(x.shape[0],)](x, fresh, fresh, 4, BLOCK=4)

    x = mx.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, -0.0, 1.0, 5.0]])
    assert_same_gradients(function, lambda x: (x.max(axis=1), x.min(axis=1)), (x,))


@enceladus.jit
def tile_kernel(x_ptr, bias_ptr, out_ptr, m, n, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    offs = rows[:, None] * n + cols[None, :]
    x = tl.load(x_ptr + offs, mask=mask)
    bias = tl.load(bias_ptr + cols, mask=cols < n)
    tl.store(out_ptr + offs, x * x + bias[None, :] * x, mask=mask)


@pytest.mark.parametrize("shape", [(8, 16), (5, 11), (9, 33)])
def test_broadcast_rows(any_engine: str, shape: tuple[int, int]) -> None:
    def function(x: mx.array, bias: mx.array) -> mx.array:
        m, n = x.shape
        grid = (enceladus.cdiv(m, 4), enceladus.cdiv(n, 8))
        return tile_kernel[grid](x, bias, enceladus.empty_like(x), m, n, BM=4, BN=8)

    assert_same_gradients(function, lambda x, b: x * x + b * x, (normal(*shape), normal(shape[1])))


@enceladus.jit
def rotate_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, width, HALF: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, HALF)
    half = width // 2
    mask = cols < half
    first = tl.load(x_ptr + row * width + cols, mask=mask)
    second = tl.load(x_ptr + row * width + half + cols, mask=mask)
    cos = tl.load(cos_ptr + row * half + cols, mask=mask)
    sin = tl.load(sin_ptr + row * half + cols, mask=mask)
    tl.store(out_ptr + row * width + cols, first * cos - second * sin, mask=mask)
    tl.store(out_ptr + row * width + half + cols, second * cos + first * sin, mask=mask)


def launch_rotation(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    rows, width = x.shape
    half = enceladus.next_power_of_2(width // 2)
    return rotate_kernel[(rows,)](x, cos, sin, enceladus.empty_like(x), width, HALF=half)


@pytest.mark.parametrize("width", [16, 10])
def test_two_halves_of_an_array(any_engine: str, width: int) -> None:
    def reference(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        a, b = mx.split(x, 2, axis=1)
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

    half = width // 2
    assert_same_gradients(launch_rotation, reference, (normal(3, width), normal(3, half), normal(3, half)))


@enceladus.jit
def embedding_kernel(index_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    at = tl.load(index_ptr + row)
    found = tl.load(table_ptr + at * width + cols, mask=cols < width)
    tl.store(out_ptr + row * width + cols, found * found, mask=cols < width)


def test_duplicate_lookups_accumulate(any_engine: str) -> None:
    index = mx.array([3, 0, 3, 3, 1], dtype=mx.int32)

    def function(table: mx.array) -> mx.array:
        fresh = enceladus.empty((5, table.shape[1]), table.dtype)
        return embedding_kernel[(5,)](index, table, fresh, table.shape[1], BLOCK=16)

    assert_same_gradients(function, lambda t: t[index] * t[index], (normal(4, 12),))


@enceladus.jit
def row_sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n)
        total += x * x * row
    tl.store(out_ptr + row, tl.sum(total, axis=0))


def test_accumulation_in_a_loop(any_engine: str) -> None:
    def function(x: mx.array) -> mx.array:
        rows, n = x.shape
        return row_sum_kernel[(rows,)](x, enceladus.empty((rows,), x.dtype), n, BLOCK=16)

    assert_same_gradients(function, lambda x: (x * x * mx.arange(4)[:, None]).sum(axis=1), (normal(4, 40),))


@enceladus.jit
def running_sum_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    state = tl.sum(x * 0.0, axis=0)
    for _ in range(5):
        state = tl.sin(state + tl.sum(x, axis=0))
    tl.store(out_ptr + offs, x * state)


def test_a_loop_that_carries_what_it_computes(any_engine: str) -> None:
    def function(x: mx.array) -> mx.array:
        return running_sum_kernel[(1,)](x, enceladus.empty_like(x), BLOCK=16)

    def reference(x: mx.array) -> mx.array:
        state = mx.array(0.0)
        for _ in range(5):
            state = mx.sin(state + x.sum())
        return x * state

    assert_same_gradients(function, reference, (normal(16),), atol=1e-4)


# ----------------------------------------------------------------- what is masked, old, integer


@enceladus.jit
def other_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + offs)
    x = tl.load(x_ptr + offs, mask=offs < n, other=y * 3)
    tl.store(out_ptr + offs, x * x)


def test_masked_off_loads_give_their_gradient_to_other(any_engine: str) -> None:
    def function(x: mx.array, y: mx.array) -> mx.array:
        return other_kernel[(1,)](x, y, enceladus.empty_like(x), 10, BLOCK=16)

    chosen = mx.arange(16) < 10
    assert_same_gradients(function, lambda x, y: mx.where(chosen, x, 3 * y) ** 2, (normal(16), normal(16)))


def test_unwritten_elements_pass_the_gradient_to_the_old_contents(any_engine: str) -> None:
    def function(x: mx.array, old: mx.array) -> mx.array:
        out = old * 1.0
        returned = scaled_exp[(1,)](x, x, out, 50, 2.5, BLOCK=64)
        assert returned is out
        return out

    def reference(x: mx.array, old: mx.array) -> mx.array:
        return mx.concatenate([(mx.exp(x) * x * 2.5)[:50], old[50:]])

    assert_same_gradients(function, reference, (normal(100), normal(100)))


@enceladus.jit
def square_in_place(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(x_ptr + offs, x * x, mask=offs < n)


@pytest.mark.parametrize("n", [100, 30])
def test_an_array_read_and_written_in_place(any_engine: str, n: int) -> None:
    def function(x: mx.array) -> mx.array:
        y = x * 1.0
        square_in_place[(2,)](y, n, BLOCK=64)
        return y

    assert_same_gradients(function, lambda x: mx.where(mx.arange(100) < n, x * x, x), (normal(100),))


@enceladus.jit
def integer_kernel(x_ptr, i_ptr, out_ptr, parity_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    i = tl.load(i_ptr + offs)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, x * i)
    tl.store(parity_ptr + offs, (i & 1) + x.to(tl.int32))


def test_integers_have_no_gradient(any_engine: str) -> None:
    def function(x: mx.array, i: mx.array) -> mx.array:
        parity = enceladus.empty((16,), mx.int32)
        out, parity = integer_kernel[(1,)](x, i, enceladus.empty_like(x), parity, BLOCK=16)
        return out + parity

    # Integers that come from a traced array: MLX asks for their gradient, which is 0.
    assert_same_gradients(
        lambda x: function(x, mx.argsort(x).astype(mx.int32)), lambda x: x * mx.argsort(x), (normal(16),)
    )


def test_numbers_are_not_differentiated_but_arrays_of_one_element_are(any_engine: str) -> None:
    @enceladus.jit
    def kernel(x_ptr, scale_ptr, out_ptr, BLOCK: tl.constexpr):
        offs = tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs) * tl.load(scale_ptr))

    def function(x: mx.array, scale: mx.array) -> mx.array:
        return kernel[(1,)](x, scale, enceladus.empty_like(x), BLOCK=16)

    assert_same_gradients(function, lambda x, s: x * s, (normal(16), mx.array(1.5)))


def test_empty_launches_and_empty_arrays(any_engine: str) -> None:
    x = normal(70)
    got = mx.grad(lambda x: scaled_exp[(0,)](x, x, x * 2, 70, 1.0, BLOCK=64).sum())(x)
    np.testing.assert_array_equal(np.array(got), np.full(70, 2.0))
    empty = mx.zeros((0,))
    got = mx.grad(lambda x: scaled_exp[(1,)](x, x, enceladus.empty_like(x), 0, 1.0, BLOCK=64).sum())(empty)
    assert got.shape == (0,)


def test_tuples_of_arrays(any_engine: str) -> None:
    @enceladus.jit
    def kernel(pair, out_ptr, BLOCK: tl.constexpr):
        offs = tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(pair[0] + offs) * tl.load(pair[1] + offs))

    def function(x: mx.array, y: mx.array) -> mx.array:
        return kernel[(1,)]((x, y), enceladus.empty_like(x), BLOCK=16)

    assert_same_gradients(function, lambda x, y: x * y, (normal(16), normal(16)))


@enceladus.jit
def added_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(out_ptr + i) + tl.load(x_ptr + i))


@needs_host
@pytest.mark.parametrize("of_numpy", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: enceladus.full(4, 2.0), lambda: mx.full((4,), 2.0), lambda: np.full(4, 2.0, np.float32)]
)
def test_mlx_is_asked_only_about_its_own_arrays(make, of_numpy):
    """The second launch of a kind asks MLX whether its inputs are traced; not all are MLX arrays."""
    x = np.ones(4, np.float32) if of_numpy else mx.ones(4)
    with engine("host"):
        for _ in range(3):
            assert np.array(added_kernel[(1,)](x, make(), BLOCK=4)).tolist() == [3.0] * 4
