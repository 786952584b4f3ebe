"""Which launches have a backward kernel, and what it looks like."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.autodiff.reverse import Plan
from enceladus.ir import exchange, ops
from enceladus.ir.verifier import Stage, verify
from tests.engines import engine, kernel_from_source, needs_host
from tests.gradient_helpers import SummingTarget, gradient, launch_scaled_exp, normal, own, scaled_exp

HEADER = "@enceladus.jit\ndef kernel(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):\n"

#: name → (body of a kernel on (x, w, out, n = 30, BLOCK = 16), kind, what ``explain`` says)
KERNELS = {
    "elementwise": (
        """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)
""", "kernel", "a backward kernel"),
    "a sum in a loop": (
        """
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < n)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, axis=0))
""", "kernel", "a backward kernel"),
    "a loop that stores": (
        """
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n)
        if_first = tl.program_id(0) * n
        tl.store(out_ptr + if_first + cols, x * x, mask=cols < n)
""", "kernel", "a backward kernel"),
    "all programs write one element": (
        """
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0))
""", "graph", "an element of 'out_ptr' may be written twice"),
    "places that depend on data": (
        """
    offs = tl.arange(0, BLOCK)
    at = tl.load(w_ptr + offs).to(tl.int32)
    tl.store(out_ptr + at, tl.load(x_ptr + offs))
""", "graph", "an element of 'out_ptr' may be written twice"),
    "a recurrence": (
        """
    x = tl.load(x_ptr + tl.program_id(0))
    for _ in range(n):
        x = tl.sin(x)
    tl.store(out_ptr + tl.program_id(0), x)
""", "graph", "its loop carries 'x' in another way than by adding to it"),
    "a running sum that is stored": (
        """
    total = tl.load(x_ptr + tl.program_id(0))
    for i in range(n):
        total += tl.load(w_ptr + i)
        tl.store(out_ptr + tl.program_id(0) * n + i, total)
""", "graph", "its loop carries 'total' in another way than by adding to it"),
    "a branch": (
        """
    x = tl.load(x_ptr + tl.program_id(0))
    if n > 7:
        x = x * x
    tl.store(out_ptr + tl.program_id(0), x)
""", "graph", "it uses if"),
    "a product": (
        """
    x = tl.load(x_ptr + tl.arange(0, BLOCK) + tl.program_id(0) * BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.reduce(x, 0, product))
""", "graph", "a reduction other than a sum, a maximum or a minimum"),
    "an exponent": (
        """
    x = tl.load(x_ptr + tl.program_id(0))
    tl.store(out_ptr + tl.program_id(0), tl.math.pow(x * 0 + 2.0, x))
