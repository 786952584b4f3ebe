"""Wrong programs: where the error points, what it says, and what it tells the user to write.

``«`` in a source marks the place that the error must point at (it is removed before the source is used).
The words after it must appear in the reason or the hint.
"""

from __future__ import annotations

import types

import pytest

from enceladus.errors import CompilationError
from tests.frontend_helpers import build, constant

HEAD = "@jit\ndef kernel(x, y, out, n, m, s, BLOCK: tl.constexpr):\n"


def body(text: str) -> str:
    """A kernel with the usual parameters around ``text``."""
    return HEAD + "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))


#: name → (source with the mark, words)
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    # ---------------------------------------------------------------- statements that do not exist
    "while": (body("«while n > 0:\n    n = n - 1"), ("'while'", "for i in range")),
    "break": (body("for i in range(4):\n    «break"), ("'break'", "under 'if'")),
    "continue": (body("for i in range(4):\n    «continue"), ("'continue'", "under 'if'")),
    "try": (body("«try:\n    pass\nexcept ValueError:\n    pass"), ("'try'", "test the condition")),
    "with": (body("«with open('f') as f:\n    pass"), ("'with'",)),
    "raise": (body("«raise ValueError"), ("'raise'", "tl.static_assert")),
    "nested function": (body("«def f(a):\n    return a"), ("function inside", "@enceladus.jit")),
    "class": (body("«class A:\n    pass"), ("class inside", "outside")),
    "global": (body("«global G\nG = 1"), ("'global'", "tl.store")),
    "del": (body("«del n"), ("'del'", "leave it out")),
    "match": (body("«match n:\n    case 1:\n        pass"), ("'match'", "elif")),
    "import": (body("«import math"), ("'import'", "top of the file")),
    "for else": (body("for i in range(4):\n    pass\nelse:\n    «pass"), ("'else' of a loop",)),
    "return in a loop": (
        body("for i in range(4):\n    «return"),
        ("'return' inside a loop", "after the loop"),
    ),
    "return under a run-time if": (
        body("if n > 4:\n    «return\ntl.store(out, 1.0)"),
        ("'return'", "under 'if'"),
    ),
    "return of a value": (body("return «tl.load(x)"), ("cannot return a value", "tl.store")),
    "run-time assert": (body("assert «n > 2"), ("'assert'", "tl.assume", "ENCELADUS_INTERPRET=1")),
    "failed assert": (body("assert «BLOCK == 2, 'two'"), ("assertion failed: two",)),
    # --------------------------------------------------------------- expressions that do not exist
    "lambda": (body("f = «lambda a: a"), ("lambda", "@enceladus.jit")),
    "list comprehension": (body("v = «[i for i in range(4)]"), ("comprehension", "tl.static_range")),
    "generator": (body("v = sum«(i for i in (1, 2))"), ("generator", "tl.static_range")),
    "walrus": (body("v = («w := 3)"), (":=", "before")),
    "set": (body("v = «{1, 2}"), ("set", "tuple")),
    "text of a run-time value": (body("tl.static_print(f'{«n}')"), ("no text", "ENCELADUS_INTERPRET=1")),
    # -------------------------------------------------------------------------------- assignments
    "item": (body("a = tl.load(x)\n«a[0] = 1.0"), ("item cannot be assigned", "tl.where", "tl.store")),
    "attribute": (body("«x.y = 1.0"), ("attribute cannot be assigned",)),
    "starred": (body("a, «*b = (1, 2, 3)"), ("starred",)),
    "unpacking a tile": (body("«a, b = tl.load(x + tl.arange(0, 2))"), ("cannot be unpacked", "tuples")),
    "unpacking too many": (body("«a, b = (1, 2, 3)"), ("unpack 3 values into 2",)),
    "constexpr of a run-time value": (body("K: tl.constexpr = «n + 1"), ("constexpr", "int32 scalar")),
    # -------------------------------------------------------------------------------------- names
    "unknown name": (body("a = «BLOK"), ("'BLOK' is not defined", "did you mean 'BLOCK'")),
    "unknown attribute": (body("a = «tl.lod(x)"), ("lod", "load")),
    "attribute of a number": (body("a = «BLOCK.value"), ("no attribute 'value'", "leave out '.value'")),
    "attribute of a tile": (body("a = «n.value"), ("no attribute 'value'",)),
    "used before": (body("a = «b\nb = 1"), ("'b' is used before it is assigned",)),
    "defined in one branch": (
        body("if n > 1:\n    a = 1.0\ntl.store(out, «a)"),
        ("'a' is defined only", "before"),
    ),
    "after the loop": (
        body("for i in range(4):\n    a = i\ntl.store(out, «a)"),
        ("'a' is defined only inside",),
    ),
    "loop variable": (body("for i in range(n):\n    pass\ntl.store(out, «i)"), ("variable of the loop",)),
    "array global": (body("a = «ARRAY"), ("'ARRAY' is an array", "argument")),
    "object global": (body("a = «OBJECT"), ("'OBJECT' is a", "argument")),
    "array in a module": (body("a = «MODULE.weights"), ("'MODULE.weights' is an array", "argument")),
    # ------------------------------------------------------------------- run-time values elsewhere
    "if on a tile": (
        body("if «tl.load(x + tl.arange(0, 4)) > 0:\n    pass"),
        ("'if' needs a scalar", "tl.where"),
    ),
    "and on tiles": (body("t = tl.arange(0, 4)\na = («t > 1) and (t < 3)"), ("'and'", "use '&'")),
    "or on tiles": (body("t = tl.arange(0, 4) > 1\na = «t or t"), ("'or'", "use '|'")),
    "not on a tile": (body("t = tl.arange(0, 4) > 1\na = not «t"), ("'not'", "use '~'")),
    "chain on tiles": (body("t = tl.arange(0, 4)\na = «0 < t < n"), ("chained", "(a < b) & (b < c)")),
    "ternary on a tile": (body("t = tl.arange(0, 4)\na = 1 if «t > 1 else 2"), ("scalar", "tl.where")),
    "if on a pointer": (body("if «x:\n    pass"), ("pointer", "is None")),
    "in": (body("a = «n in (1, 2)"), ("'in'", "'=='")),
    "tuples": (body("a = «(n, 1) == (n, 1)"), ("tuples of run-time values", "one by one")),
    "max of one": (body("a = «max(n)"), ("max()", "tl.maximum")),
    "is": (body("a = «n is m"), ("'is'", "'=='")),
    "run-time index": (body("a = (1, 2)[«n]"), ("compile-time index", "tl.static_range")),
    "static_range of a run-time value": (
        body("for i in «tl.static_range(n):\n    pass"),
        ("compile-time", "range"),
    ),
    "loop over a tile": (body("for v in «tl.arange(0, 4):\n    pass"), ("cannot be iterated", "range")),
    "float bounds": (body("for i in «range(0, s):\n    pass"), ("integer scalars", ".to(tl.int32)")),
    "zero step": (body("for i in «range(0, n, 0):\n    pass"), ("step", "zero")),
    "int of a tile": (body("a = «int(n)"), ("compile-time values only", ".to(tl.int32)")),
    "float of a tile": (body("a = «float(n)"), (".to(tl.float32)",)),
    "range outside for": (body("r = «range(n)"), ("for … in range",)),
    "math function": (body("a = «MATH.exp(s)"), ("exp()", "tl.exp")),
    "plain function": (body("a = «plain(s)"), ("plain()", "@enceladus.jit")),
    "print": (body("«print(n)"), ("print()", "tl.static_print", "ENCELADUS_INTERPRET=1")),
    "breakpoint": (body("«breakpoint()"), ("breakpoint()", "interpret=True")),
    "arange of a run-time value": (body("a = «tl.arange(0, n)"), ("compile-time", "constexpr")),
    # -------------------------------------------------------------------------- types that differ
    "if types": (
        body("if n > 1:\n    v = 1.0\nelse:\n    v = tl.zeros((4,), tl.float16)\ntl.store(out, «v)"),
        ("'v' is", "tl.zeros((4,), dtype=tl.float16)"),
    ),
    "loop types": (
        body("acc = 0.0\nfor i in range(n):\n    «acc += tl.load(x + tl.arange(0, BLOCK))"),
        ("'acc' is", "tl.zeros((128,), dtype=tl.float32)"),
    ),
    "ternary types": (body("a = «x if n > 1 else 0.0"), ("the expression is a pointer", "if false")),
    # -------------------------------------------------------------------------------------- calls
    "missing argument": ("@jit\ndef f(a, b):\n    return a\n" + body("«f(1)"), ("misses", "'b'", "(a, b)")),
    "too many arguments": (
        "@jit\ndef f(a):\n    return a\n" + body("«f(1, 2)"),
        ("1 positional", "2 were given"),
    ),
    "unknown argument": ("@jit\ndef f(a):\n    return a\n" + body("«f(1, c=2)"), ("no parameter 'c'",)),
    "two values": ("@jit\ndef f(a):\n    return a\n" + body("«f(1, a=2)"), ("two values for 'a'",)),
    "constexpr parameter": (
        "@jit\ndef f(K: tl.constexpr):\n    return K\n" + body("«f(n)"),
        ("'K' of f() is a tl.constexpr", "compile-time"),
    ),
    "recursion": ("@jit\ndef f(a):\n    return «f(a)\n" + body("f(n)"), ("recursion", "f → f")),
    "launch in a kernel": ("@jit\ndef f(a):\n    return a\n" + body("«f[(1,)](n)"), ("inlined", "[grid]")),
    "calling a tile": (body("a = «s(1)"), ("float32 scalar cannot be called", "square brackets")),
    "wrong argument of a builtin": (body("a = «tl.load(x, nask=None)"), ("tl.load", "mask")),
    # ---------------------------------------------------------------- what Python itself refuses
    "division by zero": (body("a = «BLOCK // 0"), ("ZeroDivisionError",)),
    "index": (body("a = «(1, 2)[5]"), ("IndexError",)),
    "key": (body("a = «TABLE['q']"), ("'q' not found",)),
    "type error": (body("a = «BLOCK + 'a'"), ("TypeError", "unsupported operand")),
    "read-only list": (body("a = [1, 2]\n«a.append(3)"), ("no attribute 'append'",)),
    # ---------------------------------------------------------------------- the language's own rules
    "pointers": (body("a = «x * y"), ("pointer",)),
    "None": (body("a = «None + n"), ("None",)),
    "tile index": (body("t = tl.arange(0, 4)\na = «t[0]"), ("indexed",)),
    "power": (body("a = «s ** 2"), ("**", "tl.math.pow")),
    "static_assert": (body("«tl.static_assert(BLOCK == 1, 'one only')"), ("one only",)),
}


