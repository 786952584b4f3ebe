"""What the tests of the examples share: engines, inputs in three dtypes, comparison in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import ENGINES, HostTarget, engine
from tests.test_examples import load

#: One unit in the last place of each dtype at 1, doubled: rounding once, and some error of the computation.
TOLERANCES = {mx.float32: 2.0**-22, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}
DTYPES = tuple(TOLERANCES)


def on_engines() -> pytest.MarkDecorator:
    """Parametrize ``engine_name`` with the engines of this machine."""
    return pytest.mark.parametrize("engine_name", ENGINES)


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Launches inside run in this engine; in the host executor under one schedule, for speed."""
    with engine(name, HostTarget(("reverse",))):
        yield


def normal(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    """Standard normal numbers, the same on every machine."""
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def exact(x: mx.array) -> np.ndarray:
    """``x`` in float64."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def assert_near(actual: mx.array, expected: np.ndarray, dtype: mx.Dtype, times: float = 1.0) -> None:
    """``actual`` has the dtype and shape, and is within ``times`` the tolerance of it."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    tolerance = times * TOLERANCES[dtype]
    np.testing.assert_allclose(exact(actual), expected, rtol=tolerance, atol=tolerance)


__all__ = [
    "DTYPES",
    "ENGINES",
    "TOLERANCES",
    "assert_near",
    "exact",
    "load",
    "normal",
    "on_engines",
    "running",
]
