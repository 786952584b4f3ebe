"""The proof that every element is written, against NumPy: never too bold, and good at the usual patterns."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import kernel_from_source


@dataclass
class Pattern:
    """A kernel that stores to ``outer * width + inner`` where both are below limits, and its launch.

    Both coordinates are sums of program ids, a loop's variable and a range. Numbers are written into the
    source or passed as arguments.
    """

    draw: st.DrawFn
    arguments: dict[str, int] = field(default_factory=dict)
    grid: list[int] = field(default_factory=lambda: [1, 1])
    loop: tuple[str, str, int] | None = None
    loop_values: range = field(default_factory=lambda: range(1))

    def number(self, value: int) -> str:
        """``value``, or an argument that holds it."""
        if self.draw(st.booleans()):
            return str(value)
        name = f"n{len(self.arguments)}"
        self.arguments[name] = value
        return name

    def near(self, value: int) -> int:
        """``value``, mostly."""
        return max(0, value + self.draw(st.sampled_from([0] * 8 + [-1, 1])))

    def coordinate(self, size: int, program: int, tile: str, lanes: int) -> tuple[str, np.ndarray]:
        """A coordinate up to about ``size``: text, and values over both programs, iteration and lane."""
        parts: list[str] = []
        total = np.zeros((1, 1, 1, 1), np.int64)
        extent = 1
        if tile:
            parts.append(tile)
            axis = np.arange(lanes)
            total = total + axis.reshape(1, 1, 1, -1)
            extent = lanes
        kind = self.draw(st.sampled_from(["programs", "loop", "neither", "both"]))
        if kind in ("loop", "both") and self.loop is None:
            start = self.draw(st.sampled_from([0] * 6 + [1]))
            count = -(-size // extent) if kind == "loop" else 2
            upper = self.near(size if kind == "loop" else 2 * extent)
            self.loop_values = range(start, upper, extent)
            self.loop = (str(start), self.number(upper), extent)
            parts.append("i")
            total = total + np.array(self.loop_values, np.int64).reshape(1, 1, -1, 1)
            extent *= count
        if kind in ("programs", "both"):
            programs = self.near(-(-size // extent))
            self.grid[program] = programs
            factor = self.near(extent)
            parts.append(f"tl.program_id({program}) * {self.number(factor)}")
            shape = [1, 1, 1, 1]
            shape[program] = -1
            total = total + (np.arange(programs) * factor).reshape(shape)
        return " + ".join(reversed(parts)) or "0", total


@st.composite
def launches(draw: st.DrawFn) -> tuple[str, dict[str, int], tuple[int, ...], int, np.ndarray]:
    """Source, arguments, grid, size of the array, and how often each element is written."""
    pattern = Pattern(draw)
    height, width = draw(st.integers(1, 7)), draw(st.integers(1, 20))
    lanes = draw(st.sampled_from([1, 4, 16]))
    inner, inner_values = pattern.coordinate(width, 0, "r", lanes)
    outer, outer_values = pattern.coordinate(height, 1, "", 1)
    stride = pattern.near(width)
    offsets = outer_values * stride + inner_values
    masks, mask = [], np.ones((1, 1, 1, 1), bool)
    for name, values, size in (("inner", inner_values, width), ("outer", outer_values, height)):
        if draw(st.sampled_from([True, True, True, False])):
            limit = pattern.near(size)
            text = pattern.number(limit)
            masks.append(f"({name} < {text})" if draw(st.booleans()) else f"({text} > {name})")
            mask = mask & (values < limit)
    lines = [
        f"inner = {inner}",
        f"outer = {outer}",
        f"offsets = outer * {pattern.number(stride)} + inner",
        f"tl.store(x_ptr + offsets, 1.0, mask={' & '.join(masks) or 'None'})",
    ]
    names = "".join(f"{name}, " for name in pattern.arguments)
    head = [
        "@enceladus.jit",
        f"def kernel(x_ptr, {names}LANES: tl.constexpr):",
        "    r = tl.arange(0, LANES)",
    ]
    indent = "    "
    if pattern.loop is not None:
        head.append(f"    for i in range({', '.join(map(str, pattern.loop))}):")
        indent = "        "
    source = "\n".join([*head, *(indent + line for line in lines)]) + "\n"

    size = height * width
    everywhere = np.broadcast_shapes(
        offsets.shape, mask.shape, (pattern.grid[0], pattern.grid[1], len(pattern.loop_values), lanes)
    )
    touched = np.broadcast_to(offsets, everywhere)[np.broadcast_to(mask, everywhere)]
    counts = np.bincount(touched[(touched >= 0) & (touched < size)], minlength=size)
    return source, {**pattern.arguments, "LANES": lanes}, tuple(pattern.grid), size, counts


def check(case: tuple[str, dict[str, int], tuple[int, ...], int, np.ndarray]) -> str:
    """The cost that the launch claims; free only if NumPy finds every element written."""
    source, arguments, grid, size, counts = case
    warm = kernel_from_source(source).warmup(mx.zeros(size), **arguments, grid=grid)
    cost = warm.costs["x_ptr"]
    if cost == "free" and 0 not in grid:
        assert counts.all(), f"{np.flatnonzero(counts == 0)} of {size} elements are not written by\n{source}"
    return cost


found: dict[tuple[bool, str], int] = {}


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(launches())
def test_free_means_that_every_element_is_written(case):
    check(case)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(launches())
def _sample(case):
    whole = bool(case[4].all())
    found[whole, check(case)] = found.get((whole, check(case)), 0) + 1


def test_most_whole_writes_are_found():
    """The proof is of use: of the random launches that write everything, more than half are free."""
    found.clear()
    _sample()
    assert found[True, "free"] > found.get((True, "merge"), 0), found