""", "graph", "there is no rule for the second operand of pow"),
}  # fmt: skip


@enceladus.jit
def product(a, b):
    return a * b


def kernel_of(name: str) -> enceladus.JITFunction:
    kernel = kernel_from_source(HEADER + KERNELS[name][0].strip("\n") + "\n")
    kernel.fn.__globals__["product"] = product
    return kernel


def arguments(x: mx.array, w: mx.array) -> tuple[Any, ...]:
    return x, w, enceladus.zeros((64,)), 30


@needs_host
@pytest.mark.parametrize("name", KERNELS)
def test_kinds_and_values(name: str) -> None:
    """What ``explain`` says, and that both engines agree on the gradient whatever its kind."""
    _, kind, reason = KERNELS[name]
    kernel = kernel_of(name)
    x, w = normal(32), mx.array(np.random.default_rng(0).permutation(32).astype(np.float32))
    programs = 1 if name in ("all programs write one element", "places that depend on data") else 2
    found = {}
    for engine_name in ("graph", "host"):
        with engine(engine_name, SummingTarget()):
            if engine_name == "host":
                assert kernel.gradient_kind(*arguments(x, w), BLOCK=16, grid=(2,)) == kind
                text = kernel.explain(*arguments(x, w), BLOCK=16, grid=(2,)).splitlines()[-1]
                assert text.startswith(f"  gradient ({kind}): ") and reason in text
            found[engine_name] = np.array(
                gradient(lambda x: kernel[(programs,)](x, w, *arguments(x, w)[2:], BLOCK=16) ** 2, x)
            )
    assert np.abs(found["graph"]).max() > 0
    np.testing.assert_allclose(found["host"], found["graph"], rtol=1e-4, atol=1e-5)


def test_kinds_of_other_engines() -> None:
    kernel = own(scaled_exp)
    x = normal(70)
    given = (x, x, enceladus.empty_like(x), 70, 2.0)
    with engine("graph"):
        assert kernel.gradient_kind(*given, BLOCK=64, grid=(2,)) == "graph"
    with engine("interpreter"):
        assert kernel.gradient_kind(*given, BLOCK=64, grid=(2,)) == "none"
    kernel.vjp(lambda primals, cotangents, outputs: {})
    with engine("graph"):
        assert kernel.gradient_kind(*given, BLOCK=64, grid=(2,)) == "rule"
        assert "given by @scaled_exp.vjp" in kernel.explain(*given, BLOCK=64, grid=(2,))


def plan(kernel: enceladus.JITFunction, *args: Any, grid: tuple[int, ...], **constants: Any) -> Plan:
    call = kernel._inspect(args, grid, constants, "graph")
    return Plan(kernel.derivative(call.key).function())


def test_the_backward_kernel_is_well_formed() -> None:
    x = normal(70)
    found = plan(scaled_exp, x, x, enceladus.empty_like(x), 70, 2.0, grid=(2,), BLOCK=64)
    sizes = {"x_ptr": 70, "y_ptr": 70, "out_ptr": 70}
    variant = found.variant((2, 1, 1), {"n": 70, "scale": 2.0}, sizes, frozenset())
    assert (variant.plain, variant.guarded) == ({"x_ptr", "y_ptr"}, frozenset())
    function = found.build(variant)
    verify(function, Stage.TILE)
    names = [value.name for value in function.arguments]
    assert names == [
        "x_ptr", "y_ptr", "out_ptr", "n", "scale", "cotangent_out_ptr", "grad_x_ptr", "grad_y_ptr",
    ]  # fmt: skip
    assert sum(isinstance(op, ops.Store) for op in function.walk()) == 2


def test_gradients_are_added_up_where_elements_are_read_twice() -> None:
    x = normal(70)
    found = plan(scaled_exp, x, x, enceladus.empty_like(x), 70, 2.0, grid=(2,), BLOCK=64)
    sizes = {"x_ptr": 60, "y_ptr": 70, "out_ptr": 70}
    variant = found.variant((2, 1, 1), {"n": 70, "scale": 2.0}, sizes, frozenset({"out_ptr"}))
    assert variant.guarded == {"x_ptr"}  # 70 elements are read of 60
    function = found.build(variant)
    verify(function, Stage.TILE)
    assert {"size_x_ptr", "old_out_ptr"} <= {value.name for value in function.arguments}
    shared = plan(kernel_of("a sum in a loop"), *arguments(x, x), grid=(2,), BLOCK=16)
    sizes = {"x_ptr": 30, "w_ptr": 1, "out_ptr": 64}
    variant = shared.variant((2, 1, 1), {"n": 30}, sizes, frozenset())
    assert not variant.plain and not variant.guarded
    added = [op for op in shared.build(variant).walk() if isinstance(op, exchange.Atomic)]
    assert len(added) == 1
    alone = shared.variant((1, 1, 1), {"n": 30}, sizes, frozenset())
    assert alone.plain == {"x_ptr"}


def test_names_of_the_users_arguments_are_left_alone() -> None:
    @enceladus.jit
    def kernel(x, grad_x, cotangent_out, out, size_x: tl.constexpr):
        offs = tl.arange(0, 16)
        value = tl.load(x + offs) * tl.load(grad_x + offs) + tl.load(cotangent_out + offs)
        tl.store(out + offs, value * size_x)

    def function(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        return kernel[(1,)](a, b, c, enceladus.empty_like(a), size_x=3)

    arrays = normal(16), normal(16), normal(16)
    for name in ("graph", "host"):
        with engine(name):
            for i in range(3):
                got = gradient(function, *arrays, argnums=i)
                want = (3 * arrays[1], 3 * arrays[0], mx.full((16,), 3.0))[i]
                np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5)


@needs_host
def test_backward_kernels_are_compiled_once() -> None:
    target = SummingTarget()
    x = normal(70)
    with engine("host", target):
        kernel = own(scaled_exp)

        def function(x: mx.array, scale: float) -> mx.array:
            return kernel[(2,)](x, x, enceladus.empty_like(x), 70, scale, BLOCK=64)

        for scale in (1.0, 2.0, 0.0, -0.0):
            got = gradient(lambda x, s=scale: function(x, s), x)
            want = scale * (mx.exp(x) * x + mx.exp(x))
            np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-5)
    assert [compiled.name for compiled in target.compiled] == ["scaled_exp", "scaled_exp_vjp"]


@needs_host
def test_a_gradient_has_a_backward_kernel_too() -> None:
    target = SummingTarget()
    x, y = normal(70), normal(70)
    with engine("host", target):
        got = mx.grad(lambda x: (mx.grad(lambda x: launch_scaled_exp(x, y).sum())(x) * y).sum())(x)
        np.testing.assert_allclose(np.array(got), np.array(2.5 * mx.exp(x) * y * y), rtol=1e-4)
    assert "scaled_exp_vjp_vjp" in {compiled.name for compiled in target.compiled}
