"""Whole kernels in every engine: memory, shapes, control flow and arguments, against plain NumPy."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.ir.types import DTYPES, DType, int1
from tests.engines import (
    ENGINES,
    HostTarget,
    assert_everywhere,
    assert_same,
    engine,
    numpy_dtype,
    run_everywhere,
)
from tests.host_executor import to_mlx, to_numpy

ALL = tuple(DTYPES.values())
F32, I32 = np.float32, np.int32


def numbers(size: int, dtype: Any = F32, seed: int = 0) -> np.ndarray:
    """Random small numbers, exact in every dtype."""
    return np.random.default_rng([seed, size]).integers(0, 100, size).astype(dtype)


def slow(*values: Any) -> list[Any]:
    """Parameters for the slow part of the suite: each is a kernel more to compile."""
    return [pytest.param(*(v if isinstance(v, list) else [v]), marks=pytest.mark.slow) for v in values]


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


# ----------------------------------------------------------------------------- copies and masks


@enceladus.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


@pytest.mark.parametrize("size", [1, 7, 8, 1000, 1024])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copy(dtype: DType, size: int) -> None:
    """Fewer than 8 elements are bound in constant address space; others may be anywhere in memory."""
    x = (numbers(size) % 2).astype(bool) if dtype is int1 else numbers(size, numpy_dtype(dtype))
    for offset in (0, 1):
        arguments = {"x_ptr": x, "out_ptr": enceladus.empty(size, dtype), "n": size, "BLOCK": 512}
        assert_everywhere(copy_kernel, (cdiv(size, 512),), arguments, x, host_offset=offset)


@pytest.mark.parametrize("num_warps", [1, 4, 32, *slow(2, 8, 16)])
@pytest.mark.parametrize("block", [1, 16, 128, 1024])
def test_threads_and_blocks(num_warps: int, block: int) -> None:
    """Blocks smaller and larger than the threads of a program."""
    for size in (block * 3, block * 3 + 1):
        x = numbers(size)
        arguments = {"x_ptr": x, "out_ptr": enceladus.empty(size), "n": size, "BLOCK": block}
        assert_everywhere(copy_kernel, (cdiv(size, block),), arguments, x, num_warps=num_warps)


def test_more_programs_than_needed() -> None:
    x = numbers(10)
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(10), "n": 10, "BLOCK": 16}
    assert_everywhere(copy_kernel, (3,), arguments, x)


def test_elements_that_no_program_writes_keep_their_value() -> None:
    x, old = numbers(100), np.full(100, -1, F32)
    expected = np.where(np.arange(100) < 37, x, old)
    arguments = {"x_ptr": x, "n": 37, "BLOCK": 64}
    assert_everywhere(copy_kernel, (1,), {**arguments, "out_ptr": old}, expected)
    filled = enceladus.full(100, -1, np.float32)
    assert_everywhere(copy_kernel, (1,), {**arguments, "out_ptr": filled}, expected)


@pytest.mark.parametrize("grid", [(0,), (2, 0), (1, 1, 0)])
def test_empty_grid(grid: tuple[int, ...]) -> None:
    old = numbers(20)
    arguments = {"x_ptr": numbers(20, seed=1), "out_ptr": old, "n": 20, "BLOCK": 32}
    assert_everywhere(copy_kernel, grid, arguments, old)


def test_empty_arrays() -> None:
    empty = np.zeros(0, F32)
    arguments = {"x_ptr": empty, "out_ptr": enceladus.empty(0), "n": 0, "BLOCK": 32}
    assert_everywhere(copy_kernel, (1,), arguments, empty)
    arguments = {"x_ptr": empty, "out_ptr": numbers(16), "n": 0, "BLOCK": 32}
    assert_everywhere(copy_kernel, (1,), arguments, numbers(16))


@enceladus.jit
def other_kernel(x_ptr, a_ptr, b_ptr, c_ptr, n, fill, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(a_ptr + offs, tl.load(x_ptr + offs, mask=mask))
    tl.store(b_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=-7))
    tl.store(c_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=fill + offs))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32", "int64"])
@pytest.mark.parametrize("size", [0, 5, 64, 100, 128])
def test_other(dtype: str, size: int) -> None:
    target = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x, offs = numbers(max(size, 1), target), np.arange(128)
    expected = []
    for fill in (0, -7, 3 + offs):
        row = np.broadcast_to(fill, 128).astype(target)
        row[:size] = x[:size]
        expected.append(row)
    arguments: dict[str, Any] = {"x_ptr": x, "n": size, "fill": 3, "BLOCK": 128}
    arguments |= {f"{name}_ptr": enceladus.empty(128, target) for name in "abc"}
    assert_everywhere(other_kernel, (1,), arguments, *expected)


@enceladus.jit
def mask_kernel(x_ptr, m_ptr, out_ptr, lo, hi, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (offs >= lo) & (offs < hi)
    chosen = tl.load(m_ptr + offs, mask=inside, other=False)
    odd = (offs & 1) != 0
    x = tl.load(x_ptr + offs, mask=inside & (chosen | odd), other=-1)
    mask = tl.where(x > 50, chosen, ~odd)
    tl.store(out_ptr + offs, x * 2, mask=mask & inside)


def test_masks_from_memory_and_where() -> None:
    size, lo, hi = 300, 13, 287
    x, m, old = numbers(size, I32), numbers(size, seed=1) > 50, numbers(size, I32, seed=2)
    offs = np.arange(size)
    inside, odd = (offs >= lo) & (offs < hi), offs % 2 != 0
    loaded = np.where(inside & (m | odd), x, -1)
    mask = np.where(loaded > 50, m & inside, ~odd)
    expected = np.where(mask & inside, loaded * 2, old).astype(I32)
    arguments = {"x_ptr": x, "m_ptr": m, "out_ptr": old, "lo": lo, "hi": hi, "BLOCK": 128}
    assert_everywhere(mask_kernel, (3,), arguments, expected)


@enceladus.jit
def never_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    # Far outside, and masked off.
    x = tl.load(x_ptr + 1_000_000 + offs, mask=offs < 0, other=5)
    tl.store(out_ptr + offs, x)
    tl.store(out_ptr + 1_000_000 + offs, x, mask=False)


def test_masked_accesses_touch_no_memory() -> None:
    arguments = {"x_ptr": numbers(3), "out_ptr": enceladus.empty(64), "BLOCK": 64}
    assert_everywhere(never_kernel, (1,), arguments, np.full(64, 5, F32))


# ------------------------------------------------------------------------------- odd addresses


@enceladus.jit
def shifted_kernel(x_ptr, y_ptr, out_ptr, n, start, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + start + offs, mask=mask)
    y = tl.load(y_ptr + offs + 3, mask=mask)
    tl.store(out_ptr + offs + 1, x + y, mask=mask)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("start", [0, 1, 2, 16])
def test_offsets_within_arrays(dtype: str, start: int) -> None:
    n = 2 * 512
    x, y, old = (numbers(n + 20, dtype, seed) for seed in range(3))
    expected = old.copy()
    expected[1 : n + 1] = x[start : start + n] + y[3 : n + 3]
    arguments = {"x_ptr": x, "y_ptr": y, "out_ptr": old, "n": n, "start": start, "BLOCK": 512}
    for offset in (0, 1):
        assert_everywhere(shifted_kernel, (2,), arguments, expected, host_offset=offset)


@enceladus.jit
def strided_kernel(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs * stride, mask=mask)
    back = tl.load(x_ptr + (n - 1 - offs), mask=mask)
    tl.store(out_ptr + offs, x - back, mask=mask)


@pytest.mark.parametrize("stride", [0, 1, 2, 16, 17])
def test_strides(stride: int) -> None:
    n = 200
    x = numbers(n * max(stride, 1))
    expected = x[np.arange(n) * stride] - x[n - 1 - np.arange(n)]
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(n), "n": n, "stride": stride, "BLOCK": 128}
    assert_everywhere(strided_kernel, (2,), arguments, expected)


@enceladus.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask)
    tl.store(out_ptr + index, tl.load(x_ptr + index, mask=mask) + offs, mask=mask)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16", "uint32", "uint64"])
def test_gather_and_scatter(dtype: str) -> None:
    n = 250
    index = np.random.default_rng(1).permutation(n)
    x = numbers(n, I32)
    expected = np.empty(n, I32)
    expected[index] = x[index] + np.arange(n)
    arguments = {"x_ptr": x, "index_ptr": index.astype(dtype), "n": n, "BLOCK": 128}
    assert_everywhere(gather_kernel, (2,), {**arguments, "out_ptr": np.zeros(n, I32)}, expected)


# ------------------------------------------------------------------------------------ 2-D tiles


@enceladus.jit
def tile_kernel(x_ptr, y_ptr, out_ptr, M, N, sm, sn, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * sm + cols[None, :] * sn, mask=mask)
    y = tl.load(y_ptr + cols, mask=cols < N)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], x * y[None, :] + rows[:, None], mask=mask)


@pytest.mark.parametrize("blocks", [(16, 64), (64, 16), (1, 128), (128, 1), (4, 4)])
@pytest.mark.parametrize("shape", [(16, 64), (37, 100), *slow((1, 9), (33, 1))])
@pytest.mark.parametrize("transposed", [False, True])
def test_tiles(shape: tuple[int, int], blocks: tuple[int, int], transposed: bool) -> None:
    (m, n), (bm, bn) = shape, blocks
    x, y = numbers(m * n).reshape(m, n), numbers(n, seed=1)
    stored = np.ascontiguousarray(x.T) if transposed else x
    sm, sn = (1, m) if transposed else (n, 1)
    arguments: dict[str, Any] = {"x_ptr": stored, "y_ptr": y, "M": m, "N": n, "sm": sm, "sn": sn}
    arguments |= {"out_ptr": np.zeros((m, n), F32), "BM": bm, "BN": bn}
    expected = x * y + np.arange(m, dtype=F32)[:, None]
    assert_everywhere(
        tile_kernel, (cdiv(n, bn), cdiv(m, bm)), arguments, expected, host_schedules=("reverse",)
    )


@enceladus.jit
def transpose_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    cols = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (rows < M) & (cols < N)
    tl.store(out_ptr + cols * M + rows, tl.load(x_ptr + rows * N + cols, mask=mask), mask=mask)


@pytest.mark.parametrize("shape", [(64, 64), (50, 33)])
def test_transpose(shape: tuple[int, int]) -> None:
    m, n = shape
    x = numbers(m * n).reshape(m, n)
    arguments = {"x_ptr": x, "out_ptr": np.zeros((n, m), F32), "M": m, "N": n, "BM": 32, "BN": 16}
    assert_everywhere(transpose_kernel, (cdiv(m, 32), cdiv(n, 16)), arguments, np.ascontiguousarray(x.T))


@enceladus.jit
def broadcast_kernel(x_ptr, y_ptr, out_ptr, BM: tl.constexpr, BN: tl.constexpr):
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + j)
    table = x[:, None] * 10 + y
    table = tl.where(x[:, None] > y[None, :], table, tl.broadcast_to(tl.expand_dims(y, 0), (BM, BN)))
    one = tl.full((1, 1), 1, tl.float32)
    tl.store(out_ptr + i[:, None] * BN + j, table + one)


@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (1, 16), (16, 1), (128, 128)])
def test_broadcasting(shape: tuple[int, int]) -> None:
    m, n = shape
    x, y = numbers(m), numbers(n, seed=1)
    expected = np.where(x[:, None] > y, x[:, None] * 10 + y, np.broadcast_to(y, shape)) + F32(1)
    arguments = {"x_ptr": x, "y_ptr": y, "out_ptr": np.zeros(shape, F32), "BM": m, "BN": n}
    assert_everywhere(broadcast_kernel, (1,), arguments, expected)


@enceladus.jit
def cube_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + (i * B + j) * C + k)
    tl.store(out_ptr + (k * B + j) * A + i, x + i * j - k)


def test_three_dimensions() -> None:
    a, b, c = 4, 8, 16
    x = numbers(a * b * c).reshape(a, b, c)
    i, j, k = np.ogrid[:a, :b, :c]
    expected = np.ascontiguousarray((x + i * j - k).astype(F32).transpose(2, 1, 0))
    arguments = {"x_ptr": x, "out_ptr": np.zeros((c, b, a), F32), "A": a, "B": b, "C": c}
    assert_everywhere(cube_kernel, (1,), arguments, expected)


# -------------------------------------------------------------------------------------- scalars


@enceladus.jit
def scalar_kernel(x_ptr, out_ptr, count_ptr, n, scale):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    before = tl.load(x_ptr + pid - 1, mask=pid > 0, other=9)
    tl.store(out_ptr + pid, x * scale + before, mask=pid < n)
    if pid == 2:
        tl.store(count_ptr, tl.num_programs(0) * 100 + pid)


@pytest.mark.parametrize("size", [3, 20])
def test_scalar_loads_and_stores(size: int) -> None:
    x = numbers(size)
    expected = x * F32(1.5) + np.concatenate([[F32(9)], x[:-1]])
    arguments = {"x_ptr": x, "out_ptr": enceladus.zeros(size), "n": size - 1, "scale": 1.5}
    expected[size - 1] = 0
    count = np.array(size * 100 + 2, I32)
    assert_everywhere(scalar_kernel, (size,), {**arguments, "count_ptr": np.array(0, I32)}, expected, count)


@enceladus.jit
def three_axes_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out_ptr + place, x + 10 * y + 100 * z)


@pytest.mark.parametrize("grid", [(2, 3, 4), (1, 1, 5), (7, 2)])
def test_three_axes(grid: tuple[int, ...]) -> None:
    nx, ny, nz = (*grid, 1, 1)[:3]
    z, y, x = np.mgrid[:nz, :ny, :nx]
    expected = (x + 10 * y + 100 * z).astype(I32)
    assert_everywhere(three_axes_kernel, grid, {"out_ptr": np.zeros((nz, ny, nx), I32)}, expected)


@enceladus.jit(do_not_specialize=["i"])
def scalar_types_kernel(i_ptr, f_ptr, b_ptr, i, big, f, flag):
    tl.store(i_ptr, i * 3)
    tl.store(i_ptr + 1, big // 7)
    tl.store(f_ptr, f * f)
    tl.store(b_ptr, flag)
    tl.store(b_ptr + 1, not flag)


@pytest.mark.parametrize("i", [-5, 0, 1, 16, 2**31 - 1])
@pytest.mark.parametrize("big", [2**31, -(2**63), 2**62 + 1])
def test_scalar_arguments(i: int, big: int) -> None:
    wrapped = (i * 3 + 2**31) % 2**32 - 2**31
    quotient = abs(big) // 7 * (1 if big > 0 else -1)
    arguments: dict[str, Any] = {"i": i, "big": big, "f": 0.1, "flag": big > 0}
    arguments |= {"i_ptr": np.zeros(2, np.int64), "f_ptr": np.zeros(1, F32), "b_ptr": np.zeros(2, bool)}
    f = np.array([F32(0.1) * F32(0.1)])
    assert_everywhere(
        scalar_types_kernel, (1,), arguments, np.array([wrapped, quotient]), f, np.array([big > 0, big <= 0])
    )


# -------------------------------------------------------------------------------- control flow


@enceladus.jit
def sum_kernel(x_ptr, out_ptr, n, steps, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    last = -1
    for k in range(steps):
        mask = k * BLOCK + offs < n
        total += tl.load(x_ptr + k * BLOCK + offs, mask=mask, other=0.0)
        last = k
    tl.store(out_ptr + offs, total + last)


@pytest.mark.parametrize("size", [1, 64, 200, 256])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_carried_tile_and_scalar(size: int, num_warps: int) -> None:
    steps = cdiv(size, 64)
    x = numbers(size)
    padded = np.zeros(steps * 64, F32)
    padded[:size] = x
    expected = padded.reshape(steps, 64).sum(0) + F32(steps - 1)
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(64), "n": size, "steps": steps, "BLOCK": 64}
    assert_everywhere(sum_kernel, (1,), arguments, expected, num_warps=num_warps)


def test_loop_that_does_not_run() -> None:
    arguments = {"x_ptr": numbers(4), "out_ptr": enceladus.empty(64), "n": 4, "steps": 0, "BLOCK": 64}
    assert_everywhere(sum_kernel, (1,), arguments, np.full(64, -1, F32))


@enceladus.jit
def pointer_kernel(x_ptr, out_ptr, n, stride, steps, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x_ptrs = x_ptr + offs
    out_ptrs = out_ptr + offs
    single = x_ptr
    for _ in range(steps):
        x = tl.load(x_ptrs, mask=offs < n)
        tl.store(out_ptrs, x + tl.load(single), mask=offs < n)
        x_ptrs += stride
        out_ptrs += n
        single += 1


@pytest.mark.parametrize("n", [64, 100])
def test_carried_pointers_and_stores_in_loops(n: int) -> None:
    steps, stride = 5, n + 3
    x = numbers(stride * steps)
    expected = np.stack([x[k * stride : k * stride + n] + x[k] for k in range(steps)])
    arguments = {"x_ptr": x, "out_ptr": np.zeros((steps, n), F32), "n": n, "stride": stride, "steps": steps}
    assert_everywhere(pointer_kernel, (cdiv(n, 64),), {**arguments, "BLOCK": 64}, expected)


@enceladus.jit
def nested_kernel(x_ptr, out_ptr, rows, limit, BLOCK: tl.constexpr, REPEAT: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a = tl.zeros((BLOCK,), tl.int32)
    b = tl.full((BLOCK,), 1, tl.int32)
    sign = 1
    for i in range(rows):
        for j in range(i, rows, 2):
            x = tl.load(x_ptr + i * BLOCK + offs)
            if (i + j) % 3 == 0:
                a, b = b, a + x
                sign = -sign
            elif j > limit:
                a = a - x * sign
            else:
                for _ in tl.static_range(REPEAT):
                    b = b * 3 + j
        if i == 2:
            a = tl.maximum(a, b)
    for k in range(3, -2, -2):
        a += k
    tl.store(out_ptr + offs, a)
    tl.store(out_ptr + BLOCK + offs, b + sign)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("num_warps", [1, 2, 8])
def test_nested_control_flow(rows: int, num_warps: int) -> None:
    x = numbers(64 * max(rows, 1), I32).reshape(-1, 64)
    a, b, sign = np.zeros(64, I32), np.ones(64, I32), 1
    for i in range(rows):
        for j in range(i, rows, 2):
            if (i + j) % 3 == 0:
                a, b, sign = b, a + x[i], -sign
            elif j > 3:
                a = a - x[i] * sign
            else:
                b = (b * 3 + j) * 3 + j
        if i == 2:
            a = np.maximum(a, b)
    for k in range(3, -2, -2):
        a = a + k
    expected = np.stack([a, b + sign]).astype(I32)
    arguments = {
        "x_ptr": x,
        "out_ptr": np.zeros((2, 64), I32),
        "rows": rows,
        "limit": 3,
        "BLOCK": 64,
        "REPEAT": 2,
    }
    assert_everywhere(nested_kernel, (1,), arguments, expected, num_warps=num_warps)


@enceladus.jit
def branch_kernel(x_ptr, out_ptr, n, mode, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    if mode == 0 and pid > 0:
        x = x + 1
    elif mode == 1 or pid == 0:
        x = x * 2
        if tl.load(x_ptr + pid) > 50:
            x = -x
    scale = 3.0 if mode > 1 else 0.5
    y = x if not pid == 1 else x * x  # noqa: SIM201 - the negation of a run-time scalar
    tl.store(out_ptr + offs, y * scale, mask=mask)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_branches(mode: int) -> None:
    n, block = 100, 32
    x = numbers(n)
    expected = np.empty(n, F32)
    for pid in range(4):
        part = x[pid * block : (pid + 1) * block]
        if mode == 0 and pid > 0:
            part = part + 1
        elif mode == 1 or pid == 0:
            part = part * 2
            if x[pid] > 50:
                part = -part
        expected[pid * block : (pid + 1) * block] = (part * part if pid == 1 else part) * (
            3 if mode > 1 else 0.5
        )
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(n), "n": n, "mode": mode, "BLOCK": block}
    assert_everywhere(branch_kernel, (4,), arguments, expected)


@enceladus.jit
def handed_on_kernel(x_ptr, out_ptr, n, steps, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = x * 2
    for k in range(steps):
        if k > 1:
            x = y
        elif k > 0:
            y = x
    tl.store(out_ptr + offs, x - y, mask=mask)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("block", [1, 64, 256])
def test_tiles_that_only_control_flow_hands_on(block: int, steps: int) -> None:
    n = 100
    x = numbers(n, I32)
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(n, I32), "n": n, "steps": steps, "BLOCK": block}
    assert_everywhere(handed_on_kernel, (cdiv(n, block),), arguments, -x if steps < 2 else x * 0)


@enceladus.jit
def store_in_branch_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    if pid % 2 == 0:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)
    else:
        if pid == 3:
            tl.store(out_ptr + offs, 7, mask=offs < n)


def test_stores_in_branches() -> None:
    n = 300
    x, old = numbers(n), numbers(n, seed=1)
    pid = np.arange(n) // 64
    expected = np.where(pid % 2 == 0, x + 1, np.where(pid == 3, 7, old)).astype(F32)
    arguments = {"x_ptr": x, "n": n, "BLOCK": 64}
    assert_everywhere(store_in_branch_kernel, (5,), {**arguments, "out_ptr": old}, expected)


@enceladus.jit
def grid_stride_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    for base in range(start, n, tl.num_programs(0) * BLOCK):
        offs = base + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@pytest.mark.parametrize("size", [10, 1000, 1024])
def test_grid_stride_loop(size: int) -> None:
    x = numbers(size)
    arguments = {"x_ptr": x, "out_ptr": enceladus.zeros(size), "n": size, "BLOCK": 128}
    assert_everywhere(grid_stride_kernel, (3,), arguments, x * 2)


# ----------------------------------------------------------------------------- order of memory


@enceladus.jit
def overlapping_stores_kernel(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs)
    tl.store(out_ptr + offs // 2, offs * 0 + 1000, mask=offs % 2 == 0)
    tl.store(out_ptr + 5, -1)
    tl.store(out_ptr + (BLOCK - 1 - offs), offs + 2000, mask=offs < n)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("block", [64, 256])
def test_later_stores_win(block: int, num_warps: int) -> None:
    offs = np.arange(block, dtype=I32)
    expected = offs.copy()
    expected[: block // 2] = 1000
    expected[5] = -1
    expected[block - 10 :] = 2000 + offs[:10][::-1]
    arguments = {"out_ptr": enceladus.empty(block, np.int32), "n": 10, "BLOCK": block}
    assert_everywhere(overlapping_stores_kernel, (1,), arguments, expected, num_warps=num_warps)


@enceladus.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(x_ptr + offs, x * x + 1, mask=mask)


@pytest.mark.parametrize("size", [3, 100, 128])
def test_in_place(size: int) -> None:
    x = numbers(size, I32)
    assert_everywhere(in_place_kernel, (cdiv(size, 64),), {"x_ptr": x, "n": size, "BLOCK": 64}, x * x + 1)


@enceladus.jit
def rotate_kernel(x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (offs + 1) % BLOCK)
    tl.store(x_ptr + offs, x)


@pytest.mark.parametrize("block", [32, 256, 1024])
def test_loads_of_a_program_come_before_its_stores(block: int) -> None:
    """A tile is loaded whole before any of it is stored."""
    x = numbers(block)
    assert_everywhere(rotate_kernel, (1,), {"x_ptr": x, "BLOCK": block}, np.roll(x, -1))


@enceladus.jit
def loop_store_kernel(out_ptr, steps, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for k in range(steps):
        tl.store(out_ptr + offs + k, offs * 100 + k)


@pytest.mark.parametrize("num_warps", [1, 4])
def test_overlapping_stores_in_a_loop(num_warps: int) -> None:
    block, steps = 128, 6
    expected = np.zeros(block + steps, I32)
    for k in range(steps):
        expected[k : k + block] = np.arange(block) * 100 + k
    arguments = {"out_ptr": np.zeros(block + steps, I32), "steps": steps, "BLOCK": block}
    assert_everywhere(loop_store_kernel, (1,), arguments, expected, num_warps=num_warps)


@enceladus.jit
def chosen_offsets_kernel(x_ptr, a_ptr, b_ptr, n, flag, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    # A tile that a branch chooses is kept in registers; here it is also the address of vector stores.
    chosen = offs if flag > 3 else offs + 1
    tl.store(a_ptr + offs, chosen, mask=mask)
    tl.store(b_ptr + offs, x + chosen, mask=mask)


@pytest.mark.parametrize("flag", [0, 9])
@pytest.mark.parametrize("size", [1, 200, 1024])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_offsets_chosen_by_a_branch(flag: int, size: int, num_warps: int) -> None:
    x, chosen = numbers(size, I32), np.arange(size, dtype=I32) + (flag <= 3)
    arguments: dict[str, Any] = {"x_ptr": x, "n": size, "flag": flag, "BLOCK": 256}
    arguments |= {"a_ptr": enceladus.empty(size, I32), "b_ptr": enceladus.empty(size, I32)}
    assert_everywhere(
        chosen_offsets_kernel, (cdiv(size, 256),), arguments, chosen, x + chosen, num_warps=num_warps
    )


# ----------------------------------------------------------------------------------- arguments


class Pair(NamedTuple):
    left: Any
    right: Any


@enceladus.jit
def polynomial(x, coefficients):
    total = x * 0
    for i in tl.static_range(len(coefficients)):
        total = total * x + coefficients[i]
    return total, x


@enceladus.jit
def tuple_kernel(pair, out_ptr, sizes, bias_ptr, BLOCK: tl.constexpr, POLY: tl.constexpr):
    n, more = sizes
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(pair.left + offs, mask=mask)
    value, same = POLY(x, more)
    value += tl.load(pair.right[0] + offs, mask=mask)
    if bias_ptr is not None:
        value += tl.load(bias_ptr)
    tl.store(out_ptr + offs, value - same, mask=mask)


@pytest.mark.parametrize("bias", [None, np.array([4], I32)])
def test_tuples_none_and_helpers(bias: np.ndarray | None) -> None:
    x, y = numbers(70, I32) % 10, numbers(70, I32, seed=1)
    expected = (2 * x + 3) * x + 5 + y + (4 if bias is not None else 0) - x
    arguments: dict[str, Any] = {"pair": Pair(x, (y,)), "out_ptr": enceladus.empty(70, np.int32)}
    arguments |= {"sizes": (70, (2, 3, 5)), "bias_ptr": bias, "BLOCK": 64, "POLY": polynomial}
    assert_everywhere(tuple_kernel, (2,), arguments, expected)


@enceladus.jit
def names_kernel(a, grid_size, kernel, half, thread, scalars, int_, n, BLOCK: tl.constexpr):
    a_shape = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    thread_position_in_grid = a_shape < n
    device = tl.load(a + a_shape, mask=thread_position_in_grid)
    a_strides = tl.load(grid_size + a_shape, mask=thread_position_in_grid)
    uint = tl.load(kernel + a_shape, mask=thread_position_in_grid)  # a_ndim, threads_per_grid
    as_type = (device + a_strides) * half + uint * int_
    tl.store(thread + a_shape, as_type + 1, mask=thread_position_in_grid)
    tl.store(scalars + a_shape, uint, mask=thread_position_in_grid)


def test_names_that_mean_something_in_metal() -> None:
    x, y, z = (numbers(100, seed=k) for k in range(3))
    expected = (x + y) * F32(0.5) + z * 3 + 1
    arguments: dict[str, Any] = {"a": x, "grid_size": y, "kernel": z, "half": 0.5, "int_": 3, "n": 100}
    arguments |= {"thread": enceladus.empty(100), "scalars": enceladus.empty(100), "BLOCK": 64}
    assert_everywhere(names_kernel, (2,), arguments, expected, z)


# fmt: off
@enceladus.jit
def continued_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # Lines that end in a backslash, and text that is not ASCII: Größe → ∞ \
    größe = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + größe, mask=größe < n) \
        + 1  # ≥ \
    y = x \
        * 2
    text: tl.constexpr = "*/ ??/ \\"  # a string that means something in C++
    tl.static_assert(text != "x" and \
        BLOCK > 1)
    tl.store(out_ptr + größe, y + \
        3, mask=größe < n)  # x_ptr_shape threads_per_grid ??/
# fmt: on


def test_source_text_in_comments_is_harmless() -> None:
    x = numbers(50)
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(50), "n": 50, "BLOCK": 64}
    assert_everywhere(continued_kernel, (1,), arguments, (x + 1) * 2 + 3)


# --------------------------------------------------------------------------- wide index arithmetic


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_wide_variant(dtype: str) -> None:
    """Index arithmetic in 64 bits: one program whose offsets could pass 2**31 is enough to select it."""
    x = numbers(100, dtype)
    values = {"x_ptr": x, "out_ptr": np.zeros(100, dtype), "n": 100, "BLOCK": 1024}
    target = HostTarget()
    # A grid this large is only planned, not run: the wide text is taken from it and run on one program.
    for name in ("graph", "host"):
        own = enceladus.JITFunction(copy_kernel.fn)
        with engine(name, target):
            arrays = {k: to_mlx(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}
            compiled = own.warmup(**arrays, grid=(2**22,))
            assert "int64_t" in compiled.body
            own._is_large = lambda _: True  # type: ignore[method-assign]
            assert_same(to_numpy(own[(1,)](**arrays)), x, name)
    (body,) = {c.body for c in target.compiled}
    assert "int64_t" in body


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang, to run Metal's text")
def test_metal_text_is_among_what_is_compared() -> None:
    assert "host" in ENGINES


def test_every_engine_is_compared() -> None:
    x = numbers(4)
    arguments = {"x_ptr": x, "out_ptr": enceladus.empty(4), "n": 4, "BLOCK": 4}
    assert tuple(run_everywhere(copy_kernel, (1,), arguments)) == ENGINES
    with pytest.raises(AssertionError, match="interpreter, output 0: element 0 is"):
        assert_everywhere(copy_kernel, (1,), arguments, x + 1)
