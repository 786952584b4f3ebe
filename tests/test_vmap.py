"""enceladus.vmap: a batch in one launch, in every engine, compared with launches one by one."""

from __future__ import annotations

import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests import bridge_helpers
from tests.bridge_helpers import trace
from tests.engines import ENGINES, HostTarget, engine, needs_host

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

#: The interpreter takes one example after the other; all others make one launch.
BATCHING = [name for name in ENGINES if name != "interpreter"]


@pytest.fixture(params=ENGINES)
def anywhere(request):
    with engine(request.param):
        yield request.param


@pytest.fixture
def host():
    target = HostTarget()
    with engine("host", target):
        yield target


def array(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def blocks(n: int, block: int) -> tuple[int]:
    return (enceladus.cdiv(n, block),)


def add(x: mx.array, y: mx.array) -> mx.array:
    return add_kernel[blocks(x.size, 16)](x, y, enceladus.empty_like(x), x.size, BLOCK=16)


def assert_equal(got: mx.array, want: Any) -> None:
    np.testing.assert_array_equal(np.array(got), np.asarray(want))


# ------------------------------------------------------------------------------------- axes


def test_a_batch_is_the_examples_stacked(anywhere):
    x, y = array(5, 37), array(5, 37, seed=1)
    assert_equal(enceladus.vmap(add)(x, y), np.array(x) + np.array(y))


@pytest.mark.parametrize("in_axes", [(0, 1), (1, 0), (-1, -2), (1, None), (None, 0)])
@pytest.mark.parametrize("out_axes", [0, 1, -1])
def test_axes_of_arguments_and_results(anywhere, in_axes, out_axes):
    x, y = (array(5, 37, seed=1) for _ in range(2))
    given = []
    for value, axis in zip((x, y), in_axes, strict=True):
        given.append(value[0] if axis is None else mx.moveaxis(value, 0, axis))
    got = enceladus.vmap(add, in_axes=in_axes, out_axes=out_axes)(*given)
    first, second = (
        np.array(value if axis is not None else value[:1])
        for value, axis in zip((x, y), in_axes, strict=True)
    )
    assert_equal(got, np.moveaxis(first + second, 0, out_axes))


def test_results_that_are_the_same_for_all_examples(anywhere):
    def fn(x):
        ones = scale_kernel[(1,)](mx.ones(4), enceladus.empty(4), 4, 3.0, BLOCK=4)
        return add(x, x), ones, ones + 1, mx.sum(ones.reshape(2, 2), axis=0)

    double, first, second, third = enceladus.vmap(fn, out_axes=(0, 1, 0, 0))(array(3, 8))
    assert_equal(double, 2 * np.array(array(3, 8)))
    assert_equal(first, np.full((4, 3), 3.0))
    assert_equal(second, np.full((3, 4), 4.0))
    assert_equal(third, np.full((3, 2), 6.0))


def test_trees_of_arguments_and_results():
    def fn(pair, options, scale):
        total = add(pair["x"], pair["y"])
        return {"total": total, "list": [total * scale, options]}

    x = array(4, 10)
    with engine("host"):
        got = enceladus.vmap(fn, in_axes=({"x": 0, "y": None}, 0, 0))({"x": x, "y": x[1]}, "text", 2)
    assert_equal(got["total"], np.array(x) + np.array(x[1]))
    assert_equal(got["list"][0], 2 * (np.array(x) + np.array(x[1])))
    assert got["list"][1] == "text"


def test_keyword_arguments_are_the_same_for_all_examples(anywhere):
    def fn(x, *, factor, BLOCK):
        return scale_kernel[blocks(x.size, BLOCK)](x, enceladus.empty_like(x), x.size, factor, BLOCK=BLOCK)

    x = array(3, 20)
    assert_equal(enceladus.vmap(fn)(x, factor=0.5, BLOCK=8), 0.5 * np.array(x))


# ------------------------------------------------------------------------------- composition


def several(x: mx.array, y: mx.array) -> tuple[mx.array, ...]:
    """Launches and MLX operations, two outputs, a fresh fill, an update in place that covers a part."""
    n = x.size
    total = add(x, mx.sin(y))
    double, square = two_outputs_kernel[blocks(n, 16)](
        total * 2, enceladus.empty_like(x), enceladus.full((n + 3,), 7.0), n, BLOCK=16
    )
    increment_kernel[(1,)](double, 5, BLOCK=8)
    return double, square, square.sum()


def one_by_one(fn, *batches: mx.array) -> list[np.ndarray]:
    with engine("graph"):
        results = [fn(*example) for example in zip(*batches, strict=True)]
        return [np.stack([np.array(x) for x in column]) for column in zip(*results, strict=True)]


def test_several_launches_and_operations(anywhere):
    x, y = array(4, 21), array(4, 21, seed=1)
    for got, want in zip(enceladus.vmap(several)(x, y), one_by_one(several, x, y), strict=True):
        # On a GPU MLX's own functions round differently for a batch and for one row: 1.9e-6 was seen.
        np.testing.assert_allclose(np.array(got), want, rtol=4e-6)


def test_nested(anywhere):
    x, y = array(3, 4, 21), array(21, 3, seed=1)
    nested = enceladus.vmap(enceladus.vmap(several, in_axes=(0, None)), in_axes=(0, 1), out_axes=-1)
    pairs = mx.broadcast_to(mx.moveaxis(y, 1, 0)[:, None], (3, 4, 21))
    want = one_by_one(several, x.reshape(12, 21), pairs.reshape(12, 21))
    for got, flat in zip(nested(x, y), want, strict=True):
        np.testing.assert_allclose(np.moveaxis(np.array(got), -1, 0).reshape(flat.shape), flat, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in ENGINES if n != "interpreter"])
