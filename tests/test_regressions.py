"""Defects that were found by trying to break things; each test names what went wrong."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.engines import ENGINES, assert_everywhere, assert_same, engine, kernel_from_source
from tests.host_executor import to_numpy

FACTOR = 2


@enceladus.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


# --------------------------------------------------- the compiled kernel follows what it was compiled from


@enceladus.jit
def scaled(x):
    return x * FACTOR


def plain_scale(n):
    return n * FACTOR


class Settings:
    factor = 2

    @staticmethod
    def scale(n):
        return n * FACTOR


def _apply(x_ptr, out_ptr, F: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, F(tl.load(x_ptr + offs)))


def _apply_to_one(x_ptr, out_ptr, F: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * F(1))


def _read_class(x_ptr, out_ptr, C: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * C.factor)


def _call_class(x_ptr, out_ptr, C: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * C.scale(1))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("function", "argument"),
    [(_apply, scaled), (_apply_to_one, plain_scale), (_read_class, Settings), (_call_class, Settings)],
)
def test_globals_behind_a_constexpr_argument_are_noticed(name, function, argument, monkeypatch):
    kernel = enceladus.jit(function)
    x = mx.arange(8).astype(mx.float32)
    with engine(name):
        for factor in (2, 5):
            monkeypatch.setattr(Settings, "factor", factor)
            monkeypatch.setitem(globals(), "FACTOR", factor)
            for _ in range(2):  # the second launch repeats the first one's plan
                out = kernel[(1,)](x, enceladus.empty_like(x), argument, BLOCK=8)
                assert_same(to_numpy(out), factor * np.arange(8, dtype=np.float32))


def _times(factor):
    return lambda n: n * factor


def _tile_times(factor):
    @enceladus.jit
    def times(x):
        return x * factor

    return times


PLAIN = [_times(1)] * 3
TILED = [_tile_times(1)] * 3
NESTED = (_times(2), (_times(3), [_times(2)]))


@enceladus.jit
def plain_kernel(out_ptr):
    tl.store(out_ptr, PLAIN[0](100) + PLAIN[1](10) + PLAIN[2](1))


@enceladus.jit
def tiled_kernel(out_ptr):
    one = tl.num_programs(0)
    tl.store(out_ptr, TILED[0](one * 100) + TILED[1](one * 10) + TILED[2](one))


@enceladus.jit
def nested_kernel(out_ptr):
    tl.store(out_ptr, NESTED[0](100) + NESTED[1][0](10) + NESTED[1][1][0](1))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("kernel", "make"), [(plain_kernel, _times), (tiled_kernel, _tile_times)])
def test_functions_of_one_factory_are_told_apart(name, kernel, make):
    """They have one qualified name; only their closures differ."""
    kernel = enceladus.JITFunction(kernel.fn)
    functions = PLAIN if make is _times else TILED
    with engine(name):
        for factors in [(2, 3, 2), (2, 3, 3), (3, 2, 3), (7, 3, 2)]:
            functions[:] = map(make, factors)
            expected = 100 * factors[0] + 10 * factors[1] + factors[2]
            assert kernel[(1,)](enceladus.empty(1, mx.int32)).tolist() == [expected]


@pytest.mark.parametrize("name", ENGINES)
def test_functions_inside_nested_containers_are_noticed(name, monkeypatch):
    kernel = enceladus.JITFunction(nested_kernel.fn)
    with engine(name):
        assert kernel[(1,)](enceladus.empty(1, mx.int32)).tolist() == [232]
        monkeypatch.setitem(globals(), "NESTED", (_times(2), (_times(3), [_times(4)])))
        assert kernel[(1,)](enceladus.empty(1, mx.int32)).tolist() == [234]
        NESTED[1][1][0] = _times(9)
        assert kernel[(1,)](enceladus.empty(1, mx.int32)).tolist() == [239]


# --------------------------------------------------------------------------- NumPy arrays that share memory


def _write_both(a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(a_ptr + offs, offs, mask=offs < n)
    tl.store(b_ptr + offs, offs * 10, mask=offs < n)


def _store_then_load(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(a_ptr + offs, offs)
    tl.store(out_ptr + offs, tl.load(b_ptr + offs))


@pytest.mark.parametrize("name", ENGINES)
def test_overlapping_numpy_outputs_are_refused(name):
    """Each was copied back whole, so the second one undid the first."""
    kernel = enceladus.jit(_write_both)
    with engine(name):
        a = np.zeros(8, np.int32)
        for b in (a, a[:], a.reshape(2, 4), a[::-1]):
            with pytest.raises(ValueError, match=r"'a_ptr' and 'b_ptr' (are the same array|share memory)"):
                kernel[(1,)](a, b, 4, BLOCK=8)
        assert not a.any()
        columns = np.zeros((4, 4), np.int32)  # one block of memory, but no common element
        kernel[(1,)](columns[:, :2], columns[:, 2:], 8, BLOCK=8)
        assert columns.tolist() == [[2 * r, 2 * r + 1, 20 * r, 20 * r + 10] for r in range(4)]


@pytest.mark.parametrize("name", ENGINES)
def test_loading_from_a_view_of_what_was_stored_is_refused(name):
    kernel = enceladus.jit(_store_then_load)
    with engine(name):
        a = np.zeros(16, np.float32)
        with pytest.raises(ValueError, match="'a_ptr' and 'b_ptr' share memory"):
            kernel[(1,)](a[:8], a[4:12], enceladus.empty(8), BLOCK=8)
        _, out = kernel[(1,)](a[:8], a[8:], enceladus.empty(8), BLOCK=8)
        assert not to_numpy(out).any() and a[7] == 7


# ----------------------------------------------------------------------------------- fills of fresh outputs


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [
        (-0.0, "float32", -0.0),
        (-0.0, "bfloat16", -0.0),
        (2**64 - 1, "uint64", 2**64 - 1),
        (2**63 - 1, "int64", 2**63 - 1),
        (-3.0, "int8", -3),
        (0.5, "bool_", True),
        (2, "bool_", True),
        (70_000, "float16", math.inf),
        (1 + 2**-11 + 2**-30, "float16", 1 + 2**-10),  # rounded once
        (-(2**2000), "float32", -math.inf),
        (math.nan, "float16", math.nan),
    ],
)
def test_fills_are_the_same_in_every_engine(name, fill, dtype, expected):
    """``-0.0`` lost its sign, ``2**64 - 1`` and floats in integer outputs were internal errors."""
    dtype = getattr(mx, dtype)
    kernel = enceladus.JITFunction(copy_kernel.fn)
    with engine(name):
        for _ in range(2):
            out = kernel[(1,)](mx.zeros(6, dtype), enceladus.full(6, fill, dtype), 2, BLOCK=4)
            got = to_numpy(out)
            assert out.dtype == dtype
            assert_same(got, np.array([0, 0, *[expected] * 4], got.dtype))


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [
        (300, mx.uint8),
        (-1, mx.uint64),
        (2.5, mx.int32),
        (2**31, mx.int32),
        (1e30, mx.int64),
        (math.inf, mx.int8),
    ],
)
def test_fills_that_do_not_fit_are_refused(fill, dtype):
    with pytest.raises(ValueError, match="does not fit"):
        enceladus.full(3, fill, dtype)


@pytest.mark.parametrize("name", ENGINES)
def test_negative_zero_does_not_reuse_the_plan_of_zero(name):
    kernel = enceladus.JITFunction(copy_kernel.fn)
    x = mx.ones(4)
    with engine(name):
        for fill in (0.0, -0.0, 0.0):
            out = to_numpy(kernel[(1,)](x, enceladus.full(4, fill), 1, BLOCK=4))
            assert np.signbit(out[1:]).tolist() == [math.copysign(1, fill) < 0] * 3


# ------------------------------------------------------------------------------------------ loops and names


@enceladus.jit
def count_kernel(out_ptr, start, stop, step):
    trips = 0
    total = (stop - stop) + (start - start) + (step - step)
    for i in range(start, stop, step):
        trips += 1
        total += i
    tl.store(out_ptr, trips)
    tl.store(out_ptr + 1, total)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (2**63 - 5, 2**63 - 1, 3),
        (-(2**63) + 2, -(2**63), -3),
        (2**62, 2**63 - 1, 2**62),
        (-(2**63), 2**63 - 1, 2**63 - 1),
        (2**63 - 1, -(2**63), -(2**63)),
        (2**40, 0, -(2**38)),
        (0, -5, 2**40),
    ],
)
def test_loops_end_near_the_limits_of_64_bits(start, stop, step):
    """The induction variable stepped past the end of int64 and the loop went on for ever."""
    numbers = range(start, stop, step)
    total = (sum(numbers) + 2**63) % 2**64 - 2**63
    arguments = {"out_ptr": np.zeros(2, np.int64), "start": start, "stop": stop, "step": step}
    assert_everywhere(count_kernel, (1,), arguments, np.array([len(numbers), total], np.int64))


@pytest.mark.parametrize("parameter", ["INT_MAX", "FLT_EPSILON", "M_PI_H", "M_PI", "MAXFLOAT", "CHAR_BIT"])
def test_parameters_named_like_macros(parameter):
    """The text did not compile: the preprocessor replaced the parameter's name."""
    kernel = kernel_from_source(
        f"@enceladus.jit\ndef kernel({parameter}, out):\n"
        f"    i = tl.arange(0, 8)\n    tl.store(out + i, tl.load({parameter} + i) + 1)\n"
    )
    x = np.arange(8, dtype=np.float32)
    assert_everywhere(kernel, (1,), {parameter: x, "out": np.zeros(8, np.float32)}, x + 1)


# ----------------------------------------------------------------------------------------- kernels as objects


def test_kernels_can_be_copied_and_pickled():
    """A module that holds a kernel could not be copied: locks cannot be."""
    assert copy.deepcopy({"kernel": copy_kernel})["kernel"] is copy_kernel
    assert copy.copy(copy_kernel) is copy_kernel
    assert pickle.loads(pickle.dumps(copy_kernel)) is copy_kernel


@pytest.mark.parametrize("name", ENGINES)
def test_threads_launch_a_new_kernel_at_once(name):
    kernel = enceladus.JITFunction(copy_kernel.fn)
    barrier = threading.Barrier(6)
    wrong = []

    def work():
        try:
            barrier.wait()
            for n in (3, 8, 5):
                x = mx.arange(n).astype(mx.float32)
                out = to_numpy(kernel[(2,)](x, enceladus.empty_like(x), n, BLOCK=4))
                assert_same(out, np.arange(n, dtype=np.float32))
        except BaseException as error:
            wrong.append(error)

    with engine(name):
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
