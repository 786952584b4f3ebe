"""From Python functions to tile IR: names, calls, operators and compile-time evaluation."""

from __future__ import annotations

import types
from collections import namedtuple

import pytest

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import ArrayArgument, ScalarArgument, TupleArgument
from enceladus.ir.core import ArgumentHints
from enceladus.ir.ops import (
    AddPointer,
    Binary,
    BinaryKind,
    Cast,
    Compare,
    CompareKind,
    Constant,
    If,
    Load,
    MakeRange,
    ProgramId,
    Select,
    Store,
    Unary,
    UnaryKind,
    Yield,
)
from enceladus.ir.printer import print_function
from enceladus.ir.types import float16, float32, int1, int32, int64, pointer_type, tile_type
from tests.frontend_helpers import FLOATS, INT, build, build_kernel, constant, define, find, one

VECTOR_ADD = """
@jit
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask)
    b = tl.load(y + offs, mask=mask)
    tl.store(out + offs, a + b, mask=mask)
"""


def stored(function):
    """What the kernel's only store writes."""
    return one(function, Store).value


def constants(function):
    return [op.value for op in find(function, Constant)]


def test_vector_add():
    function = build(VECTOR_ADD)
    assert [(v.name, str(v.type)) for v in function.arguments] == [
        ("x", "*float32"), ("y", "*float32"), ("out", "*float32"), ("n", "int32"),
    ]  # fmt: skip
    loads = find(function, Load)
    assert [load.result.name for load in loads] == ["a", "b"]
    mask = one(function, Compare).result
    assert mask.name == "mask" and loads[0].mask is mask and one(function, Store).mask is mask
    add = stored(function).owner
    assert isinstance(add, Binary) and add.kind is BinaryKind.ADD
    assert (add.lhs, add.rhs) == (loads[0].result, loads[1].result)


def test_locations_are_ranges_of_the_file():
    function = build(VECTOR_ADD)
    load = find(function, Load)[1]
    assert (load.loc.line, load.loc.column, load.loc.end_column) == (7, 8, 36)
    assert load.loc.function == "kernel" and load.loc.call_site is None
    pointer = load.pointer.owner
    assert isinstance(pointer, AddPointer) and (pointer.loc.line, pointer.loc.column) == (7, 16)
    assert function.source_lines[load.loc.file, 7] == "b = tl.load(y + offs, mask=mask)"


def test_every_operation_has_a_location():
    assert all(op.loc is not None and op.loc.line for op in build(VECTOR_ADD).walk())


def test_scalar_hints_and_wide():
    source = """
@jit
def kernel(out, n):
    tl.store(out + tl.program_id(0), n)
"""
    function = build(source, n=ScalarArgument(int64, divisible_by_16=True), wide=True)
    assert function.hints == {function.arguments[1]: ArgumentHints(16)}
    assert function.wide and one(function, ProgramId).dtype is int64


def test_an_integer_that_is_one_keeps_the_index_type():
    source = """
@jit
def kernel(out, n):
    tl.store(out, n.to(tl.float32))
    tl.static_assert(n.dtype == EXPECTED)
"""
    assert len(build(source, n=constant(1), globals={"EXPECTED": int32}).arguments) == 1
    build(source, n=constant(1), wide=True, globals={"EXPECTED": int64})


def test_none_is_known_at_compile_time():
    source = """
@jit
def kernel(out, x):
    if x is not None:
        tl.store(out, tl.load(x))
    else:
        tl.store(out, 2.0)
"""
    assert not find(build(source, x=constant(None)), Load)
    assert find(build(source), Load)


def test_tuples_are_flattened_depth_first():
    source = """
@jit
def kernel(args, point):
    (a, (b, k)), unused = args, None
    tl.static_assert(len(args) == 2 and k == 7)
    tl.store(a + point.n, tl.load(b + point[1]))
"""
    function = build(
        source,
        args=TupleArgument((FLOATS, TupleArgument((ArrayArgument(float16), constant(7))))),
        point=TupleArgument((INT, INT), ("m", "n")),
    )
    names = [v.name for v in function.arguments]
    assert names == ["args_0", "args_1_0", "point_m", "point_n"]
    assert function.arguments[1].type == tile_type(pointer_type(float16))
    load, store = one(function, Load), one(function, Store)
    assert load.pointer.owner.offset is function.arguments[3] is store.pointer.owner.offset


def test_compile_time_branches_and_short_circuits():
    source = """
@jit
def kernel(out, MODE: tl.constexpr, W: tl.constexpr):
    value = 1.0 if MODE == "a" else undefined_name
    if W is not None and W.shape:
        never
    elif MODE == "a" or never:
        tl.store(out, value)
    assert MODE == "a", "only a"
"""
    assert constants(build(source, MODE=constant("a"), W=constant(None))) == [1.0]


