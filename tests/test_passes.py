"""What each pass makes true, as facts about operations found by class."""

from __future__ import annotations

import numpy as np
import pytest

import enceladus.language as tl
from enceladus.codegen.conversion import plan
from enceladus.compiler import compile_function, prepare
from enceladus.errors import CompilationError, InternalError
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import ArrayArgument, ConstantArgument, ScalarArgument
from enceladus.interpreter.semantics import evaluate
from enceladus.ir import ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Function, Value
from enceladus.ir.laid_out import Convert, TileGroup
from enceladus.ir.types import float16, float32, int8, int32, int64, pointer_type, tile_type
from enceladus.ir.verifier import Stage, verify
from enceladus.layout.conversion import Nothing
from enceladus.layout.shared import SharedTrip
from enceladus.layout.shuffle import SimdShuffle
from enceladus.passes import canonicalize, dce, form_groups, full_blocks
from enceladus.passes.affine import Analysis
from enceladus.passes.coverage import coverage
from enceladus.passes.intervals import Intervals
from enceladus.passes.roles import hazards, roles

F32 = ArrayArgument(float32)
N = ScalarArgument(int32)


def const(value: object) -> ConstantArgument:
    return ConstantArgument(value, repr(value))


def build(kernel, num_warps: int = 4, **arguments) -> Function:
    function = build_function(KernelFunction(kernel), arguments, num_warps=num_warps)
    verify(function)
    return function


def prepared(kernel, **arguments) -> Function:
    function = prepare(build(kernel, **arguments))
    verify(function, Stage.ARRAY)
    return function


def laid_out(kernel, num_warps: int = 4, **arguments) -> Function:
    function = prepare(build(kernel, num_warps, **arguments))
    for run in (full_blocks.run, dce.run, form_groups.run):
        run(function)
    verify(function, Stage.LAID_OUT)
    return function


def find(function: Function, kind: type) -> list:
    return [op for op in function.walk() if isinstance(op, kind)]


def argument(function: Function, name: str) -> Value:
    return next(v for v in function.arguments if v.name == name)


# ------------------------------------------------------------------------------------- kernels


def copy(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(x + offs, mask=mask), mask=mask)


