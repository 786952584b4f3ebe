"""Walk statements: assignments, run-time and compile-time control flow, and inlined calls."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from enceladus.errors import CompilationError
from enceladus.frontend.expressions import Expressions
from enceladus.frontend.function import MISSING, KernelFunction, is_constexpr_annotation
from enceladus.frontend.loops import Loop, loop_bounds
from enceladus.frontend.merge import Join, Mismatch
from enceladus.frontend.values import (
    Undefined,
    admit,
    contains_tensor,
    describe,
    static_range,
    tensor,
    tl_range,
)
from enceladus.ir.core import Block
from enceladus.ir.ops import If, Yield


class Statements(Expressions):
    """Walks one function's body."""

    def function_body(self) -> Any:
        """Walk the whole body and return what the function returns."""
        self.body(self.kernel.tree.body)
        return self.result

    def body(self, statements: list[ast.stmt]) -> bool:
        """Walk statements in order; true if a ``return`` was reached (what follows it is not compiled)."""
        for statement in statements:
            visit = _STATEMENTS.get(type(statement))
            if visit is None:
                raise self.error(statement, f"this statement ({type(statement).__name__}) is not supported")
            if visit(self, statement):
                return True
        return False

    # ----------------------------------------------------------------------------- assignments

    def expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # docstrings and '...'
            return
        if self.compilation.debugging and is_debugging_call(node.value):
            return
        self.evaluate(node.value)

    def assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.bind(target, value)

    def annotated_assign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.evaluate(node.value)
        text = ast.unparse(node.annotation)
        if is_constexpr_annotation(text, self.kernel.function.__globals__) and contains_tensor(value):
            reason = f"a variable annotated tl.constexpr cannot be {describe(value)}"
            raise self.error(node.value, reason, "leave out the annotation, or compute it from constexprs")
        self.bind(node.target, value)

    def augmented_assign(self, node: ast.AugAssign) -> None:
        assert isinstance(node.target, ast.Name)  # others are refused by check_supported
        left = self.name(node.target)
        self.bind(node.target, self.operate(node, node.op, left, self.evaluate(node.value)))

    def bind(self, target: ast.expr, value: Any) -> None:
        """Assign ``value`` to a name or to a tuple of them. A tile without a name gets this one."""
        if isinstance(target, ast.Name):
            if type(value) is tensor and not value.value.name:
                value.value.name = target.id
            self.scope[target.id] = value
            return
        assert isinstance(target, ast.Tuple | ast.List)
        if isinstance(value, tensor):
            raise self.error(target, f"{describe(value)} cannot be unpacked", "only tuples can")
        items = self.apply(target, tuple, value)
        if len(items) != len(target.elts):
            raise self.error(target, f"cannot unpack {len(items)} values into {len(target.elts)} names")
        for part, item in zip(target.elts, items, strict=True):
            self.bind(part, item)

    # ------------------------------------------------------------------------ return and others

    def return_(self, node: ast.Return) -> bool:
        if self.depth:
            hint = "put the rest of the function under 'if', or assign the value and return it at the end"
            raise self.error(node, "'return' under a run-time condition is not supported", hint)
        if node.value is not None:
            value = self.evaluate(node.value)
            if value is not None and self.call_site is None:
                raise self.error(node.value, "a kernel cannot return a value", "tl.store it to an array")
            self.result = value
        return True

    def pass_(self, node: ast.Pass) -> None:
        return None

    def assert_(self, node: ast.Assert) -> None:
        condition = self.evaluate(node.test)
        if contains_tensor(condition):
            if self.compilation.debugging:
                return
            hint = "use tl.assume for a promise, or run with ENCELADUS_INTERPRET=1 to check it"
            raise self.error(node.test, "'assert' needs a compile-time condition", hint)
        if not self.apply(node.test, bool, condition):
            message = "" if node.msg is None else f": {self.evaluate(node.msg)}"
            raise self.error(node.test, f"assertion failed{message}")

    def import_(self, node: ast.Import | ast.ImportFrom) -> None:
        if self.compilation.debugging:
            return
        hint = "import at the top of the file"
        raise self.error(node, "'import' in a compiled kernel is not supported", hint)

    # ----------------------------------------------------------------------------- conditions

    def if_(self, node: ast.If) -> bool:
        hint = "use tl.where to choose element by element"
        condition = self.truth(node.test, self.evaluate(node.test), "'if'", hint)
        if isinstance(condition, bool):
            return self.body(node.body if condition else node.orelse)
        self.run_time_if(node, condition)
        return False

    def run_time_if(self, node: ast.If, condition: tensor) -> None:
        outer = self.scope
        scopes: list[dict[str, Any]] = []
        blocks = (Block(), Block())
        self.depth += 1
        for block, statements in zip(blocks, (node.body, node.orelse), strict=True):
            self.scope = dict(outer)
            with self.emitter.inside(block):
                self.body(statements)
            scopes.append(self.scope)
        self.depth -= 1
        self.scope = outer
        self.emitter.location = self.locate(node.test)
        line = node.test.lineno
        sides = (f"in the first branch of the 'if' in line {line}", "in the other")
        join = Join(self, node.test, *blocks, sides)
        merged: dict[str, Any] = {}
        for name in self.kernel.assigned_names(node, (node.body, node.orelse)):
            a, b = (scope.get(name, MISSING) for scope in scopes)
            if a is b:
                if a is not MISSING:
                    outer[name] = a
            elif a is MISSING or b is MISSING or type(a) is Undefined or type(b) is Undefined:
                outer[name] = self._undefined_after_if(name, a, b, line)
            else:
                try:
                    merged[name] = join.add(name, a, b)
                except Mismatch as error:  # harmless unless somebody reads it
                    outer[name] = Undefined(error.reason, error.hint)
        for block, values in zip(blocks, (join.then_values, join.else_values), strict=True):
            with self.emitter.inside(block):
                self.emitter.emit(Yield(tuple(values)))
        if len(blocks[0].ops) == len(blocks[1].ops) == 1 and not join.names:
            results: tuple[Any, ...] = ()
        else:
            self.emitter.location = self.locate(node.test)
            results = self.emitter.emit(If(condition.value, *blocks))
        for name, template in merged.items():
            outer[name] = join.finish(template, results)

    def _undefined_after_if(self, name: str, a: Any, b: Any, line: int) -> Undefined:
        for value in (a, b):
            if type(value) is Undefined:
                return value
        branch = "'else' branch" if a is MISSING else "branch"
        reason = f"is defined only in the {branch} of the run-time 'if' in line {line}"
        known = b if a is MISSING else a
        hint = f"assign {name!r} before the 'if'"
        if isinstance(known, tensor) and not known.value.type.element.is_ptr():
            type_ = known.value.type
            zero = f"tl.zeros({type_.shape}, dtype=tl.{type_.element})" if type_.shape else "0"
            hint += f", for example: {name} = {zero}"
        return Undefined(reason, hint)

    # ----------------------------------------------------------------------------------- loops

    def for_(self, node: ast.For) -> bool:
        iterable = self._iterable(node.iter)
        if isinstance(iterable, tl_range):
            if not isinstance(node.target, ast.Name):
                raise self.error(node.target, "the variable of this loop must be one name")
            lower, upper, step = loop_bounds(self, node.iter, iterable.start, iterable.stop, iterable.step)
            Loop(self, node, lower, upper, step).run()
            return False
        if contains_tensor(iterable) and not isinstance(iterable, tuple):
            hint = "loop over a range, and use tiles as a whole"
            raise self.error(node.iter, f"{describe(iterable)} cannot be iterated over", hint)
        for item in self.apply(node.iter, tuple, iterable):
            self.bind(node.target, self.apply(node.iter, admit, item, "the item"))
            self.body(node.body)  # holds no 'return': check_supported
        return False

    def _iterable(self, node: ast.expr) -> Any:
        """What a loop goes over; ``range`` in any spelling becomes a ``tl.range``."""
        if isinstance(node, ast.Call) and self.evaluate(node.func) is range:
            args = [self.evaluate(argument) for argument in node.args]
            if node.keywords:
                raise self.error(node, "range() takes no keyword arguments", "use tl.range")
            if not 1 <= len(args) <= 3:
                raise self.error(node, f"range() takes one to three arguments, not {len(args)}")
            return self.apply(node, tl_range, *args)
        value = self.evaluate(node)
        if isinstance(value, range):
            return self.apply(node, tl_range, value.start, value.stop, value.step)
        if isinstance(value, static_range):
            return range(value.start, value.stop, value.step)
        return value

    # ------------------------------------------------------------------------------- inlining

    def inline(self, node: ast.Call, target: KernelFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
        compilation = self.compilation
        if target in compilation.active:
            names = " → ".join(k.name for k in (*compilation.active, target))
            hint = "use a loop, or tl.static_range with a compile-time depth"
            raise self.error(node, f"recursion is not supported ({names})", hint)
        scope = self._bind_arguments(node, target, args, kwargs)
        location = self.locate(node)
        compilation.active.append(target)
        try:
            frame = Statements(compilation, target, scope, location)
        except CompilationError as error:  # its source cannot be had, or its syntax is refused
            if error.location is None:
                error.location = location
            raise
        result = frame.function_body()
        compilation.active.pop()
        return result

    def _bind_arguments(
        self, node: ast.Call, target: KernelFunction, args: list[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        positional = [p for p in target.parameters if not p.keyword_only]
        signature = f"its parameters are ({', '.join(target.parameter_names)})"
        if len(args) > len(positional):
            counts = f"takes {len(positional)} positional arguments, but {len(args)} were given"
            raise self.error(node, f"{target.name}() {counts}", signature)
        given = dict(zip((p.name for p in positional), args, strict=False))
        for name, value in kwargs.items():
            parameter = target.by_name.get(name)
            if parameter is None or parameter.positional_only:
                raise self.error(node, f"{target.name}() has no parameter {name!r}", signature)
            if name in given:
                raise self.error(node, f"{target.name}() got two values for {name!r}", signature)
            given[name] = value
        scope: dict[str, Any] = {}
        for parameter in target.parameters:
            name = parameter.name
            value = given.get(name, MISSING)
            if value is MISSING:
                if parameter.default is MISSING:
                    raise self.error(node, f"{target.name}() misses an argument for {name!r}", signature)
                what = f"the default of {name!r} of {target.name}()"
                value = self.apply(node, admit, parameter.default, what)
            elif parameter.constexpr and contains_tensor(value):
                reason = f"{name!r} of {target.name}() is a tl.constexpr, but got {describe(value)}"
                raise self.error(node, reason, "pass a compile-time value, or drop the annotation")
            scope[name] = value
        return scope


def is_debugging_call(node: ast.expr) -> bool:
    """Whether an expression calls ``print``, ``breakpoint``, or ``set_trace`` of a debugger."""
    match node:
        case ast.Call(func=ast.Name(id="print" | "breakpoint" | "set_trace")):
            return True
        case ast.Call(func=ast.Attribute(attr="set_trace")):
            return True
    return False


_STATEMENTS: dict[type[ast.AST], Callable[[Statements, Any], bool | None]] = {
    ast.Expr: Statements.expression,
    ast.Assign: Statements.assign,
    ast.AnnAssign: Statements.annotated_assign,
    ast.AugAssign: Statements.augmented_assign,
    ast.Return: Statements.return_,
    ast.Pass: Statements.pass_,
    ast.Assert: Statements.assert_,
    ast.Import: Statements.import_,
    ast.ImportFrom: Statements.import_,
    ast.If: Statements.if_,
    ast.For: Statements.for_,
}
