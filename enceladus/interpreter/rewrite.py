"""Rewrite a kernel's Python so that running it natively gives the compiled meaning.

Python decides some things for itself: ``and`` returns an operand, ``a < b < c`` asks for truth, a number
assigned in a branch stays a number. The rewritten copy hands these few places to a ``runtime.Runtime``,
which is in the copy's globals under :data:`RUNTIME`. Everything else, above all lines and columns, stays
as the user wrote it, so that ``pdb`` and tracebacks show the user's source.

No lambda and no nested function is made: a debugger sees one frame for a kernel, and ``locals()`` is honest.

=========================  ==============================================================================
source                     rewritten (``R`` is the runtime, ``t`` a fresh temporary)
=========================  ==============================================================================
``a and b``                ``R.both(t, b) if R.goes_on(t := a) else R.first(t)``; ``or`` likewise
``not a``                  ``R.negation(a)``
``a < b < c``              as ``a < t and t < c``, with ``t := b``
``x if c else y``          ``R.chosen(t, SITE, x if (t := R.condition(c)) else y)``
``f(x)``                   ``R.callee(f)(x)``
``n.to(…)``                ``R.receiver(n).to(…)``, for attributes that tiles have and numbers lack
``if c: x = 1``            ``if t := R.condition(c): x = 1; x = R.joined(…)``, on both branches
``for i in r: x = …``      the same before the loop and at the end of its body
=========================  ==============================================================================
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from enceladus.frontend.function import KernelFunction
from enceladus.language.tensor import tensor

#: The name under which the rewritten code finds its runtime.
RUNTIME = "__enceladus__"

_TILE_ATTRIBUTES = frozenset(
    name
    for name in dir(tensor)
    if not name.startswith("_") and not hasattr(0, name) and not hasattr(0.0, name)
)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The compiled copy of a kernel, and the names that it reads from outside."""

    code: CodeType
    outer_names: tuple[str, ...]


@lru_cache(maxsize=1024)
def rewrite(kernel: KernelFunction) -> Rewritten:
    """The rewritten copy of ``kernel``, cached. Raises ``CompilationError`` for what no engine supports."""
    tree = copy.deepcopy(kernel.tree)
    tree.decorator_list = []
    tree.returns = None
    tree.args.defaults = []
    tree.args.kw_defaults = [None] * len(tree.args.kwonlyargs)
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    tree.body = _Rewriter().statements(tree.body)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    compiled = compile(module, kernel.file, "exec", dont_inherit=True)
    (code,) = (constant for constant in compiled.co_consts if isinstance(constant, CodeType))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return Rewritten(code, tuple(sorted(names - set(code.co_varnames) - {RUNTIME})))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _number(value: bool | int | str) -> ast.Constant:
    return ast.Constant(value)


def _runtime(method: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_name(RUNTIME), method, ast.Load()), list(args), [])


def _placed(new: ast.expr, old: ast.AST) -> ast.expr:
    """``new`` with the position of ``old``, also in the parts that have none yet."""
    _place(new, old.lineno, old.col_offset, old.end_lineno, old.end_col_offset)  # type: ignore[attr-defined]
    return new


