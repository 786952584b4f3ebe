"""What each builtin emits, gives and refuses."""

from __future__ import annotations

import math
from types import ModuleType

import pytest

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.ops import Assume, Barrier, Constant, Hint, Load, MakeRange, ProgramId, Store
from enceladus.ir.types import DTYPES, tile_type
from tests.language_helpers import kernel, refused

FLOATS = [name for name, t in DTYPES.items() if t.is_floating()]
INTS = [name for name, t in DTYPES.items() if not t.is_floating()]


# ------------------------------------------------------------------------ index and new tiles


@pytest.mark.parametrize("wide,dtype", [(False, tl.int32), (True, tl.int64)])
def test_index_builtins_have_the_index_type(wide, dtype):
    with kernel(wide) as k:
        assert tl.program_id(0).type == tile_type(dtype)
        assert tl.num_programs(axis=2).type == tile_type(dtype)
        assert tl.arange(-4, 4).type == tile_type(dtype, (8,))
        assert isinstance(k.ops[0], ProgramId)
        assert isinstance(k.ops[2], MakeRange) and (k.ops[2].start, k.ops[2].end) == (-4, 4)


def test_program_id_axis():
    with kernel() as k:
        with refused("`axis` must be 0, 1 or 2, got 3", "3 axes"):
            tl.program_id(3)
        with refused("tl.num_programs: `axis` must be a compile-time integer, got a run-time int32"):
            tl.num_programs(k.tile("int32"))


def test_arange_refusals():
    with kernel() as k:
        with refused("tl.arange: end - start must be a power of two, got 100", "next_power_of_2(100) = 128"):
            tl.arange(0, 100)
        with refused("`end` must be greater than `start`"):
            tl.arange(4, 4)
        with refused("at most 65536", "smaller blocks"):
            tl.arange(0, 1 << 17)
        with refused("does not fit int32"):
            tl.arange(1 << 31, (1 << 31) + 4)
        with refused("`end` must be a compile-time integer, got a run-time int32", "tl.constexpr"):
            tl.arange(0, k.tile("int32"))
        with refused("got 4.0"):
            tl.arange(0, 4.0)
        with refused("got True"):
            tl.arange(0, True)
        with refused("tl.arange: missing 1 required positional argument: 'end'", "(start, end)"):
            tl.arange(4)
        assert tl.arange(0, tl.constexpr(1)).shape == (1,)
        assert tl.arange(0, 65536).numel == 65536


def test_full_and_zeros():
    with kernel() as k:
        assert tl.zeros((4, 8), tl.float16).type == tile_type(tl.float16, (4, 8))
        assert tl.zeros([tl.constexpr(4)], dtype=tl.int1).type == tile_type(tl.int1, (4,))
        assert tl.zeros((), tl.int32).shape == ()
        assert tl.full(4, 1, tl.float32).type == tile_type(tl.float32, (4,))
        assert tl.full((4,), 2.0, tl.int8).type == tile_type(tl.int8, (4,))
        constants = [op.value for op in k.ops if isinstance(op, Constant)]
        assert constants == [0.0, False, 0, 1.0, 2]
        assert [type(c) for c in constants] == [float, bool, int, float, int]
        n = k.tile("int32")
        assert tl.full((4,), n).dtype is tl.int32
        assert tl.full((4,), n, tl.float32).dtype is tl.float32
        x = k.tile("bfloat16", 2, 4)
        assert tl.zeros_like(x).type == x.type
        assert tl.full_like(x, -math.inf).type == x.type
        assert tl.full_like(x, n).type == x.type


