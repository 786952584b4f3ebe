"""Builtins through which elements of tiles meet: types, shapes and the operations they become."""

from __future__ import annotations

import pytest

import enceladus.language as tl
from enceladus.codegen.kernel import Role
from enceladus.compiler import prepare
from enceladus.errors import CompilationError
from enceladus.frontend.signature import ArrayArgument
from enceladus.ir import exchange, ops
from enceladus.ir.types import DTYPES, int32
from enceladus.ir.verifier import Stage, verify
from enceladus.passes import coverage as coverage_pass
from enceladus.passes.affine import Analysis
from enceladus.passes.roles import hazards, roles
from tests.frontend_helpers import build, find, one
from tests.language_helpers import kernel

# ------------------------------------------------------------------------------------- result types

SUM_TYPES = {
    "int1": "int32", "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64",
    "uint8": "uint32", "uint16": "uint32", "uint32": "uint32", "uint64": "uint64",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32",
}  # fmt: skip


@pytest.mark.parametrize("dtype", SUM_TYPES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "cumsum", "cumprod"])
def test_types_of_results(name, dtype):
    with kernel() as k:
        x = k.tile(dtype, 8, 4)
        result = getattr(tl, name)(x, 1)
        assert result.dtype is DTYPES[SUM_TYPES[dtype]]
        assert result.shape == ((8, 4) if name.startswith("cum") else (8,))
        (op,) = [o for o in k.ops if isinstance(o, (exchange.Reduce, exchange.Scan))]
        computed = op.inputs[0].type.dtype
        assert computed is (DTYPES["float32"] if x.dtype.is_floating() else result.dtype)


def test_16_bit_floats_add_up_in_float32():
    with kernel() as k:
        tl.sum(k.tile("bfloat16", 8))
        assert k.names == ["cast", "reduce", "cast"]


@pytest.mark.parametrize("name", ["sum", "cumsum"])
def test_dtype_converts_before(name):
    with kernel() as k:
        x = k.tile("int8", 8)
        for dtype in (tl.float16, tl.int64, tl.int8):
            assert getattr(tl, name)(x, 0, dtype=dtype).dtype is dtype


@pytest.mark.parametrize("name", ["xor_sum", "reduce_or"])
@pytest.mark.parametrize("dtype", ["int1", "int8", "uint16", "int64"])
def test_bits_keep_their_type(name, dtype):
    with kernel() as k:
        assert getattr(tl, name)(k.tile(dtype, 8), 0).dtype is DTYPES[dtype]


def test_any_and_all_are_int1():
    with kernel() as k:
        for dtype in ("int1", "float32", "uint64"):
            x = k.tile(dtype, 4, 8)
            assert tl.any(x).dtype is x.all(axis=0).dtype is tl.int1
            assert tl.any(x).shape == () and x.all(axis=0).shape == (8,)


def test_indices_are_int32_even_in_wide_kernels():
    with kernel(wide=True) as k:
        x = k.tile("float16", 4, 8)
        assert tl.argmax(x, 1).type.element is int32
        value, index = tl.min(x, 0, return_indices=True)
        assert (value.dtype, value.shape) == (tl.float16, (8,))
        assert (index.dtype, index.shape) == (tl.int32, (8,))


# ------------------------------------------------------------------------------------- axes, keep_dims


@pytest.mark.parametrize(
    ("axis", "keep", "shape"),
    [
        (0, False, (4, 2)), (1, False, (8, 2)), (2, False, (8, 4)), (-1, False, (8, 4)), (-3, False, (4, 2)),
        (0, True, (1, 4, 2)), (-1, True, (8, 4, 1)), (None, False, ()), (None, True, (1, 1, 1)),
    ],
)  # fmt: skip
def test_shapes_of_reductions(axis, keep, shape):
    with kernel() as k:
        x = k.tile("float32", 8, 4, 2)
        assert tl.sum(x, axis, keep_dims=keep).shape == shape
        assert tl.argmin(x, axis, keep_dims=keep).shape == shape
        assert tl.any(x, axis, keep).shape == shape
        for part in tl.max(x, axis, return_indices=True, keep_dims=keep):
            assert part.shape == shape


def test_a_reduction_of_all_elements_keeps_their_order():
    with kernel() as k:
        tl.sum(k.tile("float32", 8, 4))
        assert k.names == ["reshape", "reduce"]
        assert k.ops[0].shape == (32,)


def test_reducing_a_row_gives_a_scalar():
    with kernel() as k:
        assert tl.sum(k.tile("float32", 8), 0).shape == ()
        assert tl.sum(k.tile("float32", 8), 0, keep_dims=True).shape == (1,)
        assert tl.max(k.tile("float32", 1)).shape == ()


