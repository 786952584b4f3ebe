"""Builtins that read and write memory, and say things about it."""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.ops import Hint, Load, Store
from enceladus.ir.types import DType, PointerType, int1
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe, require_int
from enceladus.language.creation import require_tensor
from enceladus.language.tensor import raw, tensor


def pointer_of(name: str, pointer: Any) -> tuple[Value, DType]:
    """The pointer's value and the type of the elements it points at."""
    if isinstance(pointer, tensor) and isinstance(pointer.dtype, PointerType):
        return pointer.value, pointer.dtype.element
    hint = "add the offsets to an array parameter: `ptr + offsets`"
    if pointer is None:
        hint = "the argument was given as None: test it with `is not None` first"
    raise CompilationError(f"{name}: `pointer` must be a pointer, got {describe(pointer)}", hint)


def mask_of(name: str, mask: Any, pointer: Value) -> Value | None:
    """The mask as int1, or ``None`` when it is absent or always true."""
    if mask is None or mask is True:
        return None
    if isinstance(mask, tensor) and mask.dtype is int1:
        value: Value = mask.value
    elif mask is False:
        value = semantic.constant(False, int1)
    else:
        raise CompilationError(
            f"{name}: `mask` must be int1, got {describe(mask)}",
            "compare: `mask=offsets < n`, or `mask=m != 0`",
        )
    no_tile_for_scalar(name, "mask", value, pointer)
    return value


def no_tile_for_scalar(name: str, argument: str, value: Value, pointer: Value) -> None:
    if value.type.shape and not pointer.type.shape:
        raise CompilationError(
            f"{name}: `{argument}` is a tile of shape {value.type.shape}, but the pointer is a scalar",
            "add a tile of offsets to the pointer: `ptr + tl.arange(0, BLOCK)`",
        )


def _refuse_block_pointers(name: str, boundary_check: Any) -> None:
    if boundary_check:
        raise CompilationError(
            f"{name}: `boundary_check` belongs to block pointers, which are not supported",
            "add offsets to a pointer and pass a `mask`",
        )


def _is_positive_zero(x: Any) -> bool:
    return isinstance(x, (bool, int, float)) and x == 0 and str(x)[0] != "-"


@builtin
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: Any = False,
) -> tensor:
    """The elements at ``pointer``; where ``mask`` (int1) is false nothing is read: ``other``, or 0.

    Pointer, mask and ``other`` broadcast together; ``other`` is converted to the element type. The result
    has the element type (int1 for arrays of bool). ``cache_modifier``, ``eviction_policy`` and ``volatile``
    are accepted and ignored. Source: Triton's ``tl.load``.
    """
    address, element = pointer_of("tl.load", pointer)
    _refuse_block_pointers("tl.load", boundary_check)
    guard = mask_of("tl.load", mask, address)
    if other is not None and mask is None:
        raise CompilationError("tl.load: `other` needs a `mask`", "give a mask, or leave `other` out")
    fill: Value | None = None
    if guard is not None and other is not None and not _is_positive_zero(other):
        fill = semantic.materialize(raw(other), element, "tl.load: other")
        no_tile_for_scalar("tl.load", "other", fill, address)
    if guard is None:
        return tensor(semantic.emit(Load(address)))
    if fill is None:
        address, guard = semantic.broadcast(address, guard)
    else:
        address, guard, fill = semantic.broadcast(address, guard, fill)
    return tensor(semantic.emit(Load(address, guard, fill)))


@builtin
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> None:
    """Write ``value`` to ``pointer`` where ``mask`` (int1) is true.

    The value is converted to the element type; value and mask broadcast to the shape of the pointer.
    ``cache_modifier`` and ``eviction_policy`` are accepted and ignored. Source: Triton's ``tl.store``.
    """
    address, element = pointer_of("tl.store", pointer)
    _refuse_block_pointers("tl.store", boundary_check)
    guard = mask_of("tl.store", mask, address)
    item = semantic.materialize(raw(value), element, "tl.store: value")
    no_tile_for_scalar("tl.store", "value", item, address)
    shape = address.type.shape
    item = semantic.broadcast_to(item, shape, "tl.store: value")
    if guard is not None:
        guard = semantic.broadcast_to(guard, shape, "tl.store: mask")
    semantic.perform(Store(address, item, guard))


# ------------------------------------------------------------------------------- promises


def _promise(name: str, input: Any, values: Any) -> tuple[tensor, tuple[int, ...]]:
    x = require_tensor(name, "input", input)
    listed = values if isinstance(values, (tuple, list)) else (values,)
    numbers = tuple([require_int(name, "values", v) for v in listed])
    if len(numbers) != max(1, len(x.shape)):
        raise CompilationError(
            f"{name}: {len(numbers)} values for a tile of {len(x.shape)} dimensions",
            "give one value a dimension",
        )
    if any(n < 1 for n in numbers):
        raise CompilationError(f"{name}: values must be positive, got {numbers}")
    if x.dtype.is_floating():
        raise CompilationError(f"{name}: `input` must be integers or pointers, not {x.dtype}")
    return x, numbers


@builtin
def multiple_of(input: Any, values: Any) -> tensor:
    """``input``, with the promise that its values are multiples of ``values`` (one a dimension).

    A false promise is undefined behaviour. Source: Triton's ``tl.multiple_of``.
    """
    x, numbers = _promise("tl.multiple_of", input, values)
    return tensor(semantic.emit(Hint(x.value, divisibility=numbers)))


@builtin
def max_contiguous(input: Any, values: Any) -> tensor:
    """``input``, with the promise that groups of ``values`` neighbours (one a dimension) are consecutive.

    A false promise is undefined behaviour. Source: Triton's ``tl.max_contiguous``.
    """
    x, numbers = _promise("tl.max_contiguous", input, values)
    return tensor(semantic.emit(Hint(x.value, contiguity=numbers)))


@builtin
def max_constancy(input: Any, values: Any) -> tensor:
    """``input``; the promise of constant groups is checked in form and not used.

    Source: Triton's ``tl.max_constancy``.
    """
    return _promise("tl.max_constancy", input, values)[0]