def copy_rows(x, out, rows, cols, stride, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    offs = r[:, None] * stride + c[None, :]
    tl.store(out + offs, tl.load(x + offs, mask=mask), mask=mask)


def walk_pointers(x, out, n, BLOCK: tl.constexpr):
    ptrs = x + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(n):
        total += tl.load(ptrs)
        ptrs += BLOCK
    tl.store(out + tl.arange(0, BLOCK), total)


COPY = {"x": F32, "out": F32, "n": N, "BLOCK": const(1024)}
ROWS = {"x": F32, "out": F32, "rows": N, "cols": N, "stride": N, "BM": const(16), "BN": const(64)}
WALK = {"x": F32, "out": F32, "n": N, "BLOCK": const(256)}


# --------------------------------------------------------------------------- resolve_pointers


def test_accesses_name_their_array():
    function = prepared(copy, **COPY)
    (load,), (store,) = find(function, ops.ArrayLoad), find(function, ops.ArrayStore)
    assert load.array is argument(function, "x")
    assert store.array is argument(function, "out")
    assert load.offset is store.offset
    assert not find(function, ops.AddPointer)


def test_carried_pointer_becomes_a_carried_scalar():
    function = prepared(walk_pointers, **WALK)
    (loop,) = find(function, ops.For)
    carried = sorted(str(v.type) for v in loop.body.arguments[1:])
    assert carried == ["256xfloat32", "int32"], "the tile of offsets is gone, a scalar advances"


def test_pointer_into_one_of_two_arrays_is_refused():
    def kernel(x, y, out, flag):
        p = x
        if flag > 0:
            p = y
        tl.store(out, tl.load(p))

    with pytest.raises(CompilationError, match="the pointer belongs to"):
        prepared(kernel, x=F32, y=F32, out=F32, flag=N)


# ------------------------------------------------------------------------- canonicalize and dce


def test_equal_operations_are_merged_and_splats_scalarized():
    def kernel(out, n):
        offs = tl.arange(0, 128)
        a = (offs + n * 2) + n * 2
        tl.store(out + offs, a)

    function = prepared(kernel, out=ArrayArgument(int32), n=N)
    multiplications = [op for op in find(function, ops.Binary) if op.kind is ops.BinaryKind.MUL]
    tile_additions = [op for op in find(function, ops.Binary) if not op.results[0].type.is_scalar]
    assert len(multiplications) == 1
    assert len(tile_additions) == 1, "the two splats are added as scalars first"


def test_dead_code_and_dead_carried_values_are_removed():
    def kernel(x, out, n):
        _unused = tl.load(x + tl.arange(0, 64))
        dead = 0.0
        kept = 0.0
        for i in range(n):
            dead = dead + kept
            kept = kept + tl.load(x + i)
        tl.store(out, kept)

    function = prepared(kernel, x=F32, out=F32, n=N)
    (loop,) = find(function, ops.For)
    assert len(loop.results) == 1
    assert len(find(function, ops.ArrayLoad)) == 1


def test_invariant_scalar_arithmetic_leaves_the_loop_but_loads_do_not():
    def kernel(x, out, n, m):
        total = 0.0
        for _ in range(n):
            total += tl.load(x + m * 3)
        tl.store(out, total)

    function = prepared(kernel, x=F32, out=F32, n=N, m=N)
    (loop,) = find(function, ops.For)
    inside = list(loop.body.walk())
    assert not [op for op in inside if isinstance(op, ops.Binary) and op.kind is ops.BinaryKind.MUL]
    assert [op for op in inside if isinstance(op, ops.ArrayLoad)], "a loop that runs 0 times must not load"


@pytest.mark.parametrize(
    ("kind", "a", "b", "expected"),
    [
        (ops.BinaryKind.IDIV, -7, 2, -3),
        (ops.BinaryKind.IREM, -7, 2, -1),
        (ops.BinaryKind.IDIV, 5, 0, 0),
        (ops.BinaryKind.IREM, 5, 0, 5),
        (ops.BinaryKind.SHL, 1, 40, 0),
        (ops.BinaryKind.SHR, -8, 40, -1),
        (ops.BinaryKind.ADD, 2**31 - 1, 1, -(2**31)),
    ],
)
def test_folding_follows_the_documented_corners(kind, a, b, expected):
    block = Block((Value(tile_type(pointer_type(int32)), None, "out"),))
    builder = IRBuilder(block)
    left, right, zero = (builder.emit(ops.Constant(v, int32))[0] for v in (a, b, 0))
    binary = ops.Binary(kind, left, right)
    (value,) = builder.emit(binary)
    builder.emit(ops.ArrayStore(block.arguments[0], zero, value))
    function = canonicalize.run(Function("fold", block))
    store = function.body.ops[-1]
    assert store.value.owner.value == expected
    assert evaluate(binary, np.int32(a), np.int32(b)) == expected


# ------------------------------------------------------------------------------------ analyses


def test_affine_form_of_rows_times_columns():
    function = prepared(copy_rows, **ROWS)
    (load,) = find(function, ops.ArrayLoad)
    affine = Analysis(function).affine(load.offset)
    assert affine is not None
    assert affine.step(1) == 1
    assert affine.steps[0] == {(argument(function, "stride"),): 1}


def test_program_ids_are_bounded_by_the_largest_tile():
    function = prepared(copy, **COPY)
    (start,) = [op for op in find(function, ops.Binary) if op.kind is ops.BinaryKind.MUL]
    assert Intervals(function).of(start.results[0]) == (0, 2**31 - 2048)
    (compare,) = find(function, ops.Compare)
    assert Intervals(function).fits(compare.lhs)


def test_roles_are_derived():
    def kernel(a, b, c, d):
        i = tl.arange(0, 32)
        x = tl.load(a + i)
        tl.store(b + i, x)
        tl.store(c + i, tl.load(c + i) + x)

    function = prepared(kernel, a=F32, b=F32, c=F32, d=F32)
    assert {v.name: r.value for v, r in roles(function).items()} == {
        "a": "read",
        "b": "written",
        "c": "read-written",
        "d": "unused",
    }


def test_load_after_own_store_is_refused_with_both_lines():
    def kernel(x):
        i = tl.arange(0, 32)
        tl.store(x + i, 1.0)
        tl.store(x + i, tl.load(x + i) + 1.0)

    function = prepared(kernel, x=F32)
    with pytest.raises(CompilationError, match="'x' may have to see the program's own store at line"):
        hazards(function)


def test_in_place_loop_over_disjoint_blocks_is_accepted_and_an_overlapping_one_refused():
    def blocks(x, n, STEP: tl.constexpr):
        for start in range(0, n, STEP):
            i = start + tl.arange(0, 64)
            tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    assert hazards(prepared(blocks, x=F32, n=N, STEP=const(64))) == set()
    with pytest.raises(CompilationError, match="own store"):
        hazards(prepared(blocks, x=F32, n=N, STEP=const(32)))


def test_store_before_load_of_another_array_is_a_hazard_pair():
    def kernel(a, b):
        i = tl.arange(0, 32)
        tl.store(a + i, 1.0)
        tl.store(a + i + 32, tl.load(b + i))

    function = prepared(kernel, a=F32, b=F32)
    assert {(s.name, v.name) for s, v in hazards(function)} == {("a", "b")}


def test_coverage_of_blocks_rows_and_gaps():
    def covered(kernel, **arguments):
        function = prepared(kernel, **arguments)
        return coverage(function, Analysis(function))[argument(function, "out")]

    assert covered(copy, **COPY) == [["le", ["size"], ["min", ["mul", ["grid", 0], 1024], ["scalar", "n"]]]]
    assert covered(copy_rows, **ROWS) is not None

    def gaps(out, n, BLOCK: tl.constexpr):
        tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) * 2, 1.0)

    conditions = covered(gaps, out=F32, n=N, BLOCK=const(64))
    assert conditions is None or ["le", 2, 1] in conditions, "the odd elements are never written"

    def conditional(out, n):
        if n > 3:
            tl.store(out + tl.arange(0, 64), 1.0)

    assert covered(conditional, out=F32, n=N) is None


