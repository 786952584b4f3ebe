"""Calls of everything that is not a kernel function: builtins of the language, of Python, and helpers."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import reduce
from types import MethodType
from typing import TYPE_CHECKING, Any

from enceladus.errors import CompilationError
from enceladus.frontend.function import as_kernel_function
from enceladus.frontend.values import (
    admit,
    constexpr,
    contains_tensor,
    describe,
    is_tensor,
    static_range,
    tl_range,
)
from enceladus.language.combine import Inlinable, hand_over

if TYPE_CHECKING:
    import ast

    from enceladus.frontend.frame import Frame

_DEBUG_HINT = "run the kernel with ENCELADUS_INTERPRET=1 (or interpret=True), where it works"
_PRINT_HINT = f"use tl.static_print for what is known at compile time, or {_DEBUG_HINT}"

#: Python builtins with no meaning in a compiled kernel → what to do instead.
_REFUSED: dict[str, str] = {
    "print": _PRINT_HINT,
    "breakpoint": _DEBUG_HINT,
    "input": _DEBUG_HINT,
    "iter": "use a loop over tl.static_range, or over a tuple",
    "next": "use a loop over tl.static_range, or over a tuple",
    **dict.fromkeys(("open", "exec", "eval", "compile", "__import__"), "do it outside the kernel"),
    **dict.fromkeys(("globals", "locals", "vars", "setattr", "delattr", "super"), "use names directly"),
    **dict.fromkeys(("set", "frozenset", "bytearray", "object"), "use a tuple"),
}

#: Python builtins that a run-time value cannot go through → what to write instead.
_CONVERSIONS: dict[Any, str] = {
    int: "convert it with .to(tl.int32)",
    float: "convert it with .to(tl.float32)",
    bool: "compare it: x != 0",
    complex: "there are no complex types",
    str: "use tl.static_print to see its type",
    repr: "use tl.static_print to see its type",
    format: "use tl.static_print to see its type",
    round: "use tl.math.rint",
    pow: "use tl.math.pow",
    divmod: "use '//' and '%'",
    any: "combine int1 scalars with '|', or use tl.any of a tile",
    all: "combine int1 scalars with '&', or use tl.all of a tile",
    sorted: "use tl.sort for the elements of a tile",
    range: "a range with run-time bounds can only stand in 'for … in range(…)'",
    map: "use a loop over tl.static_range",
    filter: "use a loop over tl.static_range",
    hash: "there is no run-time hash",
    slice: "slices need compile-time bounds",
}


def _minimum_or_maximum(
    frame: Frame, node: ast.Call, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    import enceladus.language as tl

    if kwargs:
        reason = f"{name}() of run-time values takes no keyword arguments"
        raise frame.error(node, reason, f"use tl.{name}imum")
    if len(args) == 1 and isinstance(args[0], tuple):
        args = list(args[0])
    if len(args) < 2:
        tile = len(args) == 1 and is_tensor(args[0]) and args[0].shape
        hint = f"use tl.{name} for the elements of a tile" if tile else f"use tl.{name}imum(a, b)"
        raise frame.error(node, f"{name}() of run-time values needs two of them", hint)
    function = tl.minimum if name == "min" else tl.maximum
    return reduce(lambda a, b: frame.apply(node, function, a, b), args)


def _absolute(frame: Frame, node: ast.Call, args: list[Any]) -> Any:
    import enceladus.language as tl

    return frame.apply(node, tl.abs, *args)


def _is_instance(value: Any, kind: Any) -> bool:
    """``isinstance`` where compile-time values count as ``tl.constexpr``, though they are plain here."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return isinstance(value, kinds) or (constexpr in kinds and not contains_tensor(value))