def test_static_range_and_tuples_unroll():
    source = """
@jit
def kernel(out, K: tl.constexpr):
    for i in tl.static_range(1, 7, 2):
        tl.store(out + i, 0.5)
    for j, (a, b) in enumerate(((10, 20), (30, 40))):
        tl.store(out + a + b + j, 0.5)
"""
    function = build(source, K=constant(3))
    offsets = [c for c in constants(function) if isinstance(c, int)]
    assert offsets == [1, 3, 5, 10, 20, 0, 30, 40, 1]
    assert len(find(function, Store)) == 5


def test_helpers_are_inlined_with_call_sites():
    source = """
@jit
def scaled(v, factor=2.0, *, SHIFT: tl.constexpr = 1):
    t = v * factor
    return t, t + SHIFT

@jit
def kernel(x, out):
    a, b = scaled(tl.load(x), SHIFT=3)
    tl.store(out, a + b)
"""
    function = build(source)
    multiply = find(function, Binary)[0]
    assert multiply.kind is BinaryKind.MUL and multiply.result.name == "t"
    location = multiply.loc
    assert (location.line, location.column, location.function) == (4, 8, "scaled")
    assert location.call_site.line == 9 and location.call_site.function == "kernel"
    assert constants(function) == [2.0, 3.0]


def test_jit_functions_as_constexpr_arguments():
    source = """
@jit
def square(v):
    return v * v

@jit
def apply(F: tl.constexpr, v):
    return F(v)

@jit
def kernel(x, out, F: tl.constexpr):
    tl.store(out, apply(F, tl.load(x)))
"""
    kernel = define(source)
    square = kernel.lookup("square")
    function = build_kernel(kernel, F=constant(square))
    multiply = one(function, Binary)
    assert multiply.loc.call_site.call_site.line == 12


def test_objects_that_hold_a_kernel_function_are_inlined():
    class Holder:
        def __init__(self, kernel_function):
            self.kernel_function = kernel_function

    holder = Holder(define("@jit\ndef kernel(v):\n    return v + 1.0\n"))
    source = "@jit\ndef kernel(x, out):\n    tl.store(out, helper(tl.load(x)))\n"
    assert one(build(source, globals={"helper": holder}), Binary).kind is BinaryKind.ADD


def test_plain_python_at_compile_time():
    source = """
import math
SIZES = [16, 32]
TABLE = {"a": 3}
WIDTH = tl.constexpr(4)

def double(v, *, extra=0):
    return 2 * v + extra

@jit
def kernel(out):
    k: tl.constexpr = double(SIZES[1], extra=WIDTH) + TABLE["a"]
    tl.store(out, max(k, 1) + math.floor(2.5) + len(f"{k:>5}") + int(2.9) + min((4, 9)) + divmod(7, 2)[1])
    tl.static_assert(isinstance(k, int) and isinstance(k, tl.constexpr))
"""
    assert constants(build(source)) == [71.0 + 2 + 5 + 2 + 4 + 1]


def test_python_min_max_abs_of_tiles():
    source = """
@jit
def kernel(x, out):
    v = tl.load(x)
    tl.store(out, abs(max(v, 1.0, min(v, 2.0))) * sum((v, v)))
"""
    function = build(source)
    kinds = [op.kind for op in find(function, Binary)]
    assert kinds[:3] == [BinaryKind.MIN, BinaryKind.MAX, BinaryKind.MAX]
    assert kinds[3:] == [BinaryKind.ADD, BinaryKind.ADD, BinaryKind.MUL]
    assert one(function, Unary).kind is UnaryKind.ABS


def test_chained_comparison_of_scalars():
    function = build("@jit\ndef kernel(out, n, m):\n    tl.store(out, (0 < n <= m < 9).to(tl.float32))\n")
    kinds = [op.kind for op in find(function, Compare)]
    assert kinds == [CompareKind.GT, CompareKind.LE, CompareKind.LT]  # Python turns 0 < n around
    assert [op.kind for op in find(function, Binary)] == [BinaryKind.AND, BinaryKind.AND]


def test_pure_logic_needs_no_branch():
    function = build("@jit\ndef kernel(out, n, m):\n    tl.store(out, not (n and m > 2 or n > 5))\n")
    assert [op.kind for op in find(function, Binary)] == [BinaryKind.AND, BinaryKind.OR]
    assert one(function, Unary).kind is UnaryKind.NOT and not find(function, If)


def test_a_load_behind_and_runs_only_if_asked_for():
    source = """
@jit
def kernel(x, out, n, m):
    if n < m and tl.load(x + n) > 0.0:
        tl.store(out, 1.0)
"""
    function = build(source)
    guard = find(function, If)[0]
    load = one(function, Load)
    assert load in guard.then_block.ops and guard.result_types() == (tile_type(int1),)
    known = guard.else_block.terminator.values[0].owner
    assert isinstance(known, Constant) and known.value is False


