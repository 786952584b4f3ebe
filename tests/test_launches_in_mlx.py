"""Launches inside MLX: streams, mx.compile, mx.checkpoint, export, asynchronous evaluation, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.mlx_bridge import engines
from tests import bridge_helpers
from tests.bridge_helpers import trace

# Kernels of this module's own: their specializations do not add up with those of other tests.
add_kernel, scale_kernel, increment_kernel, two_outputs_kernel = (
    enceladus.JITFunction(kernel.fn)
    for kernel in (
        bridge_helpers.add_kernel,
        bridge_helpers.scale_kernel,
        bridge_helpers.increment_kernel,
        bridge_helpers.two_outputs_kernel,
    )
)


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


@pytest.fixture
def _metal(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")


def double(x: mx.array, **options: Any) -> mx.array:
    grid = (enceladus.cdiv(x.size, 16),)
    return scale_kernel[grid](x, enceladus.empty_like(x), x.size, 2.0, BLOCK=16, **options)


# ----------------------------------------------------------------------------------- streams


def test_a_stream_for_one_launch():
    other = mx.new_stream(mx.default_device())
    before = mx.default_stream(mx.default_device())
    x = mx.arange(40).astype(mx.float32)
    results = [double(x, stream=stream) for stream in (other, other, None, mx.default_device())]
    assert mx.default_stream(mx.default_device()) == before
    with mx.stream(other):
        results.append(double(x))
    results.append(double(double(x, stream=other)) / 2)
    for result in results:
        assert mx.array_equal(result, 2 * x)


def test_the_launch_is_on_the_stream(monkeypatch):
    """What MLX sees: its default stream at the moment of the call."""
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    seen = []

    def register(_, compiled):
        def kernel(*, output_shapes, output_dtypes, **_):
            seen.append(mx.default_stream(mx.default_device()))
            pairs = zip(output_shapes, output_dtypes, strict=True)
            return [mx.zeros(shape, dtype=dtype) for shape, dtype in pairs]

        return kernel

    monkeypatch.setattr(engines, "register", register)
    own = enceladus.JITFunction(scale_kernel.fn)
    default, other = mx.default_stream(mx.default_device()), mx.new_stream(mx.default_device())
    x = mx.zeros(40)
    for options in ({}, {"stream": other}, {"stream": None}, {"stream": other}):
        own[(3,)](x, enceladus.empty_like(x), 40, 2.0, BLOCK=16, **options)
    with mx.stream(other):
        own[(3,)](x, enceladus.empty_like(x), 40, 2.0, BLOCK=16)
    assert seen == [default, other, default, other, other]


def test_a_wrong_stream():
    with pytest.raises(TypeError, match="stream is 3; it must be an"):
        double(mx.zeros(8), stream=3)


def test_a_kernel_may_have_a_parameter_called_stream():
    @enceladus.jit
    def fill(x_ptr, stream, num_warps: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, 4), stream * num_warps)

    assert fill[(1,)](enceladus.empty(4, mx.int32), stream=3, num_warps=2).tolist() == [6] * 4


def test_wrong_arguments_with_a_stream_are_explained():
    with pytest.raises(TypeError, match="unexpected keyword argument 'factr'; did you mean 'factor'"):
        scale_kernel[(1,)](mx.zeros(4), enceladus.empty(4), 4, 1.0, BLOCK=4, stream=None, factr=2)
    with pytest.raises(TypeError, match="missing 1 argument: 'BLOCK'"):
        scale_kernel[(1,)](mx.zeros(4), enceladus.empty(4), 4, 1.0, stream=mx.default_device())
    assert scale_kernel.warmup(mx.zeros(4), enceladus.empty(4), 4, 1.0, BLOCK=4, stream=None).name


# ----------------------------------------------------------------------------------- compile


def test_compile_traces_again_for_another_shape():
    traced = []

    @mx.compile
    def fn(x):
        traced.append(x.shape)
        y = double(x)
        increment_kernel[(1,)](y, 3, BLOCK=4)
        return y - 1

    for n in (20, 33, 20):
        x = mx.arange(n).astype(mx.float32)
        want = 2 * np.arange(n) - 1.0
        want[:3] += 1
        for _ in range(2):
            np.testing.assert_array_equal(np.array(fn(x)), want)
    assert traced == [(20,), (33,)]


def test_compile_with_state():
    state = [mx.zeros(8)]

    @mx.compile
    def unrelated(x):
        return x + 1

    def step(x):
        state[0] = increment_kernel[(1,)](state[0] + x, 8, BLOCK=8)
        return state[0].sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    totals = [compiled(unrelated(mx.zeros(8))).item() for _ in range(3)]
    assert totals == [16.0, 32.0, 48.0]


@pytest.mark.usefixtures("_metal")
def test_compile_on_a_gpu_keeps_the_kernels():
    def fn(x):
        y = scale_kernel[(3,)](x, enceladus.empty_like(x), 40, 2.0, BLOCK=16)
        return increment_kernel[(1,)](y, 40, BLOCK=64)  # all of it: MLX cannot export fused operations

    with enceladus.no_gradients():  # MLX exports no custom functions
        kernels, names = trace(lambda: mx.compile(fn)(mx.zeros(40)))
    assert len(kernels) == 2
    assert names.count("CustomKernel") == 2


# --------------------------------------------------------------------- checkpoint and export


def test_checkpoint():
    def fn(x):
        return mx.sin(double(x)) * x

    x = mx.arange(20).astype(mx.float32)
    assert mx.allclose(mx.checkpoint(fn)(x), fn(x))


def test_an_exported_function_needs_no_python(tmp_path):
    def fn(x, y):
        total = add_kernel[(3,)](x, y, enceladus.empty_like(x), 40, BLOCK=16)
        return two_outputs_kernel[(3,)](total, enceladus.empty_like(x), mx.ones(50), 40, BLOCK=16)

    x, y = mx.arange(40).astype(mx.float32), mx.ones(40)
    path = str(tmp_path / "fn.mlxfn")
    with enceladus.no_gradients():  # MLX cannot write the gradient that a launch has on a GPU
        mx.export_function(path, fn, x, y)
    for got, want in zip(mx.import_function(path)(x, y), fn(x, y), strict=True):
        assert mx.array_equal(got, want)


@pytest.mark.usefixtures("_metal")
def test_an_exported_gpu_function_holds_the_source(tmp_path):
    own = enceladus.JITFunction(add_kernel.fn)
    x = mx.zeros(40)
    path = tmp_path / "fn.mlxfn"
    with enceladus.no_gradients():
        mx.export_function(str(path), lambda x: own[(3,)](x, x, enceladus.empty_like(x), 40, BLOCK=16), x)
    assert b"total" in path.read_bytes()


def test_async_eval():
    x = mx.arange(40).astype(mx.float32)
    results = [double(x + i) for i in range(8)]
    mx.async_eval(*results)
    increment_kernel[(1,)](results[0], 40, BLOCK=64)
    np.testing.assert_array_equal(np.array(results[0]), 2 * np.arange(40) + 1.0)
    for i, result in enumerate(results[1:], 1):
        np.testing.assert_array_equal(np.array(result), 2 * (np.arange(40) + i))


# ----------------------------------------------------------------------------------- threads


@enceladus.jit
def row_sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x_ptr + tl.program_id(0) * n + offsets, mask=offsets < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(row, axis=0))


def kernels() -> dict[str, enceladus.JITFunction]:
    """New kernels, so that threads meet where nothing is compiled yet."""
    known = (add_kernel, scale_kernel, increment_kernel, two_outputs_kernel, row_sums)
    return {kernel.__name__: enceladus.JITFunction(kernel.fn) for kernel in known}


def one_launch(kernel: dict[str, enceladus.JITFunction], random: np.random.Generator) -> None:
    """A launch of a random kernel on random arguments, checked against NumPy."""
    n = int(random.integers(1, 60))
    block = int(random.choice([16, 64]))
    data = random.integers(-50, 50, n).astype(np.float32)
    x, grid = mx.array(data), (enceladus.cdiv(n, block),)
    match random.integers(0, 6):
        case 0:
            got = kernel["add_kernel"][grid](x, x, enceladus.empty_like(x), n, BLOCK=block)
            want = 2 * data
        case 1:
            factor = float(random.integers(1, 5))
            got = kernel["scale_kernel"][grid](x, enceladus.empty_like(x), n, factor, BLOCK=block)
            want = data * np.float32(factor)
        case 2:
            part = n // 2
            got = kernel["increment_kernel"][grid](x, part, BLOCK=block)
            want = data + (np.arange(n) < part)
        case 3:
            _, got = kernel["two_outputs_kernel"][grid](x, mx.zeros(n), enceladus.zeros(n), n, BLOCK=block)
            want = data * data
        case 4:
            rows = mx.array(np.stack([data, data + 1]))
            got = kernel["row_sums"][(2,)](rows, enceladus.empty(2), n, BLOCK=64)
            want = np.array([data.sum(), data.sum() + n])
        case _:
            add = kernel["add_kernel"]
            batch = mx.array(np.stack([data, data + 1]))
            got = enceladus.vmap(lambda x: add[grid](x, x, enceladus.empty_like(x), n, BLOCK=block))(batch)
            want = 2 * np.stack([data, data + 1])
    np.testing.assert_array_equal(np.array(got), want)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)``, ``work(1)``, … at the same time; the first error of any of them."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.filterwarnings("ignore:.*has been compiled 17 times:enceladus.EnceladusWarning")
def test_sixteen_threads():
    shared = kernels()

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(10):
            one_launch(shared, random)

    in_threads(16, work)


@pytest.mark.usefixtures("_metal")
@pytest.mark.filterwarnings("ignore:.*has been compiled 17 times:enceladus.EnceladusWarning")
def test_threads_that_compile_the_same_kernels():
    """Sixteen threads ask for the same specializations; each is compiled once, and all get that one."""
    shared = kernels()
    x = mx.zeros((2, 60))
    found: list[list[Any]] = [[] for _ in range(16)]

    def work(number: int) -> None:
        for block in (16, 32, 64, 128):
            for dtype in (mx.float32, mx.float16):
                out = enceladus.empty((2, 60), dtype)
                warm = shared["add_kernel"].warmup(x, x, out, 120, BLOCK=block, grid=(8,))
                found[number].append(warm.kernel)

    in_threads(16, work)
    for other in found[1:]:
        assert all(a is b for a, b in zip(found[0], other, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has been compiled 17 times:enceladus.EnceladusWarning")
def test_sixteen_threads_for_a_minute():
    end = time.monotonic() + 60
    launches = [0] * 16

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        while time.monotonic() < end:
            own = shared[int(random.integers(0, len(shared)))]
            if random.integers(0, 50) == 0:
                shared[int(random.integers(0, len(shared)))] = kernels()
            one_launch(own, random)
            launches[number] += 1

    shared = [kernels() for _ in range(4)]
    in_threads(16, work)
    assert min(launches) > 0
