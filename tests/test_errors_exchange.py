"""Wrong uses of the builtins through which elements meet: place, reason and hint (see ``test_errors``)."""

from __future__ import annotations

import pytest

from enceladus.errors import CompilationError
from enceladus.frontend.signature import ArrayArgument
from enceladus.ir.types import DTYPES
from tests.frontend_helpers import build
from tests.test_errors import GLOBALS, body, marked

TILE = "t = tl.load(x + tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :])\n"
ROW = "r = tl.load(x + tl.arange(0, 8))\n"


def function(text: str, arguments: str = "a, b") -> str:
    """A helper ``f`` in front of a kernel."""
    return f"@jit\ndef f({arguments}):\n" + "".join(f"    {line}\n" for line in text.split("\n"))


def tile(text: str, helper: str = "") -> str:
    return helper + body(TILE + ROW + text)


#: name → (source with the mark, words)
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    # ------------------------------------------------------------------------------------ axes
    "sum axis": (tile("a = «tl.sum(t, axis=2)"), ("`axis` 2 is out of range", "0 to 1", "-2 to -1")),
    "sum negative axis": (tile("a = «tl.sum(r, -2)"), ("`axis` -2 is out of range", "1 dimension", "use 0")),
    "axis as a run-time value": (tile("a = «tl.max(t, n)"), ("compile-time integer", "tl.constexpr")),
    "axis as a tuple": (tile("a = «tl.min(t, (0, 1))"), ("`axis` must be a compile-time integer",)),
    "argmax axis": (tile("a = «t.argmax(3)"), ("tl.argmax", "out of range")),
    "cumsum axis": (tile("a = «tl.cumsum(t, 2)"), ("tl.cumsum", "out of range")),
    "softmax axis": (tile("a = «tl.softmax(t, dim=5)"), ("tl.softmax", "`dim` 5")),
    "sort along another axis": (
        tile("a = «tl.sort(t, dim=0)"),
        ("last dimension", "not 0 of 2", "tl.permute"),
    ),
    "topk along another axis": (tile("a = «tl.topk(t, 2, dim=0)"), ("last dimension", "tl.permute")),
    "sort axis": (tile("a = «tl.sort(t, dim=2)"), ("tl.sort", "`dim` 2 is out of range")),
    "reduction of a scalar": (tile("a = «tl.sum(s)"), ("needs a tile, got a scalar", "tl.arange")),
    "scan of a scalar": (tile("a = «tl.cumsum(s)"), ("needs a tile, got a scalar",)),
    "keep_dims": (tile("a = «tl.sum(t, 0, keep_dims=n)"), ("`keep_dims`", "compile time")),
    "reverse": (tile("a = «tl.cumsum(t, 0, reverse=n)"), ("`reverse`", "compile time")),
    # ------------------------------------------------------------------------------------ types
    "sum of pointers": (tile("a = «tl.sum(x + tl.arange(0, 8))"), ("pointers", "tl.load")),
    "xor of floats": (tile("a = «tl.xor_sum(t, 0)"), ("needs integers, not float32", "tl.uint32")),
    "or of floats": (tile("a = «tl.reduce_or(t, 0)"), ("tl.reduce_or", "needs integers")),
    "sum as int1": (tile("a = «tl.sum(t, dtype=tl.int1)"), ("int1 cannot hold a sum", "tl.any")),
    "softmax of integers": (tile("a = «tl.softmax(tl.arange(0, 8))"), ("needs floats", ".to(tl.float32)")),
    "histogram of floats": (tile("a = «tl.histogram(r, 8)"), ("counts integers", ".to(tl.int32)")),
    "histogram of rows": (tile("a = «tl.histogram(t.to(tl.int32), 8)"), ("1-D tile", "tl.ravel")),
    "histogram bins": (
        tile("a = «tl.histogram(r.to(tl.int32), 12)"),
        ("power of two, got 12", "next_power_of_2(12) = 16"),
    ),
    "gather index": (tile("a = «tl.gather(t, t, 0)"), ("`index` must be integers", ".to(tl.int32)")),
    "gather shape": (
        tile("a = «tl.gather(t, tl.arange(0, 8)[:, None], 0)"),
        ("(8, 1)", "(8, 4)", "along axis 0 only"),
    ),
    "gather rank": (tile("a = «tl.gather(t, tl.arange(0, 4), 0)"), ("shape (4,)", "tl.broadcast_to")),
    "join of pointers": (tile("a = «tl.join(x, x)"), ("`a` is made of pointers",)),
    "random offset": (tile("a = «tl.rand(7, r)"), ("`offset` must be integers, not float32",)),
    "random seed": (tile("a = «tl.randint(s, tl.arange(0, 8))"), ("`seed` must be integers",)),
    "rounds": (tile("a = «tl.rand(7, tl.arange(0, 8), 0)"), ("`n_rounds` must be positive", "10")),
    # ----------------------------------------------------------------------------------- shapes
    "reshape size": (tile("a = «t.reshape(4, 4)"), ("has 32 elements", "(4, 4) has 16", "broadcast_to")),
    "reshape power of two": (tile("a = «tl.reshape(t, (3, 8))"), ("power of two, got 3", "= 4")),
    "view minus one": (tile("a = «t.view(-1)"), ("power of two, got -1",)),
    "reshape run-time": (tile("a = «t.reshape(n, 4)"), ("compile-time integer",)),
    "trans of a row": (tile("a = «tl.trans(r)"), ("two dimensions", "x[:, None]")),
    "T of a row": (tile("a = «r.T"), ("x.T needs a tile of two dimensions",)),
    "permute": (tile("a = «t.permute(0, 0)"), ("each of the 2 dimensions once", "(1, 0)")),
    "permute range": (tile("a = «t.permute(0, 2)"), ("`dims` 2 is out of range",)),
    "split": (tile("a, b = «tl.split(t)"), ("last dimension is 2", "(8, 4)", "reshape")),
    "cat shapes": (tile("a = «tl.cat(t, r)"), ("one shape, got (8, 4) and (8,)", "tl.broadcast_to")),
    "squeeze": (tile("a = «tl.squeeze(t, 0)"), ("size 8, not 1",)),
    "topk k": (tile("a = «tl.topk(t, 3)"), ("`k` must be a power of two, got 3",)),
    "topk too many": (tile("a = «tl.topk(t, 16)"), ("`k` is 16", "has 4")),
    "interleave too large": (
        body("t = tl.full((65536,), 1.0, tl.float32)\na = «tl.interleave(t, t)"),
        ("power of two", "65536"),
    ),
    # ------------------------------------------------------------------------- combine functions
    "combine changes type": (
        tile("a = «tl.reduce(t, 0, f)", function("return a > b")),
        ("combines two float32 into a int1", "must keep the type", ".to(tl.float32)"),
    ),
    "combine promotes": (
        tile("a = «tl.associative_scan(r.to(tl.float16), 0, f)", function("return a.to(tl.float32) + b")),
        ("combines two float16 into a float32", "the input with .to(tl.float32) before"),
    ),
    "combine returns too few": (
        tile("a = «tl.reduce((t, t), 0, f)", function("return a + c", "a, b, c, d")),
        ("returns 1 value for 2 inputs", "one combined value for each"),
    ),
    "combine returns too many": (
        tile("a = «tl.reduce(t, 0, f)", function("return a, b")),
        ("returns 2 values for 1 input",),
    ),
    "combine returns nothing": (
        tile("a = «tl.reduce(t, 0, f)", function("c = a + b")),
        ("returns nothing", "return"),
    ),
    "combine takes too few": (
        tile("a = «tl.reduce((t, t), 0, f)", function("return a")),
        ("2 positional arguments, but 4", "(a, b)"),
    ),
    "combine with an effect": (
        tile("a = tl.reduce(t, 0, f)", function("«tl.debug_barrier()\nreturn a + b")),
        ("has an effect (barrier)", "may only compute", "load before"),
    ),
    "combine makes tiles": (
        tile("a = tl.reduce(t, 0, f)", function("return a + b + tl.sum(«tl.arange(0, 4))")),
        ("makes a tile",),
    ),
    "combine depends on the program": (
        tile("a = tl.reduce(t.to(tl.int32), 0, f)", function("return a + b + «tl.program_id(0)")),
        ("depends on more than its arguments", "one more input"),
    ),
    "combine loops": (
        tile("a = tl.reduce(t, 0, f)", function("for «i in range(4):\n    a += b\nreturn a")),
        ("run-time loop", "tl.static_range"),
    ),
    "combine with a wrong body": (
        tile("a = tl.reduce(t, 0, f)", function("return a + «missing")),
        ("'missing' is not defined",),
    ),
    "combine returns in a branch": (
        tile("a = tl.reduce(t, 0, f)", function("if b > 0.0:\n    «return a\nreturn b")),
        ("'return' under a run-time condition",),
    ),
    "combine is no kernel function": (
        tile("a = «tl.reduce(t, 0, plain)"),
        ("`combine_fn` must be a kernel function, got `plain`", "@enceladus.jit"),
    ),
    "combine is a number": (tile("a = «tl.reduce(t, 0, 3)"), ("must be a kernel function, got 3",)),
    "reduce of nothing": (tile("a = «tl.reduce((), 0, f)", function("return a")), ("empty tuple",)),
    "map with pack": (
        tile("a = «tl.map_elementwise(f, t, t, pack=2)", function("return a")),
        ("pack=1",),
    ),
    "map without tiles": (tile("a = «tl.map_elementwise(f)", function("return a")), ("needs a tile",)),
    # ---------------------------------------------------------------------------------- atomics
    "atomic of a number": (tile("a = «tl.atomic_add(s, 1.0)"), ("`pointer` must be a pointer",)),
    "atomic tile for a scalar": (tile("a = «tl.atomic_add(x, r)"), ("the pointer is a scalar", "tl.arange")),
    "atomic mask": (tile("a = «tl.atomic_add(x, 1.0, mask=n)"), ("`mask` must be int1", "mask=m != 0")),
    "atomic order": (
        tile("a = «tl.atomic_add(x, 1.0, sem='seq_cst')"),
        ("`sem` must be one of", "'relaxed'"),
    ),
    "atomic scope": (tile("a = «tl.atomic_add(x, 1.0, scope='gpus')"), ("`scope`", "'gpu'")),
    "atomic and of floats": (
        tile("a = «tl.atomic_and(x, 1.0)"),
        ("needs integers, not float32", "view the array as uint32"),
    ),
    "atomic cas of floats": (tile("a = «tl.atomic_cas(x, 1.0, 2.0)"), ("tl.atomic_cas", "uint32")),
    "atomic shapes": (
        tile("a = «tl.atomic_add(x + tl.arange(0, 4), r)"),
        ("tl.atomic_add: val", "(8,)", "(4,)"),
    ),
    # ------------------------------------------------------------------------------ Python's own
    "max of a tile": (tile("a = «max(r)"), ("max()", "use tl.max for the elements")),
    "any of a tile": (tile("a = «any(r)"), ("any()", "tl.any")),
    "sorted of a tile": (tile("a = «sorted(r)"), ("sorted()", "tl.sort")),
}


