"""Run-time ``if`` and ``for``: what is carried, with which types, and what is undefined afterwards."""

from __future__ import annotations

import pytest

from enceladus.errors import CompilationError
from enceladus.frontend.signature import ScalarArgument
from enceladus.ir.ops import Binary, Constant, For, If, Load, Store, Unary
from enceladus.ir.types import float16, float32, int1, int8, int32, int64, tile_type, uint32
from enceladus.ir.verifier import verify
from tests.frontend_helpers import build, constant, find, one


def kernel(body: str, parameters: str = "x, y, out, n, m, s, BLOCK: tl.constexpr") -> str:
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return f"@jit\ndef kernel({parameters}):\n{lines}\n"


def types(op):
    return [str(v.type) for v in op.results]


def names(op):
    return [v.name for v in op.results]


# ------------------------------------------------------------------------------------------- if


def test_if_carries_what_differs():
    function = build(
        kernel("""
a = tl.load(x)
b = a
c = 5
if n > 2:
    a = a + 1.0
    b = b
    c = 5
    hidden = a
else:
    a = a * 2.0
tl.store(out, a + c)
tl.store(out, b)
""")
    )
    branch = one(function, If)
    assert names(branch) == ["a"] and types(branch) == ["float32"]
    first, second = find(function, Store)
    assert second.value is one(function, Load).result
    assert first.value.owner.lhs is branch.result
    verify(function)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1", "2", int32),
        ("1", "2.5", float32),
        ("1", "4_000_000_000", int64),
        ("True", "False", int1),
        ("1", "n", int32),
        ("2", "n.to(tl.int8)", int8),
        ("s.to(tl.float16)", "3", float16),
        ("-0.0", "0.0", float32),
    ],
)
def test_numbers_take_the_other_sides_type(first, second, expected):
    function = build(
        kernel(f"""
if m > 2:
    v = {first}
else:
    v = {second}
tl.store(out, v)
""")
    )
    assert one(function, If).result.type == tile_type(expected)
    verify(function)


def test_equal_compile_time_values_stay_compile_time():
    function = build(
        kernel("""
if m > 2:
    size, dtype, f, pair = 64, tl.float16, tl.exp, (1, (2, None))
    tl.store(out, 1.0)
else:
    size, dtype, f, pair = 64, tl.float16, tl.exp, (1, (2, None))
tl.store(out + tl.arange(0, size), f(tl.zeros((size,), dtype).to(tl.float32)) + pair[1][0])
""")
    )
    assert one(function, If).results == () and one(function, Unary).value.type.shape == (64,)


def test_tuples_are_carried_by_item():
    function = build(
        kernel("""
pair = (tl.load(x), 3, (1, "text"))
if m > 2:
    pair = (pair[0] + 1.0, 3, (2, "text"))
tl.store(out, pair[0] + pair[2][0])
tl.static_assert(pair[1] == 3 and pair[2][1] == "text")
""")
    )
    branch = one(function, If)
    assert names(branch) == ["pair_0", "pair_2_0"] and types(branch) == ["float32", "int32"]


def test_elif_nests():
    function = build(
        kernel("""
if n > 2:
    v = 1.0
elif n > 1:
    v = 2.0
else:
    v = 3.0
tl.store(out, v)
""")
    )
    outer, inner = find(function, If)
    assert inner in outer.else_block.ops and outer.else_block.terminator.values == inner.results
    verify(function)


def test_scratch_variables_may_differ():
    build(
        kernel("""
if n > 2:
    t = tl.zeros((4,), tl.float32)
    tl.store(out + tl.arange(0, 4), t)
else:
    t = tl.zeros((8,), tl.float16)
    tl.store(out + tl.arange(0, 8), t)
t = 3.0
tl.store(out, t)
""")
    )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("tl.zeros((4,), tl.float32)", "0.0", "tl.zeros((4,), dtype=tl.float32)"),
        ("tl.zeros((4,), tl.float32)", "tl.zeros((8,), tl.float32)", "tl.zeros((8,)"),
        ("n", "s", ".to(tl.int32)"),
        ("n", "1.5", ".to(tl.int32)"),
        ("True", "1", "constexpr"),
        ("'a'", "'b'", "constexpr"),
        ("x", "y", None),
        ("x", "None", "both paths"),
        ("(1, n)", "(1, n, 2)", "constexpr"),
    ],
)
def test_types_that_cannot_meet(first, second, words):
    source = kernel(f"""
if m > 2:
    v = {first}
else:
    v = {second}
w = v
""")
    if words is None:
        build(source)
        return
    with pytest.raises(CompilationError) as caught:
        build(source)
    error = caught.value
    assert "'v' is " in error.reason and "line 3" in error.reason and words in error.hint
    assert (error.location.line, error.location.column) == (7, 8)


