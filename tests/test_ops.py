"""``enceladus.ops`` against MLX's functions: values, gradients, dtypes, odd shapes, what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from enceladus import ops
from enceladus.testing import assert_close
from tests.engines import environment, needs_host
from tests.example_helpers import running
from tests.row_examples import fresh_kernels

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
#: What rounding once, and float32 arithmetic on numbers of about 1, may amount to.
TOLERANCES = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}

Function = Callable[..., mx.array]


@pytest.fixture(autouse=True)
def fresh_ops(monkeypatch):
    """Kernels of its own for every test: compiled specializations do not add up."""
    with fresh_kernels():
        from enceladus import ops as fresh

        monkeypatch.setitem(globals(), "ops", fresh)
        yield


def normal(shape: tuple[int, ...], seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def as_tuple(gradients: Any) -> tuple[mx.array, ...]:
    """MLX gives the gradient of a single argument as it is."""
    return (gradients,) if isinstance(gradients, mx.array) else tuple(gradients)


def rounded(arrays: list[mx.array], dtype: mx.Dtype) -> list[mx.array]:
    return [a.astype(dtype) for a in arrays]


def check(
    function: Function,
    reference: Function,
    arrays: list[mx.array],
    dtype: mx.Dtype,
    times: float = 1,
    *,
    compiles: bool = True,
) -> None:
    """Values and all gradients agree with those of ``reference`` in float32; so do they under mx.compile.

    ``compiles``: False where kernels run in the host executor, which evaluates arrays.
    """
    narrow = rounded(arrays, dtype)
    wide = rounded(narrow, mx.float32)
    tolerance = times * TOLERANCES[dtype]
    expected = reference(*wide)
    cotangent = normal(expected.shape, 99).astype(dtype).astype(mx.float32)

    def loss(f: Function) -> Callable[..., tuple[mx.array, mx.array]]:
        def scalar(*xs: mx.array) -> tuple[mx.array, mx.array]:
            y = f(*xs)
            return (y.astype(mx.float32) * cotangent).sum(), y

        return scalar

    places = tuple(range(len(arrays)))
    (_, _), wanted = mx.value_and_grad(loss(reference), argnums=places)(*wide)
    derivative: Callable[..., Any] = mx.value_and_grad(loss(function), argnums=places)
    for call in (derivative, mx.compile(derivative)) if compiles else (derivative,):
        (_, got), gradients = call(*narrow)
        gradients = as_tuple(gradients)
        assert got.dtype == dtype
        assert_close(got, expected, rtol=tolerance, atol=tolerance)
        for gradient, want, x in zip(gradients, as_tuple(wanted), narrow, strict=True):
            assert gradient.dtype == x.dtype
            size = max(1.0, mx.abs(want).max().item())
            assert_close(gradient, want, rtol=tolerance, atol=tolerance * size)


SHAPES = [(1, 1), (2, 3, 100), (4, 5000)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape, dtype):
    x, weight = normal(shape), normal(shape[-1:], 1)
    check(
        lambda x, w: ops.rms_norm(x, w, 1e-5), lambda x, w: mx.fast.rms_norm(x, w, 1e-5), [x, weight], dtype
    )
    check(lambda x: ops.rms_norm(x, None, 1e-3), lambda x: mx.fast.rms_norm(x, None, 1e-3), [x], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 100), (4, 5000)])
def test_layer_norm(shape, dtype):
    x, weight, bias = normal(shape), normal(shape[-1:], 1), normal(shape[-1:], 2)
    arguments: list[tuple[Any, ...]] = [
        (lambda f: lambda x, w, b: f(x, w, b, 1e-5), [x, weight, bias]),
        (lambda f: lambda x, w: f(x, w, None, 1e-5), [x, weight]),
        (lambda f: lambda x, b: f(x, None, b, 1e-5), [x, bias]),
        (lambda f: lambda x: f(x, None, None, 1e-5), [x]),
    ]
    for of, arrays in arguments:
        check(of(ops.layer_norm), of(mx.fast.layer_norm), arrays, dtype, 2)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_promote_as_mlx_does(name):
    norm = getattr(ops, name)
    x, weight = normal((3, 8)).astype(mx.bfloat16), normal((8,), 1)
    reference = mx.fast.rms_norm(x, weight, 1e-5)
    assert ops.rms_norm(x, weight).dtype == reference.dtype == mx.float32
    assert_close(ops.rms_norm(x, weight), reference, rtol=1e-5, atol=1e-5)
    dx, dw = mx.grad(lambda x, w: norm(x, w).square().sum(), argnums=(0, 1))(x, weight)
    assert (dx.dtype, dw.dtype) == (mx.bfloat16, mx.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 2), (2, 0), None])
def test_softmax(axis, dtype):
    check(
        lambda x: ops.softmax(x, axis=axis),
        lambda x: mx.softmax(x, axis=axis, precise=True),
        [3 * normal((5, 3, 33))],
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_long_rows(dtype):
    check(lambda x: ops.softmax(x, -1), lambda x: mx.softmax(x, axis=-1), [normal((2, 5000))], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(weighted, smoothing, reduction, dtype):
    targets = mx.array(np.random.default_rng(0).integers(0, 33, (4, 5)))
    options = {"label_smoothing": smoothing, "reduction": reduction}

    def of(function: Function) -> Function:
        if weighted:
            return lambda x, w: function(x, targets.astype(mx.int32), w, **options)
        return lambda x: function(x, targets.astype(mx.int32), **options)

    arrays = [normal((4, 5, 33)), *([mx.abs(normal((4, 5), 1))] if weighted else [])]
    if not weighted:
        check(of(ops.cross_entropy), of(nn.losses.cross_entropy), arrays, dtype)
        return
    narrow = rounded(arrays, dtype)
    got = mx.grad(lambda *xs: of(ops.cross_entropy)(*xs).astype(mx.float32).sum(), argnums=(0, 1))(*narrow)
    wide = rounded(narrow, mx.float32)
    want = mx.grad(lambda *xs: of(nn.losses.cross_entropy)(*xs).sum(), argnums=(0, 1))(*wide)
    for gradient, wanted in zip(got, want, strict=True):
        assert_close(gradient, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("kind", [mx.uint8, mx.int16, mx.int64, mx.uint32, mx.uint64])
def test_cross_entropy_along_an_axis_and_of_integers_of_any_type(kind):
    logits, targets = normal((4, 9, 5)), mx.arange(20).reshape(4, 5) % 9
    got = ops.cross_entropy(logits, targets.astype(kind), axis=1)
    want = nn.losses.cross_entropy(logits, targets.astype(kind), axis=1)
    assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", [-1, -100, -(2**31), 9, 2**32, 2**32 + 3])
def test_a_target_that_is_no_class_gives_nan(target):
    targets = mx.array([0, target], dtype=mx.int64)
    losses = ops.cross_entropy(normal((2, 9)), targets)
    assert mx.isnan(losses).tolist() == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7, 11), (3, 5, 1000)])
def test_gates(shape, dtype):
    gate, up = normal(shape), normal(shape, 1)
    check(ops.gelu, nn.gelu, [gate], dtype)
    check(lambda x: ops.gelu(x, approximate=True), nn.gelu_approx, [gate], dtype)
    check(ops.swiglu, lambda g, u: nn.silu(g) * u, [gate, up], dtype)
    check(ops.geglu, lambda g, u: nn.gelu(g) * u, [gate, up], dtype)
    check(
        lambda g, u: ops.geglu(g, u, approximate=True), lambda g, u: nn.gelu_approx(g) * u, [gate, up], dtype
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize(("dims", "base", "scale", "offset"), [(8, 1e4, 1.0, 0), (6, 500.0, 0.5, 13)])
def test_rope(dims, base, scale, offset, traditional, dtype):
    options = {"traditional": traditional, "base": base, "scale": scale, "offset": offset}
    check(
        lambda x: ops.rope(x, dims, **options),
        lambda x: mx.fast.rope(x, dims, **options),
        [normal((2, 3, 7, 8))],
        dtype,
        3,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [-1, 0, 1, None])
def test_cumsum(axis, dtype):
    x = normal((3, 17, 5)) / 8
    for reverse, inclusive in ((False, True), (True, True), (False, False), (True, False)):
        options = {"reverse": reverse, "inclusive": inclusive}
        check(
            lambda x, options=options: ops.cumsum(x, axis, **options),
            lambda x, options=options: mx.cumsum(x, axis, **options),
            [x],
            dtype,
            4,
        )


def test_cumsum_of_integers():
    x = mx.arange(24).reshape(4, 6) > 3
    assert mx.array_equal(ops.cumsum(x, 0), mx.cumsum(x, 0))
    assert ops.cumsum(x, 1, dtype=mx.float16).dtype == mx.float16
    assert mx.array_equal(ops.cumsum(x, 1, dtype=mx.int64), mx.cumsum(x.astype(mx.int64), 1))


# --------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [{"seed": 5}, {"key": mx.random.key(5)}])
def test_dropout(how, dtype):
    x = (mx.abs(normal((50, 101))) + 1).astype(dtype)
    y, gradients = mx.vjp(lambda x: ops.dropout(x, 0.25, **how), [x], [x])
    kept = y[0] != 0
    assert abs(kept.mean().item() - 0.75) < 0.03
    assert_close(y[0], mx.where(kept, x.astype(mx.float32) / 0.75, 0), rtol=TOLERANCES[dtype], atol=0)
    assert mx.array_equal(gradients[0], y[0]), "the gradient drops the same elements"
    assert mx.array_equal(ops.dropout(x, 0.25, **how), y[0])
    assert ops.dropout(x, 0.0, **how) is x
    assert not ops.dropout(x, 1.0, **how).any()


def test_a_key_is_a_seed():
    x = mx.ones((1000,))
    key = mx.array([7, 2**32 - 5], dtype=mx.uint32)
    assert mx.array_equal(ops.dropout(x, 0.5, key=key), ops.dropout(x, 0.5, seed=(7 << 32) + 2**32 - 5))
    assert not mx.array_equal(ops.dropout(x, 0.5, key=key), ops.dropout(x, 0.5, key=mx.random.key(1)))


def test_dropout_draws_anew_from_the_global_state_also_under_compile():
    x = mx.ones((1000,))
    layer = ops.nn.Dropout(0.5)

    @mx.compile
    def frozen(x: mx.array, key: mx.array) -> mx.array:
        return ops.dropout(x, 0.5, key=key)

    call = mx.compile(layer, inputs=[mx.random.state], outputs=[mx.random.state])
    mx.random.seed(3)
    first, second = call(x), call(x)
    assert not mx.array_equal(first, second)
    mx.random.seed(3)
    assert mx.array_equal(call(x), first)
    assert mx.array_equal(layer.eval()(x), x)
    assert not mx.array_equal(frozen(x, mx.random.key(0)), frozen(x, mx.random.key(1)))


# ---------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    "make",
    [
        lambda m: m.RMSNorm(16, eps=1e-3),
        lambda m: m.LayerNorm(16),
        lambda m: m.LayerNorm(16, affine=False),
        lambda m: m.LayerNorm(16, bias=False),
        lambda m: m.RoPE(8, traditional=True, base=100, scale=2.0),
        lambda m: m.GELU(),
        lambda m: m.GELU("precise"),
        lambda m: m.GELU("tanh"),
    ],
)
def test_layers_load_the_weights_of_mlx(make):
    reference, layer = make(nn), make(ops.nn)
    assert isinstance(layer, type(reference))
    reference.update({name: normal(value.shape, 5) for name, value in reference.parameters().items()})
    layer.load_weights(list(reference.parameters().items()), strict=True)
    x = normal((2, 3, 5, 16))
    assert_close(layer(x), reference(x), rtol=1e-5, atol=1e-5)
    assert repr(layer) == repr(reference)


def test_the_layers_that_refuse():
    with pytest.raises(ValueError, match="approx='fast' is not supported"):
        ops.nn.GELU("fast")
    with pytest.raises(ValueError, match="not in"):
        ops.nn.Dropout(1.0)


# ------------------------------------------------------------------------- transformations


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: ops.softmax(x, -1), (3, 4, 10)),
        (lambda x: ops.rms_norm(x, mx.arange(10.0)), (3, 4, 10)),
        (lambda x: ops.layer_norm(x, mx.arange(10.0), mx.ones((10,))), (3, 4, 10)),
        (lambda x: ops.gelu(x), (3, 4, 10)),
        (lambda x: ops.swiglu(x, 2 * x), (3, 4, 10)),
        (lambda x: ops.geglu(x, 2 * x), (3, 4, 10)),
        (lambda x: ops.rope(x, 10, offset=2), (3, 2, 4, 10)),
        (lambda x: ops.cumsum(x, -1), (3, 4, 10)),
        (lambda x: ops.dropout(x, 0.5, seed=3), (3, 4, 10)),
        (lambda x: ops.cross_entropy(x, mx.array([1, 2, 3, 9])), (3, 4, 10)),
    ],
)
def test_vmap_in_the_graph_engine(function, shape):
    x = normal(shape)
    with running("graph"):
        want = mx.stack([function(row) for row in x])
        assert_close(mx.vmap(function)(x), want, rtol=1e-5, atol=1e-5)
        gradient = mx.grad(lambda x: function(x).square().sum())
        want = mx.stack([gradient(row) for row in x])
        assert_close(mx.vmap(gradient)(x), want, rtol=1e-5, atol=1e-4)


@needs_host
def test_gradients_come_from_kernels_on_metal():
    with running("host"):
        x, weight = normal((3, 100)), normal((100,), 1)
        check(
            lambda x, w: ops.rms_norm(ops.gelu(x), w),
            lambda x, w: mx.fast.rms_norm(nn.gelu(x), w, 1e-5),
            [x, weight],
            mx.float32,
            compiles=False,
        )
        check(lambda x: ops.softmax(x, 0), lambda x: mx.softmax(x, 0), [x], mx.float32, compiles=False)
        y, gradients = mx.vjp(lambda x: ops.dropout(x, 0.5, key=mx.random.key(3)), [x], [x])
        assert mx.array_equal(y[0], gradients[0])
        assert 100 < (y[0] != 0).sum().item() < 200


def test_nothing_is_loaded_before_it_is_used():
    code = (
        "import sys, enceladus\n"
        "assert not [m for m in sys.modules if m.startswith(('enceladus.ops', 'mlx.nn'))]\n"
        "assert callable(enceladus.ops.softmax) and 'enceladus.ops' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


# --------------------------------------------------------------------------------- refused

X = mx.zeros((2, 4))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: ops.rms_norm(X, mx.zeros((3,))), ValueError, r"weight has shape \(3,\)"),
        (lambda: ops.rms_norm(X.astype(mx.int32)), TypeError, "x is .*int32"),
        (lambda: ops.layer_norm(X, None, mx.zeros((3,))), ValueError, r"bias has shape \(3,\)"),
        (lambda: ops.softmax(X, 2), ValueError, "axis 2 does not exist"),
        (lambda: ops.softmax(X, (0, 0)), ValueError, "each of its axes once"),
        (lambda: ops.softmax(X.astype(mx.int32), 0), TypeError, "int32"),
        (lambda: ops.cross_entropy(X, X), ValueError, "probabilities as targets are not supported"),
        (lambda: ops.cross_entropy(X, X[0]), TypeError, "integers are needed"),
        (lambda: ops.cross_entropy(X, mx.zeros((3,), mx.int32)), ValueError, r"targets has shape \(3,\)"),
        (lambda: ops.cross_entropy(X, mx.zeros((2,), mx.int32), X), ValueError, "weights has shape"),
        (lambda: ops.cross_entropy(X, mx.zeros((2,), mx.int32), reduction="max"), ValueError, "'max'"),
        (lambda: ops.cross_entropy(X, mx.zeros((2,), mx.int32), label_smoothing=1), ValueError, "below 1"),
        (lambda: ops.gelu(X.astype(mx.int32)), TypeError, "int32"),
        (lambda: ops.swiglu(X, X[0]), ValueError, "must be alike"),
        (lambda: ops.geglu(X, X.astype(mx.float16)), ValueError, "must be alike"),
        (lambda: ops.rope(X, 3), ValueError, "dims must be even"),
        (lambda: ops.rope(X, 4, freqs=X), ValueError, "freqs"),
        (lambda: ops.rope(X, 4, offset=mx.array(3)), TypeError, "offset is an array"),
        (lambda: ops.cumsum(X, 5), ValueError, "axis 5"),
        (lambda: ops.dropout(X, 1.5), ValueError, "p must be from 0 to 1"),
        (lambda: ops.dropout(X, 0.5, key=mx.random.key(0), seed=1), ValueError, "not both"),
        (lambda: ops.dropout(X, 0.5, key=mx.zeros((2,))), ValueError, "key must be uint32"),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
