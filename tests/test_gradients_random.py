"""Backward kernels of random kernels against MLX's derivative of the graph engine's operations."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import enceladus
from tests.engines import HostTarget, engine, kernel_from_source, needs_host

LEAVES = ("x", "y", "scale * x", "(1.5 + 0 * x)", "(w + 0 * y)", "x.to(tl.float16).to(tl.float32)")
#: Smooth where the operands are of moderate size, so that both sides round alike.
UNARY = (
    "tl.exp({} * 0.5)", "tl.sin({})", "tl.cos({})", "tl.sigmoid({})", "tl.abs({})", "tl.sqrt({0} * {0} + 1)",
    "tl.log({0} * {0} + 1)", "tl.rsqrt({0} * {0} + 2)", "-({})", "tl.erf({})", "tl.floor({})",
    "({}).to(tl.int32).to(tl.float32)", "(tl.sum({}, axis=0) * 0.1 + x)", "(x - tl.max({}, axis=0))",
    "(tl.min({}, axis=0) * y)", "tl.where(mask, {}, 0.5)",
)  # fmt: skip
BINARY = (
    "({} + {})", "({} - {})", "({} * {})", "({} / (1.5 + tl.abs({})))", "tl.maximum({}, {})",
    "tl.minimum({}, {})", "tl.where({} > {}, x, y)", "tl.where(x > y, {}, {})", "tl.fma({}, {}, x)",
)  # fmt: skip


def expressions() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(LEAVES),
        lambda inner: st.one_of(
            st.builds(lambda form, a: form.format(a), st.sampled_from(UNARY), inner),
            st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(BINARY), inner, inner),
        ),
        max_leaves=6,
    )


@needs_host
@settings(max_examples=25, deadline=None)
@given(first=expressions(), second=expressions(), n=st.integers(9, 32), seed=st.integers(0, 1000))
def test_random_kernels(first: str, second: str, n: int, seed: int) -> None:
    kernel = kernel_from_source(
        "@enceladus.jit\n"
        "def kernel(x_ptr, y_ptr, w_ptr, a_ptr, b_ptr, n, scale, BLOCK: tl.constexpr):\n"
        "    row, cols = tl.program_id(0), tl.arange(0, BLOCK)\n"
        "    mask = cols < n\n"
        "    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.25)\n"
        "    y = tl.load(y_ptr + row * n + cols, mask=mask)\n"
        "    w = tl.load(w_ptr + row)\n"
        f"    tl.store(a_ptr + row * n + cols, {first}, mask=mask)\n"
        f"    tl.store(b_ptr + row * n + cols, {second} + 0 * x, mask=mask)\n"
    )
    rng = np.random.default_rng(seed)
    x, y = (mx.array(rng.normal(size=(3, n)).astype(np.float32)) for _ in range(2))
    w = mx.array(rng.normal(size=3).astype(np.float32))
    weights = [mx.array(rng.normal(size=(3, n)).astype(np.float32)) for _ in range(2)]

    def loss(x: mx.array, y: mx.array, w: mx.array) -> mx.array:
        fresh = enceladus.empty_like(x)
        results = kernel[(3,)](x, y, w, fresh, fresh, n, 0.75, BLOCK=32)
        return sum((c * r).sum() for c, r in zip(weights, results, strict=True))

    fresh = enceladus.empty_like(x)
    found = {}
    for name in ("graph", "host"):
        with engine(name, HostTarget(("forward", "reverse"))):
            if name == "host":
                kind = kernel.gradient_kind(x, y, w, fresh, fresh, n, 0.75, BLOCK=32, grid=(3,))
                assert kind == "kernel"
            found[name] = mx.grad(loss, argnums=(0, 1, 2))(x, y, w)
            mx.eval(found[name])
    for got, want in zip(found["host"], found["graph"], strict=True):
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-3, atol=1e-3)
