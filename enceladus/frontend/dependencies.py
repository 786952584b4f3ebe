"""What a kernel reads at compile time from outside itself, and a digest of it.

A kernel's meaning depends on its text, its helpers' text, and the values of global names, closures and
defaults. A launch must notice when one of them changed, and it does so often, so the work is split:

* the *references* (where to look: an owner and a key) follow from the syntax and are found once;
* at each lookup every reference is read again and compared by identity with what it was;
* only if one differs is everything found and hashed anew.

Identity is enough for immutable values. Containers and objects that could change in place are compared by
their text as well. The standard library and this package are not followed: their versions are in every key.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

from enceladus.errors import CompilationError
from enceladus.ir.types import DType

if TYPE_CHECKING:
    from enceladus.frontend.function import KernelFunction

_ABSENT = object()
_PLAIN = (int, float, complex, str, bytes, NoneType)
_IMMUTABLE = (*_PLAIN, ModuleType, FunctionType, BuiltinFunctionType, type, DType, Enum)
#: Attributes of classes that a kernel can use.
_CONSTANTS = (*_PLAIN, tuple, list, dict, FunctionType, BuiltinFunctionType, DType, Enum)
#: What may lead to functions inside a container.
_HOLDERS = (FunctionType, tuple, list, dict, partial)
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Reference:
    """A place that a kernel reads: ``read(owner, key)``, and what was there."""

    read: Callable[[Any, Any], Any]
    owner: Any
    key: Any
    seen: Any


class Dependencies:
    """The outside values of one kernel and of everything it calls."""

    def __init__(self, kernel: KernelFunction):
        self._kernel = kernel
        self._references: tuple[Reference, ...] = ()
        self._mutable: list[tuple[Any, str]] = []
        self._values: tuple[tuple[str, str], ...] | None = None
        self._digest = ""

    def values(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of each outside value, as they are now, sorted by name."""
        values = self._values
        if values is None or self._changed():
            values = self._collect()
        return values

    def digest(self) -> str:
        """Hex digest of the kernel's text and of :meth:`values`."""
        values = self.values()
        if not self._digest:
            text = repr((self._kernel.source, values))
            self._digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
        return self._digest

    def _changed(self) -> bool:
        for reference in self._references:
            if reference.read(reference.owner, reference.key) is not reference.seen:
                return True
        return bool(self._mutable) and any(
            _text(value, functions_by_id=True) != text for value, text in self._mutable
        )

    def _collect(self) -> tuple[tuple[str, str], ...]:
        collector = _Collector()
        collector.kernel(self._kernel)
        self._references = tuple(collector.references.values())
        self._mutable = collector.mutable
        values = tuple(sorted(collector.found.items()))
        if values != self._values:  # an equal tuple stays the same object, so callers may compare with 'is'
            self._values = values
            self._digest = ""
        return self._values


def digest_of(value: FunctionType | BuiltinFunctionType | type) -> str:
    """Hex digest of what a plain function does, or a class holds, as it is now, with all that it reads.

    Empty for what belongs to Python or to this package.
    """
    if isinstance(value, BuiltinFunctionType) or _is_trusted(value.__module__):
        return ""
    collector = _Collector()
    if isinstance(value, type):
        collector.python_class(value)
    else:
        collector.python_function(value)
    text = repr(sorted(collector.found.items()))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


class _Collector:
    """Walks kernels and plain helper functions and notes what they read."""

    def __init__(self) -> None:
        self.references: dict[tuple[int, Any], Reference] = {}
        self.mutable: list[tuple[Any, str]] = []
        self.found: dict[str, str] = {}
        self._labels: dict[int, str] = {}
        self._named: Counter[str] = Counter()

    def _label(self, function: FunctionType) -> str:
        """The name of a function in ``found``: functions that one factory made have names of their own."""
        name = _function_name(function)
        self._named[name] += 1
        count = self._named[name]
        label = self._labels[id(function)] = name if count == 1 else f"{name} ({count})"
        return label

    def kernel(self, kernel: KernelFunction) -> str:
        """Everything that a kernel, or a helper that may be inlined, reads; its label."""
        if id(kernel.function) in self._labels:
            return self._labels[id(kernel.function)]
        prefix = self._label(kernel.function)
        for parameter in kernel.parameters:
            if parameter.has_default:
                self.value(f"{prefix}({parameter.name}=)", parameter.default)
        chains: dict[tuple[str, ...], None] = {}
        for statement in kernel.tree.body:
            _collect_chains(statement, chains)
        for chain in chains:
            if chain[0] not in kernel.local_names:
                self.chain(prefix, kernel.function, chain)
        return prefix

    def python_function(self, function: FunctionType) -> str:
        """A plain function that a kernel may call with compile-time arguments; its label."""
        if id(function) in self._labels:
            return self._labels[id(function)]
        code = function.__code__
        prefix = self._label(function)
        self.found[prefix] = _code_text(code)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(f"{prefix}(default)", default)
        names = _names_in(code)
        for name in dict.fromkeys((*names, *code.co_freevars)):
            owner = function.__globals__.get(name)
            if isinstance(owner, ModuleType) and not _is_trusted(owner.__name__):
                for attribute in names:
                    if hasattr(owner, attribute):
                        self.chain(prefix, function, (name, attribute))
            self.chain(prefix, function, (name,))
        return prefix

    def python_class(self, cls: type) -> None:
        """A class whose attributes a kernel may read: its constants and functions."""
        for base in cls.__mro__:
            if _is_trusted(base.__module__):
                continue
            for key, value in vars(base).items():
                held = getattr(value, "__func__", value)  # of a static or class method
                if isinstance(held, _CONSTANTS) or hasattr(held, "kernel_function"):
                    self.value(f"{base.__module__}.{base.__qualname__}.{key}", held)

    def chain(self, prefix: str, function: FunctionType, chain: tuple[str, ...]) -> None:
        """Follow ``a.b.c`` from a function's surroundings as far as modules and classes go."""
        root, *attributes = chain
        name = f"{prefix}: {root}"
        free = function.__code__.co_freevars
        if root in free and function.__closure__:
            value = self._read(_read_cell, function.__closure__[free.index(root)], root)
        else:
            # A name that is not there yet (a builtin, say) is watched as well.
            value = self._read(_read_item, function.__globals__, root)
        for attribute in attributes:
            if isinstance(value, ModuleType):
                if _is_trusted(value.__name__):
                    return
            elif not isinstance(value, type) or _is_trusted(value.__module__):
                break
            name = f"{name}.{attribute}"
            value = self._read(_read_attribute, value, attribute)
        if value is not _ABSENT and not isinstance(value, ModuleType):
            self.value(name, value)

    def _read(self, read: Callable[[Any, Any], Any], owner: Any, key: str) -> Any:
        value = read(owner, key)
        if not (isinstance(value, ModuleType) and _is_trusted(value.__name__)):
            self.references.setdefault((id(owner), key), Reference(read, owner, key, value))
        return value

    def value(self, name: str, value: Any, depth: int = 0) -> None:
        """Note a value, and follow it if it is a function or holds some."""
        held = getattr(value, "kernel_function", None)
        if held is not None and hasattr(held, "parameters"):
            try:
                self.found[name] = held.source
                self.found[f"{name} is"] = self.kernel(held)
            except CompilationError:  # refused where it is used, if it is used
                self.found[name] = _code_text(held.function.__code__)
        elif isinstance(value, FunctionType):
            is_trusted = _is_trusted(value.__module__)
            self.found[name] = _function_name(value) if is_trusted else self.python_function(value)
        else:
            self.found[name] = _text(value)
            if not isinstance(value, _IMMUTABLE):
                if depth == 0:
                    self.mutable.append((value, _text(value, functions_by_id=True)))
                for index, item in enumerate(_inner(value) if depth < _MAX_DEPTH else ()):
                    if isinstance(item, _HOLDERS) or hasattr(item, "kernel_function"):
                        self.value(f"{name}[{index}]", item, depth + 1)