def test_mlx_vmap_inside(name):
    """MLX's own vmap inside of ours: its launches are batched over both."""
    x, y = array(3, 4, 21), array(3, 21, seed=1)
    with engine(name):
        got = enceladus.vmap(lambda x, y: mx.vmap(add, in_axes=(0, None))(x, y))(x, y)
    assert_equal(got, np.array(x) + np.array(y)[:, None])


def test_a_function_with_a_gradient_of_its_own(anywhere):
    @mx.custom_function
    def doubled(x):
        return scale_kernel[blocks(x.size, 16)](x, enceladus.empty_like(x), x.size, 2.0, BLOCK=16)

    @doubled.vjp
    def doubled_vjp(primals, cotangent, output):
        return doubled(cotangent)

    x = array(3, 20)
    assert_equal(enceladus.vmap(doubled)(x), 2 * np.array(x))
    assert_equal(enceladus.vmap(mx.grad(lambda x: (doubled(x) * x).sum()))(x), 4 * np.array(x))


def test_program_ids_and_counts_are_those_of_one_example(anywhere):
    @enceladus.jit
    def places(out_ptr, K: tl.constexpr):
        x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
        place = (z * ny + y) * nx + x
        tl.store(out_ptr + place * 2, place)
        tl.store(out_ptr + place * 2 + 1, nx * 100 + ny * 10 + nz)

    def fn(x):
        out = enceladus.zeros(2 * 24, mx.int32) if x is None else x
        return places[(2, 3, 4)](out, K=1)

    want = np.stack([np.arange(24), np.full(24, 234)], axis=1).reshape(-1)
    nested = enceladus.vmap(enceladus.vmap(fn))
    assert_equal(nested(mx.zeros((2, 3, 48), mx.int32)), np.broadcast_to(want, (2, 3, 48)))


def test_a_loop_and_a_reduction(anywhere):
    @enceladus.jit
    def mean(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        total = tl.zeros((BLOCK,), tl.float32)
        pointers = x_ptr + row * n + tl.arange(0, BLOCK)
        for start in range(0, n, BLOCK):
            total += tl.load(pointers, mask=start + tl.arange(0, BLOCK) < n, other=0.0)
            pointers += BLOCK
        tl.store(out_ptr + row, tl.sum(total, axis=0) / n)

    x = array(3, 5, 70)
    got = enceladus.vmap(lambda x: mean[(5,)](x, enceladus.empty(5), 70, BLOCK=32))(x)
    np.testing.assert_allclose(np.array(got), np.array(x).mean(-1), rtol=1e-5)


def test_a_loop_that_updates_in_place(anywhere):
    """Accepted for one example, so accepted for a batch."""

    @enceladus.jit
    def double(x_ptr, n, BLOCK: tl.constexpr):
        first = tl.program_id(0) * n
        for start in range(0, n, BLOCK):
            offsets = first + start + tl.arange(0, BLOCK)
            tl.store(x_ptr + offsets, 2 * tl.load(x_ptr + offsets))

    x = array(3, 2, 64)
    assert_equal(enceladus.vmap(lambda x: double[(2,)](x, 64, BLOCK=32))(x), 2 * np.array(x))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.int8, mx.bool_])
