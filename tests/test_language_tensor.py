"""``tl.tensor`` as a Python object, ``tl.constexpr``, and loop ranges."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import enceladus.language as tl
from enceladus.ir.core import Value
from enceladus.ir.ops import Constant
from enceladus.ir.types import tile_type
from tests.language_helpers import kernel, refused


class NumberValue(Value):
    """A value whose number is known, as under the interpreter."""

    __slots__ = ("data",)

    def __init__(self, data, dtype):
        super().__init__(tile_type(dtype, np.shape(data)))
        self.data = np.asarray(data)


def test_attributes():
    with kernel() as k:
        x, p = k.tile("float16", 4, 8), k.tile("*int8", 4)
        assert (x.dtype, x.shape, x.numel) == (tl.float16, (4, 8), 32)
        assert x.type == tile_type(tl.float16, (4, 8))
        assert p.dtype == tl.pointer_type(tl.int8) and p.dtype.element_ty is tl.int8
        assert x.type.element_ty is tl.float16 and x.type.scalar is tl.float16
        assert k.tile("*int8").type.element_ty is tl.int8
        assert repr(x) == "tl.tensor(4x8xfloat16)"
        with pytest.raises(AttributeError):
            x.shape = (4,)


@pytest.mark.parametrize(
    "shape,index,expected",
    [
        ((4,), (slice(None), None), (4, 1)),
        ((4,), (None, slice(None)), (1, 4)),
        ((4,), None, (1, 4)),
        ((4,), (..., None), (4, 1)),
        ((4, 8), (slice(None), None, slice(None)), (4, 1, 8)),
        ((4, 8), (None, ..., None), (1, 4, 8, 1)),
        ((4, 8), (slice(None), ..., None, slice(None)), (4, 1, 8)),
        ((4, 8), slice(None), (4, 8)),
        ((4, 8), ..., (4, 8)),
        ((4, 8), (), (4, 8)),
        ((), None, (1,)),
        ((), (None, None), (1, 1)),
    ],
)
def test_indexing(shape, index, expected):
    assert np.empty(shape)[index].shape == expected
    with kernel() as k:
        assert k.tile("float32", *shape)[index].shape == expected


def test_indexing_refusals():
    with kernel() as k:
        x = k.tile("float32", 4)
        with refused("cannot be indexed with 0", "tl.where"):
            _ = x[0]
        with refused("cannot be indexed with `:2`"):
            _ = x[:2]
        with refused("cannot be indexed with `::2`"):
            _ = x[::2]
        with refused("cannot be indexed with a tile of int32"):
            _ = x[k.tile("int32", 4)]
        with refused("cannot be indexed with `tl.tensor(int32):`"):
            _ = x[k.tile("int32") :]
        with refused("a pointer cannot be indexed with a tile of int32", "tl.load"):
            _ = k.tile("*float32")[k.tile("int32", 4)]
        with refused("too many indices", "None"):
            _ = x[:, :]
        with refused("only one `...`"):
            _ = x[..., ...]


def test_python_protocols_are_refused_with_advice():
    with kernel() as k:
        x, n = k.tile("float32", 4), k.tile("int32")
        with refused("changed in place", "tl.where"):
            x[:] = 0
        with refused("iterated"):
            _a, _b = x
        with refused("`len`", "x.shape[0]"):
            len(x)
        with refused("`**`", "tl.math.pow"):
            _ = x**2
        with refused("`**`", "tl.math.pow"):
            _ = 2**x
        with refused("`@`"):
            _ = x @ x
        with refused("shape (4,) cannot be used as a condition", "tl.where"):
            bool(x > 0)
        with refused("run-time value cannot be used as a condition"):
            bool(n > 0)
        with refused("run-time value cannot be used as a compile-time integer", "tl.constexpr"):
            range(n)
        with refused("cannot be used as a Python int", ".to(tl.int32)"):
            int(n)
        with refused("cannot be used as a Python float"):
            float(n)
        with refused("pointer cannot be used as a condition"):
            bool(k.tile("*float32"))
        with pytest.raises(TypeError, match="unhashable"):
            hash(n)


def test_rebinding_leaves_the_old_tile():
    with kernel() as k:
        x = k.tile("int32", 4)
        old = x
        x += 1
        assert old is not x and old.value is not x.value
        assert +x is x


def test_known_scalars_convert():
    n = tl.tensor(NumberValue(np.int32(5), tl.int32))
    assert (int(n), float(n), bool(n), [10, 11, 12, 13, 14, 15][n]) == (5, 5.0, True, 15)
    assert "5" in repr(n)
    assert float(tl.tensor(NumberValue(np.float32(0.5), tl.float32))) == 0.5
    with refused("a float32 cannot be used as an index"):
        range(tl.tensor(NumberValue(np.float32(0.5), tl.float32)))
    with refused("shape (4,) cannot be used as a condition"):
        bool(tl.tensor(NumberValue(np.zeros(4, np.int32), tl.int32)))
    with kernel(), refused("compile-time integer, got a run-time int32"):
        tl.arange(0, n)


# --------------------------------------------------------------------------------- constexpr


def test_constexpr_arithmetic():
    c = tl.constexpr(6)
    for result, expected in [
        (c + 1, 7), (1 + c, 7), (c - 1, 5), (10 - c, 4), (c * c, 36), (c // 4, 1), (13 // c, 2), (c % 4, 2),
        (c / 4, 1.5), (3 / c, 0.5), (c**2, 36), (2**c, 64), (c & 2, 2), (c | 1, 7), (c ^ 2, 4), (c << 1, 12),
        (c >> 1, 3), (1 << c, 64), (-c, -6), (~c, -7), (abs(-c), 6),
    ]:  # fmt: skip
        assert isinstance(result, tl.constexpr) and result.value == expected
    assert (c == 6, c != 6, c < 7, c <= 5, c > 5, c >= 6) == (True, False, True, False, True, True)
    assert type(c == 6) is bool
    assert list(range(c)) == [0, 1, 2, 3, 4, 5]
    assert (int(c), float(c), bool(tl.constexpr(0)), f"{c:03d}", str(c)) == (6, 6.0, False, "006", "6")
    assert tl.constexpr(c).value == 6
    assert {c: 1}[6] == 1


def test_constexpr_holds_anything():
    assert tl.constexpr(tl.float16).is_floating()
    assert tl.constexpr((1, 2))[1] == 2 and len(tl.constexpr((1, 2))) == 2
    assert list(tl.constexpr((1, 2))) == [1, 2]
    assert tl.constexpr(max)(1, 2) == 2
    for copied in (copy.deepcopy(tl.constexpr(5)), pickle.loads(pickle.dumps(tl.constexpr(5)))):
        assert copied.value == 5


def test_constexpr_with_tiles():
    with kernel() as k:
        x, c = k.tile("float16", 4), tl.constexpr(2)
        for result in (x * c, c * x, x / c, c - x):
            assert isinstance(result, tl.tensor) and result.type == x.type
        assert (c < x).dtype is tl.int1
        assert tl.zeros((c, 4), dtype=tl.constexpr(tl.int8)).type == tile_type(tl.int8, (2, 4))


# -------------------------------------------------------------------------------------- loops


def test_static_range():
    loop = tl.static_range(2, tl.constexpr(8), 3)
    assert (loop.start, loop.stop, loop.step, list(loop)) == (2, 8, 3, [2, 5])
    assert list(tl.static_range(3)) == [0, 1, 2]
    assert list(tl.static_range(3, 0, -1)) == [3, 2, 1]
    with refused("tl.static_range: the step must not be zero"):
        tl.static_range(0, 4, 0)
    with kernel() as k, refused("`stop` must be a compile-time integer, got a run-time int32", "`range`"):
        tl.static_range(k.tile("int32"))


def test_range_in_python():
    assert list(tl.range(2, 8, 3, num_stages=2, loop_unroll_factor=4)) == [2, 5]
    with refused("tl.range: the step must not be zero"):
        tl.range(0, 4, 0)


def test_range_inside_a_kernel_gives_scalars():
    n = tl.tensor(NumberValue(np.int64(3), tl.int64))
    with kernel() as k:
        assert [i.type for i in tl.range(2)] == [tile_type(tl.int32)] * 2
        assert [i.type for i in tl.range(n)] == [tile_type(tl.int64)] * 3
        assert [op.value for op in k.ops if isinstance(op, Constant)] == [0, 1, 0, 1, 2]
        with refused("a loop needs integer bounds, not float32"):
            list(tl.range(0, 2.0))