def test_full_refusals():
    with kernel() as k:
        with refused("`dtype` is needed"):
            tl.full((4,), 1)
        with refused("1.5 is not a value of int32"):
            tl.full((4,), 1.5, tl.int32)
        with refused("inf is not a value of int8"):
            tl.full((4,), math.inf, tl.int8)
        with refused("300 is out of range for int8", "wider type"):
            tl.full((4,), 300, tl.int8)
        with refused("out of range for int1", "True or False"):
            tl.full((4,), 2, tl.int1)
        with refused("power of two, got 3", "next_power_of_2(3) = 4"):
            tl.zeros((3,), tl.int32)
        with refused("power of two, got 131072", "from 1 to 65536"):
            tl.zeros((1 << 17,), tl.int32)
        with refused("power of two, got 0"):
            tl.zeros((0,), tl.int32)
        with refused("more than 1048576", "smaller blocks"):
            tl.zeros((65536, 32), tl.int32)
        with refused("`value` must be a scalar"):
            tl.full((4,), k.tile("int32", 4))
        with refused("must be a type such as tl.float32, got 'float32'"):
            tl.zeros((4,), "float32")
        with refused("pointer type", "element_ty"):
            tl.zeros((4,), k.tile("*float32").dtype)
        with refused("must be a type", "x.dtype"):
            tl.zeros((4,), k.tile("float32"))
        with refused("is a pointer"):
            tl.zeros_like(k.tile("*float32", 4))


# ------------------------------------------------------------------------------ type and shape


def test_casts():
    with kernel() as k:
        x = k.tile("float32", 4)
        for name, dtype in DTYPES.items():
            assert x.to(dtype).type == tile_type(dtype, (4,)), name
        assert x.to(tl.uint32, bitcast=True).dtype is tl.uint32
        assert k.names[-1] == "bitcast"
        assert tl.cast(5, tl.float16).dtype is tl.float16
        assert x.to(tl.float16, fp_downcast_rounding="rtne").dtype is tl.float16
        assert x.cast(tl.int8).dtype is tl.int8
        with refused("32 bits) and float16 (16 bits)", "leave out"):
            x.to(tl.float16, bitcast=True)
        with refused("bitcast needs one width"):
            k.tile("int1").to(tl.int8, bitcast=True)
        with refused("'rtz' is not supported", "nearest even"):
            x.to(tl.float16, "rtz")


def test_broadcasting():
    with kernel() as k:
        column, row, n = k.tile("float32", 4, 1), k.tile("float32", 8), k.tile("float32")
        assert (column + row).shape == (4, 8)
        assert k.names == ["broadcast", "expand_dims", "broadcast", "add"]
        assert (n + n).shape == ()
        assert k.names[-1] == "add" and len(k.names) == 5
        assert (n * row).shape == (8,)
        assert k.names[-2:] == ["splat", "mul"]
        assert tl.where(k.tile("int1", 1, 8), column, n).shape == (4, 8)
        assert tl.fma(column, row, 1.0).shape == (4, 8)
        with refused("shapes (4,) and (8,) cannot be combined: dimension 0 is 4 and 8", "x[:, None]"):
            _ = k.tile("int32", 4) + k.tile("int32", 8)
        with refused("more than 1048576"):
            _ = k.tile("int32", 65536, 1) + k.tile("int32", 1, 65536)


def test_broadcast_to_and_expand_dims():
    with kernel() as k:
        x, n = k.tile("float32", 4), k.tile("int32")
        assert tl.broadcast_to(x, (2, 4)).shape == (2, 4)
        assert x.broadcast_to(8, 4).shape == (8, 4)
        assert tl.broadcast_to(n, 16).shape == (16,)
        assert tl.broadcast_to(1.0, (4,)).dtype is tl.float32
        assert tl.expand_dims(x, 0).shape == (1, 4)
        assert x.expand_dims(-1).shape == (4, 1)
        assert tl.expand_dims(x, (0, -1)).shape == (1, 4, 1)
        assert tl.expand_dims(n, (0, 1)).shape == (1, 1)
        with refused("tl.broadcast_to: a tile of shape (4,) cannot be broadcast to (4, 2)"):
            tl.broadcast_to(x, (4, 2))
        with refused("cannot be broadcast to (4,)"):
            tl.broadcast_to(k.tile("int32", 1, 4), (4,))
        with refused("axis 2 is out of range"):
            tl.expand_dims(x, 2)
        with refused("duplicate axes"):
            tl.expand_dims(x, (0, -3))


