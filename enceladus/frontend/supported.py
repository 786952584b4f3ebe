"""What the language refuses by its mere form, the same in every engine.

The compiler and the interpreter both call :func:`check_supported`, so a kernel that one of them refuses
for its syntax is refused by the other with the same words at the same place.
"""

from __future__ import annotations

import ast

from enceladus.errors import CompilationError, Location

_NESTED_HINT = "move it out of the kernel, decorate it with @enceladus.jit, and call it"
_COMPREHENSION_HINT = "write the items as a tuple, or use a loop over tl.static_range"
_STORE_HINT = "tiles are immutable: use tl.where for a new tile, or tl.store to write to an array"

#: Node class → (what it is, what to write instead).
REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.While: ("'while' is not supported", "use 'for i in range(...)' with a bound, and 'if' inside"),
    ast.Break: ("'break' is not supported", "put the rest of the body under 'if', or mask it"),
    ast.Continue: ("'continue' is not supported", "put the rest of the body under 'if'"),
    ast.Try: ("'try' is not supported", "a kernel cannot catch exceptions: test the condition with 'if'"),
    ast.TryStar: ("'try' is not supported", "a kernel cannot catch exceptions: test the condition with 'if'"),
    ast.Raise: ("'raise' is not supported", "use tl.static_assert for what is known at compile time"),
    ast.With: ("'with' is not supported", "write the statements without it"),
    ast.AsyncWith: ("'async with' is not supported", "write the statements without it"),
    ast.AsyncFor: ("'async for' is not supported", "use 'for'"),
    ast.FunctionDef: ("a function inside a kernel is not supported", _NESTED_HINT),
    ast.AsyncFunctionDef: ("a function inside a kernel is not supported", _NESTED_HINT),
    ast.ClassDef: ("a class inside a kernel is not supported", "define it outside the kernel"),
    ast.Lambda: ("a lambda is not supported", _NESTED_HINT),
    ast.ListComp: ("a comprehension is not supported", _COMPREHENSION_HINT),
    ast.SetComp: ("a comprehension is not supported", _COMPREHENSION_HINT),
    ast.DictComp: ("a comprehension is not supported", _COMPREHENSION_HINT),
    ast.GeneratorExp: ("a generator expression is not supported", _COMPREHENSION_HINT),
    ast.Yield: ("'yield' is not supported", "return a tuple instead"),
    ast.YieldFrom: ("'yield from' is not supported", "return a tuple instead"),
    ast.Await: ("'await' is not supported", "call the function without it"),
    ast.Global: ("'global' is not supported", "return the value, or tl.store it to an array"),
    ast.Nonlocal: ("'nonlocal' is not supported", "return the value, or tl.store it to an array"),
    ast.Delete: ("'del' is not supported", "leave it out: unused values cost nothing"),
    ast.NamedExpr: ("':=' is not supported", "assign the name in a statement before"),
    ast.Set: ("a set is not supported", "use a tuple"),
    ast.Match: ("'match' is not supported", "use 'if' and 'elif'"),
}


def check_supported(tree: ast.FunctionDef, file: str, function: str) -> None:
    """Raise ``CompilationError`` at the first construct, in reading order, that no engine supports.

    ``tree`` is a kernel's definition in coordinates of ``file``; decorators, defaults and annotations are
    not looked at, because Python itself evaluates them.
    """
    _Checker(file, function).statements(tree.body, in_loop=False)


class _Checker:
    def __init__(self, file: str, function: str):
        self.file = file
        self.function = function

    def statements(self, body: list[ast.stmt], in_loop: bool) -> None:
        for statement in body:
            self.visit(statement, in_loop)

    def visit(self, node: ast.AST, in_loop: bool) -> None:
        refused = REFUSED.get(type(node))
        if refused is not None:
            raise self.error(node, *refused)
        match node:
            case ast.Return() if in_loop:
                hint = "assign to a variable in the loop and return it after the loop"
                raise self.error(node, "'return' inside a loop is not supported", hint)
            case ast.For(orelse=[first, *_]):
                raise self.error(first, "'else' of a loop is not supported", "leave it out: nothing breaks")
            case ast.For():
                self.target(node.target)
                in_loop = True
            case ast.Assign():
                for target in node.targets:
                    self.target(target)
            case ast.AugAssign() | ast.AnnAssign():
                self.target(node.target)
        for child in ast.iter_child_nodes(node):
            if child._attributes and not isinstance(child, ast.Name | ast.Constant):
                self.visit(child, in_loop)

    def target(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                pass
            case ast.Tuple() | ast.List():
                for item in node.elts:
                    self.target(item)
            case ast.Starred():
                raise self.error(node, "a starred target is not supported", "name every item")
            case ast.Subscript():
                raise self.error(node, "an item cannot be assigned", _STORE_HINT)
            case ast.Attribute():
                raise self.error(node, "an attribute cannot be assigned", "use a variable of the kernel")

    def error(self, node: ast.AST, reason: str, hint: str) -> CompilationError:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        end = node.end_col_offset if getattr(node, "end_lineno", None) == line else 0  # type: ignore[attr-defined]
        return CompilationError(reason, hint, Location(self.file, line, column, end, self.function))