# ------------------------------------------------------------------------- full_blocks and groups


def test_interior_blocks_get_vectors_and_the_edge_single_elements():
    function = laid_out(copy, **COPY)
    (branch,) = find(function, ops.If)
    fast, exact = branch.then_block.ops[0], branch.else_block.ops[0]
    assert (fast.layout.vector, exact.layout.vector) == (4, 1)
    assert [op.vector for op in fast.body.ops if isinstance(op, ops.ArrayLoad | ops.ArrayStore)] == [4, 4]
    assert not any(op.mask for op in fast.body.ops if isinstance(op, ops.ArrayLoad | ops.ArrayStore))
    (aligned,) = find(function, ops.IsAligned)
    assert aligned.array is argument(function, "x"), "a fresh output needs no test"


def test_interior_blocks_do_not_select_by_a_mask_that_is_full():
    def kernel(x, out, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offs < n
        value = tl.where(mask, tl.load(x + offs, mask=mask) + 1.0, -1.0)
        tl.store(out + offs, tl.where(offs == 3, value, 2.0 * value), mask=mask)

    function = prepared(kernel, **COPY)
    full_blocks.run(function)
    (branch,) = find(function, ops.If)
    verify(function, Stage.ARRAY)
    selects = [
        [op for op in b.ops if isinstance(op, ops.Select)] for b in (branch.then_block, branch.else_block)
    ]
    assert [len(found) for found in selects] == [1, 2], "the one by another condition stays"


@pytest.mark.parametrize(("dtype", "vector"), [(float16, 8), (int8, 8), (int64, 2), (float32, 4)])
def test_a_thread_moves_sixteen_bytes_where_it_has_them(dtype, vector):
    function = laid_out(copy, x=ArrayArgument(dtype), out=ArrayArgument(dtype), n=N, BLOCK=const(1024))
    assert max(g.layout.vector for g in find(function, TileGroup)) == vector


def test_the_full_block_test_is_exact_where_32_bits_could_overflow():
    def shifted(x, out, n, first, BLOCK: tl.constexpr):
        offs = first + tl.arange(0, BLOCK)
        tl.store(out + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)

    function = prepared(shifted, x=F32, out=F32, n=N, first=N, BLOCK=const(1024))
    full_blocks.run(function)
    (branch,) = find(function, ops.If)
    compares = [op for op in function.body.ops if isinstance(op, ops.Compare)]
    assert branch.condition is not None
    assert {str(op.lhs.type) for op in compares} == {"int64"}


def test_small_tiles_leave_threads_idle_but_use_one_group():
    function = laid_out(copy, x=F32, out=F32, n=N, BLOCK=const(16))
    assert {g.layout.busy_threads for g in find(function, TileGroup)} == {16}


def test_groups_that_share_register_tiles_share_a_layout():
    function = laid_out(walk_pointers, **WALK)
    assert len({g.layout for g in find(function, TileGroup)}) == 1


@pytest.mark.parametrize(("rows", "means"), [(16, SimdShuffle), (256, SharedTrip)])
def test_a_carried_tile_needed_in_another_shape_is_converted(rows, means):
    def kernel(x, out, n, M: tl.constexpr, K: tl.constexpr):
        rows = tl.arange(0, M)
        scale = tl.zeros((M,), tl.float32) + 1.0
        for i in range(n):
            scale = scale * tl.load(x + rows)
            offs = rows[:, None] * K + tl.arange(0, K)[None, :]
            tl.store(out + offs + i * (M * K), scale[:, None] + tl.zeros((M, K), tl.float32))

    function = laid_out(kernel, x=F32, out=F32, n=N, M=const(rows), K=const(64))
    plans = [plan(op.value, op.results[0]) for op in find(function, Convert)]
    assert plans and all(isinstance(p, means) for p in plans), "16 are in every SIMD group"


def test_overlapping_stores_are_separated_by_a_barrier_and_disjoint_ones_are_not():
    def stores(out, SHIFT: tl.constexpr):
        i = tl.arange(0, 64)
        tl.store(out + i, 1.0)
        tl.store(out + i + SHIFT, 2.0)

    assert len(find(laid_out(stores, out=F32, SHIFT=const(1)), ops.Barrier)) == 1
    assert not find(laid_out(stores, out=F32, SHIFT=const(64)), ops.Barrier)
    assert not find(laid_out(stores, out=F32, SHIFT=const(0)), ops.Barrier), "one thread does both, in order"


@pytest.mark.parametrize(
    ("step", "row", "shift", "barriers"),
    [(1, 128, 64, 0), (1, 128, 63, 1), (1, 128, 65, 1), (1, 127, 64, 1), (2, 128, 1, 0), (2, 128, 2, 1),
     (1, 128, 64 + 1280, 0), (1, 64, 32, 1)],
)  # fmt: skip
def test_stores_that_interleave_need_no_barrier(step, row, shift, barriers):
    """Such as the halves of each row, or its even and odd elements."""

    def stores(out, n, STEP: tl.constexpr, ROW: tl.constexpr, SHIFT: tl.constexpr):
        heads, rows = tl.arange(0, 4)[:, None, None], tl.arange(0, 16)[None, :, None]
        i = (heads * n + rows) * ROW + tl.arange(0, 64)[None, None, :] * STEP
        tl.store(out + i, 1.0)
        tl.store(out + i + SHIFT, 2.0)

    function = laid_out(stores, out=F32, n=N, STEP=const(step), ROW=const(row), SHIFT=const(shift))
    assert len(find(function, ops.Barrier)) == barriers


def test_register_pressure_warns_and_refuses():
    def kernel(x, out, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) * 2)

    assert compile_function(build(kernel, x=F32, out=F32, B=const(16384))).warnings == []
    (warning,) = compile_function(build(kernel, x=F32, out=F32, B=const(32768))).warnings
    assert "256 registers a thread" in warning
    assert "num_warps=8" in warning
    with pytest.raises(CompilationError, match="needs 512 registers a thread") as caught:
        compile_function(build(kernel, x=F32, out=F32, B=const(65536)))
    assert "num_warps=16" in caught.value.hint


