"""Views and gathers of register tiles: chains of them in every engine against NumPy, over SIMD groups."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines import kernel_from_source, run_everywhere

STEPS = ("reshape", "permute", "flip", "add", "center", "split", "join", "gather")


def splits(total):
    """Shapes of up to three dimensions with ``total`` elements."""
    bits = total.bit_length() - 1
    return st.lists(st.integers(0, bits), min_size=0, max_size=2).map(
        lambda cuts: tuple(
            1 << b - a for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), bits], strict=True)
        )
    )


@st.composite
def chains(draw):
    """A program that moves the elements of a tile about, and the same in NumPy."""
    bits = draw(st.integers(3, 11))
    size = 1 << bits
    x = np.arange(size, dtype=np.int32)
    lines = [f"    t = tl.load(x_ptr + tl.arange(0, {size}))"]
    value = x
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(STEPS))
        if step == "reshape":
            shape = draw(splits(value.size))
            lines.append(f"    t = tl.reshape(t, {shape})")
            value = value.reshape(shape)
        elif step == "permute" and value.ndim > 1:
            order = draw(st.permutations(range(value.ndim)))
            lines.append(f"    t = tl.permute(t, {tuple(order)})")
            value = value.transpose(order)
        elif step == "flip":
            axis = draw(st.integers(0, value.ndim - 1))
            lines.append(f"    t = tl.flip(t, {axis})")
            value = np.flip(value, axis)
        elif step == "add":
            lines.append("    t = t * 2 + 1")
            value = value * 2 + 1
        elif step == "center" and value.ndim > 1:  # a reduction makes a register tile of its operand
            axis = draw(st.integers(0, value.ndim - 1))
            lines.append(f"    t = t - tl.max(t, {axis}, keep_dims=True)")
            value = value - value.max(axis, keepdims=True)
        elif step == "split" and value.shape[-1] >= 2 and value.size > 2:
            half = (*value.shape[:-1], value.shape[-1] // 2, 2)
            lines.append(f"    a, b = tl.split(tl.reshape(t, {half}))")
            lines.append("    t = a - 3 * b")
            pairs = value.reshape(half)
            value = pairs[..., 0] - 3 * pairs[..., 1]
        elif step == "join" and value.size <= 1024:
            lines.append("    t = tl.interleave(t, t + 7)")
            value = np.stack([value, value + 7], -1).reshape(*value.shape[:-1], -1)
        elif step == "gather":
            axis = draw(st.integers(0, value.ndim - 1))
            n = value.shape[axis]
            index = ", ".join(":" if k == axis else "None" for k in range(value.ndim))
            lines.append(f"    i = (tl.arange(0, {n}) * 5 + 3)[{index}]")
            lines.append(f"    t = tl.gather(t, tl.broadcast_to(i, {value.shape}), {axis})")
            value = np.take(value, (np.arange(n) * 5 + 3) % n, axis)
    lines.append(f"    tl.store(o_ptr + tl.arange(0, {value.size}), tl.ravel(t))")
    source = "@enceladus.jit\ndef kernel(x_ptr, o_ptr):\n" + "\n".join(lines) + "\n"
    return source, x, np.ascontiguousarray(value).ravel(), draw(st.sampled_from([1, 2, 4, 16]))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(chains())
def test_chains_of_views(case):
    source, x, want, num_warps = case
    arguments = {"x_ptr": x, "o_ptr": np.zeros(want.size, np.int32)}
    for engine, (got,) in run_everywhere(
        kernel_from_source(source), (1,), arguments, num_warps=num_warps
    ).items():
        assert np.array_equal(got, want), (engine, num_warps, source)
