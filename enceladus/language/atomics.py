"""Builtins that update memory in one step, whoever else does.

The order of updates is open, between programs and between elements of one tile. Other accesses are not
ordered by them: a load sees an array as it was before the launch, so memory orders would change nothing.
"""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.exchange import Atomic, AtomicCas, AtomicKind
from enceladus.ir.types import DType
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe
from enceladus.language.memory import mask_of, no_tile_for_scalar, pointer_of
from enceladus.language.tensor import raw, tensor, tensor_method

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("gpu", "cta", "sys")


def _check_order(name: str, sem: Any, scope: Any) -> None:
    for argument, value, allowed in (("sem", sem, _ORDERS), ("scope", scope, _SCOPES)):
        if value is not None and not (isinstance(value, str) and value in allowed):
            known = ", ".join(map(repr, allowed))
            raise CompilationError(f"{name}: `{argument}` must be one of {known}, got {describe(value)}")


def _check_type(name: str, element: DType, floats: bool) -> None:
    if element.is_bool():
        raise CompilationError(
            f"{name} does not work on arrays of bool", "use an array of uint8, 0 for false and 1 for true"
        )
    if element.bits == 64:
        raise CompilationError(
            f"{name} does not work on {element}: Metal has no 64-bit atomic that returns the old value",
            "use a 32-bit array; a count that may pass 2^31 can be split into several counters",
        )
    if element.is_floating() and not floats:
        raise CompilationError(
            f"{name} needs integers, not {element}",
            f"view the array as uint{element.bits} before the launch, and bitcast the values",
        )


def _operand(name: str, argument: str, x: Any, element: DType, address: Value) -> Value:
    """A value operand: converted to the element type and broadcast to the shape of the pointer."""
    item = semantic.materialize(raw(x), element, f"{name}: {argument}")
    no_tile_for_scalar(name, argument, item, address)
    return semantic.broadcast_to(item, address.type.shape, f"{name}: {argument}")


def _update(
    kind: AtomicKind, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any, floats: bool = True
) -> tensor:
    name = f"tl.atomic_{kind.value}"
    address, element = pointer_of(name, pointer)
    _check_type(name, element, floats)
    _check_order(name, sem, scope)
    guard = mask_of(name, mask, address)
    value = _operand(name, "val", val, element, address)
    if guard is not None:
        guard = semantic.broadcast_to(guard, address.type.shape, f"{name}: mask")
    return tensor(semantic.emit(Atomic(kind, address, value, guard)))


@tensor_method
@builtin
def atomic_add(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Add ``val`` where ``mask`` (int1) holds; gives the old values, 0 where the mask is false.

    Integers of 8, 16 and 32 bits (they wrap), float16, bfloat16, float32. ``val`` is converted to the element
    type; it and the mask broadcast to the shape of the pointer. Elements of a tile may meet in one place.
    ``sem`` and ``scope`` are checked and not needed. Source: Triton's ``tl.atomic_add``.
    """
    return _update(AtomicKind.ADD, pointer, val, mask, sem, scope)


@tensor_method
@builtin
def atomic_max(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Keep the larger of the old value and ``val``; a number beats NaN. As :func:`atomic_add`.

    Source: Triton's ``tl.atomic_max``.
    """
    return _update(AtomicKind.MAX, pointer, val, mask, sem, scope)


@tensor_method
@builtin
def atomic_min(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Keep the smaller of the old value and ``val``; a number beats NaN. As :func:`atomic_add`.

    Source: Triton's ``tl.atomic_min``.
    """
    return _update(AtomicKind.MIN, pointer, val, mask, sem, scope)


@tensor_method
@builtin
def atomic_and(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Bitwise and, on integers of 8, 16 and 32 bits. As :func:`atomic_add`.

    Source: Triton's ``tl.atomic_and``.
    """
    return _update(AtomicKind.AND, pointer, val, mask, sem, scope, floats=False)


@tensor_method
@builtin
def atomic_or(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Bitwise or, on integers of 8, 16 and 32 bits. As :func:`atomic_add`.

    Source: Triton's ``tl.atomic_or``.
    """
    return _update(AtomicKind.OR, pointer, val, mask, sem, scope, floats=False)


@tensor_method
@builtin
def atomic_xor(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Bitwise exclusive or, on integers of 8, 16 and 32 bits. As :func:`atomic_add`.

    Source: Triton's ``tl.atomic_xor``.
    """
    return _update(AtomicKind.XOR, pointer, val, mask, sem, scope, floats=False)


@tensor_method
@builtin
def atomic_xchg(pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> tensor:
    """Put ``val`` in the place of the old value. Types as :func:`atomic_add`.

    Source: Triton's ``tl.atomic_xchg``.
    """
    return _update(AtomicKind.XCHG, pointer, val, mask, sem, scope)


@tensor_method
@builtin
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> tensor:
    """Put ``val`` where the old value equals ``cmp``; gives the old values. Integers of 8, 16 and 32 bits.

    Source: Triton's ``tl.atomic_cas``.
    """
    address, element = pointer_of("tl.atomic_cas", pointer)
    _check_type("tl.atomic_cas", element, floats=False)
    _check_order("tl.atomic_cas", sem, scope)
    compare = _operand("tl.atomic_cas", "cmp", cmp, element, address)
    value = _operand("tl.atomic_cas", "val", val, element, address)
    return tensor(semantic.emit(AtomicCas(address, compare, value)))