# ------------------------------------------------------------------------------------- memory


def test_load_and_store():
    with kernel() as k:
        p, offsets, mask = k.tile("*float16"), k.tile("int32", 8), k.tile("int1", 8)
        assert tl.load(p + offsets, mask=mask).type == tile_type(tl.float16, (8,))
        tl.store(p + offsets, 1.0, mask)
        tl.store(p + offsets, k.tile("int64"), mask=True)
        load, *stores = [op for op in k.ops if isinstance(op, (Load, Store))]
        assert load.mask is mask.value and load.other is None
        assert stores[0].value.type == tile_type(tl.float16, (8,)) and stores[0].mask is mask.value
        assert stores[1].value.type == tile_type(tl.float16, (8,)) and stores[1].mask is None
        assert tl.load(k.tile("*int1")).type == tile_type(tl.int1)
        assert tl.load(p, mask=k.tile("int1")).shape == ()
        assert tl.load(p + offsets, mask=k.tile("int1", 4, 1)).shape == (4, 8)
        assert tl.load(p + offsets[:, None], k.tile("int1", 4), 1.0).shape == (8, 4)
        hints = {"cache_modifier": ".ca", "eviction_policy": "evict_last", "volatile": True}
        assert tl.load(p + offsets, **hints).shape == (8,)
        tl.store(p, 1, cache_modifier=".wb", eviction_policy="evict_first")


@pytest.mark.parametrize("other,kept", [(0, False), (0.0, False), (False, False), (-0.0, True), (1, True)])
def test_other_that_is_zero_is_the_default(other, kept):
    with kernel() as k:
        tl.load(k.tile("*float32", 8), mask=k.tile("int1", 8), other=other)
        assert (k.ops[-1].other is not None) is kept


def test_other_takes_the_element_type():
    with kernel() as k:
        p, mask = k.tile("*float16", 8), k.tile("int1", 8)
        tl.load(p, mask, other=-math.inf)
        assert k.ops[-1].other.type == tile_type(tl.float16, (8,))
        tl.load(p, mask, other=k.tile("float32"))
        assert k.ops[-1].other.type == tile_type(tl.float16, (8,))
        tl.load(p, False, other=1.0)
        assert k.ops[-1].mask.type == tile_type(tl.int1, (8,))


def test_memory_refusals():
    with kernel() as k:
        p, x, mask = k.tile("*int32"), k.tile("int32", 8), k.tile("int1", 8)
        with refused("tl.load: `pointer` must be a pointer, got a tile 8xint32", "`ptr + offsets`"):
            tl.load(x)
        with refused("tl.store: `pointer` must be a pointer, got None", "is not None"):
            tl.store(None, x)
        with refused("`mask` must be int1, got a tile 8xint32", "m != 0"):
            tl.load(p + x, mask=x)
        with refused("`mask` must be int1, got 1"):
            tl.store(p + x, x, mask=1)
        with refused("`other` needs a `mask`"):
            tl.load(p + x, other=0)
        with refused("`mask` is a tile of shape (8,), but the pointer is a scalar", "tl.arange"):
            tl.load(p, mask=mask)
        with refused("`value` is a tile of shape (8,), but the pointer is a scalar"):
            tl.store(p, x)
        with refused("`other` is a tile of shape (8,), but the pointer is a scalar"):
            tl.load(p, mask=k.tile("int1"), other=x)
        with refused("tl.store: value: a tile of shape (4, 8) cannot be broadcast to (8,)"):
            tl.store(p + x, k.tile("int32", 4, 8))
        with refused("tl.store: mask: a tile of shape (4, 8) cannot be broadcast to (8,)"):
            tl.store(p + x, x, mask=k.tile("int1", 4, 8))
        with refused("tl.load: other: 1.5 is not a value of int32"):
            tl.load(p + x, mask, other=1.5)
        with refused("out of range for uint8"):
            tl.store(k.tile("*uint8", 8), -1)
        with refused("block pointers", "mask"):
            tl.load(p + x, boundary_check=(0,))
        with refused("pointer cannot be cast"):
            tl.store(p, p)
        with refused("tl.load: got an unexpected keyword argument 'masks'", "mask, other"):
            tl.load(p, masks=mask)