# ----------------------------------------------------------------------------------------- shapes


def test_shape_builtins():
    with kernel() as k:
        x = k.tile("float32", 8, 4)
        assert x.reshape(4, 8).shape == tl.reshape(x, (4, 8)).shape == x.view([4, 8]).shape == (4, 8)
        assert x.ravel().shape == (32,)
        assert x.T.shape == tl.trans(x).shape == tl.trans(x, 1, 0).shape == x.permute((1, 0)).shape == (4, 8)
        assert tl.join(x, 1.0).shape == (8, 4, 2)
        assert tl.interleave(x, x).shape == (8, 8)
        assert tl.cat(x, x).shape == (16, 4) and tl.cat(x, x, dim=-1).shape == (8, 8)
        assert tl.flip(x, 0).shape == x.flip().shape == (8, 4)
        assert tl.unsqueeze(x, -1).shape == (8, 4, 1) and x.unsqueeze(1).squeeze(1).shape == (8, 4)
        a, b = tl.broadcast(x, k.tile("int8", 4))
        assert a.shape == b.shape == (8, 4) and b.dtype is tl.int8
        first, second = tl.split(k.tile("int32", 4, 2))
        assert first.shape == second.shape == (4,)
        one_of_two, _ = tl.split(k.tile("int32", 2))
        assert one_of_two.shape == ()


def test_transposing_higher_ranks():
    with kernel() as k:
        x = k.tile("float32", 2, 4, 8)
        assert x.T.shape == tl.trans(x).shape == (2, 8, 4)
        assert x.permute(2, 0, 1).shape == (8, 2, 4)
        assert x.permute(-1, 0, 1).shape == (8, 2, 4)


def test_what_changes_nothing_emits_nothing():
    with kernel() as k:
        x = k.tile("float32", 8, 4)
        assert x.reshape(8, 4).value is x.permute(0, 1).value is x.value
        assert not k.ops


def test_scalars_and_tiles_of_one_element():
    with kernel() as k:
        s = k.tile("float32")
        assert s.reshape(1, 1).shape == (1, 1) and s.ravel().shape == (1,)
        assert tl.join(s, 2.0).shape == tl.interleave(s, s).shape == (2,)
        assert k.tile("float32", 1, 1).reshape(()).shape == ()
        assert s.unsqueeze(0).shape == (1,)


def test_join_promotes():
    with kernel() as k:
        assert tl.join(k.tile("float16", 4), k.tile("int32", 4)).dtype is tl.float16
        assert tl.cat(k.tile("int8", 4), k.tile("int32", 4)).dtype is tl.int32


def test_gather_takes_indices_of_any_integer_type():
    with kernel() as k:
        x = k.tile("float32", 8, 4)
        for dtype in ("int8", "uint32", "int64"):
            result = tl.gather(x, k.tile(dtype, 8, 2), 1)
            assert result.shape == (8, 2)
            assert k.ops[-1].index.type.dtype is tl.int32


def test_pointers_can_be_reshaped():
    function = build(
        "@jit\ndef kernel(x, out):\n"
        "    p = (x + tl.arange(0, 8)).reshape(4, 2)\n"
        "    a = tl.load(p.T)\n"
        "    q, r = tl.split(p)\n"
        "    tl.store(out + tl.arange(0, 2)[:, None] * 4 + tl.arange(0, 4), a + tl.load(q) + tl.load(r))\n"
    )
    verify(function)
    verify(prepare(function), Stage.ARRAY)
    assert all(op.offset.type.element is int32 for op in find(function, ops.ArrayLoad))


# ----------------------------------------------------------------------------------------- sorting


def test_sorting_and_counting():
    with kernel() as k:
        x = k.tile("float32", 4, 16)
        assert tl.sort(x).shape == x.sort(1, descending=True).shape == (4, 16)
        assert [op.descending for op in k.ops] == [False, True]
        assert tl.topk(x, 4).shape == (4, 4) and tl.topk(x, 16).shape == (4, 16)
        assert tl.topk(k.tile("int8", 8), 1).shape == (1,)
        assert tl.sort(k.tile("int1", 8)).dtype is tl.int1
        counts = tl.histogram(k.tile("uint8", 64), 16, mask=k.tile("int1", 64))
        assert (counts.dtype, counts.shape) == (tl.int32, (16,))


