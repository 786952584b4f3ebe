"""Builtins through which elements meet, in the engines that have them, against plain NumPy."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import enceladus
import enceladus.language as tl
from tests.engines import ENGINES as EVERYWHERE
from tests.engines import kernel_from_source, run_everywhere

#: The modules of the language whose builtins are tested here (and ``philox`` in ``test_philox``).
EXCHANGE_MODULES = ("atomics", "philox", "reductions", "scans", "shapes", "sorting")
ENGINES = ("interpreter", "graph")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32")
SHAPES = [(1,), (64,), (8, 4), (4, 2, 8)]


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else bool if name == "int1" else name)


def values(dtype, shape, seed=0, nan=False):
    """Small numbers of a type, with repetitions; some NaN on request."""
    rng = np.random.default_rng(seed)
    if dtype == "int1":
        return rng.random(shape) < 0.6
    low = 0 if dtype[0] == "u" else -20
    x = rng.integers(low, 21, shape).astype(np.float64)
    if dtype in FLOATS:
        x /= 4
        if nan:
            x[rng.random(shape) < 0.3] = np.nan
    return x.astype(numpy_dtype(dtype))


def offsets(shape, name="offs"):
    """Source that gives the row-major offsets of a shape."""
    terms = []
    for axis, size in enumerate(shape):
        index = ", ".join(":" if k == axis else "None" for k in range(len(shape)))
        terms.append(f"tl.arange(0, {size})[{index}] * {int(np.prod(shape[axis + 1 :], dtype=int))}")
    return f"    {name} = {' + '.join(terms) or '0'}\n"


def check(expression, inputs, expected, head="", exact=True, rtol=0.0, engines=ENGINES):
    """Evaluate ``expression`` of tiles ``x``, ``y``, … in every engine; ``expected``: the results."""
    names = "xyzw"[: len(inputs)]
    expected = [np.asarray(e) for e in expected]
    results = [f"out{i}" for i in range(len(expected))]
    source = f"{head}@enceladus.jit\ndef kernel({', '.join([f'{n}_ptr' for n in names] + results)}):\n"
    for name, value in zip(names, inputs, strict=True):
        source += offsets(value.shape) + f"    {name} = tl.load({name}_ptr + offs)\n"
    source += f"    found = {expression}\n"
    for i, want in enumerate(expected):
        item = f"found[{i}]" if len(expected) > 1 else "found"
        source += f"    tl.static_assert({item}.shape == {want.shape}, 'shape')\n"
        source += offsets(want.shape) + f"    tl.store(out{i} + offs, {item})\n"
    kernel = kernel_from_source(source)
    arguments = {f"{n}_ptr": v for n, v in zip(names, inputs, strict=True)}
    for result, want in zip(results, expected, strict=True):
        arguments[result] = np.zeros(want.shape or (1,), want.dtype)
    for engine, outputs in run_everywhere(kernel, (1,), arguments, engines=engines).items():
        for got, want in zip(outputs, expected, strict=True):
            got = got.reshape(want.shape)
            assert got.dtype == want.dtype, engine
            if exact:
                assert np.array_equal(got, want, equal_nan=want.dtype.kind not in "biu"), (engine, got, want)
            else:
                np.testing.assert_allclose(
                    got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=rtol, err_msg=engine
                )


everywhere = partial(check, engines=EVERYWHERE)


def axes(shape):
    return [None, *range(len(shape))]


def wide(dtype):
    """The type that sums of ``dtype`` are computed in, and that of the result."""
    if dtype in FLOATS:
        return np.float64, numpy_dtype(dtype)
    bits = 8 * numpy_dtype(dtype).itemsize
    name = dtype if bits >= 32 else "uint32" if dtype[0] == "u" else "int32"
    return numpy_dtype(name), numpy_dtype(name)


# -------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int1", *INTEGERS, *FLOATS])
def test_reductions(dtype, shape):
    x = values(dtype, shape)
    compute, result = wide(dtype)
    for axis in axes(shape):
        total = x.astype(compute).sum(axis)  # exact: quarters
        check(f"tl.sum(x, {axis})", [x], [total.astype(result)])
        largest, smallest = x.astype(compute).max(axis), x.astype(compute).min(axis)
        both = [np.asarray(largest).astype(result), np.asarray(smallest).astype(result)]
        check(f"(tl.max(x, {axis}), tl.min(x, {axis}))", [x], both)
        number = x.astype(compute)
        indices = [number.argmax(axis).astype(np.int32), number.argmin(axis).astype(np.int32)]
        check(f"(tl.argmax(x, {axis}), tl.argmin(x, {axis}))", [x], indices)
        check(f"(tl.any(x, {axis}), tl.all(x, {axis}))", [x], [(x != 0).any(axis), (x != 0).all(axis)])


@pytest.mark.parametrize("dtype", ["int1", *INTEGERS])
def test_bits(dtype):
    x = values(dtype, (8, 4))
    for axis in (0, 1):
        ors, xors = np.bitwise_or.reduce(x, axis), np.bitwise_xor.reduce(x, axis)
        everywhere(f"(tl.reduce_or(x, {axis}), tl.xor_sum(x, {axis}))", [x], [ors, xors])
    everywhere("tl.xor_sum(x)", [x], [np.bitwise_xor.reduce(x.ravel())])


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_passed_over(dtype):
    x = values(dtype, (8, 16), nan=True)
    x[3] = np.nan
    numbers = x.astype(np.float64)
    low, high = (np.where(np.isnan(numbers), v, numbers) for v in (-np.inf, np.inf))
    largest, smallest = low.max(1), high.min(1)
    largest[3] = smallest[3] = np.nan
    result = numpy_dtype(dtype)
    check("(tl.max(x, 1), tl.min(x, 1))", [x], [largest.astype(result), smallest.astype(result)])
    index = low.argmax(1).astype(np.int32)
    check("tl.max(x, 1, return_indices=True)", [x], [largest.astype(result), index])
    check(
        "tl.min(x, 1, return_indices=True)", [x], [smallest.astype(result), high.argmin(1).astype(np.int32)]
    )


def test_sixteen_bit_sums_round_once():
    x = np.full(4096, 1.0 + 2.0**-7).astype(ml_dtypes.bfloat16)
    check("tl.sum(x)", [x], [np.float32(4096 * (1 + 2.0**-7)).astype(ml_dtypes.bfloat16)])
    y = np.ones(4096, np.float16)
    check("tl.sum(y * 8)", [y, y], [np.float16(32768)])
    check("tl.sum(x.to(tl.float32) * 16, dtype=tl.float32)", [y], [np.float32(65536)])


def test_small_integers_do_not_wrap_but_32_bits_do():
    check("tl.sum(x)", [np.full(1024, 127, np.int8)], [np.int32(127 * 1024)])
    check("tl.sum(x, dtype=tl.int8)", [np.full(64, 127, np.int8)], [np.int32(127 * 64).astype(np.int8)])
    big = np.full(4, 2**30, np.int32)
    check("tl.sum(x)", [big], [np.int32(0)])
    check("tl.sum(x, dtype=tl.int64)", [big], [np.int64(2**32)])


COMBINE = """
@enceladus.jit
def add(a, b):
    return a + b

