"""Atomic updates in every engine, against NumPy: kinds, types, collisions, masks, old values, launches.

Numbers are small quarters, so that sums are exact in any order. Old values depend on the order of updates,
which is open; tests of them check what every order has in common, in the host executor for one schedule at a
time.
"""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import enceladus
import enceladus.language as tl
from tests.engines import (
    ENGINES,
    SCHEDULES,
    HostTarget,
    assert_everywhere,
    assert_same,
    engine,
    kernel_from_source,
    needs_host,
    run_everywhere,
)
from tests.host_executor import to_numpy

INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
FLOATS = ("float16", "bfloat16", "float32")
KINDS = {
    "add": np.add, "max": np.fmax, "min": np.fmin,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
CASES = [(kind, dtype) for kind in KINDS for dtype in INTEGERS]
CASES += [(kind, dtype) for kind in ("add", "max", "min") for dtype in FLOATS]
#: block, num_warps: fewer elements than threads, as many, more.
SIZES = [(1, 1), (16, 2), (32, 1), (64, 4), (256, 4), (512, 8)]


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def numbers(dtype, shape, seed):
    """Small numbers of a type; floats are quarters."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype[0] == "u" else -15
    x = rng.integers(low, 16, shape).astype(np.float64)
    return (x / 4 if dtype in FLOATS else x).astype(numpy_dtype(dtype))


def updated(kind, out, index, x):
    """``out`` after one update after the other."""
    result = out.copy()
    with np.errstate(over="ignore"):
        for place, value in zip(np.ravel(index), np.ravel(x), strict=True):
            result[place] = KINDS[kind](result[place], value)
    return result


def orders(kernel, grid, arguments, engines=ENGINES, **options):
    """(engine, outputs) of every engine; in the host executor for every schedule."""
    for name in engines:
        for schedule in SCHEDULES if name == "host" else SCHEDULES[:1]:
            found = run_everywhere(
                kernel, grid, arguments, engines=(name,), host_schedules=(schedule,), **options
            )
            yield f"{name} {schedule}", found[name]


# ------------------------------------------------------------------------------------------ updates

SCATTER = """
@enceladus.jit
def kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    index = tl.load(index_ptr + offs, mask=offs < n, other=1000000)
    tl.atomic_KIND(out_ptr + index, x, mask=offs < n)
"""


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_updates_that_meet(kind, dtype):
    block, warps = SIZES[(7 * CASES.index((kind, dtype))) % len(SIZES)]
    n = 3 * block - block // 3
    x, out = numbers(dtype, n, 1), numbers(dtype, 7, 2)
    index = np.random.default_rng(3).integers(0, 6, n).astype(np.int32)  # the last one is left alone
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": n, "BLOCK": block}
    kernel = kernel_from_source(SCATTER.replace("KIND", kind))
    assert_everywhere(kernel, (3,), arguments, updated(kind, out, index, x), num_warps=warps)


@pytest.mark.parametrize(("block", "warps"), SIZES)
def test_every_size_of_block(block, warps):
    n = 2 * block + block // 2
    x, out = numbers("float32", n, 4), numbers("float32", 5, 5)
    index = np.random.default_rng(6).integers(0, 5, n).astype(np.int32)
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": n, "BLOCK": block}
    kernel = kernel_from_source(SCATTER.replace("KIND", "add"))
    assert_everywhere(kernel, (3,), arguments, updated("add", out, index, x), num_warps=warps)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_integers_at_their_limits(kind, dtype):
    info = np.iinfo(dtype)
    out = np.array([info.max, info.min, info.max, info.min, 0], dtype)
    x = np.array([info.max, info.min, info.min, info.max, 1], dtype)
    index = np.arange(5, dtype=np.int32)
    kernel = kernel_from_source(SCATTER.replace("KIND", kind))
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": 5, "BLOCK": 8}
    assert_everywhere(kernel, (1,), arguments, updated(kind, out, index, x))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_number_beats_nan(kind, dtype):
    nan, inf = np.nan, np.inf
    out = np.array([nan, 1, nan, -inf, inf, nan, -2, 0.5], np.float32).astype(numpy_dtype(dtype))
    x = np.array([nan, nan, 3, -inf, inf, -inf, inf, nan] * 2, np.float32).astype(numpy_dtype(dtype))
    index = np.arange(16, dtype=np.int32) % 8
    index[13] = 6
    kernel = kernel_from_source(SCATTER.replace("KIND", kind))
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": 16, "BLOCK": 16}
    wide = updated(kind, out.astype(np.float32), index, x.astype(np.float32))
    assert_everywhere(kernel, (1,), arguments, wide.astype(out.dtype))


def test_sums_of_special_numbers():
    nan, inf = np.nan, np.inf
    out = np.array([nan, inf, -inf, 1, -0.0, 0.0, -0.0], np.float32)
    x = np.array([1, -inf, 2, nan, -0.0, -0.0], np.float32)
    index = np.arange(6, dtype=np.int32)  # the last -0.0 is left alone
    kernel = kernel_from_source(SCATTER.replace("KIND", "add"))
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": 6, "BLOCK": 8}
    expected = np.array([nan, nan, -inf, nan, -0.0, 0.0, -0.0], np.float32)
    assert_everywhere(kernel, (1,), arguments, expected)


@enceladus.jit
def matrix_kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """Two-dimensional tiles whose elements meet in diagonals."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    cols = tl.program_id(1) * N + tl.arange(0, N)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=mask)
    tl.atomic_add(out_ptr + rows[:, None] + cols[None, :], x, mask=mask)


@pytest.mark.parametrize(("shape", "warps"), [((8, 4), 4), ((16, 32), 2), ((1, 64), 1)])
def test_tiles_of_two_dimensions(shape, warps):
    m, n = 2 * shape[0] - 1, 2 * shape[1] - 3
    x, out = numbers("float16", (m, n), 7), numbers("float16", m + n, 8)
    index = np.add.outer(np.arange(m), np.arange(n))
    expected = updated("add", out, index, x)
    arguments = {"x_ptr": x, "out_ptr": out, "m": m, "n": n, "M": shape[0], "N": shape[1]}
    assert_everywhere(matrix_kernel, (2, 2), arguments, expected, num_warps=warps)


# ------------------------------------------------------------------------------- reduced beforehand

ONE_ADDRESS = """
@enceladus.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.atomic_KIND(out_ptr + tl.zeros((BLOCK,), tl.int32) + tl.program_id(0) % 2, x, mask=offs < n)
"""
COLUMNS = """
@enceladus.jit
def kernel(x_ptr, out_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    cols = tl.arange(0, N)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=mask)
    tl.atomic_KIND(out_ptr + cols[None, :] + tl.zeros((M, 1), tl.int32), x, mask=mask)
"""


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_updates_of_one_address(kind, dtype):
    case = CASES.index((kind, dtype))
    block, warps = SIZES[(5 * case) % len(SIZES)]
    n = 3 * block - block // 3
    x, out = numbers(dtype, n, 1), numbers(dtype, 3, 2)
    if dtype in FLOATS and kind == "add":
        x = (x / 64).astype(x.dtype) if dtype == "float32" else (np.sign(x) / 4).astype(x.dtype)
        x[n // 2 :] = 0
    index = np.arange(n) // block % 2
    kernel = kernel_from_source(ONE_ADDRESS.replace("KIND", kind))
    arguments = {"x_ptr": x, "out_ptr": out, "n": n, "BLOCK": block}
    wide = np.float64 if dtype in FLOATS else out.dtype
    expected = updated(kind, out.astype(wide), index, x.astype(wide)).astype(out.dtype)
    for name, (found,) in run_everywhere(kernel, (3,), arguments, num_warps=warps).items():
        if dtype in ("float16", "bfloat16") and kind == "add":  # rounded after each step, or once
            rtol = 2e-2 if dtype == "bfloat16" else 2e-3
            np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol, rtol, err_msg=name)
        else:
            assert_same(found, expected, name)


@pytest.mark.parametrize(("m", "n", "shape", "warps"), [(29, 13, (8, 16), 4), (40, 3, (32, 4), 1)])
@pytest.mark.parametrize("kind", ["add", "max", "and"])
def test_updates_that_meet_along_an_axis(kind, m, n, shape, warps):
    x, out = numbers("int16", (m, n), 1), numbers("int16", n, 2)
    expected = updated(kind, out, np.broadcast_to(np.arange(n), (m, n)), x)
    kernel = kernel_from_source(COLUMNS.replace("KIND", kind))
    arguments = {"x_ptr": x, "out_ptr": out, "m": m, "n": n, "M": shape[0], "N": shape[1]}
    assert_everywhere(kernel, (-(-m // shape[0]),), arguments, expected, num_warps=warps)


@enceladus.jit
def count_kernel(x_ptr, out_ptr, n, far, BLOCK: tl.constexpr):
    """How many elements are positive; and updates outside the array, all of them masked off."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.atomic_add(out_ptr + tl.zeros_like(offs), 1, mask=(offs < n) & (x > 0.0))
    tl.atomic_add(out_ptr + far + tl.zeros_like(offs), 1, mask=(offs < n) & (x > 100.0))


def test_counting():
    x = numbers("float32", 1000, 3)
    arguments = {"x_ptr": x, "out_ptr": np.array([5, 7], np.int32), "n": 1000, "far": 1 << 29, "BLOCK": 256}
    expected = np.array([5 + (x > 0).sum(), 7], np.int32)
    assert_everywhere(count_kernel, (4,), arguments, expected)


@enceladus.jit
def loop_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Updates in a loop and in a branch."""
    for k in range(tl.program_id(0), n, tl.num_programs(0)):
        x = tl.load(x_ptr + k * BLOCK + tl.arange(0, BLOCK))
        tl.atomic_max(out_ptr + tl.zeros((BLOCK,), tl.int32), x)
        if k % 2 == 0:
            tl.atomic_max(out_ptr + 1 + tl.arange(0, BLOCK), x)
        else:
            tl.atomic_max(out_ptr + BLOCK + 1, k)


def test_updates_in_loops_and_branches():
    x, out = numbers("int32", (5, 64), 3), numbers("int32", 66, 4)
    expected = out.copy()
    expected[0] = max(out[0], x.max())
    expected[1:65] = np.maximum(out[1:65], x[::2].max(0))
    expected[65] = max(out[65], 3)
    assert_everywhere(loop_kernel, (2,), {"x_ptr": x, "out_ptr": out, "n": 5, "BLOCK": 64}, expected)


# ------------------------------------------------------------------------------------- old values

OLD = """
@enceladus.jit
def kernel(x_ptr, index_ptr, out_ptr, old_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    index = tl.load(index_ptr + offs, mask=mask, other=1000000)
    old = tl.atomic_KIND(out_ptr + index, x, mask=mask)
    reverse = tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK)
    tl.store(old_ptr + reverse, old)
"""


def is_history(kind, start, end, olds, values):
    """Whether some order of the updates ``values`` finds ``olds`` and ends in ``end``."""
    if not values:
        return np.array_equal(start, end, equal_nan=start.dtype.kind not in "biu")
    tried = set()
    for k, (old, value) in enumerate(zip(olds, values, strict=True)):
        key = (old.item(), value.item())
        if old != start or key in tried:
            continue
        tried.add(key)
        with np.errstate(over="ignore"):
            after = value if kind == "xchg" else KINDS[kind](start, value)
        if is_history(kind, after, end, olds[:k] + olds[k + 1 :], values[:k] + values[k + 1 :]):
            return True
    return False


@pytest.mark.parametrize(("kind", "dtype"), [*CASES, *[("xchg", dtype) for dtype in (*INTEGERS, *FLOATS)]])
def test_old_values_tell_a_history(kind, dtype):
    case = sum(map(ord, kind + dtype))
    block, warps = [(8, 4), (16, 1), (32, 2), (64, 1)][case % 4]
    n = 2 * block - 3
    places = n // 5
    x, out = numbers(dtype, n, 1), numbers(dtype, places, 2)
    index = np.random.default_rng(3).permutation(n).astype(np.int32) % places
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": n, "BLOCK": block}
    arguments["old_ptr"] = np.ones(2 * block, out.dtype)
    kernel = kernel_from_source(OLD.replace("KIND", kind))
    for name, (new, old) in orders(kernel, (2,), arguments, num_warps=warps):
        old = old.reshape(2, block)[:, ::-1].ravel()
        assert (old[n:] == 0).all(), name
        for place in range(places):
            mine = np.flatnonzero(index == place)
            found = is_history(kind, out[place], new[place], [old[k] for k in mine], [x[k] for k in mine])
            assert found, (name, place)


@enceladus.jit
def ticket_kernel(counter, taken, flag, old, TIMES: tl.constexpr):
    """Every program takes numbers; whoever comes first at a flag sets it."""
    for i in range(TIMES):
        number = tl.atomic_add(counter, 1)
        tl.store(taken + tl.program_id(0) * TIMES + i, number)
        found = tl.atomic_cas(flag + number % 3, 0, number + 1)
        tl.store(old + number, found)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int16"])
@pytest.mark.parametrize("warps", [1, 4])
def test_tickets(dtype, warps):
    programs, times = 4, 5
    n = programs * times
    arguments = {
        "counter": np.zeros(1, np.int32), "taken": np.zeros(n, np.int32), "flag": np.zeros(4, dtype),
        "old": np.full(n, 99, dtype), "TIMES": times,
    }  # fmt: skip
    engines = [e for e in ENGINES if e != "graph"]  # it must know the addresses of a compare-and-swap
    found = orders(ticket_kernel, (programs,), arguments, engines, num_warps=warps)
    for name, (counter, taken, flag, old) in found:
        assert counter[0] == n and sorted(taken) == list(range(n)), name
        assert (np.diff(taken.reshape(programs, times)) > 0).all(), name  # in the order of the program
        assert flag[3] == 0 and (flag[:3] > 0).all(), name
        for place in range(3):
            mine = old[place::3]
            assert (mine == 0).sum() == 1, name
            assert set(mine) == {0, flag[place]} and old[flag[place] - 1] == 0, name


@enceladus.jit
def stamp_kernel(counter, out, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """All threads use the number that one of them took."""
    for i in range(TIMES):
        number = tl.atomic_add(counter, 1)
        tl.store(out + i * BLOCK + tl.arange(0, BLOCK), number)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16"])
def test_all_threads_know_the_old_value(dtype):
    counter, out = np.array([3], dtype), np.zeros((6, 256), dtype)
    arguments = {"counter": counter, "out": out, "TIMES": 6, "BLOCK": 256}
    expected = np.broadcast_to(np.arange(3, 9).astype(dtype)[:, None], out.shape)
    assert_everywhere(stamp_kernel, (1,), arguments, counter + np.array(6, dtype), expected)


@enceladus.jit
def masked_scalar_kernel(counter, old, n):
    pid = tl.program_id(0)
    tl.store(old + pid, tl.atomic_add(counter, 2.5, mask=pid < n))
    tl.atomic_max(counter + 1, pid, mask=pid < n)


@pytest.mark.parametrize("dtype", FLOATS)
def test_masked_scalars(dtype):
    start = np.array([1, -2], np.float32).astype(numpy_dtype(dtype))
    arguments = {"counter": start, "old": np.full(5, 9, start.dtype), "n": 3}
    for name, (counter, old) in orders(masked_scalar_kernel, (5,), arguments):
        assert counter.tolist() == [8.5, 2] and old[3:].tolist() == [0, 0], name
        assert sorted(old[:3].tolist()) == [1, 3.5, 6], name


@enceladus.jit
def row_sums_kernel(x_ptr, sums, before, after, M: tl.constexpr, N: tl.constexpr):
    """Row sums, which several threads know, are added where others look for them."""
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
    total = tl.sum(x, 1)
    old = tl.atomic_add(sums + rows, total)
    tl.store(before + rows, old)
    scaled = x * old[:, None]
    tl.store(after + rows[:, None] * N + cols[None, :], scaled)


@pytest.mark.parametrize(("m", "n", "warps"), [(4, 64, 4), (64, 4, 1), (16, 16, 2)])
def test_old_values_of_tiles_that_threads_share(m, n, warps):
    x, sums = numbers("float32", (m, n), 1), numbers("float32", m, 2)
    arguments = {"x_ptr": x, "sums": sums, "before": np.zeros_like(sums), "after": np.zeros_like(x)}
    arguments |= {"M": m, "N": n}
    expected = (sums + x.sum(1), sums, x * sums[:, None])
    assert_everywhere(row_sums_kernel, (1,), arguments, *expected, num_warps=warps)


@enceladus.jit
def repeated_kernel(out, old, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """A loop whose iterations update each other's elements."""
    offs = tl.arange(0, BLOCK)
    for i in range(TIMES):
        found = tl.atomic_add(out + (offs + i) % BLOCK, offs)
        tl.store(old + i * BLOCK + BLOCK - 1 - offs, found)


@pytest.mark.parametrize(("block", "warps"), [(8, 4), (128, 4), (256, 2)])
def test_iterations_see_each_other(block, warps):
    times = 3
    out = numbers("int16", block, 1)
    arguments = {"out": out, "old": np.zeros((times, block), np.int16), "TIMES": times, "BLOCK": block}
    new, olds = out.copy(), []
    for i in range(times):
        index = (np.arange(block) + i) % block
        olds.append(new[index][::-1])
        new[index] += np.arange(block, dtype=np.int16)
    assert_everywhere(repeated_kernel, (1,), arguments, new, np.stack(olds), num_warps=warps)


# ----------------------------------------------------------------------------- kinds that are mixed

MIXED = """
@enceladus.jit
def kernel(out, old_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = (offs % 7).to(out.dtype.element_ty)
    tl.store(out + offs, x, mask=offs % 3 > 0)
    tl.atomic_add(out + BLOCK - 1 - offs, x)
    tl.atomic_max(out + (offs + 5) % BLOCK, 3)
    old = tl.atomic_xchg(out + (offs + 33) % BLOCK, x, mask=offs % 5 == 0)
    tl.atomic_min(out + offs, 5)
    tl.store(old_ptr + offs, old)
    tl.atomic_add(out, 1)
    tl.store(out + 1, 2)
    tl.atomic_add(out + 1, 3)
"""


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize(("block", "warps"), [(16, 4), (256, 2)])
def test_one_after_the_other(dtype, block, warps):
    """Statements are performed in the order of the program, whichever thread holds the element."""
    out = numbers(dtype, block, 1)
    offs = np.arange(block)
    x = (offs % 7).astype(out.dtype)
    new, old = out.copy(), np.zeros_like(out)
    new = np.where(offs % 3 > 0, x, new)
    new[::-1] += x
    new = np.maximum(new, np.array(3, out.dtype))
    place, some = (offs + 33) % block, offs % 5 == 0
    old[some] = new[place[some]]
    new[place[some]] = x[some]
    new = np.minimum(new, np.array(5, out.dtype))
    new[0] += np.array(1, out.dtype)
    new[1] = 5
    kernel = kernel_from_source(MIXED)
    arguments = {"out": out, "old_ptr": np.zeros_like(out), "BLOCK": block}
    assert_everywhere(kernel, (1,), arguments, new, old, num_warps=warps)


PLACES = [
    "offs",
    "BLOCK - 1 - offs",
    "(offs + 5) % BLOCK",
    "(offs ^ 1)",
    "offs // 2 + (offs % 2) * (BLOCK // 2)",
]
MASKS = ["", ", mask=offs % 3 > 0", ", mask=offs < n", ", mask=load > 0"]


@st.composite
def statements(draw):
    """Statements that change one array; each of them at most once an element."""
    single = draw(st.sampled_from(["", "", *KINDS]))  # one kind is collected
    kinds = [single] if single else [*KINDS, "xchg", "cas", "store"]
    lines = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(kinds))
        scalar = draw(st.integers(0, 4)) == 0
        place = str(draw(st.integers(0, 15))) if scalar else draw(st.sampled_from(PLACES))
        value = draw(st.sampled_from(["7", "n"] if scalar else ["7", "offs", "load", "load * 2 + offs"]))
        mask = "" if scalar else draw(st.sampled_from(MASKS))
        if kind == "store":
            lines.append(f"tl.store(out + {place}, {value}{mask})")
            continue
        call = f"tl.atomic_{kind}(out + {place}, {'3, ' if kind == 'cas' else ''}{value}"
        call += ")" if kind == "cas" else f"{mask})"
        if draw(st.booleans()):
            lines.append(f"old{number} = {call}")
            call = f"tl.store(olds + {number} * BLOCK + {'0' if scalar else 'offs'}, old{number})"
        lines.append(call)
    if draw(st.booleans()):
        lines = ["for i in range(n // 8):", *(f"    {line}" for line in lines)]
    return "\n    ".join(lines)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(statements(), st.sampled_from([(16, 1), (16, 4), (64, 2), (256, 2)]))
def test_random_statements(text, size):
    block, warps = size
    kernel = kernel_from_source(
        "@enceladus.jit\ndef kernel(out, olds, x, n, BLOCK: tl.constexpr):\n    offs = tl.arange(0, BLOCK)\n"
        f"    load = tl.load(x + offs)\n    {text}\n"
    )
    out, x = numbers("int16", block, 1), numbers("int16", block, 2)
    arguments = {"out": out, "olds": np.zeros((5, block), np.int16), "x": x, "n": 16, "BLOCK": block}
    found = run_everywhere(kernel, (1,), arguments, num_warps=warps)
    for name, outputs in found.items():
        for got, want in zip(outputs, found["interpreter"], strict=True):
            assert_same(got, want, name)


@enceladus.jit
def claim_kernel(slots, winners, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """Lanes of all programs claim slots; each slot has one winner."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.atomic_cas(slots + lane % SLOTS, 0, lane + 1)
    tl.store(winners + lane, (found == 0).to(tl.int32))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("block", "warps"), [(8, 2), (64, 1)])
def test_compare_and_swap_has_one_winner(dtype, block, warps):
    lanes, slots = 2 * block, 5
    arguments = {"slots": np.zeros(7, dtype), "winners": np.zeros(lanes, np.int32), "SLOTS": slots}
    arguments["BLOCK"] = block
    for name, (taken, winners) in orders(claim_kernel, (2,), arguments, num_warps=warps):
        chosen = np.flatnonzero(winners)
        assert sorted(chosen % slots) == list(range(slots)), name
        assert (taken[chosen % slots] == (chosen + 1).astype(dtype)).all() and (taken[slots:] == 0).all(), (
            name
        )


@enceladus.jit
def double_kernel(x, BLOCK: tl.constexpr):
    """Loads before an update see what the update starts from."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(x + offs, tl.load(x + offs))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "uint32"])
def test_an_array_that_is_loaded_and_updated(dtype):
    x = numbers(dtype, 64, 1)
    assert_everywhere(double_kernel, (2,), {"x": x, "BLOCK": 32}, x + x)


# ----------------------------------------------------------------------------------------- launches


@enceladus.jit
def histogram_kernel(x_ptr, counts, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x_ptr + offs, mask=offs < n), 1, mask=offs < n)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float16", "bfloat16", "float32"])
def test_fresh_outputs(name, dtype):
    x = np.random.default_rng(1).integers(0, 8, 200).astype(np.int32)
    counts = np.bincount(x, minlength=9)
    made = getattr(mx, dtype)
    kernel = enceladus.JITFunction(histogram_kernel.fn)
    with engine(name):
        for make, start in (
            (enceladus.zeros, 0), (enceladus.ones, 1), (lambda s, d: enceladus.full(s, 5, d), 5)
        ):  # fmt: skip
            for _ in range(2):  # the second one by the plan of the first
                found = kernel[(2,)](mx.array(x), make((3, 3), made), 200, BLOCK=128)
                assert found.dtype == made
                assert (to_numpy(found).astype(int).ravel() == counts + start).all(), name


@pytest.mark.parametrize("name", ENGINES)
def test_arrays_of_the_caller(name):
    x = np.arange(9, dtype=np.int32)
    kernel = enceladus.JITFunction(histogram_kernel.fn)
    with engine(name):
        counts = mx.zeros(9, mx.int32)
        alias = counts
        assert kernel[(1,)](mx.array(x), counts, 9, BLOCK=16) is counts
        kernel[(1,)](mx.array(x), counts, 5, BLOCK=16)
        assert alias.tolist() == [2] * 5 + [1] * 4
        array = np.zeros((3, 3), np.float16)
        assert kernel[(1,)](x, array, 9, BLOCK=16) is array
        assert (array == 1).all()
        single = mx.array(3, mx.uint8)
        assert kernel[(1,)](mx.zeros(9, mx.int32), single, 9, BLOCK=16).item() == 12
        for grid, size in (((0,), 9), ((1,), 0)):
            empty = mx.full((size,), 7, mx.int32)
            assert kernel[grid](mx.array(x), empty, 0, BLOCK=16).tolist() == [7] * size


@enceladus.jit
def statistics_kernel(x_ptr, out_ptr, total, least, most, seen, n, BLOCK: tl.constexpr):
    """Several updated arrays beside a stored one."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + 2 * offs, x, mask=mask)
    zeros = tl.zeros_like(offs)
    tl.atomic_add(total + zeros, x, mask=mask)
    tl.atomic_min(least + zeros, x, mask=mask)
    tl.atomic_max(most + zeros, x, mask=mask)
    tl.atomic_or(seen + zeros, 1 << (tl.abs(x).to(tl.int32) % 8), mask=mask)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("total", ["old", "zeros"])
@pytest.mark.parametrize("out", ["old", "zeros", "ones"])
def test_several_outputs_start_from_what_they_need(name, total, out):
    x = numbers("float32", 50, 1)
    stored = {"old": np.full(101, -0.0, np.float32), "zeros": np.zeros(101, np.float32)}
    stored["ones"] = np.ones(101, np.float32)
    expected = stored[out].copy()
    expected[:100:2] = x
    old = np.array([-0.0, -0.0], np.float32)
    with engine(name):
        found = statistics_kernel[(2,)](
            mx.array(x),
            mx.array(stored["old"]) if out == "old" else getattr(enceladus, out)(101),
            mx.array(old) if total == "old" else enceladus.zeros(2),
            enceladus.full(1, np.inf), mx.array([-np.inf]), enceladus.empty(1, mx.uint8), 50, BLOCK=32,
        )  # fmt: skip
    got = [to_numpy(array) for array in found]
    assert_same(got[0], expected, name)
    assert got[1].tolist() == [x.sum(), 0] and (total == "zeros" or np.signbit(got[1][1])), name
    assert got[2] == x.min() and got[3] == x.max(), name
    assert got[4] == np.bitwise_or.reduce(1 << (np.abs(x).astype(np.int32) % 8)), name


# ----------------------------------------------------------------------------------- Metal's text


def metal_text(kernel, *arguments, **constants):
    target = HostTarget()
    with engine("host", target):
        warm = kernel.warmup(*arguments, **constants)
        return warm.header, warm.body, warm.explain()


@needs_host
def test_an_update_is_one_instruction_and_needs_no_barrier():
    header, body, explained = metal_text(
        histogram_kernel, mx.zeros(100, mx.int32), enceladus.zeros(9, mx.uint8), 100, BLOCK=512, grid=(1,)
    )
    assert "atomic_fetch_add_explicit" in header and "compare_exchange" not in header
    assert "threadgroup" not in body.replace("threadgroup_position", "").replace("in_threadgroup", "")
    assert "counts + " in body and "fill: atomic updates start from 0" in explained


@needs_host
def test_float_maxima_need_no_loop():
    kernel = kernel_from_source(SCATTER.replace("KIND", "max"))
    arguments = (mx.zeros(64), mx.zeros(64, mx.int32), mx.zeros(64))
    header, _, explained = metal_text(kernel, *arguments, 64, BLOCK=64, grid=(1,))
    assert "atomic_fetch_max_explicit" in header and "while" not in header
    assert "merge: what the atomic updates did" in explained


@enceladus.jit
def columns_kernel(x_ptr, a, b, c, d, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
    place = cols[None, :] + tl.zeros((M, 1), tl.int32)
    tl.atomic_add(a + place, x)
    tl.atomic_add(b + place, x * 2.0)
    tl.atomic_max(c + place, x)
    tl.atomic_min(d + place, x)


@needs_host
def test_reductions_before_updates_leave_threadgroup_memory_for_others():
    x = numbers("float32", (8, 1024), 1)
    start = np.zeros(1024, np.float32)
    arguments = {"x_ptr": x, "a": start, "b": start, "c": start, "d": start, "M": 8, "N": 1024}
    expected = x.sum(0), 2 * x.sum(0), np.maximum(x.max(0), 0), np.minimum(x.min(0), 0)
    for warps in (2, 4):
        assert_everywhere(columns_kernel, (1,), arguments, *expected, num_warps=warps)


@needs_host
def test_updates_of_one_address_are_reduced_first():
    kernel = kernel_from_source(ONE_ADDRESS.replace("KIND", "add"))
    _, body, _ = metal_text(kernel, mx.zeros(640), mx.zeros(2), 640, BLOCK=1024, grid=(1,))
    assert body.count("simd_sum(") == 1 and body.count("enceladus::atomic_add(") == 1
    assert "if (tid == 0" in body
