# ruff: noqa: N805, W191 - odd layout is what this file is about
"""Finding the source: files, nesting, decorators, odd layout, notebooks, and text that is gone."""

from __future__ import annotations

import ast
import linecache
import subprocess
import sys
import textwrap

import pytest

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.frontend.function import MISSING, KernelFunction
from tests.frontend_helpers import define


def same(function):
    return function


def marked(**_):
    return same


@same
@marked(
    option=1,
)
# a comment between the decorators and the function
def decorated(
    x,  # a parameter
    *,
    K: tl.constexpr = 4,
):
    """Docstring."""
    tl.store(x, K)
    # trailing comment


class Outer:
    class Inner:
        @same
        def method(x, n):
            if n > 1:
                tl.store(x, """text
that starts at the margin
""")
# a comment at the margin
            tl.store(x, 2.0)

        after = 1


def nested():
	def tabs(x):
		tl.store(x, 1.0)

	return tabs


def one_line(x): tl.store(x, 1.0)  # fmt: skip


def unicode_text(x):
    é = "größe"; tl.store(x, é)  # noqa: E702


def ends_in_continuation(x):
    tl.store(
x,
        1.0,
)


def only_a_docstring(x):
    """One.

Two.
    """


FUNCTIONS = [
    decorated, Outer.Inner.method, nested(), one_line, unicode_text, ends_in_continuation, only_a_docstring,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_same_tree_as_the_whole_file(function):
    """Every node stands at the same line and column as when Python parses the file."""
    with open(__file__, encoding="utf-8") as file:
        whole = ast.parse(file.read())
    (expected,) = [
        node
        for node in ast.walk(whole)
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__
    ]
    kernel = KernelFunction(function)
    assert ast.dump(kernel.tree, include_attributes=True) == ast.dump(expected, include_attributes=True)
    assert kernel.source.lstrip().startswith("def ") and kernel.first_line == function.__code__.co_firstlineno


def test_parameters():
    kernel = define("""
@jit
def kernel(a, /, b, c: tl.constexpr, d: "tl.constexpr" = 3, *, e: "constexpr", f=None, g: int = 2):
    pass
""")
    assert kernel.parameter_names == tuple("abcdefg")
    assert [p.name for p in kernel.parameters if p.constexpr] == ["c", "d", "e"]
    assert [p.name for p in kernel.parameters if p.positional_only] == ["a"]
    assert [p.name for p in kernel.parameters if p.keyword_only] == ["e", "f", "g"]
    assert [p.default for p in kernel.parameters] == [MISSING, MISSING, MISSING, 3, MISSING, None, 2]


def test_postponed_annotations():
    source = """# ruff: noqa: N803, N805, W191 - odd layout is what this file is about
from __future__ import annotations
from enceladus.language import constexpr as known
@jit
def kernel(a: known, b: tl.constexpr, c: "tl.constexpr", d: not_constexpr, e: elsewhere.constexpr):
    pass
"""
    constexpr = [p.constexpr for p in define(source).parameters]
    assert constexpr == [True, True, True, False, True]


@pytest.mark.parametrize("parameters", ["*args", "x, **options"])
def test_star_parameters_are_refused(parameters):
    with pytest.raises(CompilationError, match=r"cannot take \*"):
        define(f"@jit\ndef kernel({parameters}):\n    pass\n")


@pytest.mark.parametrize("body", ["yield 1", "return (yield)"])
def test_generators_are_refused(body):
    with pytest.raises(CompilationError, match="generator"):
        define(f"@jit\ndef kernel():\n    {body}\n")


def test_only_functions():
    with pytest.raises(TypeError, match="not int"):
        KernelFunction(3)


def test_source_that_was_never_kept():
    namespace: dict = {}
    exec("def lost(x):\n    pass\n", namespace)
    kernel = KernelFunction(namespace["lost"])  # decorating is fine
    with pytest.raises(CompilationError) as caught:
        kernel.tree  # noqa: B018
    assert "'lost' is not available" in caught.value.reason and "notebook cell" in caught.value.hint


def test_lambda():
    with pytest.raises(CompilationError, match="lambda"):
        KernelFunction(lambda x: x).tree  # noqa: B018


def test_a_file_that_changed():
    kernel = define("@jit\ndef kernel(x):\n    pass\n")
    linecache.cache[kernel.file] = (0, None, ["@jit\n", "def kernel(x, y):\n", "    pass\n"], kernel.file)
    with pytest.raises(CompilationError, match="not 'kernel' any more"):
        kernel.tree  # noqa: B018


def test_standard_input_says_what_to_do():
    program = textwrap.dedent("""
        from enceladus.frontend.function import KernelFunction
        def k(x):
            pass
        try:
            KernelFunction(k).tree
        except Exception as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-"], input=program, text=True, capture_output=True, check=True)
    assert "source of 'k' is not available" in done.stdout and "<stdin>" in done.stdout


def test_the_compile_path_imports_no_slow_modules():
    program = """
import sys
import types
package = types.ModuleType("enceladus")
package.__path__ = [PATH]
sys.modules["enceladus"] = package
import enceladus.frontend.build
print(sorted({"inspect", "numpy", "mlx", "ml_dtypes", "difflib", "tokenize"} & set(sys.modules) - BEFORE))
"""
    import enceladus

    header = f"import sys, linecache, dataclasses\nPATH = {enceladus.__path__[0]!r}\n"
    command = [sys.executable, "-c", f"{header}BEFORE = set(sys.modules)\n{program}"]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"