def _place(node: ast.AST, line: int, column: int, end_line: int, end_column: int) -> None:
    for child in ast.walk(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            child.lineno, child.col_offset = line, column  # type: ignore[attr-defined]
            child.end_lineno, child.end_col_offset = end_line, end_column  # type: ignore[attr-defined]


def assigned_names(body: list[ast.stmt]) -> tuple[str, ...]:
    """The names that statements assign, nested ones included, in order of appearance."""
    found: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return tuple(found)


def _site(node: ast.AST) -> list[ast.expr]:
    """The position of ``node`` as arguments: line, column, end column (0 if on another line)."""
    end = node.end_col_offset if node.end_lineno == node.lineno else 0  # type: ignore[attr-defined]
    return [_number(node.lineno), _number(node.col_offset), _number(end)]  # type: ignore[attr-defined]


def _header(statement: ast.stmt) -> ast.AST:
    """A statement, or of a compound one the part that is always executed."""
    if isinstance(statement, ast.If):
        return statement.test
    return statement.iter if isinstance(statement, ast.For) else statement


class _Rewriter(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0

    def temporary(self) -> str:
        self.count += 1
        return f"__enceladus_{self.count}"

    # ------------------------------------------------------------------------------ statements

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            result.extend(new if isinstance(new, list) else [new])
        return result

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        # The annotation of a local is never evaluated; without a value there is nothing to do.
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_If(self, node: ast.If) -> ast.stmt:
        names = assigned_names([*node.body, *node.orelse])
        choice = self.temporary()
        test = ast.NamedExpr(ast.Name(choice, ast.Store()), _runtime("condition", self.visit(node.test)))
        body = self.statements(node.body)
        orelse = self.statements(node.orelse)
        site = _site(node.test)
        body += self.joins(choice, site, names, after=_header(node.body[-1]))
        orelse += self.joins(
            choice, site, names, after=_header(node.orelse[-1]) if node.orelse else node.test
        )
        return ast.copy_location(ast.If(_placed(test, node.test), body, orelse), node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        names = assigned_names(node.body)
        loop = self.temporary()
        values = _placed(_runtime("loop", self.visit(node.iter)), node.iter)
        begin = ast.copy_location(ast.Assign([ast.Name(loop, ast.Store())], values), node)
        _place(begin, node.lineno, node.col_offset, node.lineno, node.col_offset)
        site = _site(node.target)
        body = self.statements(node.body) + self.joins(loop, site, names, after=node.iter)
        again = ast.For(node.target, _placed(_name(loop), node.iter), body, [])
        return [begin, *self.joins(loop, site, names, after=node.iter), ast.copy_location(again, node)]

    def joins(
        self, choice: str, site: list[ast.expr], names: tuple[str, ...], after: ast.AST
    ) -> list[ast.stmt]:
        """``if R.joins(choice, locals(), "x"): x = R.joined(*site, "x", x)`` for each name.

        The statements get the line on which ``after`` ends, so that a debugger does not stop at them.
        """
        line, column = after.end_lineno, after.end_col_offset  # type: ignore[attr-defined]
        result: list[ast.stmt] = []
        for name in names:
            scope = _runtime("locals")
            test = _runtime("joins", _name(choice), scope, _number(name))
            joined = _runtime("joined", *copy.deepcopy(site), _number(name), _name(name))
            statement = ast.If(test, [ast.Assign([ast.Name(name, ast.Store())], joined)], [])
            _place(statement, line, max(0, column - 1), line, column)
            result.append(statement)
        return result

    # ----------------------------------------------------------------------------- expressions

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self.boolean([self.visit(value) for value in node.values], isinstance(node.op, ast.And), node)

    def boolean(self, operands: list[ast.expr], is_and: bool, node: ast.AST) -> ast.expr:
        first, *rest = operands
        if not rest:
            return first
        temporary = self.temporary()
        kept = ast.NamedExpr(ast.Name(temporary, ast.Store()), first)
        goes_on = _runtime("goes_on", kept, _number(is_and))
        both = _runtime("both", _name(temporary), self.boolean(rest, is_and, node))
        return _placed(ast.IfExp(goes_on, both, _runtime("first", _name(temporary))), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _placed(_runtime("negation", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        pairs: list[ast.expr] = []
        left: ast.expr = node.left
        *inner, last = node.comparators
        for op, right in zip(node.ops, (*inner, None), strict=True):
            if right is None:
                pairs.append(ast.Compare(left, [op], [last]))
                break
            temporary = self.temporary()
            pairs.append(ast.Compare(left, [op], [ast.NamedExpr(ast.Name(temporary, ast.Store()), right)]))
            left = _name(temporary)
        for pair in pairs:
            _placed(pair, node)
        return self.boolean(pairs, True, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        choice = self.temporary()
        test = ast.NamedExpr(ast.Name(choice, ast.Store()), _runtime("condition", node.test))
        value = ast.copy_location(ast.IfExp(_placed(test, node.test), node.body, node.orelse), node)
        # The value is computed first: it sets the temporary that is read after it.
        return _placed(_runtime("chosen", *_site(node), value, _name(choice)), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.func = _placed(_runtime("callee", node.func), node.func)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr in _TILE_ATTRIBUTES and isinstance(node.ctx, ast.Load):
            node.value = _placed(_runtime("receiver", node.value), node.value)
        return node