def test_the_verifier_reports_what_is_broken():
    function = build(copy, **COPY)
    function.body.ops.reverse()
    with pytest.raises(InternalError, match="before it is defined"):
        verify(function)
    with pytest.raises(InternalError, match="not legal in stage array"):
        verify(build(copy, **COPY), Stage.ARRAY)
    tiles = prepared(copy, **COPY)
    with pytest.raises(InternalError, match="outside a group"):
        verify(tiles, Stage.LAID_OUT)


def grid_stride(x, out, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def scattered_blocks(index, out, n, BLOCK: tl.constexpr):
    for k in range(n):
        tl.store(out + tl.load(index + k) + tl.arange(0, BLOCK), 1.0)


def test_iterations_need_a_barrier_only_where_their_stores_may_meet():
    assert not find(laid_out(grid_stride, **COPY), ops.Barrier), "the step is at least a block"
    arguments = {"index": ArrayArgument(int32), "out": F32, "n": N, "BLOCK": const(64)}
    assert find(laid_out(scattered_blocks, **arguments), ops.Barrier), "a loaded offset may come twice"


# --------------------------------------------------------------------------------- conversions


def conversion(kernel, num_warps=4, **arguments):
    """The plans of a kernel's conversions between layouts."""
    function = laid_out(kernel, num_warps, **arguments)
    return [plan(op.value, op.results[0]) for op in find(function, Convert)]


def test_a_transposed_tile_makes_one_trip_without_conflicts():
    def kernel(x, out, M: tl.constexpr, N: tl.constexpr):
        r, c = tl.arange(0, M), tl.arange(0, N)
        tl.store(out + c[:, None] * M + r[None, :], tl.load(x + r[:, None] * N + c[None, :]).T)

    (trip,) = conversion(kernel, x=F32, out=F32, M=const(32), N=const(64))
    assert isinstance(trip, SharedTrip)
    assert trip.conflicts() == (0, 0)


def test_a_transpose_within_a_simd_group_shuffles():
    def kernel(x, out):
        i = tl.arange(0, 4)
        tl.store(out + i[:, None] * 4 + i[None, :], tl.exp(tl.load(x + i[:, None] * 4 + i[None, :])).T)

    (shuffle,) = conversion(kernel, 1, x=F32, out=F32)
    assert isinstance(shuffle, SimdShuffle)


def test_a_reshaped_register_tile_stays_where_it_is():
    def kernel(x, out, N: tl.constexpr):
        t = tl.load(x + tl.arange(0, N))
        t = t - tl.max(t, 0)
        rows = tl.arange(0, N // 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + rows, tl.reshape(t, (N // 64, 64)))

    (nothing,) = conversion(kernel, x=F32, out=F32, N=const(2048))
    assert isinstance(nothing, Nothing)


def test_broadcast_rows_are_reloaded_and_not_exchanged():
    def kernel(x, b, out, M: tl.constexpr, N: tl.constexpr):
        r, c = tl.arange(0, M), tl.arange(0, N)
        t = tl.load(x + r[:, None] * N + c[None, :])
        t = t - tl.max(t, 1)[:, None] + tl.load(b + c)[None, :]
        tl.store(out + r[:, None] * N + c[None, :], t)

    assert conversion(kernel, x=F32, b=F32, out=F32, M=const(16), N=const(128)) == []
