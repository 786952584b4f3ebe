"""Binding, classification and the odd shapes of arrays."""

from __future__ import annotations

import enum
from collections import namedtuple

import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.frontend.signature import ArrayArgument, ConstantArgument, ScalarArgument, TupleArgument
from enceladus.mlx_bridge.arguments import Classifier, constant_text
from tests.bridge_helpers import add_kernel, increment_kernel, scale_kernel, values


@pytest.fixture(autouse=True)
def cache_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ENCELADUS_CACHE_DIR", str(tmp_path))


def _record(value, **options):
    return _bound(value, **options).records[0][1]


def _bound(value, **options):
    @enceladus.jit
    def kernel(a):
        pass

    return Classifier(kernel.kernel_function, **options).classify({"a": value})


# ------------------------------------------------------------------------------------ classification


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (0, ScalarArgument(tl.int32, divisible_by_16=True)),
        (1, ConstantArgument(1, "int:1")),
        (2, ScalarArgument(tl.int32)),
        (-32, ScalarArgument(tl.int32, divisible_by_16=True)),
        (2**31 - 1, ScalarArgument(tl.int32)),
        (2**31 + 1, ScalarArgument(tl.int64)),
        (-(2**31), ScalarArgument(tl.int32, divisible_by_16=True)),
        (-(2**31) - 1, ScalarArgument(tl.int64)),
        (2**63 + 1, ScalarArgument(tl.uint64)),
        (np.int64(7), ScalarArgument(tl.int32)),
        (np.float32(7), ScalarArgument(tl.float32)),
        (np.bool_(True), ScalarArgument(tl.int1)),
        (1.0, ScalarArgument(tl.float32)),
        (True, ScalarArgument(tl.int1)),
        (None, ConstantArgument(None, "NoneType:None")),
        (tl.constexpr(7), ConstantArgument(7, "int:7")),
        (mx.zeros(3, dtype=mx.bfloat16), ArrayArgument(tl.bfloat16)),
        (mx.zeros(3, dtype=mx.bool_), ArrayArgument(tl.int1)),
        (np.zeros(3, np.uint16), ArrayArgument(tl.uint16)),
        (enceladus.empty(3, mx.int8), ArrayArgument(tl.int8)),
    ],
    ids=str,
)
def test_the_record_of_a_value(value, record):
    assert _record(value) == record


def test_do_not_specialize_keeps_one_and_multiples_of_16_general():
    options = {"do_not_specialize": frozenset({"a"})}
    assert _record(1, **options) == ScalarArgument(tl.int32)
    assert _record(32, **options) == ScalarArgument(tl.int32)


def test_wide_integers_are_64_bit():
    assert _record(5, wide=True) == ScalarArgument(tl.int64)


def test_tuples_are_flattened_depth_first():
    pair = namedtuple("pair", "left right")
    bound = _bound((mx.zeros(3), (2.5, None), pair(3, mx.zeros(2, dtype=mx.int8))))
    assert [leaf.name for leaf in bound.leaves] == ["a_0", "a_1_0", "a_2_left", "a_2_right"]
    record = bound.records[0][1]
    assert isinstance(record, TupleArgument)
    assert record.items[0] == ArrayArgument(tl.float32)
    assert record.items[1].items[1] == ConstantArgument(None, "NoneType:None")
    assert record.items[2].names == ("left", "right")
    assert bound.arrays[1].parameter == "a[2][1]"


class Color(enum.Enum):
    RED = 1


@enceladus.jit
def helper(x):
    return x + 1


def test_constants_of_different_types_have_different_texts():
    constants = [1, 1.0, True, "1", None, 0.0, -0.0, tl.float32, (1,), (1.0,), (), helper, Color.RED, max]
    texts = [constant_text(value, "x") for value in constants]
    assert len(set(texts)) == len(texts)


# ------------------------------------------------------------------------------------------ wrong calls


def _launch(*args, grid=(1,), **kwargs):
    return add_kernel[grid](*args, **kwargs)