def test_conditional_expressions():
    cheap = build("@jit\ndef kernel(out, n, s):\n    tl.store(out, s if n > 3 else 0)\n")
    select = one(cheap, Select)
    assert select.on_true is cheap.arguments[2] and select.on_false.type == tile_type(float32)
    assert not find(cheap, If)
    loads = build("@jit\ndef kernel(x, y, out, n):\n    tl.store(out, tl.load(x) if n else tl.load(y))\n")
    branch = one(loads, If)
    assert isinstance(branch.then_block.ops[0], Load) and isinstance(branch.else_block.ops[0], Load)
    assert stored(loads) is branch.result


def test_star_arguments_and_named_tuples():
    pair = namedtuple("pair", "left right")
    source = """
@jit
def add(a, b):
    return a + b

@jit
def kernel(x, out):
    v = pair(tl.load(x), right=3)
    tl.store(out, add(*v) + v._replace(right=4).right)
"""
    function = build(source, globals={"pair": pair})
    assert constants(function) == [3.0, 4.0]


def test_numbers_have_the_attributes_of_tiles():
    function = build("@jit\ndef kernel(out):\n    tl.store(out, (5).to(tl.float32))\n")
    assert one(function, Cast).dtype is float32


def test_return_may_stand_in_compile_time_branches():
    source = """
@jit
def pick(v, UP: tl.constexpr):
    if UP:
        return v + 1.0
    return v - 1.0

@jit
def kernel(x, out):
    tl.store(out, pick(tl.load(x), False))
"""
    assert one(build(source), Binary).kind is BinaryKind.SUB


def test_lists_are_shapes_too():
    function = build(
        "@jit\ndef kernel(out, BLOCK: tl.constexpr):\n"
        "    tl.store(out + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32))\n"
    )
    assert stored(function).type == tile_type(float32, (128,))
    assert one(function, MakeRange).end == 128


def test_names_are_kept_from_the_first_assignment():
    function = build("@jit\ndef kernel(x, out):\n    a = tl.load(x)\n    b = a\n    tl.store(out, b)\n")
    assert stored(function).name == "a"


def test_defaults_of_kernels():
    source = (
        "@jit\ndef kernel(out, K: tl.constexpr = 5, w=None):\n    if w is None:\n        tl.store(out, K)\n"
    )
    assert constants(build(source)) == [5.0]
    kernel = define(source)
    with pytest.raises(TypeError, match="no parameter 'zzz'"):
        build_kernel(kernel, zzz=INT)
    with pytest.raises(TypeError, match="misses an argument for 'q'"):
        build("@jit\ndef kernel(q):\n    pass\n")


def test_errors_end_at_the_entry_point():
    """Neither the traceback nor the causes show the walk's own frames."""
    with pytest.raises(CompilationError) as caught:
        build("@jit\ndef kernel(x):\n    y = x * x\n")
    frames = []
    trace = caught.value.__traceback__
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "build_function" and caught.value.__cause__ is None


def test_empty_yields_are_consistent():
    function = build("@jit\ndef kernel(out, n):\n    if n > 1:\n        tl.store(out, 1.0)\n")
    branch = one(function, If)
    assert branch.results == () and [type(b.terminator) for b in branch.blocks] == [Yield, Yield]


def test_debugging_passes_over_what_only_the_interpreter_runs():
    source = """
@jit
def kernel(x, out, n):
    import pdb
    v = tl.load(x)
    print(v, f"{n}")
    breakpoint()
    assert n > 2, "too small"
    if n > 3:
        pdb.set_trace()
    tl.store(out, v)
"""
    function = build_kernel(define(source), debugging=True)
    assert one(function, Store).value is one(function, Load).result
    with pytest.raises(CompilationError, match="'import'"):
        build_kernel(define(source))


def test_the_same_kernel_builds_again_and_again():
    kernel = define(VECTOR_ADD)
    first, second = (print_function(build_kernel(kernel)) for _ in range(2))
    assert first == second
    assert "1024x" in print_function(build_kernel(kernel, BLOCK=constant(1024)))


def test_iterating_helpers_and_dictionaries():
    source = """
@jit
def kernel(x, y, out):
    for p, f in zip((x, y), [1.0, 2.0]):
        tl.store(out, tl.load(p) * f)
    for key in {"a": 1, "b": 2}:
        tl.static_assert(key in "ab")
    for index, p in reversed(tuple(enumerate((x, y)))):
        tl.store(p + index, {"k": 2.5}["k"])
"""
    assert constants(build(source)) == [1.0, 2.0, 1, 2.5, 0, 2.5]


def test_dotted_helpers_and_jit_in_modules():
    module = types.ModuleType("module")
    module.helper = define("@jit\ndef helper(v):\n    return v * 2.0\n", "helper")
    function = build(
        "@jit\ndef kernel(x, out):\n    tl.store(out, module.helper(tl.load(x)))\n",
        globals={"module": module},
    )
    assert one(function, Binary).kind is BinaryKind.MUL


def test_closures_are_read():
    def make(factor):
        @KernelFunction
        def kernel(x, out):
            tl.store(out, tl.load(x) * factor)

        return kernel

    assert constants(build_kernel(make(2.5))) == [2.5]
    assert constants(build_kernel(make(tl.constexpr(3.5)))) == [3.5]