@pytest.mark.parametrize(("source", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_program(source, words):
    clean, line, column = marked(source)
    with pytest.raises(CompilationError) as caught:
        build(clean, globals=GLOBALS)
    error = caught.value
    assert (error.location.line, error.location.column) == (line, column), str(error)
    for word in words:
        assert word in error.reason or word in error.hint, str(error)


@pytest.mark.parametrize("name", ["add", "max", "min", "and", "or", "xor", "xchg", "cas"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int1"])
def test_atomics_on_unsupported_types(name, dtype):
    call = f"tl.atomic_{name}(x, 1, 1)" if name == "cas" else f"tl.atomic_{name}(x, 1)"
    with pytest.raises(CompilationError) as caught:
        build(body(f"a = {call}"), x=ArrayArgument(DTYPES[dtype]))
    expected = ("arrays of bool", "uint8") if dtype == "int1" else ("Metal has no 64-bit atomic", "32-bit")
    assert expected[0] in caught.value.reason and expected[1] in caught.value.hint
    assert caught.value.location.line == 3


def test_errors_in_combine_functions_name_the_call():
    source = tile("a = tl.reduce(t, 0, f)", function("return a + missing"))
    with pytest.raises(CompilationError) as caught:
        build(source)
    location = caught.value.location
    assert location.function == "f" and location.line == 3
    assert location.call_site.function == "kernel" and location.call_site.line == 8
