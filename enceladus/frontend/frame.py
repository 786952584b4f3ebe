"""The state of one function being walked: its scope, its place in the chain of calls, and its locations."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from enceladus.errors import CompilationError, EnceladusError, Location
from enceladus.frontend.function import KernelFunction
from enceladus.ir.builder import IRBuilder


class Compilation:
    """What all frames of one compilation share."""

    __slots__ = ("active", "debugging", "emitter", "source_lines")

    def __init__(self, emitter: IRBuilder, debugging: bool = False):
        self.emitter = emitter
        #: Whether to pass over what only the interpreter runs: ``print``, ``breakpoint``, ``assert``.
        self.debugging = debugging
        #: The functions being walked, outermost first; to notice recursion.
        self.active: list[KernelFunction] = []
        self.source_lines: dict[tuple[str, int], str] = {}


class Frame:
    """One function (the kernel, or a helper being inlined): scope, locations and errors."""

    def __init__(
        self,
        compilation: Compilation,
        kernel: KernelFunction,
        scope: dict[str, Any],
        call_site: Location | None = None,
    ):
        self.compilation = compilation
        self.emitter = compilation.emitter
        self.kernel = kernel
        #: Local name → tile, compile-time value or ``Undefined``.
        self.scope = scope
        self.call_site = call_site
        #: How many run-time ``if`` and ``for`` of this function are open.
        self.depth = 0
        self.result: Any = None
        self._locations: dict[ast.AST, Location] = {}
        self._first_line = kernel.tree.lineno
        self._lines = kernel.source_lines

    def locate(self, node: Any) -> Location:
        """Where an expression or statement stands. Of several lines, the first one."""
        location = self._locations.get(node)
        if location is None:
            kernel, line = self.kernel, node.lineno
            end = node.end_col_offset if node.end_lineno == line else 0
            location = Location(kernel.file, line, node.col_offset, end, kernel.name, self.call_site)
            self._locations[node] = location
            lines = self.compilation.source_lines
            if (kernel.file, line) not in lines:
                lines[kernel.file, line] = self._lines[line - self._first_line].strip()
        return location

    def error(self, node: Any, reason: str, hint: str = "") -> CompilationError:
        """A :class:`CompilationError` at ``node``; the caller raises it."""
        return CompilationError(reason, hint, self.locate(node))

    def inline(self, node: Any, target: KernelFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Walk a helper's body in place of a call at ``node``."""
        raise NotImplementedError

    def apply(self, node: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``function(*args, **kwargs)``, with what it emits, and whatever it raises, located at ``node``."""
        location = self.emitter.location = self.locate(node)
        try:
            return function(*args, **kwargs)
        except CompilationError as error:
            if error.location is None:
                error.location = location
            raise
        except EnceladusError:
            raise
        except Exception as error:
            raise CompilationError(_reason(error), location=location) from error


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, KeyError):
        text = f"key {text} not found"
    name = type(error).__name__
    return f"{name}: {text}" if text else name
