"""Rules of one's own, gradients that are refused, atomics, export."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import engine, kernel_from_source
from tests.gradient_helpers import (
    RNG,
    ArrayFunction,
    assert_same_gradients,
    binary_kernel,
    cube,
    gradient,
    launch_cube,
    launch_scaled_exp,
    normal,
    own,
    two_outputs,
)

# ----------------------------------------------------------------------------------- refusals


def test_bits_of_floats_are_refused_with_their_place(any_engine: str) -> None:
    function = binary_kernel("(x.to(tl.int32, bitcast=True) ^ 1).to(tl.float32, bitcast=True) * y")
    x, y = normal(70), normal(70)
    with pytest.raises(enceladus.CompilationError, match=r"no gradient with respect to 'x_ptr'") as caught:
        gradient(function, x, y)
    assert caught.value.location is not None and caught.value.location.line == 6
    assert "vjp" in caught.value.hint
    # The other argument has a gradient, and bits that only decide something are harmless.
    np.testing.assert_allclose(np.array(gradient(function, x, y, argnums=1)), np.array(x), rtol=1e-5)
    chosen = binary_kernel("tl.where(x.to(tl.int32, bitcast=True) >= 0, y, 2 * y) * x")
    assert_same_gradients(chosen, lambda x, y: mx.where(x >= 0, y, 2 * y) * x, (x, y))


@enceladus.jit
def fast_log2(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + offs).to(tl.int32, bitcast=True)
    tl.store(out_ptr + offs, bits.to(tl.float32) / 8388608 - 127)


def test_bits_read_as_a_number_are_refused(any_engine: str) -> None:
    with pytest.raises(enceladus.CompilationError, match="have no derivative"):
        gradient(lambda x: fast_log2[(1,)](x, enceladus.empty_like(x), BLOCK=16), mx.abs(normal(16)))


@enceladus.jit
def combine_bits(a, b):
    return (a.to(tl.int32, bitcast=True) & b.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@enceladus.jit
def reduce_bits(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.reduce(tl.load(x_ptr + tl.arange(0, BLOCK)), 0, combine_bits))


def test_a_combine_function_without_derivative_is_refused(any_engine: str) -> None:
    with pytest.raises(enceladus.CompilationError, match="have no derivative"):
        gradient(lambda x: reduce_bits[(1,)](x, enceladus.empty(1), BLOCK=16), normal(16))


@enceladus.jit
def carried_bits(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(3):
        total, x = total + x, (x.to(tl.int32, bitcast=True) ^ 1).to(tl.float32, bitcast=True)
    tl.store(out_ptr + offs, total)


def test_bits_carried_by_a_loop_are_refused(any_engine: str) -> None:
    with pytest.raises(enceladus.CompilationError, match="have no derivative"):
        gradient(lambda x: carried_bits[(1,)](x, enceladus.empty_like(x), BLOCK=16), normal(16))


def test_forward_mode_is_refused_rather_than_zero(any_engine: str) -> None:
    x = mx.abs(normal(16))
    with pytest.raises(enceladus.CompilationError, match="have no derivative"):
        mx.jvp(lambda x: fast_log2[(1,)](x, enceladus.empty_like(x), BLOCK=16), [x], [x])
    if any_engine == "graph":
        _, (tangent,) = mx.jvp(launch_scaled_exp, [x, x], [mx.ones_like(x), mx.zeros_like(x)])
        np.testing.assert_allclose(np.array(tangent), np.array(mx.exp(x) * x * 2.5), rtol=1e-5)
    else:
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            mx.jvp(launch_scaled_exp, [x, x], [mx.ones_like(x), mx.zeros_like(x)])


def test_values_do_not_need_the_gradient(any_engine: str) -> None:
    """A refusal comes when the gradient is asked for, not before."""
    x = mx.abs(normal(16))
    value, got = mx.value_and_grad(
        lambda x: (mx.stop_gradient(fast_log2[(1,)](x, enceladus.empty_like(x), BLOCK=16)) * x).sum()
    )(x)
    assert value.item() != 0 and got.shape == (16,)


# ---------------------------------------------------------------------------- rules of one's own


def test_a_rule_of_ones_own(any_engine: str) -> None:
    kernel, seen = own(cube), []

    @kernel.vjp
    def rule(primals, cotangents, outputs):
        seen.append(primals)
        assert mx.array_equal(outputs, primals["x_ptr"] ** 3 * primals["scale"])
        return {"x_ptr": 100 * cotangents}

    x = mx.array([1.0, 2.0, 3.0])
    for scale in (2.0, 4.0):
        got = gradient(lambda x, s=scale: launch_cube(kernel, x, s), x)
        assert mx.array_equal(got, mx.full((3,), 100.0))
        assert seen[-1]["n"] == 3 and seen[-1]["BLOCK"] == 64 and seen[-1]["scale"] == scale
        assert set(seen[-1]) == {"x_ptr", "n", "scale", "BLOCK"}
    assert mx.array_equal(launch_cube(kernel, x), 2 * x**3)


def test_a_rule_is_differentiated_itself_and_may_launch_kernels(any_engine: str) -> None:
    kernel = own(cube)

    @kernel.vjp
    def rule(primals, cotangents, outputs):
        x = primals["x_ptr"]
        return {"x_ptr": binary_kernel("6 * x * x * y")(x, cotangents)}

    x = normal(70)
    got = mx.grad(lambda x: gradient(lambda x: launch_cube(kernel, x), x).sum())(x)
    np.testing.assert_allclose(np.array(got), np.array(12 * x), rtol=1e-5)


def test_a_rule_replaces_a_refusal(any_engine: str) -> None:
    kernel = own(fast_log2)
    kernel.vjp(lambda primals, cotangents, outputs: {"x_ptr": cotangents / primals["x_ptr"] * 1.442695})
    x = mx.array([1.0, 2.0, 4.0, 8.0] * 4)
    got = gradient(lambda x: kernel[(1,)](x, enceladus.empty_like(x), BLOCK=16), x)
    np.testing.assert_allclose(np.array(got), 1.442695 / np.array(x), rtol=1e-5)


def test_a_rule_of_two_outputs_in_place(any_engine: str) -> None:
    kernel = own(two_outputs)

    @kernel.vjp
    def rule(primals, cotangents, outputs):
        assert len(cotangents) == len(outputs) == 2
        assert "sin_ptr" in primals
        return {"x_ptr": cotangents[0] + 10 * cotangents[1], "sin_ptr": None}

    def function(x: mx.array) -> mx.array:
        out = mx.zeros_like(x)
        a, b = kernel[(1,)](x, out, enceladus.empty_like(x), x.size, BLOCK=64)
        assert a is out
        return a + b

    assert mx.array_equal(gradient(function, normal(64)), mx.full((64,), 11.0))


def test_a_rule_gets_the_arrays_of_tuples_one_by_one(any_engine: str) -> None:
    @enceladus.jit
    def kernel(pair, out_ptr, BLOCK: tl.constexpr):
        offs = tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(pair[0] + offs) * tl.load(pair[1] + offs))

    @kernel.vjp
    def rule(primals, cotangents, outputs):
        assert set(primals) == {"pair_0", "pair_1", "BLOCK"}
        return {"pair_0": 5 * cotangents}

    x = normal(16)
    for i, factor in enumerate((5.0, 0.0)):
        got = gradient(lambda x, y: kernel[(1,)]((x, y), enceladus.empty_like(x), BLOCK=16), x, x, argnums=i)
        assert mx.array_equal(got, mx.full((16,), factor))


def test_rules_and_refusals_survive_vmap() -> None:
    """Of the graph engine's launches; MLX drops the derivative of a custom function under ``mx.vmap``."""
    kernel = own(cube)

    @kernel.vjp
    def rule(primals, cotangents, outputs):
        return {"x_ptr": 7 * cotangents * primals["x_ptr"]}

    x = normal(4, 3, 10)
    weights = normal(10)
    with engine("graph"):

        def function(x: mx.array) -> mx.array:
            return launch_cube(kernel, x) * weights

        want = 7 * x * weights
        for axis in (0, 1):
            got = gradient(mx.vmap(function, in_axes=axis), x)
            np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5)
        got = gradient(mx.vmap(mx.vmap(function)), x)
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5)
        got = mx.vmap(mx.vmap(lambda x: gradient(function, x)))(x)
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5)
        bits = binary_kernel("(x.to(tl.int32, bitcast=True) ^ 1).to(tl.float32, bitcast=True) * y")
        for transformed in (
            lambda x: gradient(mx.vmap(lambda x: bits(x, weights)), x),
            lambda x: mx.vmap(lambda x: gradient(lambda x: bits(x, weights), x))(x),
        ):
            with pytest.raises(enceladus.CompilationError, match="have no derivative"):
                transformed(x[0])
        shared = gradient(lambda w: mx.vmap(lambda x: bits(x, w))(x[0]), weights)
        np.testing.assert_allclose(np.array(shared), np.array(x[0].sum(axis=0)), rtol=1e-3, atol=1e-5)


