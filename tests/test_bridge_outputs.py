"""Written arrays: descriptions of fresh ones, rebinding, what unwritten elements hold, aliasing."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from tests.bridge_helpers import add_kernel, increment_kernel, scale_kernel, trace, two_outputs_kernel, values

X = mx.arange(1, 9, dtype=mx.float32)


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


@pytest.fixture(params=["", "1"], ids=["engine of the device", "interpreter"])
def _engine(request, monkeypatch):
    monkeypatch.setenv("ENCELADUS_INTERPRET", request.param)


@pytest.fixture
def _metal(monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", "metal")


# ------------------------------------------------------------------------------ descriptions


def test_descriptions_take_the_spellings_of_dtypes():
    for dtype in (mx.float16, tl.float16, np.float16, "float16", np.dtype(np.float16)):
        assert enceladus.empty((2, 3), dtype).dtype == mx.float16
    assert enceladus.zeros(4, bool).dtype == mx.bool_
    assert enceladus.empty(4).dtype == mx.float32
    assert enceladus.full(4, 2).dtype == mx.int32
    assert enceladus.full(4, 2.5).dtype == mx.float32
    assert enceladus.full(4, True).dtype == mx.bool_
    assert enceladus.empty_like(np.zeros((2, 3), np.int8)).dtype == mx.int8
    assert enceladus.zeros_like(mx.zeros((2, 0))).shape == (2, 0)
    assert enceladus.ones_like(enceladus.empty((3, 2), mx.int8)).dtype == mx.int8
    assert enceladus.full_like(X, 3, mx.uint8).dtype == mx.uint8
    assert enceladus.empty(()).size == 1
    assert enceladus.empty([2, np.int64(3)]).shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: enceladus.empty(-1), ValueError, "negative"),
        (lambda: enceladus.empty(2.0), TypeError, "int or a tuple of ints"),
        (lambda: enceladus.empty((2, True)), TypeError, "int or a tuple of ints"),
        (lambda: enceladus.empty(2, mx.float64), TypeError, "float64"),
        (lambda: enceladus.empty(2, "floaty"), TypeError, "floaty"),
        (lambda: enceladus.full(2, "1"), TypeError, "value '1'"),
        (lambda: enceladus.full(2, float("nan"), mx.int32), ValueError, "does not fit"),
    ],
)
def test_wrong_descriptions(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_descriptions_compare_by_value_and_type():
    assert enceladus.zeros(3) == enceladus.full(3, 0, mx.float32)
    assert enceladus.full(3, 1, mx.float32) == enceladus.full(3, 1.0, mx.float32)
    assert enceladus.full(3, 0.0) != enceladus.full(3, -0.0)
    assert enceladus.full(3, 1) != enceladus.full(3, True) != enceladus.full(3, 1.0)
    assert enceladus.empty(3) != enceladus.zeros(3)


# ------------------------------------------------------------------------- results and rebinding


@pytest.mark.usefixtures("_engine")
def test_an_existing_array_becomes_the_result():
    out = mx.zeros(8)
    alias = out
    assert add_kernel[(1,)](X, X, out, 8, BLOCK=8) is out
    assert values(alias).tolist() == (2 * values(X)).tolist()


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("dtype", [mx.int8, mx.int32, mx.bfloat16, mx.float16, mx.uint64])
@pytest.mark.parametrize("shape", [(8,), (2, 4), (1, 8, 1), (5,)])
def test_shape_and_dtype_stay(dtype, shape):
    out = mx.zeros(shape, dtype=dtype)
    enceladus.jit(_fill)[(1,)](out, 5, out.size, BLOCK=8)
    assert out.dtype == dtype
    assert out.shape == shape
    assert values(out).tolist() == np.full(shape, 5).tolist()


def _fill(out_ptr, value, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@pytest.mark.usefixtures("_engine")
def test_several_results_come_in_the_order_of_the_parameters():
    double, square = two_outputs_kernel[(1,)](X, enceladus.empty(8), enceladus.empty(8), 8, BLOCK=8)
    assert values(double).tolist() == (2 * values(X)).tolist()
    assert values(square).tolist() == (values(X) ** 2).tolist()
    existing = mx.zeros(8)
    double, square = two_outputs_kernel[(1,)](X, enceladus.empty(8), existing, 8, BLOCK=8)
    assert square is existing


@pytest.mark.usefixtures("_engine")
def test_a_kernel_that_writes_nothing_returns_none():
    @enceladus.jit
    def kernel(x_ptr, WRITE: tl.constexpr):
        if WRITE:
            tl.store(x_ptr, 1.0)

    x = mx.zeros(3)
    assert kernel[(1,)](x, WRITE=False) is None
    assert kernel[(1,)](x, WRITE=True) is x


@pytest.mark.usefixtures("_engine")
def test_written_arrays_inside_a_tuple():
    @enceladus.jit
    def kernel(x_ptr, outs):
        offsets = tl.arange(0, 8)
        x = tl.load(x_ptr + offsets)
        tl.store(outs[0] + offsets, x + 1)
        tl.store(outs[1] + offsets, x + 2)

    existing = mx.zeros(8)
    first, second = kernel[(1,)](X, (existing, enceladus.empty(8)))
    assert first is existing
    assert values(existing).tolist() == (values(X) + 1).tolist()
    assert values(second).tolist() == (values(X) + 2).tolist()


@pytest.mark.usefixtures("_engine")
def test_reading_and_writing_one_array():
    x = mx.arange(5)
    increment_kernel[(2,)](x, 5, BLOCK=4)
    assert values(x).tolist() == [1, 2, 3, 4, 5]
    fresh = increment_kernel[(2,)](enceladus.full(5, 41, mx.int32), 5, BLOCK=4)
    assert values(fresh).tolist() == [42] * 5


@pytest.mark.usefixtures("_engine")
def test_input_and_output_may_be_one_array():
    x = mx.arange(5, dtype=mx.float32)
    scale_kernel[(2,)](x, x, 5, 3.0, BLOCK=4)
    assert values(x).tolist() == [0, 3, 6, 9, 12]


def test_the_result_is_lazy():
    def double(x):
        return add_kernel[(1,)](x, x, enceladus.empty_like(x), x.size, BLOCK=8)

    # Evaluating inside would raise.
    assert values(mx.compile(double)(X)).tolist() == (2 * values(X)).tolist()


# ------------------------------------------------------------------------------ unwritten elements


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("fill", [0, 1, -2.5, float("inf")])
def test_unwritten_elements_of_a_filled_output(fill):
    out = add_kernel[(1,)](X, X, enceladus.full(8, fill, mx.float32), 3, BLOCK=4)
    assert values(out).tolist() == [2, 4, 6, *[fill] * 5]


@pytest.mark.usefixtures("_engine")
def test_unwritten_elements_of_an_existing_array():
    out = mx.arange(100, 108, dtype=mx.float32)
    add_kernel[(1,)](X, X, out, 3, BLOCK=4)
    assert values(out).tolist() == [2, 4, 6, 103, 104, 105, 106, 107]


def _trace_add(out, n, grid=(1,)):
    return trace(lambda: add_kernel[grid](X, X, out, n, BLOCK=8))


@pytest.mark.usefixtures("_metal")
def test_full_coverage_costs_nothing():
    kernels, names = _trace_add(mx.zeros(8), 8)
    assert names == ["CustomKernel"]
    assert "uint8" not in kernels[0].source
    kernels, names = _trace_add(enceladus.zeros(8), 8)
    assert names == ["CustomKernel"]


@pytest.mark.usefixtures("_metal")
def test_partial_coverage_merges_with_the_old_contents():
    for _ in range(2):
        kernels, names = _trace_add(mx.zeros(16), 8)
        assert len(kernels) == 1
        assert "Select" in names
        assert "uint8_t* " in kernels[0].source


@pytest.mark.usefixtures("_metal")
def test_a_plan_for_one_size_is_not_used_for_another():
    """The same kernel and dtypes: covered, then not, by scalar, grid and shape."""
    sizes = [(8, 8, (1,)), (8, 7, (1,)), (16, 16, (2,)), (16, 16, (1,)), (8, 8, (1,)), (17, 17, (3,))]
    for size, n, grid in sizes:
        _, names = _trace_add(mx.zeros(size), n, grid)
        assert ("Select" in names) == (min(n, 8 * grid[0]) < size), (size, n, grid)


@pytest.mark.usefixtures("_metal")
def test_explain_tells_the_cost():
    def cost(out, n):
        text = add_kernel.explain(X, X, out, n, BLOCK=8, grid=(1,))
        assert text.startswith("add_kernel on metal")
        assert "x_ptr: read" in text
        return text.partition("out_ptr: written; ")[2].partition(":")[0]

    assert cost(mx.zeros(8), 8) == "free"
    assert cost(enceladus.empty(16), 8) == "free"
    assert cost(enceladus.zeros(16), 8) == "fill"
    assert cost(mx.zeros(16), 8) == "merge"
    assert cost(enceladus.full(16, 2**24 + 1, mx.int32), 8) == "merge"


@pytest.mark.usefixtures("_metal")
def test_different_fills_in_one_launch_merge():
    def text(*outs):
        return two_outputs_kernel.explain(X, *outs, 4, BLOCK=8, grid=(1,))

    assert text(enceladus.zeros(8), enceladus.ones(8)).count("; merge") == 1
    assert text(enceladus.ones(8), enceladus.ones(8)).count("; fill") == 2
    assert text(enceladus.ones(8), mx.zeros(8)).count("; merge") == 2


@pytest.mark.usefixtures("_engine")
def test_different_fills_are_right():
    outs = (enceladus.full(8, 3.0), enceladus.full(8, -4.0))
    double, square = two_outputs_kernel[(1,)](X, *outs, 2, BLOCK=8)
    assert values(double).tolist() == [2, 4, *[3] * 6]
    assert values(square).tolist() == [1, 4, *[-4] * 6]


@pytest.mark.usefixtures("_engine")
def test_empty_outputs_beside_full_ones():
    double, square = two_outputs_kernel[(1,)](X, enceladus.empty(8), enceladus.zeros((0, 3)), 0, BLOCK=8)
    assert double.shape == (8,)
    assert square.shape == (0, 3)


# ------------------------------------------------------------------------------------------ aliasing


@pytest.mark.parametrize("engine", ["", "interpret", "metal"])
def test_one_array_for_two_outputs_is_refused(engine, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", engine)

    def launch(a, b):
        return two_outputs_kernel[(1,)](X, a, b, 8, BLOCK=8)

    out = mx.zeros(8)

    def wrong():
        launch(mx.zeros(8), mx.zeros(8))  # leaves a plan for the next
        with pytest.raises(ValueError, match="'double_ptr' and 'square_ptr' are the same array"):
            launch(out, out)

    trace(wrong) if engine == "metal" else wrong()
    fresh = enceladus.empty(8)
    if engine != "metal":
        double, square = launch(fresh, fresh)  # one description serves twice
        assert double is not square


@pytest.mark.parametrize("engine", ["", "interpret", "metal"])
def test_a_load_that_would_have_to_see_a_store_is_refused(engine, monkeypatch):
    monkeypatch.setenv("ENCELADUS_ENGINE", engine)

    @enceladus.jit
    def kernel(a_ptr, b_ptr, out_ptr):
        offsets = tl.arange(0, 8)
        tl.store(a_ptr + offsets, 1.0)
        tl.store(out_ptr + offsets, tl.load(b_ptr + offsets))

    def check():
        a = mx.zeros(8)
        kernel[(1,)](a, mx.zeros(8), enceladus.empty(8))
        with pytest.raises(ValueError, match="'a_ptr' and 'b_ptr' are the same array, but the kernel loads"):
            kernel[(1,)](a, a, enceladus.empty(8))

    trace(check) if engine == "metal" else check()