def _as_tuple(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        for argument in args:
            if is_tensor(argument):
                reason = f"{describe(argument)} cannot be iterated over"
                raise CompilationError(reason, "loop over tl.static_range")
        return tuple(function(*args, **kwargs))

    return call


#: Python builtins that look at what a value is, not at its number: run-time values may go through.
_STRUCTURAL: dict[Any, Callable[..., Any]] = {
    isinstance: _is_instance,
    len: len,
    getattr: getattr,
    hasattr: hasattr,
    callable: callable,
    type: type,
    id: id,
    tuple: _as_tuple(tuple),
    list: _as_tuple(tuple),
    zip: _as_tuple(zip),
    enumerate: _as_tuple(enumerate),
    reversed: _as_tuple(reversed),
    sum: sum,
}

_REFUSED_OBJECTS = {id(getattr(builtins, name)): name for name in _REFUSED}
_LANGUAGE_CLASSES = (tl_range, static_range)


def call(frame: Frame, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate ``function(*args, **kwargs)`` at ``node``.

    Builtins of the language and methods of tiles take run-time values; other Python functions only
    compile-time ones. Raises ``CompilationError``.
    """
    if hasattr(function, "__enceladus_builtin__") or _is_language_class(function):
        if hasattr(function, "__enceladus_takes_functions__"):
            args, kwargs = hand_over(args, kwargs, lambda value: _inlinable(frame, node, value))
        result = frame.apply(node, function, *args, **kwargs)
        return admit(result, "the result") if type(result) is constexpr else result
    if type(function) is MethodType and is_tensor(function.__self__):
        return frame.apply(node, function, *args, **kwargs)
    if function is constexpr:
        if any(map(contains_tensor, args)):
            hint = "leave it out, or compute it from constexprs"
            raise frame.error(node, "tl.constexpr(…) of a run-time value", hint)
        return frame.apply(node, lambda *a: admit(constexpr(*a), "the value"), *args)
    if not callable(function):
        hint = "use square brackets for items" if isinstance(function, tuple) or is_tensor(function) else ""
        raise frame.error(node, f"{describe(function)} cannot be called", hint)
    name = _REFUSED_OBJECTS.get(id(function))
    if name is not None:
        raise frame.error(node, f"{name}() cannot be used in a compiled kernel", _REFUSED[name])
    try:
        structural = _STRUCTURAL.get(function)
    except TypeError:  # not hashable
        structural = None
    if structural is not None:
        return frame.apply(node, admit, frame.apply(node, structural, *args, **kwargs), "the result")
    if any(map(contains_tensor, args)) or any(map(contains_tensor, kwargs.values())):
        if function in (min, max):
            return _minimum_or_maximum(frame, node, function.__name__, args, kwargs)
        if function is abs:
            return _absolute(frame, node, args)
        if not _keeps_structure(function):
            raise _run_time_argument(frame, node, function)
        return frame.apply(node, function, *args, **kwargs)
    result = frame.apply(node, function, *args, **kwargs)
    return frame.apply(node, admit, result, f"the result of {_name(function)}")


def _inlinable(frame: Frame, node: ast.Call, value: Any) -> Inlinable | None:
    """A kernel function that a builtin will call with tiles, at ``node``."""
    kernel = as_kernel_function(value)
    if kernel is None:
        return None
    return Inlinable(kernel.name, lambda *tiles: frame.inline(node, kernel, list(tiles), {}))


def _is_language_class(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, _LANGUAGE_CLASSES)


def _keeps_structure(function: Any) -> bool:
    """Named tuples may be made of tiles, and their items replaced."""
    if isinstance(function, type):
        return issubclass(function, tuple) and hasattr(function, "_fields")
    owner = getattr(function, "__self__", None)
    owner = owner if isinstance(owner, type) else type(owner)
    return hasattr(owner, "_fields") and _name(function) in ("_replace", "_make", "_asdict")


def _run_time_argument(frame: Frame, node: ast.Call, function: Any) -> CompilationError:
    import enceladus.language as tl

    name = _name(function)
    hint = _CONVERSIONS.get(function) if _is_hashable(function) else None
    if hint is None:
        ours = getattr(tl, name, None) or getattr(getattr(tl, "math", None), name, None)
        spelled = f"tl.{name}" if hasattr(tl, name) else f"tl.math.{name}"
        hint = f"use {spelled}" if ours is not None else f"decorate {name} with @enceladus.jit"
    return frame.error(node, f"{name}() is a Python function and takes compile-time values only", hint)


def _is_hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