X = mx.arange(8, dtype=mx.float32)
WRONG = [
    (lambda: _launch(X, X), TypeError, r"is missing 3 arguments: 'out_ptr', 'n', 'BLOCK'"),
    (lambda: _launch(X, X, X, 8), TypeError, "missing 1 argument: 'BLOCK'"),
    (lambda: _launch(X, X, X, 8, 8, 8), TypeError, "takes 5 positional arguments .x_ptr, .*but 6 were given"),
    (lambda: _launch(X, X, X, 8, BLOK=8), TypeError, "'BLOK'; did you mean 'BLOCK'"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, num_warp=8), TypeError, "did you mean 'num_warps'"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, num_warps=3), ValueError, "num_warps is 3; .* power of two"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, num_warps=2.0), TypeError, "num_warps is 2.0"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=(2.5,)), TypeError, r"grid\[0\] is 2.5 \(float\)"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=(1, True)), TypeError, r"grid\[1\] is True \(bool\)"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=(-1,)), ValueError, r"grid\[0\] is -1"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=(1, 1, 1, 1)), ValueError, "has 4 dimensions"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=()), ValueError, "has 0 dimensions"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid="1"), TypeError, "grid is '1'"),
    (lambda: _launch(X, X, X, 8, BLOCK=8, grid=lambda a: 1.5), TypeError, "grid is 1.5 .float."),
    (lambda: _launch([1.0], X, X, 8, BLOCK=8), TypeError, "'x_ptr' is a list; pass a tuple, or mx.array"),
    (lambda: _launch("x", X, X, 8, BLOCK=8), TypeError, "'x_ptr' is a str.*x_ptr: tl.constexpr"),
    (lambda: _launch(X, X, X, tl.float32, BLOCK=8), TypeError, "'n' is a DType.*n: tl.constexpr"),
    (lambda: _launch(X, X, X, helper, BLOCK=8), TypeError, "'n' is a kernel function"),
    (lambda: _launch(X, X, X, 1j, BLOCK=8), TypeError, "'n' is a complex number"),
    (lambda: _launch(X, X, X, object(), BLOCK=8), TypeError, "'n' is an object; a kernel takes mx.array"),
    (lambda: _launch(X, X, X, 2**64, BLOCK=8), OverflowError, "'n' is 1844.*, which does not fit"),
    (lambda: _launch(X, X, X, 8, BLOCK=X), TypeError, "'BLOCK' is constexpr.*it got an array"),
    (lambda: _launch(X, X, X, 8, BLOCK=[8]), TypeError, "'BLOCK' is constexpr.*not a list"),
    (lambda: _launch(X, X, X, 8, BLOCK=enceladus.empty(8)), TypeError, "'BLOCK' is constexpr"),
    (lambda: _launch(np.zeros(8), X, X, 8, BLOCK=8), TypeError, "'x_ptr' has dtype float64.*astype"),
    (lambda: _launch(X.astype(mx.complex64), X, X, 8, BLOCK=8), TypeError, "dtype complex64.*two float32"),
    (lambda: _launch(np.array(["a"]), X, X, 8, BLOCK=8), TypeError, "'x_ptr' has dtype str"),
    (
        lambda: _launch(enceladus.empty(8), X, X, 8, BLOCK=8),
        TypeError,
        "'x_ptr' is only read by the kernel, so it must be an existing array",
    ),
    (lambda: _launch(X, X, 3, 8, BLOCK=8), enceladus.CompilationError, "store"),
    (lambda: add_kernel(X, X, X, 8, 8), TypeError, r"launch it with add_kernel\[grid\]\(...\)"),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG, ids=[w for _, _, w in WRONG])
def test_a_wrong_call_says_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_repeated_argument_is_refused():
    with pytest.raises(TypeError, match="x_ptr"):
        add_kernel[(1,)](X, X, X, 8, 8, x_ptr=X)


def test_wrong_decorator_arguments():
    with pytest.raises(TypeError, match="did you mean 'do_not_specialize'"):
        enceladus.jit(do_not_specialise=["n"])
    with pytest.raises(ValueError, match="has no parameter 'm'; it has x"):
        enceladus.jit(do_not_specialize=["m"])(lambda x: x)
    with pytest.raises(ValueError, match="math_mode is 'quick'"):
        enceladus.jit(math_mode="quick")
    with pytest.raises(TypeError, match="takes a Python function"):
        enceladus.jit(3)


# -------------------------------------------------------------------------------------- odd arrays


@pytest.fixture(params=["", "1"], ids=["engine of the device", "interpreter"])
def _engine(request, monkeypatch):
    monkeypatch.setenv("ENCELADUS_INTERPRET", request.param)