def test_softmax_keeps_shape_and_type():
    with kernel() as k:
        result = tl.softmax(k.tile("bfloat16", 4, 8), dim=-1)
        assert (result.dtype, result.shape) == (tl.bfloat16, (4, 8))
        kinds = [op.combine.ops[0].kind.value for op in k.ops if isinstance(op, exchange.Reduce)]
        assert kinds == ["max", "add"]


# ------------------------------------------------------------------------------- combine functions

HEAD = "@jit\ndef f(a, b):\n    return a + b\n"
MOMENTS = (
    "@jit\ndef f(m, n, m2, n2):\n    t = n + n2\n"
    "    if t > 0.0:\n        r = n2 / t\n    else:\n        r = 0.0\n"
    "    return m + (m2 - m) * r, t\n"
)


def program(text: str, head: str = HEAD, **arguments):
    lines = "".join(f"    {line}\n" for line in text.split("\n"))
    function = build(
        f"{head}@jit\ndef kernel(x, out, n, m):\n    t = tl.load(x + tl.arange(0, 8))\n{lines}", **arguments
    )
    verify(function)
    return function


def test_a_combine_function_becomes_a_block_of_scalars():
    op = one(program("tl.store(out, tl.reduce(t, 0, f))"), exchange.Reduce)
    add, end = op.combine.ops
    assert isinstance(add, ops.Binary) and add.kind is ops.BinaryKind.ADD
    assert (add.lhs, add.rhs) == op.combine.arguments and end.operands == add.results
    assert add.loc.function == "f" and add.loc.call_site.function == "kernel"


def test_builtins_make_the_same_blocks_as_functions():
    function = program("tl.store(out, tl.reduce(t, 0, f))\ntl.store(out + 1, tl.sum(t))")
    assert len(find(prepare(function), exchange.Reduce)) == 1, "equal reductions merge"


def test_reductions_with_other_functions_do_not_merge():
    text = "tl.store(out, tl.reduce(t, 0, f))\ntl.store(out + 1, tl.max(t))\ntl.store(out + 2, tl.min(t))"
    assert len(find(prepare(program(text)), exchange.Reduce)) == 3


def test_reductions_of_several_tiles_merge_as_a_whole():
    text = "a, b = tl.reduce((t, t * 0.0 + 1.0), 0, f)\n"
    text += "c, d = tl.reduce((t, t * 0.0 + 1.0), 0, f)\ntl.store(out, a + d)\ntl.store(out + 1, b + c)"
    function = prepare(program(text, MOMENTS))
    verify(function, Stage.ARRAY)
    op = one(function, exchange.Reduce)
    first, second = find(function, ops.ArrayStore)
    for store, expected in ((first, op.results), (second, op.results)):
        assert set(store.value.owner.operands) == set(expected)


def test_a_branch_in_a_combine_function_becomes_a_choice():
    op = one(program("a, b = tl.reduce((t, t), 0, f)\ntl.store(out, a + b)", MOMENTS), exchange.Reduce)
    assert not [inner for inner in op.combine.walk() if inner.block_fields]
    assert [inner for inner in op.combine.ops if isinstance(inner, ops.Select)]


def test_literals_take_the_type_of_the_input():
    head = "@jit\ndef f(a, b):\n    return 0\n"
    op = one(program("tl.store(out, tl.reduce(t, 0, f))", head), exchange.Reduce)
    assert op.combine.terminator.operands[0].type.dtype is tl.float32


def test_builtins_can_be_combine_functions():
    op = one(program("tl.store(out, tl.reduce(t, 0, tl.maximum))"), exchange.Reduce)
    assert op.combine.ops[0].kind is ops.BinaryKind.MAX


def test_functions_by_keyword_and_as_methods():
    text = "tl.store(out, t.reduce(axis=0, combine_fn=f))\n"
    text += "tl.store(out + tl.arange(0, 8), t.associative_scan(0, f, reverse=True))"
    function = program(text)
    assert one(function, exchange.Scan).reverse
    assert one(function, exchange.Reduce).axis == 0


def test_dead_reductions_are_removed_and_live_ones_kept():
    function = prepare(program("a = tl.sum(t)\nb = tl.cumsum(t)\ntl.store(out, 1.0)"))
    assert not find(function, exchange.Reduce) and not find(function, exchange.Scan)
    assert not find(function, ops.ArrayLoad)
    assert find(prepare(program("tl.store(out, tl.sum(t))")), ops.ArrayLoad)


def test_an_unused_reduction_does_not_keep_what_a_loop_carries():
    text = "a = t\nb = t\nfor i in range(n):\n    c = tl.sum(a)\n    a = a * 2.0\n    b = b + 1.0\n"
    text += "tl.store(out + tl.arange(0, 8), b)"
    loop = one(prepare(program(text)), ops.For)
    assert len(loop.initial) == 1