def test_a_rule_in_the_interpreter() -> None:
    kernel = own(cube)
    x = mx.array([1.0, 2.0, 3.0])
    with engine("interpreter"):
        with pytest.raises(NotImplementedError, match="ran in the interpreter"):
            gradient(lambda x: launch_cube(kernel, x), x)

        @kernel.vjp
        def rule(primals, cotangents, outputs):
            assert mx.array_equal(outputs, 2 * primals["x_ptr"] ** 3) and primals["BLOCK"] == 64
            return {"x_ptr": 100 * cotangents}

        assert mx.array_equal(gradient(lambda x: launch_cube(kernel, x), x), mx.full((3,), 100.0))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            mx.jvp(lambda x: launch_cube(kernel, x), [x], [x])
        assert kernel.gradient_kind(x, enceladus.empty_like(x), 3, 2.0, BLOCK=64, grid=(1,)) == "rule"


WRONG = {
    "an array": (lambda p, c, o: c, TypeError, "must return a dictionary"),
    "a wrong name": (lambda p, c, o: {"y": c}, ValueError, "'y', which is no array argument.*x_ptr"),
    "a wrong shape": (lambda p, c, o: {"x_ptr": c[:1]}, ValueError, r"shape \(1,\) for 'x_ptr'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_results_of_a_rule(any_engine: str, what: str) -> None:
    rule, error, message = WRONG[what]
    kernel = own(cube)
    kernel.vjp(rule)
    with pytest.raises(error, match=message):
        gradient(lambda x: launch_cube(kernel, x), mx.array([1.0, 2.0]))


def test_a_rule_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=r"@cube\.vjp takes a function, not int"):
        own(cube).vjp(3)


# -------------------------------------------------------------------------------------- export


def test_a_rule_stands_in_the_way_of_export_unless_left_out() -> None:
    kernel = own(cube)
    kernel.vjp(lambda primals, cotangents, outputs: {"x_ptr": cotangents})
    x, events = normal(4), []
    with engine("graph"):
        with pytest.raises(ValueError, match="CustomTransforms"):
            mx.export_function("/dev/null", lambda x: launch_cube(kernel, x), x)
        with enceladus.no_gradients():
            mx.export_function(events.append, lambda x: launch_cube(kernel, x), x)
    assert events


@pytest.fixture
def metal_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches go to ``mx.fast.metal_kernel``, which works on any machine while MLX exports."""
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    monkeypatch.setenv("ENCELADUS_CACHE", "0")


def primitives(function: ArrayFunction, *arrays: mx.array) -> list[str]:
    events: list[dict] = []
    mx.export_function(events.append, function, *arrays)
    return [event["name"] for event in events if event["type"] == "primitive"]


def test_metal_launches_are_exported_without_gradients(metal_text: None) -> None:
    with pytest.raises(ValueError, match="CustomTransforms"):
        primitives(lambda x: launch_cube(cube, x), normal(4))
    with enceladus.no_gradients():
        assert "CustomKernel" in primitives(lambda x: launch_cube(cube, x), normal(4))


def test_kernels_without_gradients_do_not_ask(metal_text: None) -> None:
    kernel = enceladus.jit(gradients=False)(cube.fn)
    assert "CustomKernel" in primitives(lambda x: launch_cube(kernel, x), normal(4))
    x = normal(4)
    assert kernel.gradient_kind(x, enceladus.empty_like(x), 4, 2.0, BLOCK=64, grid=(1,)) == "none"
    with pytest.raises(ValueError, match="Not implemented for CustomKernel"):
        primitives(lambda x: gradient(lambda x: launch_cube(kernel, x), x), normal(4))


def test_launches_on_constants_have_no_derivative(metal_text: None) -> None:
    constant = normal(4)
    mx.eval(constant)
    names = primitives(lambda x: launch_cube(cube, constant) + x, normal(4))
    assert "CustomKernel" in names and "CustomTransforms" not in names


# ------------------------------------------------------------------------------------- atomics


@enceladus.jit
def scatter_add_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    at = tl.load(index_ptr + offs, mask=mask)
    tl.atomic_add(out_ptr + at, x * x, mask=mask)


def test_atomic_additions(any_engine: str) -> None:
    """The gradient of what is added comes from where it went; that of the old contents is the result's."""
    index = mx.array(RNG.integers(0, 6, 40).astype(np.int32))

    def function(x: mx.array, old: mx.array) -> mx.array:
        out = old * 1.0
        scatter_add_kernel[(3,)](x, index, out, 40, BLOCK=16)
        return out

    def reference(x: mx.array, old: mx.array) -> mx.array:
        return old.at[index].add(x * x)

    # Multiples of 1/8: sums are exact, in any order.
    x, old = (mx.round(normal(size) * 8) / 8 for size in (40, 6))
    assert_same_gradients(function, reference, (x, old))
    fresh = enceladus.zeros((6,))
    assert_same_gradients(
        lambda x: scatter_add_kernel[(3,)](x, index, fresh, 40, BLOCK=16),
        lambda x: reference(x, mx.zeros((6,))),
        (x,),
    )


@pytest.mark.parametrize("kind", ["max", "min", "xchg"])
def test_other_atomics_are_refused(any_engine: str, kind: str) -> None:
    kernel = kernel_from_source(
        "@enceladus.jit\n"
        "def kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):\n"
        "    offs = tl.arange(0, BLOCK)\n"
        f"    tl.atomic_{kind}(out_ptr + offs, tl.load(x_ptr + offs))\n"
    )
    with pytest.raises(enceladus.CompilationError, match=f"an atomic {kind} has no derivative"):
        gradient(lambda x: kernel[(1,)](x, mx.zeros((16,)), BLOCK=16), normal(16))


def test_old_values_of_atomics_are_refused(any_engine: str) -> None:
    @enceladus.jit
    def kernel(x_ptr, total_ptr, out_ptr):
        before = tl.atomic_add(total_ptr, tl.load(x_ptr + tl.program_id(0)))
        tl.store(out_ptr + tl.program_id(0), before)

    with pytest.raises(enceladus.CompilationError, match="depends on the order of the programs"):
        gradient(lambda x: kernel[(1,)](x, mx.zeros((1,)), enceladus.empty_like(x))[1], normal(1))
