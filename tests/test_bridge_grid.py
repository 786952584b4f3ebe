"""Grids: what is accepted, what the function of the arguments gets, and the mapping onto MLX's threads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.mlx_bridge.grid import needs_remap, padded, resolve, thread_grid
from tests.bridge_helpers import add_kernel, trace, values


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("grid", "resolved"),
    [
        ((4,), (4,)),
        ([4, 5], (4, 5)),
        ((0, 1, 2), (0, 1, 2)),
        (7, (7,)),
        ((np.int64(4), np.uint8(2)), (4, 2)),
        (lambda a: (a["n"] // 2,), (5,)),
        (lambda a: [a["n"]], (10,)),
        (lambda a: a["n"], (10,)),
    ],
)
def test_a_grid_becomes_a_tuple_of_ints(grid, resolved):
    found = resolve(grid, {"n": 10})
    assert found == resolved
    assert all(type(size) is int for size in found)


def test_an_axis_beyond_int32_is_refused():
    with pytest.raises(ValueError, match=r"grid\[1\] is 2147483648"):
        resolve((1, 2**31), {})


GRIDS = [(1, 1, 1), (2**26, 1, 1), (5, 2**31 - 1, 1), (3, 70_000, 70_000), (2**31 - 1, 7, 3)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("num_warps", [1, 4, 32])
@pytest.mark.parametrize("engine", ["metal", "cuda"])
def test_threads_fit_and_cover_the_programs(grid, num_warps, engine):
    remap = needs_remap(grid, num_warps, engine)
    x, y, z = thread_grid(grid, num_warps, engine, remap)
    limit = 65_535 if engine == "cuda" else 2**31 - 1
    assert 0 < x <= 2**31 - 1
    assert 0 < y <= limit
    assert 0 < z <= limit
    threads = 32 * num_warps
    assert x % threads == 0
    programs = x // threads * y * z
    if remap:
        assert z == 1
        assert grid[0] * grid[1] * grid[2] <= programs
    else:
        assert (x // threads, y, z) == grid


def test_more_programs_than_any_grid_holds():
    grid = (2**31 - 1, 2**31 - 1, 2**31 - 1)
    with pytest.raises(ValueError, match="more than the GPU can number"):
        thread_grid(grid, 4, "metal", needs_remap(grid, 4, "metal"))


def test_missing_axes_are_one():
    assert padded((4,)) == (4, 1, 1)


def test_the_grid_function_sees_all_arguments():
    seen = {}

    def grid(arguments):
        seen.update(arguments)
        return (enceladus.cdiv(arguments["n"], arguments["BLOCK"]),)

    @enceladus.jit
    def kernel(x_ptr, n, BLOCK: tl.constexpr = 16, SHIFT: tl.constexpr = 2):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, SHIFT, mask=offsets < n)

    x = mx.zeros(40, dtype=mx.int32)
    for _ in range(2):  # the second launch may go by a plan
        seen.clear()
        kernel[grid](x, 40)
        assert seen.pop("x_ptr") is x
        assert seen == {"n": 40, "BLOCK": 16, "SHIFT": 2}
    assert values(x).tolist() == [2] * 40


def test_a_grid_function_is_not_called_with_missing_arguments():
    def grid(arguments):
        raise AssertionError("called")

    with pytest.raises(TypeError, match="missing 1 argument: 'BLOCK'"):
        add_kernel[grid](mx.zeros(3), mx.zeros(3), mx.zeros(3), 3)


@pytest.mark.parametrize("engine", ["", "interpret"])
def test_a_zero_in_the_grid_launches_nothing(engine, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", engine)
    x, old = mx.ones(4), mx.full((4,), 7.0)
    assert add_kernel[(0,)](x, x, old, 4, BLOCK=4) is old
    assert values(old).tolist() == [7.0] * 4
    fresh = add_kernel[(3, 0)](x, x, enceladus.full(4, 9.0), 4, BLOCK=4)
    assert values(fresh).tolist() == [9.0] * 4
    empty = add_kernel[lambda a: (0,)](x, x, enceladus.empty((2, 2)), 4, BLOCK=4)
    assert empty.shape == (2, 2)


def test_an_empty_launch_adds_no_kernel(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    x = mx.ones(4)
    kernels, _ = trace(lambda: add_kernel[(0,)](x, x, enceladus.empty(4), 4, BLOCK=4))
    assert kernels == []


def test_the_grid_in_threads(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    x = mx.ones(4)
    for warps in (1, 8):
        (kernel,), _ = trace(
            lambda warps=warps: add_kernel[(5, 2, 3)](x, x, enceladus.empty(4), 4, BLOCK=4, num_warps=warps)
        )
        assert kernel.grid == (5 * 32 * warps, 2, 3)
        assert kernel.threadgroup == (32 * warps, 1, 1)


def test_an_oversize_grid_is_remapped(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    x = mx.ones(8)
    (kernel,), _ = trace(lambda: add_kernel[(2**25,)](x, x, enceladus.empty(8), 8, BLOCK=1, num_warps=8))
    assert kernel.grid[0] <= 2**31 - 1
    assert kernel.grid[0] // 256 * kernel.grid[1] >= 2**25
    warm = add_kernel.warmup(x, x, enceladus.empty(8), 8, BLOCK=1, num_warps=8, grid=(2**25,))
    assert warm.key.grid_remap
    assert [s.name for s in warm.kernel.scalars][-3:] == ["grid.0", "grid.1", "grid.2"]


def test_sizes():
    assert [enceladus.cdiv(a, 4) for a in (0, 1, 4, 5)] == [0, 1, 1, 2]
    sizes = {0: 1, 1: 1, 2: 2, 3: 4, 1000: 1024, 1024: 1024, 1025: 2048}
    assert {n: enceladus.next_power_of_2(n) for n in sizes} == sizes
