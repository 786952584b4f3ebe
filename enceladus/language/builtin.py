"""The decorator of the language's builtins, and checks of compile-time arguments they share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from enceladus.errors import CompilationError
from enceladus.ir.builder import current_emitter
from enceladus.language.constexpr import constexpr, unwrap
from enceladus.language.tensor import tensor

F = TypeVar("F", bound=Callable[..., Any])


def builtin(function: F) -> F:
    """Mark a function of the language: usable inside kernels only; ``tl.constexpr`` arguments are unwrapped.

    A call that does not fit the signature becomes a :class:`CompilationError`.
    """
    name = f"tl.{function.__name__}"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_emitter() is None:
            raise CompilationError(
                f"{name} can only be used inside a kernel", "call it from a function under `@enceladus.jit`"
            )
        return _call(function, name, args, kwargs)

    call.__enceladus_builtin__ = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def host_builtin(function: F) -> F:
    """A builtin that also works outside kernels, on plain Python values."""
    name = f"tl.{function.__name__}"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(function, name, args, kwargs)

    call.__enceladus_builtin__ = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _call(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for argument in args:
        if argument.__class__ is constexpr:
            args = tuple(map(unwrap, args))
            break
    if kwargs:
        kwargs = {key: unwrap(value) for key, value in kwargs.items()}
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        # No frame below the call: Python could not bind the arguments.
        here = error.__traceback__.tb_next if error.__traceback__ else None
        if here is not None:
            raise
        complaint = str(error).removeprefix(function.__name__ + "() ")
        raise CompilationError(f"{name}: {complaint}", f"its arguments are {_signature(function)}") from None


def _signature(function: Callable[..., Any]) -> str:
    code = function.__code__
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if code.co_flags & 0x04:  # takes *args
        names.insert(code.co_argcount, "*" + code.co_varnames[len(names)])
    return f"({', '.join(names)})"


def describe(x: Any) -> str:
    """How an argument is called in an error."""
    if isinstance(x, tensor):
        return f"a run-time {x.dtype}" if not x.shape else f"a tile {x.type}"
    if isinstance(x, (bool, int, float, str, type(None), tuple, list)):
        return repr(x)
    return f"an object of type {type(x).__name__}"


def require_int(name: str, argument: str, x: Any) -> int:
    """``x`` as a compile-time integer; ``name`` and ``argument`` are what the error mentions."""
    x = unwrap(x)
    if x.__class__ is int:
        return x
    # Tiles are refused even where their value is known, so that all engines refuse the same programs.
    if hasattr(x, "__index__") and not isinstance(x, (bool, tensor)):
        return x.__index__()
    raise CompilationError(
        f"{name}: `{argument}` must be a compile-time integer, got {describe(x)}",
        "make the parameter it comes from a `tl.constexpr`",
    )
