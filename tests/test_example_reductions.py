"""examples/reductions.py against float64, in every engine."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import engine, needs_host
from tests.row_examples import DTYPES, SIZES, array, assert_near, example, normal


def column_sum_reference(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]).astype(np.float64).sum(axis=0)


def logsumexp_reference(x: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(x.astype(np.float64), axis=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_column_sum(name: str, dtype: str) -> None:
    rng, column_sum = np.random.default_rng(1), example("reductions").column_sum
    # The last three need a second launch.
    shapes = [
        (1, 1),
        (5, 1),
        (2, 3, 17),
        (33, 100),
        (100, 300),
        (40, 1023),
        (700, 130),
        (3000, 20),
        (20_000, 1),
    ]
    with engine(name):
        for shape in shapes:
            x = normal(rng, shape, dtype)
            assert_near(column_sum(array(x)), column_sum_reference(x), dtype, scale=x.size // shape[-1])


def test_column_sum_divides_the_rows() -> None:
    """Sums of whole numbers are exact whatever the order; every element counts once."""
    reductions = example("reductions")
    with engine("graph"):
        for n_rows in (1, 31, 32, 33, 128, 129, 4095, 4096, 4097):
            x = mx.arange(n_rows * 3).reshape(n_rows, 3).astype(mx.float32) % 16
            assert mx.array_equal(reductions.column_sum(x), x.sum(axis=0))
        assert reductions.column_sum(mx.ones((1000, 3), mx.float16), mx.float32).dtype == mx.float32
        assert mx.array_equal(reductions.column_sum(mx.ones((0, 3))), mx.zeros((3,)))


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (70, 33), (65, 256), (600, 130)])
def test_column_sum_in_metal(shape: tuple[int, ...], dtype: str) -> None:
    x = normal(np.random.default_rng(3), shape, dtype)
    with engine("host"):
        got = example("reductions").column_sum(array(x))
    assert_near(got, column_sum_reference(x), dtype, scale=shape[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_logsumexp(name: str, dtype: str) -> None:
    rng, logsumexp = np.random.default_rng(2), example("reductions").logsumexp
    with engine(name):
        for n_cols in (*SIZES, 10_000):
            x = 3 * normal(rng, (2, 3, n_cols), dtype)
            assert_near(logsumexp(array(x)), logsumexp_reference(x), dtype)
        for block in (8, 64):
            x = normal(rng, (5, 300), dtype)
            assert_near(logsumexp(array(x), block=block), logsumexp_reference(x), dtype)


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_logsumexp_of_extreme_values(name: str, block: int | None) -> None:
    x = np.zeros((6, 20), np.float32)
    x[0] = -np.inf
    x[1, :10] = -np.inf
    x[2, 3] = np.inf
    x[3, 11] = np.nan
    x[4] = 3e38
    x[5] = -3e38
    with engine(name):
        got = np.array(example("reductions").logsumexp(array(x), block=block))
    np.testing.assert_allclose(got, [-np.inf, np.log(10), np.inf, np.nan, 3e38, -3e38], rtol=1e-6)


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_cols", "block"), [(3, None), (1024, None), (300, 128)])
def test_logsumexp_in_metal(n_cols: int, block: int | None, dtype: str) -> None:
    x = normal(np.random.default_rng(4), (3, n_cols), dtype)
    with engine("host"):
        got = example("reductions").logsumexp(array(x), block=block)
    assert_near(got, logsumexp_reference(x), dtype)


def test_wrong_arrays() -> None:
    reductions = example("reductions")
    for function in (reductions.column_sum, reductions.logsumexp):
        with pytest.raises(ValueError, match="needs at least one column"):
            function(mx.zeros(()))
        with pytest.raises(TypeError, match=r"x is mlx\.core\.int8"):
            function(mx.zeros((3, 3), mx.int8))
