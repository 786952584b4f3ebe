"""``examples/rotary.py`` against float64, against ``mx.fast.rope``, and its gradient."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from enceladus.testing import assert_close
from tests.example_helpers import DTYPES, assert_near, exact, load, normal, on_engines, running


@pytest.fixture
def rotary():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("rotary")


def expected(x, dims, traditional, base=10000.0, scale=1.0, offset=0, backward=False):
    """The same in NumPy, in float64."""
    x = x.copy()
    pairs = dims // 2
    positions = (offset + np.arange(x.shape[-2]))[:, None]
    angle = positions * scale * base ** (-np.arange(pairs) / pairs)
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if backward else 1)
    where = (slice(0, dims, 2), slice(1, dims, 2)) if traditional else (slice(0, pairs), slice(pairs, dims))
    a, b = (x[..., w].copy() for w in where)
    x[..., where[0]], x[..., where[1]] = a * cos - b * sin, a * sin + b * cos
    return x


@on_engines()
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize(
    ("shape", "dims"), [((2, 3, 17, 64), 64), ((1, 5, 1, 80), 80), ((33, 12), 6), ((1, 2, 3, 2), 2)]
)
def test_rotary(rotary, engine_name, shape, dims, traditional):
    x = normal(shape)
    with running(engine_name):
        actual = rotary.rotary(x, dims, traditional=traditional, offset=1000, scale=0.5)
        back = rotary.rotary_backward(x, dims, traditional=traditional, offset=1000, scale=0.5)
        assert_near(actual, expected(exact(x), dims, traditional, scale=0.5, offset=1000), x.dtype, 4)
        undone = expected(exact(x), dims, traditional, scale=0.5, offset=1000, backward=True)
        assert_near(back, undone, x.dtype, 4)


@on_engines()
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_16_bits(rotary, engine_name, dtype, traditional):
    x = normal((2, 20, 64), dtype)
    with running(engine_name):
        actual = rotary.rotary(x, traditional=traditional)
        assert_near(actual, expected(exact(x), 64, traditional), dtype)


@pytest.mark.parametrize("offset", [2**17, 2**24 + 1, 2**31 - 10])
def test_angles_are_exact_at_large_positions(rotary, offset):
    x = normal((8, 64))
    actual = rotary.rotary(x, base=500000.0, offset=offset)
    # The reference needs more than float64 there: whole turns taken off in integers.
    pairs = 32
    angle = np.zeros((8, pairs))
    for pair, words in enumerate(np.array(rotary.frequencies(pairs, 500000.0, 1.0)).T):
        turn = (int(words[0]) << 32) + int(words[1])
        for row in range(8):
            angle[row, pair] = ((offset + row) * turn % 2**64) / 2**64 * 2 * np.pi
    a, b = exact(x)[:, :pairs], exact(x)[:, pairs:]
    want = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)]
    assert_near(actual, np.concatenate(want, 1), mx.float32, 4)


def test_the_frequencies_are_fractions_of_a_turn(rotary):
    table = np.array(rotary.frequencies(4, 10000.0, 3.0)).astype(np.float64)
    turns = (table[0] + table[1] / 2**32) / 2**32
    np.testing.assert_allclose(turns, 3.0 * 10000.0 ** (-np.arange(4) / 4) / (2 * np.pi), rtol=1e-15)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_agrees_with_mlx(rotary, dtype, traditional):
    x = normal((2, 4, 100, 32), dtype)
    options = {"traditional": traditional, "offset": 3, "scale": 0.25, "base": 5000.0}
    for dims in (32, 16):
        tolerance = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}[dtype]
        mine = rotary.rotary(x, dims, **options)
        assert_close(mine, rotary.mlx_rotary(x, dims, **options), rtol=tolerance, atol=tolerance)


@on_engines()
def test_gradient(rotary, engine_name):
    x, cotangent = normal((2, 9, 16)), normal((2, 9, 16), seed=1)
    with running(engine_name):
        _, (gradient,) = mx.vjp(lambda x: rotary.differentiable_rotary(x, offset=7), [x], [cotangent])
        assert_near(gradient, expected(exact(cotangent), 16, False, offset=7, backward=True), x.dtype, 4)


def test_views_and_empty_arrays(rotary):
    x = normal((6, 40, 3, 16)).swapaxes(1, 2)
    assert_near(rotary.rotary(x), expected(exact(x), 16, False), x.dtype, 4)
    assert rotary.rotary(mx.zeros((3, 0, 16))).shape == (3, 0, 16)


@pytest.mark.parametrize(
    ("dims", "offset", "words"),
    [
        (3, 0, "dims must be even"),
        (20, 0, "dims must be even, from 2"),
        (16, -1, "positions go from -1 to 3"),
    ],
)
def test_refused(rotary, dims, offset, words):
    with pytest.raises(ValueError, match=words):
        rotary.rotary(mx.zeros((5, 16)), dims, offset=offset)
