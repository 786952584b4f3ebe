"""The user's Python function, as the compiler and the launcher see it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from enceladus.errors import CompilationError, Location
from enceladus.frontend.dependencies import Dependencies
from enceladus.frontend.source import parse_function
from enceladus.frontend.supported import check_supported

_VARARGS, _VARKEYWORDS, _GENERATOR_OR_ASYNC = 0x04, 0x08, 0x20 | 0x80 | 0x200


class _Missing:
    """The type of :data:`MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


#: Stands for "no default" and "no such name", where ``None`` is a value.
MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel. ``default`` is :data:`MISSING` where there is none."""

    name: str
    default: Any = MISSING
    constexpr: bool = False
    positional_only: bool = False
    keyword_only: bool = False

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING


class KernelFunction:
    """A Python function written in the tile language.

    ``@enceladus.jit`` makes one for each decorated function. Inside a kernel, an object is recognised as
    a function to inline when it *is* a ``KernelFunction`` or has one in its attribute
    ``kernel_function``.

    Attributes: ``function`` (the Python function), ``name``, ``file``, ``first_line`` (of the decorators,
    if any), ``parameters``. The source is read when first needed (:attr:`tree`), so that decorating is
    cheap and works where no source exists.

    Raises ``TypeError`` for something that is not a Python function, and ``CompilationError`` for
    ``*args``, ``**kwargs``, generators and coroutines.
    """

    def __init__(self, function: FunctionType):
        if not isinstance(function, FunctionType):
            raise TypeError(f"a kernel is a Python function, not {type(function).__name__}")
        code = function.__code__
        self.function = function
        self.name: str = function.__name__
        self.file: str = code.co_filename
        self.first_line: int = code.co_firstlineno
        self.parameters: tuple[Parameter, ...] = _parameters(function)
        self.by_name: dict[str, Parameter] = {p.name: p for p in self.parameters}
        #: Names that Python treats as local: the parameters and whatever the body assigns.
        self.local_names: frozenset[str] = frozenset((*code.co_varnames, *code.co_cellvars))
        self._cells: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._assigned: dict[ast.AST, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"<KernelFunction {self.name} at {self.file}:{self.first_line}>"

    @property
    def kernel_function(self) -> KernelFunction:
        """Itself, so that ``obj.kernel_function`` works for everything that can be inlined."""
        return self

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    @property
    def location(self) -> Location:
        """Where the function begins."""
        return Location(self.file, self.first_line, function=self.name)

    @cached_property
    def _parsed(self) -> tuple[ast.FunctionDef, str]:
        tree, text = parse_function(self.function)
        check_supported(tree, self.file, self.name)
        return tree, text

    @property
    def tree(self) -> ast.FunctionDef:
        """The syntax tree, in lines and columns of the file; checked by ``supported.check_supported``.

        Raises ``CompilationError`` when the source cannot be had or uses what no engine supports.
        """
        return self._parsed[0]

    @property
    def source(self) -> str:
        """The text from the line of ``def`` to the end of the body, as it stands in the file."""
        return self._parsed[1]

    @cached_property
    def source_lines(self) -> list[str]:
        """:attr:`source` by lines."""
        return self.source.split("\n")

    @cached_property
    def dependencies(self) -> Dependencies:
        """Everything compile-time that the function reads from outside."""
        return Dependencies(self)

    @property
    def source_hash(self) -> str:
        """Hex digest of all that the kernel reads at compile time, *as it is now*: its text, its helpers'
        text, global constants, closures and defaults. Cheap while nothing changed.
        """
        return self.dependencies.digest()

    def dependency_values(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of every outside value the kernel reads, as they are now; cheap and hashable.

        Two calls give equal tuples exactly when :attr:`source_hash` is equal.
        """
        return self.dependencies.values()

    def lookup(self, name: str) -> Any:
        """The object that ``name`` means outside the function: closure, globals, builtins.

        :data:`MISSING` where there is none.
        """
        cell = self._cells.get(name)
        if cell is not None:
            try:
                return cell.cell_contents
            except ValueError:  # a variable of the enclosing function that has no value yet
                return MISSING
        namespace = self.function.__globals__
        found = namespace.get(name, MISSING)
        if found is MISSING:
            found = getattr(builtins, name, MISSING)
        return found

    def visible_names(self) -> list[str]:
        """Names that could have been meant, for "did you mean" hints."""
        return [*self.local_names, *self._cells, *self.function.__globals__, *vars(builtins)]

    def assigned_names(self, statement: ast.AST, bodies: tuple[list[ast.stmt], ...]) -> tuple[str, ...]:
        """The names that ``bodies`` of ``statement`` assign, in order of appearance; cached."""
        names = self._assigned.get(statement)
        if names is None:
            found: dict[str, None] = {}
            for body in bodies:
                for inner in body:
                    for node in ast.walk(inner):
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                            found[node.id] = None
            names = self._assigned[statement] = tuple(found)
        return names


def as_kernel_function(value: object) -> KernelFunction | None:
    """The kernel function that ``value`` is or holds, or ``None``."""
    if isinstance(value, KernelFunction):
        return value
    held = getattr(value, "kernel_function", None)
    return held if isinstance(held, KernelFunction) else None


def _parameters(function: FunctionType) -> tuple[Parameter, ...]:
    code = function.__code__
    here = Location(code.co_filename, code.co_firstlineno, function=function.__name__)
    if code.co_flags & (_VARARGS | _VARKEYWORDS):
        star = "*args" if code.co_flags & _VARARGS else "**kwargs"
        raise CompilationError(f"a kernel cannot take {star}", "pass a tuple as one argument", here)
    if code.co_flags & _GENERATOR_OR_ASYNC:
        raise CompilationError("a kernel cannot be a generator or a coroutine", location=here)
    positional = code.co_argcount
    names = code.co_varnames[: positional + code.co_kwonlyargcount]
    values = function.__defaults__ or ()
    defaults: dict[str, Any] = dict(zip(names[positional - len(values) : positional], values, strict=True))
    defaults.update(function.__kwdefaults__ or {})
    try:
        annotations: Mapping[str, Any] = function.__annotations__
    except NameError:  # evaluated lazily (Python 3.14) and naming something undefined
        annotations = {a.arg: ast.unparse(a.annotation) for a in _annotated(function)}
    return tuple(
        Parameter(
            name,
            defaults.get(name, MISSING),
            is_constexpr_annotation(annotations.get(name), function.__globals__),
            positional_only=index < code.co_posonlyargcount,
            keyword_only=index >= positional,
        )
        for index, name in enumerate(names)
    )


def _annotated(function: FunctionType) -> list[Any]:
    arguments = parse_function(function)[0].args
    everything = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [a for a in everything if a.annotation is not None]


def is_constexpr_annotation(annotation: object, namespace: Mapping[str, Any]) -> bool:
    """Whether an annotation, an object or its text, says ``tl.constexpr``."""
    if annotation is None:
        return False
    if isinstance(annotation, str):
        text = annotation.strip().strip("\"'")
        root, *attributes = text.split(".")
        found = namespace.get(root, MISSING)
        for attribute in attributes:
            found = getattr(found, attribute, MISSING)
        if found is MISSING:
            return text.rpartition(".")[2] == "constexpr"
        annotation = found
    return getattr(annotation, "__name__", "") == "constexpr" and getattr(
        annotation, "__module__", ""
    ).startswith("enceladus.")
