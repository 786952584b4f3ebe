"""``@enceladus.op``: gradients through the rule, and what it refuses."""

from __future__ import annotations

import mlx.core as mx
import pytest

import enceladus
import enceladus.language as tl


@enceladus.jit
def scale_kernel(x_ptr, w_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    if w_ptr is not None:
        x *= tl.load(w_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x * factor, mask=mask)


@enceladus.op
def scale(x, w=None, *, factor=2.0):
    """x * w * factor."""
    grid = (enceladus.cdiv(x.size, 128),)
    return scale_kernel[grid](x, w, enceladus.empty_like(x), x.size, factor, BLOCK=128)


def with_rule(rule):
    """``scale`` with this gradient."""
    own = enceladus.op(scale.function)
    own.vjp(rule)
    return own


X, W = mx.arange(5.0), mx.arange(5.0) + 1


def test_the_rule_gets_tuples_and_options_and_gives_the_gradients():
    seen = []

    def rule(primals, cotangents, outputs, *, factor):
        seen.append((len(primals), len(cotangents), len(outputs), factor))
        x, w = primals
        return 10 * cotangents[0] * (1 if w is None else w), None if w is None else 10 * cotangents[0] * x

    own = with_rule(rule)
    assert mx.array_equal(own(X, W), 2 * X * W)
    gradients = mx.grad(lambda x, w: own(x, w, factor=3.0).sum(), argnums=(0, 1))(X, W)
    assert mx.array_equal(gradients[0], 10 * W) and mx.array_equal(gradients[1], 10 * X)
    assert mx.array_equal(mx.grad(lambda x: own(x).sum())(X), mx.full((5,), 10.0))
    value, gradient = mx.compile(mx.value_and_grad(lambda x: own(w=W, x=x).sum()))(X)
    assert value.item() == (2 * X * W).sum().item() and mx.array_equal(gradient, 10 * W)
    assert seen == [(2, 1, 1, 3.0), (2, 1, 1, 2.0), (2, 1, 1, 2.0)]


def test_none_is_a_gradient_of_zero_and_dtypes_are_converted():
    own = with_rule(lambda primals, cotangents, outputs, *, factor: (cotangents[0].astype(mx.float32), None))
    x, w = X.astype(mx.float16), W.astype(mx.float16)
    dx, dw = mx.grad(lambda x, w: own(x, w).sum(), argnums=(0, 1))(x, w)
    assert (dx.dtype, dw.dtype) == (mx.float16, mx.float16)
    assert mx.array_equal(dx, mx.ones((5,))) and not dw.any()


def test_several_outputs():
    @enceladus.op
    def pair(x):
        return scale(x), scale(x, factor=3.0)

    @pair.vjp
    def gradient(primals, cotangents, outputs):
        assert mx.array_equal(outputs[1], 3 * X)
        return cotangents[0] + 100 * cotangents[1]  # of a single argument, also the array itself

    assert mx.array_equal(mx.grad(lambda x: (pair(x)[0] + pair(x)[1]).sum())(X), mx.full((5,), 101.0))


def test_options_that_are_equal_but_not_the_same_do_not_mix():
    @enceladus.op
    def typed(x, *, option):
        return x * 1

    typed.vjp(lambda primals, cotangents, outputs, *, option: (cotangents[0] * len(repr(option)),))
    gradients = [mx.grad(lambda x, o=o: typed(x, option=o).sum())(X)[0].item() for o in (1, 1.0, True, [1])]
    assert gradients == [1, 3, 4, 3]


def test_without_a_rule_the_function_is_called_as_it_is():
    own = enceladus.op(scale.function)
    assert mx.array_equal(own(X, W), 2 * X * W)
    assert own.__doc__ == "x * w * factor." and "scale(x, w=None" in repr(own)


@pytest.mark.parametrize(
    ("result", "kind", "words"),
    [
        (lambda c: c, TypeError, "the gradient of scale returned array; it returns a tuple .* x, w"),
        (lambda c: (c,), ValueError, "returned 1 items; it returns 2, one for each of x, w"),
        (lambda c: (c, c, c), ValueError, "returned 3 items"),
        (
            lambda c: (c, c[:2]),
            ValueError,
            r"the gradient of scale for w has shape \(2,\); w has shape \(5,\)",
        ),
        (lambda c: (1.0, c), TypeError, "the gradient of scale for x is float"),
    ],
)
def test_gradients_that_do_not_fit(result, kind, words):
    own = with_rule(lambda primals, cotangents, outputs, *, factor: result(cotangents[0]))
    with pytest.raises(kind, match=words):
        mx.grad(lambda x: own(x, W).sum())(X)


def test_a_gradient_for_what_is_no_array():
    own = with_rule(lambda primals, cotangents, outputs, *, factor: (cotangents[0], cotangents[0]))
    with pytest.raises(TypeError, match="for w must be None: w is no array"):
        mx.grad(lambda x: own(x).sum())(X)


def test_arrays_that_no_gradient_could_reach():
    @enceladus.op
    def listed(xs, *, option=None):
        return xs[0]

    for call in (lambda: listed([X]), lambda: listed({"x": (X,)}), lambda: listed(X, option=X)):
        with pytest.raises(
            TypeError, match=r"listed: (xs|option) is an array where no gradient can reach it"
        ):
            call()
    with pytest.raises(TypeError, match="an op names all its parameters"):
        enceladus.op(lambda *xs: xs)
    with pytest.raises(TypeError, match="missing a required argument: 'xs'"):
        listed()
    named = with_rule(lambda *_, factor: None)
    named.function = lambda x, w, *, factor: {"y": x}
    with pytest.raises(TypeError, match="returned dict; an op returns an array or a tuple"):
        named(X)