def _read_item(namespace: Any, key: str) -> Any:
    return namespace.get(key, _ABSENT)


def _read_cell(cell: Any, _: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _read_attribute(owner: Any, attribute: str) -> Any:
    return getattr(owner, attribute, _ABSENT)


def _inner(value: Any) -> tuple[Any, ...]:
    """What a container or wrapper holds."""
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, tuple | list):
        return tuple(value)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    wrapped = getattr(value, "__wrapped__", None)
    return () if wrapped is None else (wrapped,)


def _text(value: Any, depth: int = 0, functions_by_id: bool = False) -> str:
    """A text that differs wherever a kernel could see a difference, equal in every process if possible.

    Functions appear by name, as what they do is noted elsewhere; ``functions_by_id`` tells which they are.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name} = {value.value!r}"
    if isinstance(value, _PLAIN):
        return f"{kind.__name__} {value!r}"
    if isinstance(value, frozenset | set):
        return f"{kind.__name__}({sorted(_text(item) for item in value)})"
    if functions_by_id and (isinstance(value, FunctionType) or hasattr(value, "kernel_function")):
        return f"function {id(value)}"
    inner = partial(_text, depth=depth + 1, functions_by_id=functions_by_id)
    if depth < _MAX_DEPTH:
        if isinstance(value, tuple | list):
            return f"{kind.__qualname__}({', '.join(map(inner, value))})"
        if isinstance(value, dict):
            items = (f"{inner(k)}: {inner(v)}" for k, v in value.items())
            return f"{kind.__qualname__}({', '.join(items)})"
    if isinstance(value, type | BuiltinFunctionType | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if kind.__module__.startswith("enceladus."):
        if kind.__name__ == "constexpr":
            return f"constexpr {_text(value.value)}"
        held = getattr(value, "kernel_function", None)
        return str(value) if held is None else f"kernel {_function_name(held.function)}"
    state = getattr(value, "__dict__", None) or (_inner(value) if isinstance(value, partial) else None)
    if state and depth < _MAX_DEPTH:
        return f"{kind.__module__}.{kind.__qualname__} {inner(state)}"
    # Nothing is known about it but which object it is, and only in this process.
    return f"{kind.__module__}.{kind.__qualname__} {_process_token()}:{id(value)}"


@cache
def _process_token() -> str:
    return os.urandom(8).hex()


def _collect_chains(node: ast.AST, chains: dict[tuple[str, ...], None]) -> None:
    """Every dotted name that is read below ``node``, longest form."""
    if isinstance(node, ast.Attribute):
        attributes = [node.attr]
        root = node.value
        while isinstance(root, ast.Attribute):
            attributes.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            chains[(root.id, *reversed(attributes))] = None
            return
    elif isinstance(node, ast.Name):
        chains[(node.id,)] = None
        return
    for child in ast.iter_child_nodes(node):
        if child._fields:
            _collect_chains(child, chains)


@cache
def _is_trusted(module: str | None) -> bool:
    """Whether a module belongs to Python or to this package."""
    root = (module or "").partition(".")[0]
    return root == "enceladus" or (root in sys.stdlib_module_names and root != "__main__")


def _function_name(function: FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _names_in(code: CodeType) -> tuple[str, ...]:
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(dict.fromkeys(_names_in(constant)))
    return tuple(names)


def _code_text(code: CodeType) -> str:
    """What a function does, without file names and line numbers."""
    constants = [_code_text(c) if isinstance(c, CodeType) else _text(c) for c in code.co_consts]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames[: code.co_argcount]))