def test_defined_in_one_branch_only():
    source = kernel("""
if m > 2:
    v = tl.zeros((4,), tl.float32)
tl.store(out + tl.arange(0, 4), v)
""")
    with pytest.raises(CompilationError) as caught:
        build(source)
    assert "'v' is defined only in" in caught.value.reason and "line 3" in caught.value.reason
    assert "v = tl.zeros((4,), dtype=tl.float32)" in caught.value.hint


# ------------------------------------------------------------------------------------------ for


def test_for_over_run_time_bounds():
    function = build(
        kernel("""
acc = tl.zeros((BLOCK,), tl.float32)
k = 16
for i in range(0, n, BLOCK):
    k = 16
    acc += tl.load(x + i + tl.arange(0, BLOCK))
tl.store(out + tl.arange(0, k), acc if BLOCK == k else 0.0)
""")
    )
    loop = one(function, For)
    assert names(loop) == ["acc"] and types(loop) == ["128xfloat32"]
    assert loop.upper is function.arguments[3] and loop.body.arguments[0].name == "i"
    assert loop.body.terminator.values[0].owner.lhs is loop.body.arguments[1]
    verify(function)


def test_unchanged_tiles_are_not_carried():
    function = build(
        kernel("""
v, w = tl.load(x), tl.load(y)
for i in range(n):
    v = v
    if i > 3:
        tl.store(out, v)
    w = w + v
tl.store(out, v + w)
""")
    )
    loop = one(function, For)
    assert names(loop) == ["w"] and len(loop.body.arguments) == 2
    inside = find(function, Store)[0]
    assert inside.value.name == "v" and isinstance(inside.value.owner, Load)
    verify(function)


@pytest.mark.parametrize(
    ("initial", "update", "expected"),
    [
        ("0", "c += 1", int32),
        ("0.0", "c = c + s", float32),
        ("0", "c += s", float32),
        ("0", "c += 1.5", float32),
        ("0", "c = n.to(tl.int64)", int64),
        ("0", "c = 7", int32),
        ("0", "c = 7.5", float32),
        ("0", "c += n.to(tl.int64)", int64),
        ("True", "c = i > 3", int1),
        ("1", "c = c * tl.program_id(0)", int32),
    ],
)
def test_carried_numbers(initial, update, expected):
    function = build(
        kernel(f"""
c = {initial}
for i in range(n):
    {update}
tl.store(out, c)
""")
    )
    loop = one(function, For)
    assert names(loop) == ["c"] and loop.result.type == tile_type(expected)
    assert isinstance(loop.initial[0].owner, Constant)
    verify(function)


def test_assumed_constant_is_walked_again():
    """``first`` looks constant until the body's end, so nothing built before may stay."""
    function = build(
        kernel("""
first = 1
for i in range(n):
    if first == 1:
        tl.store(out, 1.0)
    first = 0
""")
    )
    loop = one(function, For)
    assert names(loop) == ["first"] and find(function, If)[0] in loop.body.ops
    verify(function)


def test_nested_loops_and_swaps():
    function = build(
        kernel("""
a, b, total = 0, 1, 0.0
for i in range(10):
    for j in range(i, n):
        a, b = b, a + b
    total += a
tl.store(out, total)
""")
    )
    outer, inner = find(function, For)
    assert inner in outer.body.ops and set(names(outer)) == {"a", "b", "total"} and names(inner) == ["a", "b"]
    assert inner.lower is outer.body.arguments[0]
    verify(function)


def test_tuples_of_accumulators():
    function = build(
        kernel("""
accs = (tl.zeros((4,), tl.float32), 0, None)
for i in range(n):
    accs = (accs[0] + 1.0, accs[1] + 1, None)
tl.store(out + tl.arange(0, 4), accs[0] + accs[1])
""")
    )
    loop = one(function, For)
    assert names(loop) == ["accs_0", "accs_1"] and types(loop) == ["4xfloat32", "int32"]


