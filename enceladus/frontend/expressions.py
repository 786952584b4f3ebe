"""Evaluate expressions: Python's own operators on compile-time values and tiles."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from enceladus.errors import CompilationError
from enceladus.frontend.calls import call
from enceladus.frontend.frame import Frame
from enceladus.frontend.function import MISSING, as_kernel_function
from enceladus.frontend.merge import Join, Mismatch
from enceladus.frontend.values import (
    ADMITTED,
    Undefined,
    admit,
    contains_tensor,
    describe,
    is_number,
    is_tensor,
    tensor,
)
from enceladus.ir.core import Block
from enceladus.ir.ops import If, Yield
from enceladus.language import semantic

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.MatMult: operator.matmul,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip

#: Conditional expressions with at most so many cheap operations compute both sides instead of branching.
_MAX_SPECULATED = 4


class Expressions(Frame):
    """Evaluates one expression at a time in the scope of a frame."""

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression: a tile, or a plain Python object."""
        visit = _EXPRESSIONS.get(type(node))
        if visit is None:
            raise self.error(node, f"this expression ({type(node).__name__}) is not supported")
        return visit(self, node)

    # ------------------------------------------------------------------------------------ atoms

    def constant(self, node: ast.Constant) -> Any:
        return node.value

    def name(self, node: ast.Name) -> Any:
        value = self.scope.get(node.id, MISSING)
        if value is MISSING:
            return self._outer_name(node)
        if type(value) is Undefined:
            raise self.error(node, f"{node.id!r} {value.reason}", value.hint)
        return value

    def _outer_name(self, node: ast.Name) -> Any:
        name, kernel = node.id, self.kernel
        if name in kernel.local_names:
            raise self.error(node, f"{name!r} is used before it is assigned", f"assign {name!r} first")
        value = kernel.lookup(name)
        if type(value) in ADMITTED:
            return value
        if value is MISSING:
            hint = self._did_you_mean(name, kernel.visible_names())
            raise self.error(node, f"name {name!r} is not defined", hint)
        return self.apply(node, admit, value, f"the global {name!r}")

    def _did_you_mean(self, name: str, candidates: list[str]) -> str:
        from difflib import get_close_matches  # slow to import, and only needed for an error

        found = get_close_matches(name, candidates, 1)
        return f"did you mean {found[0]!r}?" if found else ""

    def sequence(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        """Lists become tuples, so that no branch can change a value in place."""
        items: list[Any] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                items.extend(self._unstar(element))
            else:
                items.append(self.evaluate(element))
        return tuple(items)

    def _unstar(self, node: ast.Starred) -> tuple[Any, ...]:
        value = self.evaluate(node.value)
        if is_tensor(value):
            raise self.error(node, f"{describe(value)} cannot be unpacked", "only tuples can")
        return self.apply(node, tuple, value)

    def dictionary(self, node: ast.Dict) -> MappingProxyType[Any, Any]:
        items: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                items.update(self.apply(value, dict, self.evaluate(value)))
                continue
            evaluated = self.evaluate(key)
            if contains_tensor(evaluated):
                raise self.error(key, "a dictionary's key must be a compile-time value")
            self.apply(key, items.__setitem__, evaluated, self.evaluate(value))
        return MappingProxyType(items)

    def slicing(self, node: ast.Slice) -> slice:
        return slice(*[part and self.evaluate(part) for part in (node.lower, node.upper, node.step)])

    def joined_string(self, node: ast.JoinedStr) -> str:
        return "".join([self.evaluate(part) for part in node.values])

    def formatted_value(self, node: ast.FormattedValue) -> str:
        value = self.evaluate(node.value)
        if contains_tensor(value):
            hint = "pass it to tl.static_print by itself, or run with ENCELADUS_INTERPRET=1 and use print"
            raise self.error(node.value, "a run-time value has no text at compile time", hint)
        if node.conversion != -1:
            conversions: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}
            value = conversions[chr(node.conversion)](value)
        spec = self.evaluate(node.format_spec) if node.format_spec else ""
        return self.apply(node.value, format, value, spec)

    def starred(self, node: ast.Starred) -> Any:
        raise self.error(node, "'*' is only supported in calls and tuples")

    # -------------------------------------------------------------------------------- operators

    def binary(self, node: ast.BinOp) -> Any:
        left = self.evaluate(node.left)
        return self.operate(node, node.op, left, self.evaluate(node.right))

    def operate(self, node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
        """``left op right`` at ``node``, which is a ``BinOp`` or an ``AugAssign``."""
        return self.apply(node, _BINARY[type(op)], left, right)

    def unary(self, node: ast.UnaryOp) -> Any:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            condition = self.truth(node.operand, value, "'not'", "use '~' for tiles")
            if isinstance(condition, bool):
                return not condition
            return self.apply(node, operator.invert, condition)
        return self.apply(node, _UNARY[type(node.op)], value)

    def compare(self, node: ast.Compare) -> Any:
        left = self.evaluate(node.left)
        if len(node.ops) == 1:
            return self._compare_one(node, node.ops[0], left, self.evaluate(node.comparators[0]))
        return self._chain(node, left, 0)

    def _chain(self, node: ast.Compare, left: Any, index: int) -> Any:
        """``left < b < c …`` from operator ``index`` on, as ``left < b and b < c …``."""
        right = self.evaluate(node.comparators[index])
        hint = "compare in pairs: (a < b) & (b < c)"
        one = self._compare_one(node, node.ops[index], left, right)
        one = self.truth(node, one, "a chained comparison", hint)
        if one is False or index + 1 == len(node.ops):
            return one
        if one is True:
            return self._chain(node, right, index + 1)
        return self._shortcut(node, one, True, lambda: self._chain(node, right, index + 1))

    def _compare_one(self, node: ast.Compare, op: ast.cmpop, left: Any, right: Any) -> Any:
        function = _COMPARE.get(type(op))
        if function is not None:
            for side in (left, right):
                if not isinstance(side, tensor) and contains_tensor(side):
                    hint = "compare the items one by one"
                    raise self.error(node, "tuples of run-time values cannot be compared", hint)
            return self.apply(node, function, left, right)
        if isinstance(op, ast.Is | ast.IsNot):
            if is_tensor(left) and is_tensor(right):
                raise self.error(node, "'is' compares objects, not run-time values", "use '==' or '!='")
            return (left is right) is isinstance(op, ast.Is)
        if contains_tensor(left) or contains_tensor(right):
            raise self.error(node, "'in' needs compile-time values", "compare with '==' and join with '|'")
        found = self.apply(node, operator.contains, right, left)
        return found is isinstance(op, ast.In)

    def truth(self, node: ast.AST, value: Any, what: str, hint: str) -> Any:
        """``value`` as a ``bool``, or as an int1 scalar when it is only known at run time. Refuses tiles."""
        if not isinstance(value, tensor):
            return self.apply(node, bool, value)
        type_ = value.value.type
        if not type_.is_scalar:
            raise self.error(node, f"{what} needs a scalar condition, not {describe(value)}", hint)
        if type_.element.is_ptr():
            raise self.error(node, f"{what} needs a number, not {describe(value)}", "compare with 'is None'")
        return self.apply(node, _truth, value)

    def boolean(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        word = "'and'" if is_and else "'or'"
        hint = f"use '{'&' if is_and else '|'}' for tiles, with parentheses around comparisons"
        return self._boolean(node, node.values, is_and, word, hint)

    def _boolean(self, node: ast.BoolOp, operands: list[ast.expr], is_and: bool, word: str, hint: str) -> Any:
        first, *rest = operands
        value = self.evaluate(first)
        if not rest:
            return value
        condition = self.truth(first, value, word, hint)
        if isinstance(condition, bool):
            return self._boolean(node, rest, is_and, word, hint) if condition is is_and else value
        return self._shortcut(
            node,
            condition,
            is_and,
            lambda: self.truth(rest[-1], self._boolean(node, rest, is_and, word, hint), word, hint),
        )

    def _shortcut(self, node: ast.expr, condition: tensor, is_and: bool, rest: Callable[[], Any]) -> tensor:
        """``condition and rest()``, or ``or``, of int1 scalars.

        ``rest`` may only run if the condition asks for it, because it may load behind a bounds check; where
        it has no effects, running it always is cheaper.
        """
        block = Block()
        with self.emitter.inside(block):
            other = rest()
            if isinstance(other, bool):
                other = self.apply(node, _truth, other)
        if all(op.pure for op in block.ops):
            self.emitter.block.ops.extend(block.ops)
            return self.apply(node, operator.and_ if is_and else operator.or_, condition, other)
        short = Block()
        with self.emitter.inside(short):
            known = self.apply(node, _truth, not is_and)
        then_block, else_block = (block, short) if is_and else (short, block)
        then_value, else_value = (other, known) if is_and else (known, other)
        return self._branch(node, condition, then_block, else_block, then_value, else_value)

    def conditional(self, node: ast.IfExp) -> Any:
        hint = "use tl.where(condition, a, b)"
        condition = self.truth(node.test, self.evaluate(node.test), "a conditional expression", hint)
        if isinstance(condition, bool):
            return self.evaluate(node.body if condition else node.orelse)
        then_block, else_block = Block(), Block()
        with self.emitter.inside(then_block):
            then_value = self.evaluate(node.body)
        with self.emitter.inside(else_block):
            else_value = self.evaluate(node.orelse)
        return self._branch(node, condition, then_block, else_block, then_value, else_value)

    def _branch(
        self, node: Any, condition: tensor, then_block: Block, else_block: Block, on_true: Any, on_false: Any
    ) -> Any:
        """The value of a run-time choice whose two sides were built in blocks of their own."""
        self.emitter.location = self.locate(node)
        join = Join(self, node, then_block, else_block, ("if true", "if false"))
        try:
            merged = join.add("", on_true, on_false)
        except Mismatch as error:
            raise self.error(node, f"the expression {error.reason}", error.hint) from None
        scalars = all(v.type.is_scalar and not v.type.element.is_ptr() for v in join.then_values)
        ops = (*then_block.ops, *else_block.ops)
        if scalars and len(ops) <= _MAX_SPECULATED and all(op.pure and not op.blocks for op in ops):
            self.emitter.block.ops.extend(ops)
            return join.finish(merged, join.select(condition.value))
        for block, values in ((then_block, join.then_values), (else_block, join.else_values)):
            with self.emitter.inside(block):
                self.emitter.emit(Yield(tuple(values)))
        return join.finish(merged, self.emitter.emit(If(condition.value, then_block, else_block)))

    # ------------------------------------------------------------------------- items and attributes

    def subscript(self, node: ast.Subscript) -> Any:
        value = self.evaluate(node.value)
        if not is_tensor(value) and as_kernel_function(value) is not None:
            hint = "call it without [grid]: a kernel that is called in a kernel is inlined"
            raise self.error(node, "a kernel cannot be launched from a kernel", hint)
        index = self.evaluate(node.slice)
        if not is_tensor(value) and contains_tensor(index):
            reason = f"{describe(value)} needs a compile-time index"
            raise self.error(node.slice, reason, "loop with tl.static_range")
        return self.apply(node, operator.getitem, value, index)

    def attribute(self, node: ast.Attribute) -> Any:
        value = self.evaluate(node.value)
        name = node.attr
        if isinstance(value, tensor):
            if name == "value":  # the IR's, not the user's
                raise self.error(node, "a tile has no attribute 'value'", "leave out '.value'")
            return self.apply(node, getattr, value, name)
        if is_number(value) and name != "value" and not hasattr(value, name) and hasattr(tensor, name):
            # A literal, or an argument that happened to be known, used like the tile it stands for.
            return self.apply(node, lambda: getattr(tensor(semantic.materialize(value)), name))
        found = self.apply(node, self._get_attribute, value, name)
        if type(found) in ADMITTED or isinstance(value, tuple):
            return found
        return self.apply(node, admit, found, f"{ast.unparse(node)!r}")

    def _get_attribute(self, value: Any, name: str) -> Any:
        try:
            return getattr(value, name)
        except CompilationError:
            raise
        except AttributeError:
            if name == "value":
                hint = "compile-time values are plain Python values: leave out '.value'"
            else:
                hint = self._did_you_mean(name, dir(value))
            raise CompilationError(f"{describe(value)} has no attribute {name!r}", hint) from None

    def call(self, node: ast.Call) -> Any:
        function = self.evaluate(node.func)
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                args.extend(self._unstar(argument))
            else:
                args.append(self.evaluate(argument))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            named = {keyword.arg: value} if keyword.arg else self.apply(keyword.value, dict, value)
            for name in named:
                if name in kwargs:
                    raise self.error(keyword.value, f"argument {name!r} is given twice")
            kwargs.update(named)
        target = as_kernel_function(function)
        if target is not None:
            return self.inline(node, target, args, kwargs)
        return call(self, node, function, args, kwargs)


def _truth(value: Any) -> tensor:
    """``value != 0`` as an int1 scalar."""
    return tensor(semantic.truth(value.value if isinstance(value, tensor) else value))


_EXPRESSIONS: dict[type[ast.AST], Callable[[Expressions, Any], Any]] = {
    ast.Constant: Expressions.constant,
    ast.Name: Expressions.name,
    ast.Tuple: Expressions.sequence,
    ast.List: Expressions.sequence,
    ast.Dict: Expressions.dictionary,
    ast.Slice: Expressions.slicing,
    ast.JoinedStr: Expressions.joined_string,
    ast.FormattedValue: Expressions.formatted_value,
    ast.Starred: Expressions.starred,
    ast.BinOp: Expressions.binary,
    ast.UnaryOp: Expressions.unary,
    ast.Compare: Expressions.compare,
    ast.BoolOp: Expressions.boolean,
    ast.IfExp: Expressions.conditional,
    ast.Subscript: Expressions.subscript,
    ast.Attribute: Expressions.attribute,
    ast.Call: Expressions.call,
}
