"""``examples/cumsum.py`` against NumPy, in one launch and in several."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.example_helpers import DTYPES, assert_near, exact, load, on_engines, running

DIRECTIONS = [(False, True), (False, False), (True, True), (True, False)]


@pytest.fixture
def cumsum():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("cumsum")


def expected(x, reverse, inclusive):
    x = x[..., ::-1] if reverse else x
    sums = np.cumsum(x, -1, dtype=x.dtype)
    if not inclusive:
        sums = np.concatenate([np.zeros_like(x[..., :1]), sums[..., :-1]], -1)
    return sums[..., ::-1] if reverse else sums


def uniform(shape, dtype):
    return mx.array(np.random.default_rng(1).random(shape).astype(np.float32)).astype(dtype)


@on_engines()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 2, 64)])
def test_one_block(cumsum, engine_name, shape, dtype):
    x = uniform(shape, dtype)
    with running(engine_name):
        assert_near(cumsum.cumsum(x), expected(exact(x), False, True), dtype, 2)


@on_engines()
@pytest.mark.parametrize(("reverse", "inclusive"), DIRECTIONS)
@pytest.mark.parametrize("shape", [(1, 200), (64, 150)])
def test_a_program_for_each_row(cumsum, engine_name, shape, reverse, inclusive):
    x = uniform(shape, mx.float32)
    with running(engine_name):
        actual = cumsum.cumsum(x, reverse=reverse, inclusive=inclusive, block=64, num_warps=2)
        assert_near(actual, expected(exact(x), reverse, inclusive), mx.float32, 4)


@on_engines()
@pytest.mark.parametrize(("reverse", "inclusive"), DIRECTIONS)
@pytest.mark.parametrize("shape", [(1, 1000), (3, 321)])
def test_a_program_for_each_block(cumsum, engine_name, shape, reverse, inclusive):
    """Sums of sums twice over: 63 blocks, then 4."""
    x = uniform(shape, mx.float32)
    with running(engine_name):
        actual = cumsum.cumsum(x, reverse=reverse, inclusive=inclusive, block=16, num_warps=1)
        assert_near(actual, expected(exact(x), reverse, inclusive), mx.float32, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(50_001,), (64, 5000)])
def test_default_blocks(cumsum, shape, dtype):
    x = (uniform(shape, mx.float32) / 64).astype(dtype)
    for reverse, inclusive in DIRECTIONS[::3]:
        actual = cumsum.cumsum(x, reverse=reverse, inclusive=inclusive)
        assert_near(actual, expected(exact(x), reverse, inclusive), dtype, 32 if dtype == mx.float32 else 1)


def test_16_bit_sums_do_not_stall(cumsum):
    """65,536 sixteenths: in bfloat16 itself, adding one to 16 changes nothing."""
    x = mx.full((65_536,), 0.0625, mx.bfloat16)
    assert cumsum.cumsum(x)[-1].item() == 4096


def test_exclusive_sums_do_not_cancel(cumsum):
    x = mx.array([1.0, 1e30, -1e30, 2.0])
    assert cumsum.cumsum(x, inclusive=False)[:2].tolist() == [0, 1]
    assert cumsum.cumsum(mx.array([1.0, mx.inf, 1.0]), inclusive=False).tolist() == [0, 1, mx.inf]


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_wrap(cumsum, name):
    info = np.iinfo(name)
    x = np.random.default_rng(2).integers(info.min, info.max, (2, 300), dtype=name, endpoint=True)
    for reverse, inclusive in DIRECTIONS:
        actual = cumsum.cumsum(mx.array(x), reverse=reverse, inclusive=inclusive, block=32)
        np.testing.assert_array_equal(np.array(actual), expected(x, reverse, inclusive), strict=True)


def test_bool_empty_and_refused(cumsum):
    assert cumsum.cumsum(mx.array([True, False, True])).tolist() == [1, 1, 2]
    assert cumsum.cumsum(mx.zeros((3, 0))).shape == (3, 0)
    with pytest.raises(ValueError, match="cumsum needs an array of numbers"):
        cumsum.cumsum(mx.array(1.0))