@pytest.mark.parametrize(
    ("bounds", "arguments", "expected"),
    [
        ("range(4)", {}, int32),
        ("range(2, n)", {}, int32),
        ("range(n, 0, -1)", {}, int32),
        ("tl.range(0, n, num_stages=3)", {"n": ScalarArgument(int64)}, int64),
        ("range(0, n, m)", {"n": ScalarArgument(int64)}, int64),
        ("range(n)", {"n": ScalarArgument(uint32)}, uint32),
    ],
)
def test_bounds(bounds, arguments, expected):
    function = build(kernel(f"for i in {bounds}:\n    tl.store(out + i, 1.0)"), **arguments)
    loop = one(function, For)
    assert {loop.lower.type, loop.upper.type, loop.step.type} == {tile_type(expected)}
    assert loop.body.arguments[0].type == tile_type(expected)


def test_literal_bounds_are_wide_in_the_wide_variant():
    source = kernel("for i in range(4):\n    tl.store(out + i, 1.0)")
    assert one(build(source, wide=True), For).lower.type == tile_type(int64)


def test_a_range_may_be_a_compile_time_value():
    function = build(
        kernel("for i in R:\n    tl.store(out + i, 1.0)", "out, R: tl.constexpr"), R=constant(range(3))
    )
    assert one(function, For).upper.owner.value == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("t = i", "is the variable of the loop in line 3"),
        ("t = inner", "is defined only inside the loop in line 3"),
    ],
)
def test_names_of_the_body_end_with_it(body, words):
    source = kernel(f"for i in range(n):\n    inner = i\n{body}")
    with pytest.raises(CompilationError) as caught:
        build(source)
    assert words in caught.value.reason and caught.value.location.line == 5


@pytest.mark.parametrize(
    ("initial", "update", "words"),
    [
        ("0.0", "v += tl.load(x + tl.arange(0, 8))", "tl.zeros((8,), dtype=tl.float32)"),
        ("tl.zeros((8,), tl.float16)", "v = v + s", ".to(tl.float16)"),
        ("n", "v = v + 1.5", ".to(tl.int32)"),
        ("(1, n)", "v = (v[1], n, 3)", "constexpr"),
        ("'a'", "v = v + 'b'", "constexpr"),
    ],
)
def test_loop_types_that_do_not_settle(initial, update, words):
    source = kernel(f"v = {initial}\nfor i in range(n):\n    {update}")
    with pytest.raises(CompilationError) as caught:
        build(source)
    error = caught.value
    assert "'v' is " in error.reason and "after an iteration" in error.reason and words in error.hint
    assert error.location.line == 5


def test_scratch_variables_in_loops_may_change_type():
    function = build(
        kernel("""
t = tl.zeros((8,), tl.float32)
tl.store(out + tl.arange(0, 8), t)
for i in range(n):
    t = tl.load(x + i)
    tl.store(out + i, t)
    for t in range(3):
        tl.store(out, 1.0)
""")
    )
    assert [names(loop) for loop in find(function, For)] == [[], []]
    verify(function)


def test_unrolled_loops_inside_run_time_loops():
    function = build(
        kernel("""
acc = 0.0
for i in range(n):
    for j in tl.static_range(3):
        acc += tl.load(x + i * 3 + j)
tl.store(out, acc)
""")
    )
    assert len(find(function, Load)) == 3 and types(one(function, For)) == ["float32"]


def test_helpers_have_scopes_of_their_own():
    source = """
@jit
def total(p, n):
    acc = 0.0
    for i in range(n):
        acc += tl.load(p + i)
    return acc

@jit
def kernel(x, y, out, n):
    acc = 1.0
    if n > 4:
        acc = total(x, n) + total(y, n)
    tl.store(out, acc)
"""
    function = build(source)
    loops = find(function, For)
    assert len(loops) == 2 and all(loop in one(function, If).then_block.ops for loop in loops)
    assert [loop.loc.call_site.line for loop in loops] == [13, 13]
    assert [op.loc.call_site is None for op in find(function, Binary)][-1]
    verify(function)


def test_compile_time_errors_do_not_hide_behind_loops():
    build(kernel("for i in range(0):\n    tl.static_assert(True)\n    acc = i"))
    with pytest.raises(CompilationError, match="static_assert"):
        build(kernel("for i in range(0):\n    tl.static_assert(False)"))
