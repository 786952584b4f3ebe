"""``examples/top_k.py`` against NumPy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.example_helpers import DTYPES, assert_near, exact, load, normal, on_engines, running


@pytest.fixture
def top_k():
    """Kernels of its own for every test: compiled specializations do not add up."""
    return load("top_k")


def expected(logits, k, renormalize):
    n_experts = logits.shape[-1]
    order = np.argsort(-logits, -1, kind="stable")[..., :k]  # NaN last, as NumPy has it
    chosen = np.take_along_axis(logits, order, -1)
    powers = np.exp(chosen - chosen[..., :1])
    total = powers if renormalize else np.exp(logits - chosen[..., :1])
    counts = np.bincount(order.reshape(-1), minlength=n_experts)
    return powers / total.sum(-1, keepdims=True), order, counts


def check(results, logits, k, renormalize=True):
    weights, indices, counts = results
    want = expected(exact(logits), k, renormalize)
    np.testing.assert_array_equal(np.array(indices), want[1].astype(np.int32), strict=True)
    np.testing.assert_array_equal(np.array(counts), want[2].astype(np.int32), strict=True)
    assert_near(weights, want[0], logits.dtype, 2)


@on_engines()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 1), 1), ((3, 5), 5), ((2, 9, 60), 4), ((33, 8), 2), ((5, 256), 8)]
)
def test_top_k(top_k, engine_name, shape, k, dtype):
    logits = normal(shape, dtype)
    with running(engine_name):
        for renormalize in (True, False):
            check(top_k.top_k(logits, k, renormalize=renormalize), logits, k, renormalize)


@on_engines()
def test_ties_go_to_the_lower_index(top_k, engine_name):
    rng = np.random.default_rng(1)
    logits = mx.array(rng.integers(-2, 2, (20, 24)).astype(np.float32))
    zeros = mx.array([[-0.0, 0.0, -1.0, 0.0, -0.0, 0.0]])
    with running(engine_name):
        check(top_k.top_k(logits, 6), logits, 6)
        assert top_k.top_k(zeros, 5)[1].tolist() == [[0, 1, 3, 4, 5]]


@on_engines()
def test_infinities_and_nan(top_k, engine_name):
    """Experts masked with -inf are never chosen twice, and NaN comes after them."""
    inf, nan = float("inf"), float("nan")
    logits = mx.array([[-inf, 1.0, -inf, 0.0], [nan, -inf, 2.0, nan]])
    with running(engine_name):
        weights, indices, counts = top_k.top_k(logits, 4)
        assert indices.tolist() == [[1, 3, 0, 2], [2, 1, 0, 3]]
        assert counts.tolist() == [2, 2, 2, 2]
        two = 1 / (1 + np.exp(-1))
        np.testing.assert_allclose(np.array(weights)[0], [two, 1 - two, 0, 0], rtol=1e-6)
        assert np.isnan(np.array(weights)[1]).all()


def test_no_tokens(top_k):
    weights, indices, counts = top_k.top_k(mx.zeros((0, 8)), 2)
    assert weights.shape == indices.shape == (0, 2)
    assert counts.tolist() == [0] * 8


@pytest.mark.parametrize("k", [0, 5])
def test_refused(top_k, k):
    with pytest.raises(ValueError, match=f"k must be from 1 to the number of experts, 4; it is {k}"):
        top_k.top_k(mx.zeros((3, 4)), k)
    with pytest.raises(ValueError, match="there are 5000 experts; at most 4096"):
        top_k.top_k(mx.zeros((3, 5000)), 2)
