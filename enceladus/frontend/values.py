"""What a name can hold while a kernel is walked: tiles (run time) and plain Python values (compile time)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any

from enceladus.errors import CompilationError
from enceladus.frontend.function import as_kernel_function
from enceladus.ir.types import DType, Kind, PointerType, TileType, float32, int1, int32, int64, uint64
from enceladus.language.constexpr import constexpr, static_range
from enceladus.language.constexpr import range as tl_range
from enceladus.language.tensor import tensor


@dataclass(frozen=True, slots=True)
class Undefined:
    """Stands in the scope for a name that has no value here. ``reason`` completes "'x' …"."""

    reason: str
    hint: str


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a tile or a run-time scalar."""
    return isinstance(value, tensor)


def contains_tensor(value: object) -> bool:
    """Whether a run-time value is in ``value``, or in the tuples it is made of."""
    if isinstance(value, tensor):
        return True
    if isinstance(value, tuple):
        return any(map(contains_tensor, value))
    if isinstance(value, slice):
        return any(isinstance(part, tensor) for part in (value.start, value.stop, value.step))
    if isinstance(value, MappingProxyType):
        return any(map(contains_tensor, value.values()))
    return False


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def describe(value: object) -> str:
    """How an error calls ``value``."""
    if isinstance(value, tensor):
        return describe_type(value.value.type)
    if isinstance(value, bool | int | float | str | NoneType | DType):
        return f"the compile-time value {value!r}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, Undefined):
        return "undefined"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    name = getattr(value, "__name__", None)
    return f"{name!r}" if name else f"an object of type {type(value).__name__}"


def describe_type(type_: TileType) -> str:
    element = type_.element
    what = f"pointer to {element.element}" if isinstance(element, PointerType) else str(element)
    if type_.is_scalar:
        article = "an" if what[0] in "iu" and not what.startswith("uint") else "a"
        return f"{article} {what}" if isinstance(element, PointerType) else f"{article} {what} scalar"
    return f"a tile of shape {type_.shape} of {what}"


def tile_hint(name: str, type_: TileType) -> str:
    """How to initialise ``name`` so that it has ``type_``."""
    if isinstance(type_.element, PointerType):
        return f"give {name!r} a pointer of that type on both paths"
    if type_.is_scalar:
        return f"convert it on the other path: {name}.to(tl.{type_.element})"
    return f"write {name} = tl.zeros({type_.shape}, dtype=tl.{type_.element}), or tl.full for another value"


def same_constant(a: object, b: object) -> bool:
    """Whether two compile-time values are one and the same: equal, of one type, 0.0 unlike -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return isinstance(b, float) and a.hex() == b.hex()
    if isinstance(a, tuple):
        assert isinstance(b, tuple)
        return len(a) == len(b) and all(same_constant(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, int | str | bytes | range | DType):
        return a == b
    return False


def number_fits(value: bool | int | float, dtype: DType) -> bool:
    """Whether a literal can take type ``dtype`` where two paths meet, without changing its value's kind.

    A float takes any float type, an int any type of numbers that holds it, a bool only int1.
    """
    if isinstance(value, bool):
        return dtype.is_bool()
    if dtype.kind is Kind.FLOAT:
        return True
    return isinstance(value, int) and not dtype.is_bool() and dtype.minimum <= value <= dtype.maximum


def common_number_dtype(a: bool | int | float, b: bool | int | float) -> DType | None:
    """The type that holds either literal, or ``None`` for a bool with a number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return int1 if isinstance(a, bool) and isinstance(b, bool) else None
    if isinstance(a, float) or isinstance(b, float):
        return float32
    for dtype in (int32, int64, uint64):
        if number_fits(a, dtype) and number_fits(b, dtype):
            return dtype
    return None


def item_name(name: str, index: int, value: tuple[Any, ...]) -> str:
    """The name of an item of the tuple called ``name``: ``name_0``, or ``name_field``."""
    fields = getattr(value, "_fields", None)
    return f"{name}_{fields[index] if fields else index}"


def rebuild(like: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the class of ``like`` (named tuples stay named) with other items."""
    return type(like)(*items) if hasattr(like, "_fields") else tuple(items)


# ------------------------------------------------------------------------------------ admission

#: Classes whose instances :func:`admit` returns as they are.
ADMITTED = frozenset(
    {
        tensor, int, float, bool, str, NoneType, bytes, complex, FunctionType, BuiltinFunctionType,
        MethodType, ModuleType, type, DType, PointerType, TileType, range, slice, MappingProxyType,
        EllipsisType, tl_range, static_range,
    }
)  # fmt: skip


def admit(value: Any, what: str) -> Any:
    """``value`` as the kernel may see it.

    ``tl.constexpr`` is unwrapped, lists become tuples, dictionaries read-only, NumPy scalars numbers.
    Raises ``CompilationError`` for arrays and other objects that have no meaning at compile time; ``what``
    begins the message.
    """
    kind = type(value)
    if kind in ADMITTED:
        return value
    if kind is constexpr:
        return admit(value.value, what)
    if kind is tuple or kind is list:
        return tuple([admit(item, what) for item in value])
    if isinstance(value, tuple):
        return rebuild(value, [admit(item, what) for item in value]) if hasattr(value, "_fields") else value
    if isinstance(value, dict):
        return MappingProxyType({key: admit(item, what) for key, item in value.items()})
    module = kind.__module__
    if module == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return value.item()
    if module.startswith("enceladus.") or as_kernel_function(value) is not None:
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        raise CompilationError(
            f"{what} is an array ({module.partition('.')[0]}.{kind.__name__})",
            "pass it to the kernel as an argument",
        )
    if isinstance(value, type | Enum) or callable(value):
        return value
    raise CompilationError(
        f"{what} is a {module}.{kind.__name__}, which a kernel cannot use",
        "use numbers, strings, tuples, dtypes, functions and modules, or pass it as an argument",
    )


__all__ = [
    "ADMITTED", "Undefined", "admit", "common_number_dtype", "constexpr", "contains_tensor", "describe",
    "describe_type", "is_number", "is_tensor", "item_name", "number_fits", "rebuild", "same_constant",
    "static_range", "tensor", "tile_hint", "tl_range",
]  # fmt: skip