def test_promises():
    with kernel() as k:
        x, p = k.tile("int32", 8), k.tile("*float32")
        assert tl.multiple_of(x, 16).type == x.type
        assert tl.max_contiguous(tl.multiple_of(p, [16]), 4).type == p.type
        hints = [op for op in k.ops if isinstance(op, Hint)]
        assert [(h.divisibility, h.contiguity) for h in hints] == [((16,), ()), ((16,), ()), ((), (4,))]
        assert tl.max_constancy(x, 4) is x
        with refused("2 values for a tile of 1 dimensions"):
            tl.multiple_of(x, (4, 4))
        with refused("must be positive"):
            tl.max_contiguous(x, 0)
        with refused("integers or pointers, not float32"):
            tl.multiple_of(k.tile("float32"), 4)


# --------------------------------------------------------------------------- element by element

#: function → the kind it emits
UNARY = {
    tl.exp: "exp", tl.exp2: "exp2", tl.log: "log", tl.log2: "log2", tl.sqrt: "sqrt", tl.sqrt_rn: "sqrt",
    tl.rsqrt: "rsqrt", tl.sin: "sin", tl.cos: "cos", tl.tanh: "tanh", tl.erf: "erf", tl.floor: "floor",
    tl.ceil: "ceil", tl.math.log1p: "log1p", tl.math.expm1: "expm1", tl.math.log10: "log10",
    tl.math.tan: "tan", tl.math.asin: "asin", tl.math.acos: "acos", tl.math.atan: "atan",
    tl.math.sinh: "sinh", tl.math.cosh: "cosh", tl.math.rint: "rint", tl.math.round: "round",
    tl.math.trunc: "trunc",
}  # fmt: skip
BINARY = {tl.div_rn: "div", tl.fdiv: "div", tl.math.pow: "pow", tl.math.atan2: "atan2"}


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary_mathematics(function):
    with kernel() as k:
        for dtype in FLOATS:
            x = k.tile(dtype, 4)
            assert function(x).type == x.type
            assert k.names[-1] == UNARY[function]
        assert function(0.5).type == tile_type(tl.float32)
        for dtype in INTS:
            with refused(f"needs floats, got {dtype}", ".to(tl.float32)"):
                function(k.tile(dtype, 4))
        with refused("needs floats, got int32"):
            function(1)
        with refused("pointers", "tl.load"):
            function(k.tile("*float32"))


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary_mathematics(function):
    with kernel() as k:
        x = k.tile("float16", 4)
        assert function(x, 2).type == x.type
        assert k.names[-1] == BINARY[function]
        assert function(2, x).type == x.type
        assert function(x, k.tile("float32")).type == tile_type(tl.float32, (4,))
        assert function(x, k.tile("int64", 4)).type == x.type
        with refused("needs floats, got int32"):
            function(k.tile("int32", 4), 2)


def test_tests_and_bit_counts():
    with kernel() as k:
        for function in (tl.math.isnan, tl.math.isinf):
            assert function(k.tile("float16", 4)).type == tile_type(tl.int1, (4,))
            with refused("needs floats, got int32"):
                function(k.tile("int32"))
        for function in (tl.math.popc, tl.math.clz):
            assert function(k.tile("uint8", 4)).type == tile_type(tl.int32, (4,))
            assert function(k.tile("int64", 4)).type == tile_type(tl.int32, (4,))
            for dtype in ("float32", "int1", "*int32"):
                with refused("needs integers", "bitcast=True"):
                    function(k.tile(dtype))
        assert tl.math.umulhi(k.tile("int32", 4), 3).dtype is tl.int32
        assert tl.umulhi(k.tile("int32", 4), k.tile("uint64")).dtype is tl.uint64
        for dtype in ("int16", "float32"):
            with refused("32- or 64-bit integers"):
                tl.umulhi(k.tile(dtype), k.tile(dtype))