def test_small_types_and_tiny_arrays(anywhere, dtype):
    x = (array(3, 2) > 0).astype(dtype)

    @enceladus.jit
    def copy(x_ptr, out_ptr):
        tl.store(out_ptr + tl.arange(0, 2), tl.load(x_ptr + tl.arange(0, 2)))

    got = enceladus.vmap(lambda x: copy[(1,)](x, enceladus.empty_like(x)))(x)
    assert got.dtype == dtype
    assert mx.array_equal(got, x)


@pytest.mark.parametrize("count", [0, 1])
def test_batches_of_none_and_one(anywhere, count):
    x = mx.zeros((count, 20))
    got = enceladus.vmap(several)(x, x)
    assert [result.shape for result in got] == [(count, 20), (count, 23), (count,)]


def test_arrays_of_the_caller_stay_as_they_are(anywhere):
    x, shared = mx.zeros((3, 8)), mx.ones(8)

    def fn(x, shared):
        increment_kernel[(1,)](x, 8, BLOCK=8)
        increment_kernel[(1,)](shared, 5, BLOCK=8)
        return x, add(x, shared)

    new, total = enceladus.vmap(fn, in_axes=(0, None))(x, shared)
    assert_equal(new, np.ones((3, 8)))
    assert_equal(total, np.tile([3.0, 3, 3, 3, 3, 2, 2, 2], (3, 1)))
    assert_equal(x, np.zeros((3, 8)))
    assert_equal(shared, np.ones(8))


def test_a_result_into_a_shared_array_is_a_copy_for_each_example(anywhere):
    def fn(x):
        out = mx.full((8,), 9.0)
        return scale_kernel[(1,)](x, out, 5, 2.0, BLOCK=8)

    x = array(3, 8)
    want = np.full((3, 8), 9.0, np.float32)
    want[:, :5] = 2 * np.array(x)[:, :5]
    assert_equal(enceladus.vmap(fn)(x), want)


# ------------------------------------------------------------------------------ what it costs


@needs_host
def test_one_launch_for_a_batch_and_free_where_one_example_is_free(host):
    whole, part = (enceladus.JITFunction(kernel.fn) for kernel in (scale_kernel, increment_kernel))

    def fn(x):
        double = whole[blocks(40, 16)](x, mx.zeros(40), 40, 2.0, BLOCK=16)
        return part[(1,)](double, 5, BLOCK=8)

    x = array(6, 40)
    want = 2 * np.array(x)
    want[:, :5] += 1
    assert_equal(enceladus.vmap(fn)(x), want)
    assert ["program_batch0" in source for source in host.sources] == [True, True]
    assert [kernel.output_names for kernel in host.compiled] == [["out_ptr"], ["x_ptr_out", "x_ptr_written"]]


@needs_host
def test_an_argument_without_axis_is_not_repeated(host):
    seen = []
    register = host.register

    x, y = array(6, 40), array(40, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        from enceladus.mlx_bridge import engines

        def note(name, compiled):
            kernel = register(name, compiled)

            def launch(*, inputs, **rest):
                seen.append([array.shape for array in inputs[:2]])
                return kernel(inputs=inputs, **rest)

            return launch

        patch.setattr(engines, "register", note)
        own = enceladus.JITFunction(add_kernel.fn)
        got = enceladus.vmap(lambda x: own[(3,)](x, y, enceladus.empty_like(x), 40, BLOCK=16))(x)
    assert_equal(got, np.array(x) + np.array(y))
    assert seen == [[(6, 40), (40,)]]


def test_lazy_and_legal_under_compile_and_export(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")
    own = enceladus.JITFunction(add_kernel.fn)
    batched = enceladus.vmap(lambda x: own[(3,)](x, x, enceladus.empty_like(x), 40, BLOCK=16))
    x = mx.zeros((6, 40))
    for fn in (batched, mx.compile(batched)):
        with enceladus.no_gradients():
            kernels, _ = trace(lambda fn=fn: fn(x))
        ((_, grid, threadgroup),) = kernels
        assert (grid[0] // threadgroup[0], *grid[1:]) == (3, 1, 6)


def test_a_batch_beyond_the_grid_of_the_gpu():
    from enceladus.mlx_bridge.grid import needs_remap, thread_grid

    grid = (3, 2, 5, 70_000)
    assert needs_remap(grid, 4, "cuda") and not needs_remap(grid, 4, "metal")
    assert thread_grid(grid, 4, "metal", False) == (3 * 128, 2, 350_000)
    x, y, z = thread_grid(grid, 4, "cuda", True)
    assert x // 128 * y * z >= 3 * 2 * 5 * 70_000


@needs_host
def test_programs_numbered_in_one_sequence(host, monkeypatch):
    """The text for batches beyond the grid of the GPU, forced here for a small one."""
    from enceladus.mlx_bridge import grid

    monkeypatch.setattr(grid, "needs_remap", lambda *_: True)
    own = enceladus.JITFunction(add_kernel.fn)
    x = array(2, 3, 40)
    nested = enceladus.vmap(enceladus.vmap(lambda x: own[(3,)](x, x, enceladus.empty_like(x), 40, BLOCK=16)))
    assert_equal(nested(x), 2 * np.array(x))
    assert "const ulong program =" in host.sources[-1]


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: enceladus.vmap(add)(mx.zeros((3, 4)), mx.zeros((2, 4))), ValueError, "differ in length"),
        (lambda: enceladus.vmap(add, in_axes=None)(mx.zeros(4), mx.zeros(4)), ValueError, "no argument has"),
        (lambda: enceladus.vmap(add, in_axes=2)(mx.zeros((3, 4)), mx.zeros((3, 4))), ValueError, "axis 2"),
        (lambda: enceladus.vmap(add, in_axes=(0,))(mx.zeros((3, 4)), mx.zeros(4)), ValueError, "2 values"),
        (lambda: enceladus.vmap(add, in_axes=(0, True))(mx.zeros((3, 4)), mx.zeros(4)), ValueError, "True"),
        (lambda: enceladus.vmap(add)(np.zeros((3, 4)), mx.zeros((3, 4))), TypeError, "NumPy array"),
        (lambda: enceladus.vmap(add)(mx.zeros((3, 4)), y=mx.zeros((3, 4))), TypeError, "by position"),
        (lambda: enceladus.vmap(lambda x: x, out_axes=3)(mx.zeros((3, 4))), ValueError, "axis 3"),
        (lambda: enceladus.vmap(lambda x: x, out_axes=None)(mx.zeros((3, 4))), ValueError, "differs"),
    ],
)
def test_wrong_calls(call, error, words):
    with engine("graph"), pytest.raises(error, match=words):
        call()


