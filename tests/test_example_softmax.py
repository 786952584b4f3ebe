"""examples/softmax.py against float64, in every engine."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import HostTarget, engine, needs_host
from tests.row_examples import DTYPES, SIZES, array, assert_near, example, normal


def reference(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(wide - wide.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_of_every_size(name: str, dtype: str) -> None:
    rng, softmax = np.random.default_rng(1), example("softmax").softmax
    with engine(name):
        for n_cols in SIZES:
            x = normal(rng, (2, 3, n_cols), dtype)
            assert_near(softmax(array(x)), reference(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_longer_than_a_block(name: str, dtype: str) -> None:
    rng, softmax = np.random.default_rng(2), example("softmax").softmax
    with engine(name):
        for n_cols, block in ((17, 16), (1023, 128), (1024, 128), (4097, None), (10_000, None)):
            x = 4 * normal(rng, (3, n_cols), dtype)
            assert_near(softmax(array(x), block=block), reference(x), dtype)


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_cols", "block"), [(1, None), (100, None), (1024, None), (300, 128)])
def test_in_metal(n_cols: int, block: int | None, dtype: str) -> None:
    x = normal(np.random.default_rng(3), (2, n_cols), dtype)
    x[0, n_cols // 2 :] = -np.inf if n_cols > 1 else 0
    with engine("host"):
        for num_warps in (None, 2):
            got = example("softmax").softmax(array(x), block=block, num_warps=num_warps)
            assert_near(got, reference(x), dtype)


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_cols", "block"), [(1024, None), (512, 128)])
def test_in_metal_from_addresses_that_are_not_aligned(n_cols: int, block: int | None, dtype: str) -> None:
    x = normal(np.random.default_rng(5), (2, n_cols), dtype)
    with engine("host", HostTarget(input_offset=3)):
        got = example("softmax").softmax(array(x), block=block)
    assert_near(got, reference(x), dtype)


def odd_rows(dtype: str) -> np.ndarray:
    """Rows at the edges of the numbers: each sums to 1, or is NaN as in NumPy."""
    rng = np.random.default_rng(4)
    x = normal(rng, (8, 40), dtype)
    x[0] = 0
    x[1] = -np.inf
    x[1, 7] = 3
    x[2, ::2] = -np.inf
    x[3, :] = 60_000  # all equal, near float16's largest
    x[4] = np.where(np.arange(40) % 3, -60_000, 60_000)
    x[5] = -60_000
    x[6, :20] = -np.inf  # whole blocks of the looped kernel without a number
    x[7, 20:] = -np.inf
    return x


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_extreme_values(name: str, dtype: str, block: int | None) -> None:
    x = odd_rows(dtype)
    with engine(name):
        assert_near(example("softmax").softmax(array(x), block=block), reference(x), dtype)


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("value", [3e38, -3e38, 3.4028235e38])
def test_float32_near_its_limits(value: float, block: int | None) -> None:
    x = np.full((2, 20), value, np.float32)
    x[1, ::3] *= -1
    with engine("graph"):
        assert_near(example("softmax").softmax(array(x), block=block), reference(x), "float32")


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_without_a_result_are_nan(name: str, block: int | None) -> None:
    x = np.zeros((4, 20), np.float32)
    x[0] = -np.inf
    x[1, 3] = np.inf
    x[2, 11] = np.nan
    with engine(name):
        got = np.array(example("softmax").softmax(array(x), block=block))
    assert np.isnan(got[0]).all() and np.isnan(got[1, 3]) and np.isnan(got[2]).all()
    assert np.allclose(got[3], 1 / 20)


def test_empty_and_wrong_arrays() -> None:
    softmax = example("softmax").softmax
    with engine("graph"):
        assert softmax(mx.zeros((0, 5))).shape == (0, 5)
    with pytest.raises(ValueError, match="needs at least one column"):
        softmax(mx.zeros((3, 0)))
    with pytest.raises(TypeError, match=r"x is mlx\.core\.int32"):
        softmax(mx.zeros((3, 3), mx.int32))


def test_is_lazy() -> None:
    with engine("graph"):
        compiled = mx.compile(example("softmax").softmax)
        x = mx.arange(30).reshape(3, 10).astype(mx.float32)
        assert mx.allclose(compiled(x), mx.softmax(x, axis=-1))