def test_extrema():
    with kernel() as k:
        x, n = k.tile("bfloat16", 4), k.tile("int32", 4)
        assert tl.maximum(x, 0).type == x.type and k.names[-1] == "max"
        assert tl.minimum(0.0, x).type == x.type and k.names[-1] == "min"
        assert tl.maximum(x, x, propagate_nan=tl.PropagateNan.ALL).type == x.type and k.names[-1] == "max_nan"
        assert tl.minimum(x, x, tl.PropagateNan.ALL).type == x.type and k.names[-1] == "min_nan"
        assert tl.minimum(n, n, tl.PropagateNan.ALL).type == n.type and k.names[-1] == "min"
        assert tl.clamp(n, 0, 255).type == n.type and k.names[-4:] == ["splat", "max", "splat", "min"]
        assert tl.clamp(x, -1, 1, tl.PropagateNan.ALL).type == x.type and k.names[-1] == "min_nan"
        assert (tl.maximum(3, 4), tl.minimum(3, 4.5), tl.maximum(tl.constexpr(3), 2)) == (4, 3, 3)
        assert tl.maximum(math.nan, 1.0).dtype is tl.float32
        with refused("tl.PropagateNan.NONE", ""):
            tl.maximum(x, x, propagate_nan=True)
        with refused("`tl.maximum` does not work on pointers"):
            tl.maximum(k.tile("*int32"), 0)


def test_abs():
    with kernel() as k:
        for dtype in ("int8", "int64", "float16", "float32"):
            x = k.tile(dtype, 4)
            assert tl.abs(x).type == x.type and k.names[-1] == "abs"
        emitted = len(k.ops)
        for dtype in ("uint32", "int1"):
            x = k.tile(dtype, 4)
            assert tl.abs(x).value is x.value
        assert len(k.ops) == emitted
        assert (tl.abs(-3), tl.abs(2.5)) == (3, 2.5)
        assert math.copysign(1.0, tl.abs(-0.0)) == 1.0
        assert abs(k.tile("int32")).dtype is tl.int32


def test_where():
    with kernel() as k:
        x, n = k.tile("float16", 4), k.tile("int32")
        assert tl.where(k.tile("int1", 4), x, 0.0).type == x.type
        assert tl.where(n, x, 0.0).type == x.type
        assert "cast" in k.names
        assert tl.where(k.tile("int1", 4), 1, 0).type == tile_type(tl.int32, (4,))
        assert tl.where(True, x, n).type == x.type
        with refused("`tl.where` needs tiles or numbers, got None", "is None"):
            tl.where(n, x, None)


def test_logic():
    with kernel() as k:
        p, q = k.tile("int1", 4), k.tile("int1")
        assert p.logical_and(q).type == p.type
        assert p.logical_or(q).type == p.type
        assert p.logical_not().type == p.type
        with refused("needs int1", "x != 0"):
            k.tile("int32").logical_and(p)


def test_cdiv():
    assert (tl.cdiv(7, 4), tl.cdiv(8, 4), tl.cdiv(tl.constexpr(9), 4)) == (2, 2, 3)
    with kernel() as k:
        n = k.tile("int32")
        assert tl.cdiv(n, 4).type == n.type
        assert k.names == ["constant", "add", "constant", "idiv"]
        assert tl.cdiv(100, n).type == n.type
        assert n.cdiv(n).type == n.type
        with refused("division by zero"):
            tl.cdiv(4, 0)
        with refused("needs integers", "tl.ceil"):
            tl.cdiv(1.5, 2)
        with refused("tl.cdiv needs integers, got float32", "tl.ceil"):
            tl.cdiv(k.tile("float32"), 2)