@needs_host
def test_what_a_batch_cannot_do_is_refused(host):
    def into_numpy(x):
        return add_kernel[(1,)](x, x, np.zeros(4, np.float32), 4, BLOCK=4)

    with pytest.raises(TypeError, match=r"'out_ptr' is a NumPy array that the kernel writes"):
        enceladus.vmap(into_numpy)(mx.zeros((3, 4)))

    def twice(x):
        return two_outputs_kernel[(1,)](mx.zeros(4), x, x, 4, BLOCK=4)

    with pytest.raises(ValueError, match="are the same array"):
        enceladus.vmap(twice)(mx.zeros((3, 4)))


@pytest.mark.parametrize("name", [n for n in ENGINES if n != "graph"])
def test_an_array_that_is_closed_over_and_written_cannot_be_used_afterwards(name):
    outside = mx.zeros(8)

    def fn(x):
        return x + increment_kernel[(1,)](outside, 8, BLOCK=8)

    with engine(name):
        assert_equal(enceladus.vmap(fn)(mx.ones((3, 8))), np.full((3, 8), 2.0))
        with pytest.raises(RuntimeError, match="without a primitive"):
            mx.eval(outside)


def test_nothing_is_left_behind_by_an_error():
    from enceladus.mlx_bridge import batching

    with engine("host"), pytest.raises(ZeroDivisionError):
        enceladus.vmap(lambda x: 1 // 0)(mx.zeros(3))
    assert batching.levels() == () and not batching.in_progress


def test_other_threads_launch_as_usual():
    """Plans are not used while any thread is in vmap, but launches elsewhere are not batched."""
    x = mx.ones((3, 8))
    mx.eval(x)
    results = []

    def elsewhere():
        one = mx.ones(8)
        results.append(np.array(add(one, one)))

    def fn(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return add(x, x)

    with engine("host" if "host" in ENGINES else "graph"):
        assert_equal(enceladus.vmap(fn)(x), np.full((3, 8), 2.0))
    assert_equal(mx.array(results[0]), np.full(8, 2.0))


def test_wide_indices(anywhere, monkeypatch):
    """64-bit index arithmetic, as for batches of more than 2**31 elements in all."""
    from enceladus.mlx_bridge import jit

    monkeypatch.setattr(jit, "_INDEX_LIMIT", 100)
    own = enceladus.JITFunction(add_kernel.fn)
    x = array(2, 3, 40)
    nested = enceladus.vmap(enceladus.vmap(lambda x: own[(3,)](x, x, enceladus.empty_like(x), 40, BLOCK=16)))
    assert_equal(nested(x), 2 * np.array(x))
    if anywhere in ("host", "cuda"):
        assert [key.wide for key in own._compilations._kernels] == [True]
