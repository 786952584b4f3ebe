"""``examples/swiglu.py`` and ``examples/geglu.py``, forward and backward, against float64."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from tests.example_helpers import DTYPES, assert_near, exact, load, normal, on_engines, running

SHAPES = [(1,), (7, 3), (2, 1000), (4, 1024)]


@pytest.fixture
def swiglu():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("swiglu")


@pytest.fixture
def geglu():
    return load("geglu")


def silu(x):
    """(SiLU, its derivative)."""
    sigmoid = 1 / (1 + np.exp(-x))
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


def gelu(x):
    below = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x * below, below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def inputs(shape, dtype):
    return [normal(shape, dtype, seed) for seed in (1, 2, 3)]


def check(forward, backward, function, shape, dtype):
    gate, up, cotangent = inputs(shape, dtype)
    value, slope = function(exact(gate))
    assert_near(forward(gate, up), value * exact(up), dtype, 2)
    d_gate, d_up = backward(cotangent, gate, up)
    assert_near(d_gate, exact(cotangent) * exact(up) * slope, dtype, 4)
    assert_near(d_up, exact(cotangent) * value, dtype, 2)


@on_engines()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu(swiglu, engine_name, dtype, shape):
    with running(engine_name):
        check(swiglu.swiglu, swiglu.swiglu_backward, silu, shape, dtype)


@on_engines()
@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_geglu(geglu, engine_name, dtype, shape, approximate):
    def forward(*arrays):
        return geglu.geglu(*arrays, approximate=approximate)

    def backward(*arrays):
        return geglu.geglu_backward(*arrays, approximate=approximate)

    with running(engine_name):
        check(forward, backward, gelu_tanh if approximate else gelu, shape, dtype)


@on_engines()
@pytest.mark.parametrize("approximate", [False, True])
def test_slopes_far_out(geglu, engine_name, approximate):
    gate = mx.array([-1e30, -1e15, -100.0, 100.0, 1e15, 1e30])
    one = mx.ones_like(gate)
    with running(engine_name):
        d_gate, d_up = geglu.geglu_backward(one, gate, one, approximate=approximate)
        assert d_gate.tolist() == [0, 0, 0, 1, 1, 1]
        assert d_up.tolist() == mx.maximum(gate, 0).tolist()


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gradients_in_mlx(name):
    module = load(name)
    gate, up, cotangent = inputs((5, 30), mx.float32)
    _, mine = mx.vjp(getattr(module, f"differentiable_{name}"), [gate, up], [cotangent])
    for gradient, expected in zip(
        mine, getattr(module, f"{name}_backward")(cotangent, gate, up), strict=True
    ):
        assert mx.array_equal(gradient, expected)


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_unlike_and_empty_arrays(name):
    module = load(name)
    forward, backward = getattr(module, name), getattr(module, f"{name}_backward")
    with pytest.raises(ValueError, match=r"gate and up must be alike.*float32 \(4,\) and .*float32 \(3,\)"):
        forward(mx.zeros((4,)), mx.zeros((3,)))
    with pytest.raises(ValueError, match=r"gate and cotangent must be alike.*float32 .* and .*float16 "):
        backward(mx.zeros((4,), mx.float16), mx.zeros((4,)), mx.zeros((4,)))
    assert forward(mx.zeros((0, 4)), mx.zeros((0, 4))).shape == (0, 4)
