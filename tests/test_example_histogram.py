"""``examples/histogram.py`` against NumPy, for every integer type and both ways of counting."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.example_helpers import ENGINES, load, running

WAYS = ["histogram_of_elements", "histogram_of_tiles"]
ON_ENGINES = pytest.mark.parametrize(
    ("way", "engine_name"), [(way, engine) for way in WAYS for engine in ENGINES]
)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.fixture
def histogram():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("histogram")


def expected(x, n_bins):
    x = x.reshape(-1)
    inside = x[(x >= 0) & (x < n_bins)].astype(np.int64)
    return np.bincount(inside, minlength=n_bins).astype(np.int32)


@ON_ENGINES
@pytest.mark.parametrize("dtype", INTEGERS)
def test_types(histogram, engine_name, way, dtype):
    """Small numbers around the bins, and the whole range of the type."""
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    near = rng.integers(max(info.min, -20), 120, 300)
    far = rng.integers(info.min, info.max, 60, dtype=dtype, endpoint=True)
    x = np.concatenate([near.astype(dtype), far, np.array([info.min, info.max], dtype)])
    with running(engine_name):
        actual = getattr(histogram, way)(mx.array(x), 100, block=128, num_warps=2)
        np.testing.assert_array_equal(np.array(actual), expected(x, 100), strict=True)


@ON_ENGINES
@pytest.mark.parametrize("n_bins", [1, 64, 1000])
def test_numbers_of_bins(histogram, engine_name, way, n_bins):
    x = np.random.default_rng(2).integers(-3, n_bins + 3, (5, 100)).astype(np.int32)
    with running(engine_name):
        actual = getattr(histogram, way)(mx.array(x), n_bins, block=256)
        np.testing.assert_array_equal(np.array(actual), expected(x, n_bins), strict=True)


def test_programs_that_loop(histogram, monkeypatch):
    monkeypatch.setattr(histogram, "MOST_PROGRAMS", 3)
    x = np.random.default_rng(3).integers(0, 16, 2000).astype(np.uint8)
    actual = histogram.histogram_of_tiles(mx.array(x), 16, block=128)
    np.testing.assert_array_equal(np.array(actual), expected(x, 16))


@pytest.mark.parametrize("n_bins", [10, 3000])
def test_the_way_is_chosen(histogram, n_bins):
    x = np.random.default_rng(4).integers(0, n_bins, 5000)
    np.testing.assert_array_equal(np.array(histogram.histogram(mx.array(x), n_bins)), expected(x, n_bins))


def test_bool_empty_and_refused(histogram):
    assert histogram.histogram(mx.array([True, False, True]), 2).tolist() == [1, 2]
    assert histogram.histogram(mx.zeros((0,), mx.int32), 3).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"a histogram counts integers, not .*float32"):
        histogram.histogram(mx.zeros((3,)), 3)
    with pytest.raises(ValueError, match="n_bins must be positive; it is 0"):
        histogram.histogram(mx.zeros((3,), mx.int32), 0)
