"""Gradients and enceladus.vmap together, on the graph engine and with Metal's text."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.bridge_helpers import increment_kernel, two_outputs_kernel
from tests.engines import ENGINES, HostTarget, engine, needs_host


@pytest.fixture(params=[name for name in ENGINES if name != "interpreter"])
def anywhere(request):
    # One order of programs: a backward kernel adds up gradients of what programs share, in any order.
    with engine(request.param, HostTarget(("forward",))):
        yield request.param


@enceladus.jit
def multiply(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, w = tl.load(x_ptr + offsets, mask=mask), tl.load(w_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * x * w, mask=mask)


def product(x: mx.array, w: mx.array) -> mx.array:
    return multiply[(enceladus.cdiv(x.size, 16),)](x, w, enceladus.empty_like(x), x.size, BLOCK=16)


def several(x: mx.array, w: mx.array) -> mx.array:
    """Two outputs, an update of a part in place, MLX operations between."""
    n = x.size
    y = mx.sin(product(x, w))
    double, square = two_outputs_kernel[(2,)](
        y, enceladus.empty_like(x), enceladus.empty_like(x), n, BLOCK=16
    )
    increment_kernel[(1,)](double, 5, BLOCK=8)
    return double * x + square


def several_reference(x: mx.array, w: mx.array) -> mx.array:
    y = mx.sin(x * x * w)
    double = 2 * y + (mx.arange(x.size) < 5)
    return double * x + y * y


def loss(function):
    def of(x, w):
        y = function(x, w)
        return (y * mx.cos(mx.arange(y.size)).reshape(y.shape)).sum()

    return of


def array(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=2e-5, atol=1e-5)


AXES = (0, None)


def test_grad_of_vmap(anywhere):
    x, w = array(3, 20), array(20)
    got = mx.grad(loss(enceladus.vmap(several, in_axes=AXES)), argnums=(0, 1))(x, w)
    want = mx.grad(loss(mx.vmap(several_reference, in_axes=AXES)), argnums=(0, 1))(x, w)
    assert_close(got, want)


def test_vmap_of_grad(anywhere):
    x, w = array(3, 20), array(20)
    got = enceladus.vmap(mx.grad(loss(several), argnums=(0, 1)), in_axes=AXES)(x, w)
    want = mx.vmap(mx.grad(loss(several_reference), argnums=(0, 1)), in_axes=AXES)(x, w)
    assert_close(got, want)
    value, gradient = enceladus.vmap(mx.value_and_grad(loss(several)), in_axes=AXES)(x, w)
    wanted, want = mx.vmap(mx.value_and_grad(loss(several_reference)), in_axes=AXES)(x, w)
    assert_close([value, gradient], [wanted, want])


def test_nested(anywhere):
    x, w = array(2, 3, 20), array(2, 20)

    def twice(vmap, function):
        inner = vmap(mx.grad(loss(function), argnums=(0, 1)), in_axes=AXES)
        return lambda x, w: sum(g.sum() for g in vmap(inner, in_axes=0)(x, w))

    got = mx.grad(twice(enceladus.vmap, several), argnums=(0, 1))(x, w)
    want = mx.grad(twice(mx.vmap, several_reference), argnums=(0, 1))(x, w)
    assert_close(got, want)


def test_a_rule_of_the_kernel_sees_one_example(anywhere):
    seen = []
    own = enceladus.JITFunction(multiply.fn)

    @own.vjp
    def rule(primals, cotangent, output):
        x, w = primals["x_ptr"], primals["w_ptr"]
        seen.append((x.shape, w.shape, cotangent.shape, output.shape, primals["n"]))
        # Not the derivative, so that only this rule gives the result; a kernel in it is batched as well.
        return {"x_ptr": product(x, cotangent) + 1, "w_ptr": cotangent * output}

    def function(x, w):
        return own[(2,)](x, w, enceladus.empty_like(x), x.size, BLOCK=16)

    @mx.custom_function
    def reference(x, w):
        return x * x * w

    @reference.vjp
    def reference_rule(primals, cotangent, output):
        x, _ = primals
        return x * x * cotangent + 1, cotangent * output

    x, w = array(3, 20), array(20)
    for transform in (
        lambda f, vmap: mx.grad(loss(vmap(f, in_axes=AXES)), argnums=(0, 1))(x, w),
        lambda f, vmap: vmap(mx.grad(loss(f), argnums=(0, 1)), in_axes=AXES)(x, w),
    ):
        seen.clear()
        assert_close(transform(function, enceladus.vmap), transform(reference, one_by_one))
        assert set(seen) == {((20,), (20,), (20,), (20,), 20)}


def one_by_one(function, in_axes):
    """vmap by its definition, for functions whose own rules MLX's vmap does not keep."""

    def batched(x, w):
        results = [function(example, w) for example in x]
        if isinstance(results[0], tuple):
            return tuple(mx.stack(list(column)) for column in zip(*results, strict=True))
        return mx.stack(results)

    return batched


@needs_host
def test_forward_mode_is_refused():
    x, w = array(3, 20), array(20)
    with (
        engine("host"),
        pytest.raises(NotImplementedError, match=r"multiply\(\) has no such derivative"),
    ):
        enceladus.vmap(lambda x, w: mx.jvp(lambda x: product(x, w), [x], [x])[1][0], in_axes=AXES)(x, w)


def test_mlx_vmap_on_a_gpu_names_ours(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    own = enceladus.JITFunction(multiply.fn)

    def function(x):
        return own[(2,)](x, x, enceladus.empty_like(x), x.size, BLOCK=16)

    with pytest.raises(NotImplementedError, match=r"mx.vmap cannot batch .* multiply\(\).*enceladus.vmap"):
        mx.export_function(lambda _: None, lambda x: mx.vmap(function)(x), mx.zeros((3, 20)))


@enceladus.jit
def through_bits(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + offsets, mask=offsets < n).to(tl.int32, bitcast=True)
    tl.store(out_ptr + offsets, (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True), mask=offsets < n)


def magnitude(x: mx.array) -> mx.array:
    return through_bits[(1,)](x, enceladus.empty_like(x), x.size, BLOCK=32)


@pytest.mark.parametrize(
    "transform",
    [
        lambda vmap, x: mx.grad(lambda x: vmap(magnitude)(x).sum())(x),
        lambda vmap, x: vmap(mx.grad(lambda x: magnitude(x).sum()))(x),
    ],
    ids=["grad of vmap", "vmap of grad"],
)
def test_a_gradient_that_does_not_exist_is_refused_in_a_batch_too(anywhere, transform):
    x = array(3, 20)
    assert mx.array_equal(enceladus.vmap(magnitude)(x), mx.abs(x))
    with pytest.raises(enceladus.CompilationError, match="no gradient with respect to 'x_ptr'"):
        transform(enceladus.vmap, x)
    if anywhere == "graph":
        assert mx.array_equal(mx.vmap(magnitude)(x), mx.abs(x))
        assert mx.array_equal(mx.vmap(mx.vmap(magnitude))(x[None]), mx.abs(x)[None])
        with pytest.raises((enceladus.CompilationError, NotImplementedError), match="gradient"):
            transform(mx.vmap, x)
