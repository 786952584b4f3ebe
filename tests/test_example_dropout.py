"""``examples/dropout.py`` against Philox in Python, and the statistics of what it keeps."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.example_helpers import DTYPES, assert_near, exact, load, normal, on_engines, running
from tests.test_philox import philox


@pytest.fixture
def dropout():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("dropout")


def uniform(seed, place, block=4096):
    """The number that decides about an element."""
    program, rest = divmod(place, block)
    word, lane = divmod(rest, block // 4)
    counter = (program * (block // 4) + lane, 0, 0, 0)
    bits = philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[word]
    return (bits if bits < 2**31 else 2**32 - 1 - bits) / 2**31


@on_engines()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "seed"), [((3, 7), 1), ((5000,), -(2**40) - 3), ((4096,), 2**31)])
def test_dropout(dropout, engine_name, dtype, shape, seed):
    x = normal(shape, dtype)
    with running(engine_name):
        actual = dropout.dropout(x, 0.3, seed)
        again = dropout.dropout_backward(x, 0.3, seed)
        assert mx.array_equal(actual, again)
    places = range(0, x.size, 1 if x.size < 100 else 61)
    kept = np.array([uniform(seed, place) >= 0.3 for place in places])
    assert 0.4 < kept.mean() < 1, "both cases are tested"
    expected = np.where(kept, exact(x).reshape(-1)[places] / 0.7, 0)
    assert_near(actual.reshape(-1)[mx.array(list(places))], expected, dtype)


def test_statistics(dropout):
    x = mx.ones((1 << 20,))
    for p in (0.1, 0.5, 0.9):
        out = dropout.dropout(x, p, seed=11)
        deviation = (p * (1 - p) / x.size) ** 0.5
        assert abs((out == 0).mean().item() - p) < 5 * deviation
        assert exact(out).mean() == pytest.approx(1, abs=5 * deviation / (1 - p))
    first, second = (dropout.dropout(x, 0.5, seed) != 0 for seed in (1, 2))
    assert (first == second).mean().item() == pytest.approx(0.5, abs=0.01), "seeds are independent"


@pytest.mark.parametrize("p", [0, 1])
def test_all_or_nothing(dropout, p):
    x = normal((1000,))
    assert mx.array_equal(dropout.dropout(x, p, seed=0), x * (1 - p))


def test_gradient(dropout):
    x, cotangent = normal((3, 1000)), normal((3, 1000), seed=1)
    _, (gradient,) = mx.vjp(lambda x: dropout.differentiable_dropout(x, 0.4, 5), [x], [cotangent])
    out = dropout.dropout(x, 0.4, 5)
    assert mx.allclose(gradient, mx.where(out != 0, cotangent / 0.6, 0.0))


def test_seeds_do_not_compile_again(dropout):
    x = normal((100,))
    keys = [
        dropout.dropout_kernel.warmup(x, x, 100, 0.5, 2.0, s, BLOCK=4096, grid=(1,)).key for s in (1, 16, 7)
    ]
    assert keys[0] == keys[1] == keys[2]


def test_refused(dropout):
    with pytest.raises(ValueError, match="p must be from 0 to 1; it is 2"):
        dropout.dropout(mx.zeros((3,)), 2, 0)