@enceladus.jit
def first(a, b):
    return a

@enceladus.jit
def last(a, b):
    return b

@enceladus.jit
def linear(a, b, c, d):
    return a * c, b * c + d

@enceladus.jit
def moments(n, mean, m2, n_, mean_, m2_):
    total = n + n_
    if total > 0.0:
        share = n_ / total
    else:
        share = 0.0
    delta = mean_ - mean
    return total, mean + delta * share, m2 + m2_ + delta * delta * n * share

@enceladus.jit
def clipped(a, b):
    if a > b:
        result = a
    elif b > 10.0:
        result = 10.0
    else:
        result = b
    return result

"""


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_combine_functions(axis):
    x = values("float32", (8, 16))
    everywhere(f"tl.reduce(x, {axis}, add)", [x], [x.sum(axis)], COMBINE)
    flat = x.reshape(-1) if axis is None else x
    place = axis or 0
    everywhere(f"tl.reduce(x, {axis}, first)", [x], [flat.take(0, place)], COMBINE)
    everywhere(f"tl.reduce(x, {axis}, combine_fn=last)", [x], [flat.take(-1, place)], COMBINE)
    everywhere(f"x.reduce({axis}, tl.maximum)", [x], [x.max(axis)])
    count = np.float32(x.size if axis is None else x.shape[axis])
    ones = np.ones_like(x)
    expected = [np.broadcast_to(count, np.shape(x.sum(axis))), x.mean(axis), x.var(axis) * count]
    everywhere(
        f"tl.reduce((y, x, x * 0.0), {axis}, moments)", [x, ones], expected, COMBINE, exact=False, rtol=1e-4
    )


def test_order_is_kept():
    """Composition of linear functions is associative and not commutative."""
    a, b = values("int32", (4, 16), 1), values("int32", (4, 16), 2)
    x, y = np.ones(4, np.int32), np.zeros(4, np.int32)
    prefixes = []
    for k in range(16):
        x, y = x * a[:, k], y * a[:, k] + b[:, k]
        prefixes.append((x, y))
    check("tl.reduce((x, y), 1, linear)", [a, b], [x, y], COMBINE)
    expected = [np.stack(part, 1) for part in zip(*prefixes, strict=True)]
    check("tl.associative_scan((x, y), 1, linear)", [a, b], expected, COMBINE)


# ------------------------------------------------------------------------------------------- scans


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int1", *INTEGERS, *FLOATS])
def test_scans(dtype, shape):
    x = values(dtype, shape)
    compute, result = wide(dtype)
    for axis in range(len(shape)):
        total = np.cumsum(x.astype(compute), axis, dtype=compute)
        check(f"tl.cumsum(x, {axis})", [x], [total.astype(result)])
        back = np.flip(np.cumsum(np.flip(x.astype(compute), axis), axis, dtype=compute), axis)
        check(f"tl.cumsum(x, axis={axis}, reverse=True)", [x], [back.astype(result)])


def test_products():
    x = values("int32", (4, 16))
    check("tl.cumprod(x, 1)", [x], [np.cumprod(x, 1, dtype=np.int32)])
    signs = np.where(values("float16", (32,)) > 0, 2.0, -0.5).astype(np.float16)
    check("tl.cumprod(x)", [signs], [np.cumprod(signs.astype(np.float64)).astype(np.float16)])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 6), st.integers(0, 3), st.booleans(), st.integers(0, 2**31))
def test_scan_properties(columns, rows, reverse, seed):
    """The last (first, if reversed) element of a scan is the reduction."""
    x = values("int32", (2**rows, 2**columns), seed)
    end = 0 if reverse else 2**columns - 1
    scan = f"tl.associative_scan(x, 1, add, reverse={reverse})"
    last = f"tl.sum(tl.where(tl.arange(0, {2**columns})[None, :] == {end}, {scan}, 0), 1)"
    check(last, [x], [x.sum(1, dtype=np.int32)], COMBINE)


def test_reverse_scans_combine_later_elements_first():
    x = values("float32", (16,))
    check("tl.associative_scan(x, 0, first, reverse=True)", [x], [np.full_like(x, x[-1])], COMBINE)
    check("tl.associative_scan(x, 0, last, reverse=True)", [x], [x], COMBINE)


# ------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize("dtype", ["int1", "int8", "uint64", "bfloat16", "float32"])
def test_shapes(dtype):
    x, y = values(dtype, (8, 4), 1), values(dtype, (8, 4), 2)
    everywhere("tl.reshape(x, 2, 16)", [x], [x.reshape(2, 16)])
    everywhere("x.view(4, 2, 4).T", [x], [x.reshape(4, 2, 4).swapaxes(1, 2)])
    everywhere("(x.T, tl.trans(x), x.ravel())", [x], [x.T, x.T, x.ravel()])
    everywhere("x.reshape(2, 4, 4).permute(2, 0, 1)", [x], [x.reshape(2, 4, 4).transpose(2, 0, 1)])
    everywhere("tl.join(x, y)", [x, y], [np.stack([x, y], -1)])
    everywhere("tl.interleave(x, y)", [x, y], [np.stack([x, y], -1).reshape(8, 8)])
    both = [np.concatenate([x, y]), np.concatenate([x, y], 1)]
    everywhere("(tl.cat(x, y), tl.cat(x, y, dim=1))", [x, y], both)
    everywhere("tl.split(x.reshape(8, 2, 2))", [x], [x.reshape(8, 2, 2)[..., 0], x.reshape(8, 2, 2)[..., 1]])
    everywhere("(tl.flip(x), tl.flip(x, 0))", [x], [np.flip(x, 1), np.flip(x, 0)])
    everywhere("tl.squeeze(tl.unsqueeze(x, 0), 0)", [x], [x])
    everywhere(
        "tl.broadcast(x, y[:, None, :])",
        [x, y],
        [np.broadcast_to(x, (8, 8, 4)), np.broadcast_to(y[:, None], (8, 8, 4))],
    )


def test_scalars_in_shapes():
    x = values("float32", (2,))
    everywhere("tl.split(x)", [x], [x[0], x[1]])
    everywhere("tl.join(tl.sum(x), 3.0)", [x], [np.array([x.sum(), 3.0], np.float32)])
    everywhere("x.reshape(2, 1).sum(0).reshape(())", [x], [x.sum()])


@pytest.mark.parametrize("index", ["int8", "int32", "int64", "uint32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis, index):
    x = values("float16", (8, 4))
    shape = (8, 16) if axis == 1 else (2, 4)
    places = values(index, shape, 5)  # some out of range, some negative: modulo the axis
    inside = places.astype(np.int64) % x.shape[axis]
    everywhere(f"tl.gather(x, y, {axis})", [x, places], [np.take_along_axis(x, inside, axis)])


# ----------------------------------------------------------------------------------------- sorting


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int1", *INTEGERS, *FLOATS])
def test_sort(dtype, shape):
    x = values(dtype, shape, nan=True)
    ordered = np.sort(x.astype(np.float64) if dtype in FLOATS else x, -1).astype(x.dtype)
    check("tl.sort(x)", [x], [ordered])
    check("x.sort(descending=True)", [x], [ordered[..., ::-1]])
    k = max(1, shape[-1] // 2)
    check(f"tl.topk(x, {k})", [x], [ordered[..., ::-1][..., :k]])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 7), st.integers(0, 5), st.integers(0, 2**31))
def test_histogram(size, bins, seed):
    x = np.random.default_rng(seed).integers(-5, 40, 2**size).astype(np.int32)
    mask = values("int1", x.shape, seed)
    counts = [np.array([(x[m] == b).sum() for b in range(2**bins)], np.int32) for m in (..., mask)]
    check(f"(tl.histogram(x, {2**bins}), tl.histogram(x, {2**bins}, mask=y))", [x, mask], counts)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [None, 0, -1])
def test_softmax(dtype, dim):
    x = values(dtype, (8, 16))
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(dim or 0, keepdims=True))
    expected = (e / e.sum(dim or 0, keepdims=True)).astype(x.dtype)
    rtol = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    everywhere(f"tl.softmax(x, {dim})", [x], [expected], exact=False, rtol=rtol)


# ------------------------------------------------------------------------------------------- other


def test_map_elementwise():
    x, y = values("float32", (8, 4), 1), values("float32", (4,), 2)
    larger = np.where(x > y, x, np.where(y > 1, np.float32(10), np.broadcast_to(y, x.shape)))
    head = COMBINE.replace("b > 10.0", "b > 1.0")
    everywhere("tl.map_elementwise(clipped, x, y)", [x, y], [larger], head)


@enceladus.jit
def swizzle_kernel(out_i, out_j, size_j, size_g, SIZE_I: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    new_i, new_j = tl.swizzle2d(i, j, SIZE_I, size_j, size_g)
    tl.store(out_i + i * size_j + j, new_i)
    tl.store(out_j + i * size_j + j, new_j)


def test_swizzle2d():
    size_i, size_j, group = 5, 3, 2
    order = []
    for first in range(0, size_i, group):
        rows = range(first, min(first + group, size_i))
        order += [(i, j) for j in range(size_j) for i in rows]
    out = np.zeros((size_i, size_j), np.int32)
    arguments = {"out_i": out, "out_j": out, "size_j": size_j, "size_g": group, "SIZE_I": size_i}
    for engine, found in run_everywhere(swizzle_kernel, (size_i, size_j), arguments, engines=ENGINES).items():
        assert list(zip(*(part.ravel().tolist() for part in found), strict=True)) == order, engine


# ----------------------------------------------------------------------------------------- atomics


ATOMIC = """
@enceladus.jit
def kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    index = tl.load(index_ptr + offs, mask=offs < n)
    tl.atomic_KIND(out_ptr + index, x, mask=offs < n)