def test_sigmoid_rounds_once():
    with kernel() as k:
        x = k.tile("float16", 4)
        assert tl.sigmoid(x).type == x.type
        assert k.names[0] == "cast" and k.names[-1] == "cast" and k.names.count("cast") == 2
        assert {op.result.type.element.name for op in k.ops[:-1]} == {"float32"}
    with kernel() as k:
        assert tl.sigmoid(k.tile("float32", 4)).dtype is tl.float32
        assert "cast" not in k.names
        with refused("tl.sigmoid needs floats"):
            tl.sigmoid(k.tile("int32"))


def test_fma():
    with kernel() as k:
        x = k.tile("float32", 4)
        assert tl.fma(x, k.tile("float16"), 2).type == x.type
        assert k.names[-1] == "fma"
        with refused("tl.fma needs floats, got int32"):
            tl.fma(k.tile("int32"), 2, 3)


# -------------------------------------------------------------------------------- statements


def test_static_assert_and_print(capsys):
    with kernel() as k:
        tl.static_assert(True, "fine")
        tl.static_assert(tl.constexpr(4) == 4)
        with refused("tl.static_assert failed: BLOCK is odd"):
            tl.static_assert(False, "BLOCK is odd")
        with refused("known at compile time, got a run-time int1"):
            tl.static_assert(k.tile("int1"))
        tl.static_print("x is", k.tile("float32", 4), sep=" ")
    assert capsys.readouterr().out == "x is tl.tensor(4xfloat32)\n"


def test_assume_and_barrier():
    with kernel() as k:
        tl.assume(k.tile("int32") > 0)
        tl.assume(True)
        tl.debug_barrier()
        assert [type(op) for op in k.ops[-2:]] == [Assume, Barrier]
        with refused("needs a scalar condition, got a tile 4xint1"):
            tl.assume(k.tile("int1", 4))
        with refused("false at compile time"):
            tl.assume(1 > 2)


# ------------------------------------------------------------------------------- the namespace


def test_every_public_name_exists_and_is_documented():
    for namespace in (tl, tl.math):
        for name in namespace.__all__:
            found = getattr(namespace, name)
            if hasattr(found, "__enceladus_builtin__"):
                assert found.__doc__ and "Source:" in found.__doc__, name
                assert found.__name__ == name


def test_math_has_aliases_of_the_same_functions():
    for name in ("exp", "sqrt", "maximum", "where", "fdiv", "umulhi", "sigmoid", "cdiv"):
        assert getattr(tl.math, name) is getattr(tl, name)


def test_builtins_need_a_kernel():
    for name in tl.__all__:
        found = getattr(tl, name)
        if hasattr(found, "__enceladus_builtin__") and name != "cdiv":
            with refused(f"tl.{name} can only be used inside a kernel", "@enceladus.jit"):
                found(1)
    x = tl.tensor(Value(tile_type(tl.int32)))
    with refused("inside a kernel"):
        _ = x + 1


@pytest.mark.parametrize(
    "name,reason,hint",
    [
        ("float64", "tl.float64 is not supported", "tl.float32"),
        ("float8e4nv", "no FP8", "tl.float16"),
        ("tf32", "no TF32", "tl.float32"),
        ("make_block_ptr", "not supported", "tl.arange"),
        ("dot", "tl.dot is not supported yet", ""),
        ("arrange", "tl has no `arrange`", "did you mean `arange`?"),
        ("bogus_thing_xyz", "tl has no `bogus_thing_xyz`", ""),
    ],
)
def test_missing_names(name, reason, hint):
    with refused(reason, hint):
        getattr(tl, name)
    assert not hasattr(tl, name)


def test_missing_names_elsewhere():
    with refused("tl.math has no `expm`", "did you mean `exp"):
        _ = tl.math.expm
    with kernel() as k:
        x = k.tile("float32", 4)
        with refused("a tile has no attribute `dtyp`", "did you mean `dtype`?"):
            _ = x.dtyp
        with refused("x.T"):
            _ = x.T
        assert not hasattr(x, "dot")
    assert not hasattr(tl, "__wrapped__") and isinstance(tl.math, ModuleType)


def test_errors_are_compilation_errors_with_no_chain():
    with kernel(), pytest.raises(CompilationError) as caught:
        tl.load()
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