class Array:
    """Stands for an array library's array."""

    dtype, shape = "float32", (4,)


def plain(value):
    return value


MODULE = types.ModuleType("module")
MODULE.weights = Array()
MATH = __import__("math")
GLOBALS = {
    "ARRAY": Array(),
    "OBJECT": types.SimpleNamespace(a=1),
    "MODULE": MODULE,
    "MATH": MATH,
    "TABLE": {"a": 1},
    "plain": plain,
}


def marked(source: str) -> tuple[str, int, int]:
    """The source without the mark, and the mark's line (from 1) and column (from 0)."""
    before, _, after = source.partition("«")
    line = before.count("\n") + 1
    return before + after, line, len(before) - (before.rfind("\n") + 1)


def compile_error(source: str) -> CompilationError:
    with pytest.raises(CompilationError) as caught:
        build(source, globals=GLOBALS)
    return caught.value


@pytest.mark.parametrize(("source", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_program(source, words):
    clean, line, column = marked(source)
    error = compile_error(clean)
    assert (error.location.line, error.location.column) == (line, column)
    for word in words:
        assert word in error.reason or word in error.hint
    shown = str(error)
    assert f":{line}:{column + 1}: " in shown and clean.split("\n")[line - 1] in shown


def test_there_are_enough():
    assert len(WRONG) >= 40


def test_message_in_full():
    """The one place that pins the whole form of a message."""
    source, _, _ = marked("@jit\ndef f(a):\n    return a if «a else 1\n" + body("v = f(tl.arange(0, 4))"))
    error = compile_error(source)
    file = error.location.file
    assert str(error).split("\n") == [
        f"{file}:3:17: a conditional expression needs a scalar condition, not a tile of shape (4,) of int32",
        "        return a if a else 1",
        "                    ^",
        "  hint: use tl.where(condition, a, b)",
        f"  called from {file}:6:9 in kernel",
    ]


def test_errors_in_helpers_name_the_helper_and_the_call():
    source = "@jit\ndef f(a):\n    return a + missing\n\n" + body("if n > 2:\n    f(n)")
    error = compile_error(source)
    assert (error.location.line, error.location.function) == (3, "f")
    assert (error.location.call_site.line, error.location.call_site.column) == (8, 8)


def test_the_cause_is_kept():
    error = compile_error(body("a = BLOCK // 0"))
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_unsupported_syntax_is_refused_even_where_it_is_not_reached():
    error = compile_error("@jit\ndef kernel(x):\n    if False:\n        while True:\n            pass\n")
    assert "'while'" in error.reason and error.location.line == 4


def test_constexpr_arguments_cannot_be_arrays():
    with pytest.raises(CompilationError, match="is an array"):
        build("@jit\ndef kernel(x, K: tl.constexpr):\n    pass\n", K=constant(Array()))