"""

KINDS = {
    "add": np.add, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in KINDS for dtype in ("int8", "uint16", "int32", "uint32")]
    + [(kind, dtype) for kind in ("add", "max", "min") for dtype in FLOATS],
)
def test_updates_that_meet(kind, dtype):
    n, block = 100, 32
    x = values(dtype, (n,), 1)
    index = np.random.default_rng(3).integers(0, 5, n).astype(np.int32)
    out = values(dtype, (7,), 2)
    expected = out.copy()
    with np.errstate(over="ignore"):
        for place, value in zip(index, x, strict=True):
            expected[place] = KINDS[kind](expected[place], value)
    kernel = kernel_from_source(ATOMIC.replace("KIND", kind))
    arguments = {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": n, "BLOCK": block}
    for engine, found in run_everywhere(kernel, (4,), arguments, engines=ENGINES).items():
        assert np.array_equal(found[-1], expected), engine


@enceladus.jit
def ticket_kernel(counter, taken, old, flag):
    """Every program takes a number; one of them sets the flag."""
    number = tl.atomic_add(counter, 1)
    tl.store(taken + tl.program_id(0), number)
    tl.store(old + tl.program_id(0), tl.atomic_cas(flag, 0, number + 1))


def test_old_values():
    n = 9
    arguments = {
        "counter": np.array([5], np.int32), "taken": np.zeros(n, np.int32),
        "old": np.zeros(n, np.int32), "flag": np.zeros(1, np.int32),
    }  # fmt: skip
    for engine, found in run_everywhere(ticket_kernel, (n,), arguments, engines=ENGINES).items():
        counter, taken, old, flag = found
        assert counter[0] == 5 + n and sorted(taken) == list(range(5, 5 + n)), engine
        assert sorted(old)[0] == 0 and set(old) <= {0, flag[0]} and (old == 0).sum() == 1, engine


@enceladus.jit
def swap_kernel(x, old, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(old + offs, tl.atomic_xchg(x + offs, offs * 0.5, mask=offs < n))


def test_masked_updates_give_zero():
    x = values("float16", (16,))
    arguments = {"x": x, "old": np.ones(16, np.float16), "n": 11, "BLOCK": 16}
    inside = np.arange(16) < 11
    for engine, (new, old) in run_everywhere(swap_kernel, (1,), arguments, engines=ENGINES).items():
        assert np.array_equal(new, np.where(inside, np.arange(16) * 0.5, x).astype(np.float16)), engine
        assert np.array_equal(old, np.where(inside, x, 0)), engine


# ------------------------------------------------------------------------------- the table is whole


def test_every_builtin_is_used_in_a_test():
    here = Path(__file__)
    text = here.read_text() + (here.parent / "test_philox.py").read_text()
    text += "".join(f"tl.atomic_{kind}(" for kind in KINDS)
    builtins = [getattr(tl, name) for name in tl.__all__ if callable(getattr(tl, name))]
    names = [f.__name__ for f in builtins if f.__module__.rpartition(".")[2] in EXCHANGE_MODULES]
    assert len(names) > 40
    missing = [name for name in names if not re.search(rf"\.{name}\b", text)]
    assert not missing, f"no test uses {', '.join(missing)}"
