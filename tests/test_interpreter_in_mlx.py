"""The interpreter between MLX's arrays: refused inside transformations; what it prints."""

from __future__ import annotations

import mlx.core as mx
import pytest

import enceladus
import enceladus.language as tl


@enceladus.jit(interpret=True)
def double_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs))


def double(x):
    return double_kernel[(1,)](x, enceladus.empty_like(x), BLOCK=4)


def into_existing(x):
    out = mx.zeros_like(x)
    double_kernel[(1,)](x, out, BLOCK=4)
    return out


X = mx.arange(4, dtype=mx.float32)


@pytest.mark.parametrize("transform", [mx.compile, mx.vmap])
def test_functions_without_contents_are_refused(transform):
    x = X if transform is mx.compile else mx.stack([X, X])
    with pytest.raises(ValueError, match=r"double_kernel\(\) runs in the interpreter"):
        transform(double)(x)


@pytest.mark.parametrize("function", [double, into_existing])
def test_a_gradient_is_refused_rather_than_zero(function):
    with pytest.raises(NotImplementedError, match=r"double_kernel\(\) ran in the interpreter"):
        mx.grad(lambda x: function(x).sum())(X)
    with pytest.raises(NotImplementedError, match="no gradient"):
        mx.jvp(function, [X], [X])


@pytest.mark.parametrize("function", [double, into_existing])
def test_values_are_unaffected(function):
    assert mx.array_equal(function(X), 2 * X)
    assert mx.array_equal(mx.grad(lambda x: (x * mx.stop_gradient(function(x))).sum())(X), 2 * X)


@enceladus.jit(interpret=True)
def pointer_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    print(x_ptr, x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, 1.0)


def test_a_pointer_prints_its_array_and_offsets(capsys):
    pointer_kernel[(1,)](X, enceladus.empty(1), BLOCK=2)
    printed = capsys.readouterr().out
    assert "x_ptr + 0" in printed and "x_ptr + [0 1]" in printed
