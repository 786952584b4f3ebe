"""examples/cross_entropy.py and its gradient against float64, in every engine."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.engines import engine, needs_host
from tests.row_examples import DTYPES, SIZES, array, assert_near, example, normal


def reference(
    logits: np.ndarray, targets: np.ndarray, smoothing: float, ignore_index: int, reduction: str
) -> tuple[np.ndarray, np.ndarray]:
    """(loss, gradient) in float64."""
    x = logits.astype(np.float64)
    n = x.shape[-1]
    counts = targets != ignore_index
    safe = np.where(counts, targets, 0)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_p = x - np.logaddexp.reduce(x, axis=-1)[..., None]
        loss = -(1 - smoothing) * np.take_along_axis(log_p, safe, axis=-1)[..., 0]
        if smoothing:
            loss = loss - smoothing * log_p.mean(axis=-1)
    gradient = np.exp(log_p) - smoothing / n - (1 - smoothing) * (np.arange(n) == safe)
    loss, gradient = np.where(counts, loss, 0), np.where(counts[..., None], gradient, 0)
    if reduction == "none":
        return loss, gradient
    scale = 1 / max(counts.sum(), 1) if reduction == "mean" else 1
    return loss.sum() * scale, gradient * scale


def check(
    module: ModuleType,
    shape: tuple[int, ...],
    dtype: str,
    *,
    smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "none",
    factor: float = 2.0,
    **options: Any,
) -> None:
    """One shape; about a third of the rows is ignored."""
    rng = np.random.default_rng(1)
    logits = normal(rng, shape, dtype) * normal(rng, (1,), dtype).dtype.type(factor)
    targets = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
    targets.reshape(-1)[1::3] = ignore_index
    loss, gradient = module.cross_entropy_and_gradient(
        array(logits),
        array(targets),
        label_smoothing=smoothing,
        ignore_index=ignore_index,
        reduction=reduction,
        **options,
    )
    wanted = reference(logits, targets, smoothing, ignore_index, reduction)
    assert_near(loss, np.asarray(wanted[0]), "float32", scale=1 if reduction == "none" else targets.size)
    assert_near(gradient, wanted[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_of_every_size(name: str, dtype: str) -> None:
    module = example("cross_entropy")
    with engine(name):
        for n_cols in SIZES:
            check(module, (2, 3, n_cols), dtype, smoothing=0.1)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_rows_longer_than_a_block(name: str, dtype: str, smoothing: float) -> None:
    module = example("cross_entropy")
    with engine(name):
        for n_cols, block in ((17, 16), (300, 128), (512, 128)):
            check(module, (4, n_cols), dtype, smoothing=smoothing, block=block)
        if name == "graph":
            check(module, (4, 4097), dtype, smoothing=smoothing)
            check(module, (2, 131_072), dtype, smoothing=smoothing)


@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_options(name: str) -> None:
    combinations = itertools.product((0.0, 0.3), (-100, 2, 0), ("none", "sum", "mean"), (None, 8))
    for smoothing, ignore_index, reduction, block in combinations:
        options = {"smoothing": smoothing, "ignore_index": ignore_index, "reduction": reduction}
        with engine(name):
            check(example("cross_entropy"), (5, 20), "float32", block=block, **options)


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_extreme_logits(name: str, dtype: str, block: int | None) -> None:
    rng = np.random.default_rng(2)
    logits = normal(rng, (6, 40), dtype)
    logits[0] = 60_000  # all equal, near float16's largest
    logits[1] = -60_000
    logits[1, 5] = 60_000
    logits[2, ::2] = -np.inf
    logits[3, :24] = -np.inf  # whole blocks of the loop without a number
    logits[4] = 0
    logits[5] = -np.inf  # ignored: no NaN
    targets = np.array([7, 5, 3, 39, 0, -100], np.int32)
    with engine(name):
        got = example("cross_entropy").cross_entropy_and_gradient(
            array(logits), array(targets), reduction="none", block=block
        )
    wanted = reference(logits, targets, 0.0, -100, "none")
    assert_near(got[0], wanted[0], "float32")
    assert_near(got[1], np.nan_to_num(wanted[1]), dtype)


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("name", ["interpreter", "graph"])
def test_targets_that_are_no_classes_are_nan(name: str, block: int | None) -> None:
    targets = mx.array([20, -1, 19, -(2**31), 2**31 - 1, -100], mx.int32)
    with engine(name):
        loss, gradient = example("cross_entropy").cross_entropy_and_gradient(
            mx.zeros((6, 20)), targets, reduction="none", block=block
        )
    wrong = [True, True, False, True, True, False]
    assert mx.isnan(loss).tolist() == wrong
    assert mx.isnan(gradient).all(axis=1).tolist() == wrong
    assert not mx.isnan(gradient[2]).any() and mx.array_equal(gradient[5], mx.zeros((20,)))


@pytest.mark.parametrize("block", [None, 8])
def test_all_rows_ignored(block: int | None) -> None:
    with engine("graph"):
        loss, gradient = example("cross_entropy").cross_entropy_and_gradient(
            mx.ones((3, 20)), mx.full((3,), -100, mx.int32), label_smoothing=0.1, block=block
        )
    assert loss.item() == 0 and mx.array_equal(gradient, mx.zeros((3, 20)))


@needs_host
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_cols", "block", "smoothing"), [(3, None, 0.0), (1024, None, 0.1), (300, 128, 0.1), (256, 128, 0.0)]
)
def test_in_metal(n_cols: int, block: int | None, smoothing: float, dtype: str) -> None:
    with engine("host"):
        check(
            example("cross_entropy"), (3, n_cols), dtype, smoothing=smoothing, reduction="mean", block=block
        )


@pytest.mark.parametrize("name", ["graph", "host"])
def test_gradient_through_mlx(name: str) -> None:
    if name == "host":
        pytest.importorskip("ziglang")
    rng = np.random.default_rng(5)
    logits, weights = normal(rng, (2, 3, 70), "float16"), normal(rng, (2, 3), "float32")
    targets = rng.integers(0, 70, (2, 3)).astype(np.int32)
    targets[0, 1] = 4
    cross_entropy = example("cross_entropy").cross_entropy

    def loss(x: mx.array) -> mx.array:
        return (cross_entropy(x, array(targets), label_smoothing=0.2, ignore_index=4) * array(weights)).sum()

    with engine(name):
        value, got = mx.value_and_grad(loss)(array(logits))
        mx.eval(value, got)
    losses, gradient = reference(logits, targets, 0.2, 4, "none")
    assert_near(value, (losses * weights).sum(), "float32", scale=20)
    assert_near(got, gradient * weights[..., None], "float16")


def test_no_rows_and_wrong_arguments() -> None:
    module = example("cross_entropy")
    function = module.cross_entropy_and_gradient
    x, t = mx.zeros((2, 4)), mx.zeros((2,), mx.int32)
    with engine("graph"):
        loss, gradient = function(mx.zeros((0, 4)), mx.zeros((0,), mx.int32))
        assert loss.item() == 0 and gradient.shape == (0, 4)
    with pytest.raises(ValueError, match=r"targets has shape \(3,\); logits has shape \(2, 4\)"):
        function(x, mx.zeros((3,), mx.int32))
    with pytest.raises(TypeError, match=r"targets is mlx\.core\.int64; int32 is needed"):
        function(x, t.astype(mx.int64))
    with pytest.raises(TypeError, match=r"logits is mlx\.core\.int32"):
        function(x.astype(mx.int32), t)
    with pytest.raises(ValueError, match="label_smoothing is 1"):
        function(x, t, label_smoothing=1)
    with pytest.raises(ValueError, match="reduction is 'max'"):
        function(x, t, reduction="max")
