"""examples/rms_norm.py and its gradients against float64, in every engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import engine, needs_host
from tests.row_examples import DTYPES, SIZES, array, assert_near, example, normal

EPS = 1e-5


def reference(x: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """The result and the reciprocals of the root mean squares in float64."""
    x = x.astype(np.float64)
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)
    return [x * rstd * weight.astype(np.float64), rstd[..., 0]]


def gradients(dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """Those of x and weight in float64."""
    rstd = reference(x, weight)[1][..., None]
    x_hat, dy = x.astype(np.float64) * rstd, dy.astype(np.float64)
    g = dy * weight.astype(np.float64)
    dx = rstd * (g - x_hat * (g * x_hat).mean(axis=-1, keepdims=True))
    return [dx, (dy * x_hat).sum(axis=tuple(range(x.ndim - 1)))]


def check(module: ModuleType, shape: tuple[int, ...], dtype: str, **options: Any) -> None:
    """Forward and backward of one shape."""
    rng = np.random.default_rng(1)
    x, dy, weight = (normal(rng, s, dtype) for s in (shape, shape, shape[-1:]))
    y, rstd = module.rms_norm_forward(array(x), array(weight), EPS, **options)
    wanted = reference(x, weight)
    assert_near(y, wanted[0], dtype, scale=5)
    assert_near(rstd, wanted[1], "float32")
    got = module.rms_norm_backward(array(dy), array(x), array(weight), rstd, **options)
    wanted = gradients(dy, x, weight)
    assert_near(got[0], wanted[0], dtype, scale=5 + 5 * float(wanted[0].std()))
    assert_near(got[1], wanted[1], dtype, scale=5 * (x.size // shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_of_every_size(name: str, dtype: str) -> None:
    module = example("rms_norm")
    with engine(name):
        for n_cols in SIZES:
            check(module, (2, 3, n_cols), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_longer_than_a_block(name: str, dtype: str) -> None:
    module = example("rms_norm")
    with engine(name):
        for n_cols, block in ((17, 16), (300, 128), (512, 128)):
            check(module, (3, n_cols), dtype, block=block)
        if name == "graph":
            check(module, (5, 4097), dtype)
            check(module, (5, 9000), dtype)


def test_more_rows_than_programs() -> None:
    with engine("graph"):
        check(example("rms_norm"), (600, 40), "float32")
        check(example("rms_norm"), (600, 40), "float16", block=32)


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_cols", "block"), [(3, None), (512, None), (300, 128)])
def test_in_metal(n_cols: int, block: int | None, dtype: str) -> None:
    with engine("host"):
        check(example("rms_norm"), (3, n_cols), dtype, block=block, num_warps=2)


@pytest.mark.parametrize("name", ["graph", "host"])
def test_gradient_through_mlx(name: str) -> None:
    if name == "host":
        pytest.importorskip("ziglang")
    rng = np.random.default_rng(5)
    x, dy, weight = (normal(rng, s, "float32") for s in ((2, 2, 70), (2, 2, 70), (70,)))
    rms_norm = example("rms_norm").rms_norm

    def loss(x: mx.array, weight: mx.array) -> mx.array:
        return (rms_norm(x, weight, EPS) * array(dy)).sum()

    with engine(name):
        got = mx.grad(loss, argnums=(0, 1))(array(x), array(weight))
        mx.eval(got)
    for gradient, want in zip(got, gradients(dy, x, weight), strict=True):
        assert_near(gradient, want, "float32", scale=20)


def test_rows_of_zeros_and_of_large_numbers() -> None:
    x = np.zeros((4, 50), np.float32)
    x[1], x[2], x[3, 7] = 1e18, 1e-18, 5e4
    for block in (None, 32):
        for name in ("interpreter", "graph"):
            with engine(name):
                y, _ = example("rms_norm").rms_norm_forward(array(x), mx.ones((50,)), EPS, block=block)
                assert_near(y, reference(x, np.ones(50))[0], "float32")


def test_no_rows_and_wrong_shapes() -> None:
    module = example("rms_norm")
    x, one = mx.zeros((0, 8)), mx.ones((8,))
    with engine("graph"):
        y, rstd = module.rms_norm_forward(x, one)
        dx, dw = module.rms_norm_backward(x, x, one, rstd)
        assert (y.shape, rstd.shape, dx.shape) == ((0, 8), (0,), (0, 8))
        assert mx.array_equal(dw, mx.zeros((8,)))
    with pytest.raises(ValueError, match=r"weight has shape \(3,\); x has 4 columns"):
        module.rms_norm(mx.zeros((2, 4)), mx.zeros((3,)))
    with pytest.raises(ValueError, match=r"dy has shape \(2, 3\); x has shape \(2, 4\)"):
        module.rms_norm_backward(mx.zeros((2, 3)), mx.zeros((2, 4)), mx.zeros((4,)), mx.zeros((2,)))