def _views():
    base = mx.arange(64, dtype=mx.float32)
    small = mx.arange(8).astype(mx.int8)
    return {
        "slice at an odd offset": base[3:40],
        "transposed": base.reshape(8, 8).T,
        "broadcast": mx.broadcast_to(base[:8], (4, 8)),
        "every second": base[::2],
        "reversed": base[::-1],
        "0-d": mx.array(2.5),
        "one element": mx.array([2.5]),
        "seven": base[1:8],
        "small int8 at an odd offset": small[1:4],
        "bool": small[3:6] > 4,
        "half": base[5:8].astype(mx.float16)[1:],
        "bfloat16": base.astype(mx.bfloat16)[1:],
        "0-d bfloat16": mx.array(1.5, dtype=mx.bfloat16),
        "NumPy": np.arange(10, dtype=np.float32)[::-2],
        "NumPy int64": np.arange(10) * 2**33,
        "empty": mx.zeros((0, 3)),
    }


def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("name", list(_views()))
@pytest.mark.parametrize("output", ["fresh", "existing"])
def test_every_view_of_an_array_is_read_in_row_major_order(name, output):
    view = _views()[name]
    size = int(view.size)
    out = enceladus.empty_like(view)
    if output == "existing":
        out = mx.zeros(out.shape, dtype=out.dtype)
    kernel = enceladus.jit(copy_kernel)  # a new one each time: seventeen dtypes would warn
    result = kernel[(enceladus.cdiv(size, 16),)](view, out, size, BLOCK=16)
    assert result.shape == tuple(view.shape)
    expected = view if isinstance(view, np.ndarray) else values(view)
    np.testing.assert_array_equal(values(result), expected)


@pytest.mark.usefixtures("_engine")
def test_a_written_numpy_array_is_copied_back():
    x = np.arange(5, dtype=np.int32)
    out = np.full(5, -1, np.int32)
    assert scale_kernel[(1,)](x, out, 3, 10, BLOCK=8) is out
    np.testing.assert_array_equal(out, [0, 10, 20, -1, -1])
    np.testing.assert_array_equal(x, np.arange(5))


@pytest.mark.usefixtures("_engine")
def test_a_written_numpy_view_is_written_through():
    base = np.zeros((4, 6), np.float32)
    increment_kernel[(1,)](base[:, ::2], 12, BLOCK=16)
    np.testing.assert_array_equal(base, np.tile([1, 0], (4, 3)).astype(np.float32))


def test_a_numpy_bfloat16_array():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(9).astype(ml_dtypes.bfloat16)
    increment_kernel[(1,)](x, 9, BLOCK=16)
    np.testing.assert_array_equal(x.astype(np.float32), np.arange(1, 10))


def test_a_read_only_numpy_array_cannot_be_written():
    x = np.broadcast_to(np.float32(1), (4,))
    with pytest.raises(ValueError, match="'x_ptr' is written by the kernel but the NumPy array is read-only"):
        increment_kernel[(1,)](x, 4, BLOCK=4)


@pytest.mark.usefixtures("_engine")
def test_scalars_of_every_type():
    @enceladus.jit
    def kernel(out_ptr, a, b, c, d, e):
        tl.store(out_ptr, a.to(tl.float32))
        tl.store(out_ptr + 1, b.to(tl.float32))
        tl.store(out_ptr + 2, c)
        tl.store(out_ptr + 3, d.to(tl.float32))
        tl.store(out_ptr + 4, e.to(tl.float32))

    out = kernel[(1,)](enceladus.empty(5), 7, -(2**40), 2.5, True, 2**63 + 2**50)
    np.testing.assert_array_equal(values(out), np.float32([7, -(2**40), 2.5, 1, 2**63 + 2**50]))


@pytest.mark.usefixtures("_engine")
def test_none_and_tuples_reach_the_kernel():
    @enceladus.jit
    def kernel(pair, bias, out_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        x = tl.load(pair[0] + offsets) * pair[1]
        if bias is not None:
            x += tl.load(bias + offsets)
        tl.store(out_ptr + offsets, x)

    x = mx.arange(8, dtype=mx.float32)
    out = kernel[(1,)]((x, 3), None, enceladus.empty(8), BLOCK=8)
    np.testing.assert_array_equal(values(out), np.arange(8) * 3)
    out = kernel[(1,)]((x, 1), x, enceladus.empty(8), BLOCK=8)
    np.testing.assert_array_equal(values(out), np.arange(8) * 2)
