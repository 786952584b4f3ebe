"""examples/layer_norm.py and its gradients against float64, in every engine."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import engine, needs_host
from tests.row_examples import DTYPES, SIZES, array, assert_near, example, normal

EPS = 1e-5


def reference(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None) -> list[np.ndarray]:
    """The result, means and reciprocal standard deviations in float64."""
    x = x.astype(np.float64)
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + EPS)
    y = (x - mean) * rstd
    y = y if weight is None else y * weight.astype(np.float64)
    y = y if bias is None else y + bias.astype(np.float64)
    return [y, mean[..., 0], rstd[..., 0]]


def gradients(dy: np.ndarray, x: np.ndarray, weight: np.ndarray | None) -> list[np.ndarray]:
    """Those of x, weight and bias in float64."""
    _, mean, rstd = reference(x, None, None)
    rstd = rstd[..., None]
    x_hat, dy = (x.astype(np.float64) - mean[..., None]) * rstd, dy.astype(np.float64)
    g = dy if weight is None else dy * weight.astype(np.float64)
    dx = rstd * (g - g.mean(axis=-1, keepdims=True) - x_hat * (g * x_hat).mean(axis=-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    return [dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)]


def check(
    module,
    shape: tuple[int, ...],
    dtype: str,
    *,
    seed: int = 1,
    offset: float = 0.0,
    has=(True, True),
    **options,
) -> None:
    """Forward and backward of one shape. ``has``: weight, bias."""
    rng = np.random.default_rng(seed)
    x = (normal(rng, shape, "float32") + np.float32(offset)).astype(normal(rng, (1,), dtype).dtype)
    dy, weight, bias = (
        normal(rng, shape, dtype),
        normal(rng, shape[-1:], dtype),
        normal(rng, shape[-1:], dtype),
    )
    weight, bias = (p if there else None for p, there in zip((weight, bias), has, strict=True))
    parameters = [None if p is None else array(p) for p in (weight, bias)]
    y, mean, rstd = module.layer_norm_forward(array(x), *parameters, EPS, **options)
    wanted = reference(x, weight, bias)
    assert_near(y, wanted[0], dtype, scale=5 + abs(offset))
    assert_near(mean, wanted[1], "float32", scale=1 + abs(offset))
    assert_near(rstd, wanted[2], "float32")
    got = module.layer_norm_backward(
        array(dy), array(x), parameters[0], mean, rstd, has_bias=has[1], **options
    )
    wanted = gradients(dy, x, weight)
    assert_near(got[0], wanted[0], dtype, scale=float(wanted[0].std() * 5 + 5 + abs(offset)))
    for there, gradient, want in zip(has, got[1:], wanted[1:], strict=True):
        assert (gradient is not None) == there
        if there:
            assert_near(gradient, want, dtype, scale=(x.size // shape[-1]) * (5 + abs(offset)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_of_every_size(name: str, dtype: str) -> None:
    module = example("layer_norm")
    with engine(name):
        for n_cols in SIZES[1:]:
            check(module, (2, 3, n_cols), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_longer_than_a_block(name: str, dtype: str) -> None:
    module = example("layer_norm")
    with engine(name):
        for n_cols, block in ((17, 16), (300, 128), (512, 128)):
            check(module, (3, n_cols), dtype, block=block)
        if name == "graph":
            check(module, (5, 4097), dtype)
            check(module, (5, 9000), dtype)


@pytest.mark.parametrize("has", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("block", [None, 32])
def test_without_weight_or_bias(block: int | None, has: tuple[bool, bool]) -> None:
    for name in ("interpreter", "graph"):
        with engine(name):
            check(example("layer_norm"), (3, 100), "float32", has=has, block=block)


@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_a_mean_far_from_zero(name: str, block: int | None) -> None:
    """The variance is that of deviations: squares of the elements would lose it."""
    with engine(name):
        check(example("layer_norm"), (3, 300), "float32", offset=300.0, block=block)


def test_more_rows_than_programs() -> None:
    with engine("graph"):
        check(example("layer_norm"), (600, 40), "float32")
        check(example("layer_norm"), (600, 40), "float16", block=32)


def test_rows_that_are_all_equal() -> None:
    x, one = mx.full((3, 50), 7.0), mx.ones((50,))
    for block in (None, 32):
        with engine("graph"):
            y, mean, rstd = example("layer_norm").layer_norm_forward(x, one, one, EPS, block=block)
        assert mx.allclose(y, mx.ones((3, 50)), atol=1e-3) and mx.allclose(mean, mx.full((3,), 7.0))
        assert mx.allclose(rstd, mx.full((3,), EPS**-0.5), rtol=1e-4)


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_cols", "block"), [(3, None), (100, None), (512, None), (300, 128)])
def test_in_metal(n_cols: int, block: int | None, dtype: str) -> None:
    with engine("host"):
        check(example("layer_norm"), (3, n_cols), dtype, block=block, num_warps=2)


@pytest.mark.parametrize("has", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", ["graph", "host"])
def test_gradient_through_mlx(name: str, has: tuple[bool, bool]) -> None:
    if name == "host":
        pytest.importorskip("ziglang")
    rng = np.random.default_rng(5)
    x, dy = normal(rng, (2, 2, 70), "float32"), normal(rng, (2, 2, 70), "float32")
    weight, bias = (normal(rng, (70,), "float32") if there else None for there in has)
    layer_norm = example("layer_norm").layer_norm

    def loss(arrays: dict[str, mx.array]) -> mx.array:
        return (layer_norm(arrays["x"], arrays.get("weight"), arrays.get("bias"), EPS) * array(dy)).sum()

    given = {"x": x, "weight": weight, "bias": bias}
    with engine(name):
        got = mx.grad(loss)({key: array(value) for key, value in given.items() if value is not None})
    for key, want in zip(given, gradients(dy, x, weight), strict=True):
        assert (key in got) == (given[key] is not None)
        if key in got:
            assert_near(got[key], want, "float32", scale=20)


def test_no_rows() -> None:
    module = example("layer_norm")
    x, one = mx.zeros((0, 8)), mx.ones((8,))
    with engine("graph"):
        y, mean, rstd = module.layer_norm_forward(x, one, one)
        dx, dw, db = module.layer_norm_backward(x, x, one, mean, rstd)
        assert (y.shape, mean.shape, dx.shape) == ((0, 8), (0,), (0, 8))
        assert mx.array_equal(dw, mx.zeros((8,))) and mx.array_equal(db, mx.zeros((8,)))


def test_parameters_of_another_length_are_refused() -> None:
    module = example("layer_norm")
    with pytest.raises(ValueError, match=r"bias has shape \(3,\); x has 4 columns"):
        module.layer_norm_forward(mx.zeros((2, 4)), mx.zeros((4,)), mx.zeros((3,)))
    with pytest.raises(ValueError, match=r"dy has shape \(2, 3\); x has shape \(2, 4\)"):
        module.layer_norm_backward(mx.zeros((2, 3)), mx.zeros((2, 4)), None, mx.zeros((2,)), mx.zeros((2,)))
