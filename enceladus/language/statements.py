"""Builtins that are statements: checks and messages at compile time, promises, barriers."""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.ops import Assume, Barrier
from enceladus.ir.types import int1
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe
from enceladus.language.tensor import tensor


@builtin
def static_assert(cond: Any, msg: Any = "") -> None:
    """Stop compiling with ``msg`` unless the compile-time ``cond`` holds. Source: ``tl.static_assert``."""
    if isinstance(cond, tensor):
        raise CompilationError(
            f"tl.static_assert: `cond` must be known at compile time, got {describe(cond)}",
            "only constexprs, shapes and dtypes can be checked while compiling",
        )
    if not cond:
        raise CompilationError(f"tl.static_assert failed{f': {msg}' if msg else ''}")


@builtin
def static_print(
    *values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print ``values`` while compiling; tiles print as their types. Source: ``tl.static_print``."""
    print(*values, sep=sep, end=end, file=file, flush=flush)


@builtin
def assume(cond: Any) -> None:
    """Promise that a scalar condition holds; a false promise is undefined behaviour.

    Source: Triton's ``tl.assume``.
    """
    if not isinstance(cond, tensor):
        if not cond:
            raise CompilationError("tl.assume: the condition is false at compile time")
        return
    if cond.shape or cond.dtype is not int1:
        raise CompilationError(
            f"tl.assume needs a scalar condition, got {describe(cond)}", "compare scalars: `n > 0`"
        )
    semantic.perform(Assume(cond.value))


@builtin
def debug_barrier() -> None:
    """Wait for all threads of the program, and make earlier writes visible. Source: ``tl.debug_barrier``."""
    semantic.perform(Barrier())