def test_blocks_stay_closed_when_constants_are_shared():
    head = "@jit\ndef f(a, b):\n    return a * 2.0 + b\n"
    text = "tl.store(out, tl.reduce(t, 0, f) * 2.0)\n"
    text += "for i in range(n):\n    tl.store(out + i, tl.reduce(t * i, 0, f))"
    function = program(text, head)
    prepare(function)
    verify(function, Stage.ARRAY)  # the verifier lets a block use its own values only


def test_map_elementwise_lets_scalars_branch():
    head = "@jit\ndef f(a, b):\n    if a > b:\n        c = a * 2.0\n"
    head += "    else:\n        c = 0.5\n    return c, 1\n"
    function = program(
        "u, v = tl.map_elementwise(f, t, t[:, None])\ntl.store(out, tl.sum(u) + tl.sum(v))", head
    )
    select = one(function, ops.Select)
    assert select.on_true.type.shape == (8, 8)
    assert not find(function, ops.If)


# ----------------------------------------------------------------------------------------- atomics


def test_atomics_name_their_array_after_resolution():
    text = "old = tl.atomic_add(out + tl.arange(0, 8), t, mask=t > 0.0)\ntl.atomic_xchg(out + n, 1)\n"
    text += "tl.store(x + tl.arange(0, 8), old)"
    function = program(text)
    assert len(find(function, exchange.Atomic)) == 2
    verify(prepare(function), Stage.ARRAY)
    add, swap = find(function, exchange.ArrayAtomic)
    assert (add.array.name, add.kind.value, add.mask.type.shape) == ("out", "add", (8,))
    assert (swap.value.type.shape, swap.value.type.dtype, swap.mask) == ((), tl.float32, None)
    assert add.results[0].owner is add


def test_compare_and_swap():
    function = prepare(program("tl.atomic_cas(out, 0, n)", out=ArrayArgument(DTYPES["int8"])))
    verify(function, Stage.ARRAY)
    op = one(function, exchange.ArrayAtomicCas)
    assert op.compare.type.dtype is op.value.type.dtype is tl.int8


def test_unused_and_equal_updates_all_stay():
    function = prepare(program("tl.atomic_add(out, 1.0)\ntl.atomic_add(out, 1.0)"))
    assert len(find(function, exchange.ArrayAtomic)) == 2


def test_roles_and_coverage_of_updated_arrays():
    text = "tl.store(out + tl.program_id(0) * 8 + tl.arange(0, 8), t)\ntl.atomic_max(out, 1.0)"
    function = prepare(program(text))
    found = {value.name: role for value, role in roles(function).items()}
    assert found == {"x": Role.READ, "out": Role.ATOMIC}
    covered = coverage_pass.coverage(function, Analysis(function))
    assert [conditions for array, conditions in covered.items() if array.name == "out"] == [None]


def test_a_load_after_an_update_is_a_hazard():
    function = prepare(program("tl.atomic_add(out, 1.0)\ntl.store(out + 8, tl.load(x + n))"))
    assert ("out", "x") in {(a.name, b.name) for a, b in hazards(function)}
    function = prepare(program("tl.atomic_add(x, 1.0)\ntl.store(out, tl.load(x + n))"))
    with pytest.raises(CompilationError, match="atomic update at line"):
        hazards(function)
    function = prepare(
        program("for i in range(n):\n    tl.store(out, tl.load(x + i))\n    tl.atomic_add(x, 1.0)")
    )
    with pytest.raises(CompilationError, match="atomic update"):
        hazards(function)


@pytest.mark.parametrize("sem", [None, "relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", [None, "gpu", "cta", "sys"])
def test_orders_and_scopes_are_accepted(sem, scope):
    with kernel() as k:
        assert tl.atomic_add(k.tile("*int32"), 1, sem=sem, scope=scope).dtype is tl.int32


ATOMIC_TYPES = {
    **dict.fromkeys(
        ("add", "max", "min", "xchg"),
        ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32"),
    ),
    **dict.fromkeys(("and", "or", "xor"), ("int8", "int16", "int32", "uint8", "uint16", "uint32")),
}


@pytest.mark.parametrize("name", ATOMIC_TYPES)
def test_types_of_atomics(name):
    with kernel() as k:
        for dtype in ATOMIC_TYPES[name]:
            old = getattr(tl, f"atomic_{name}")(k.tile(f"*{dtype}", 8), 1)
            assert (old.dtype, old.shape) == (DTYPES[dtype], (8,))
