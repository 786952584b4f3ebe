"""Builtins that make tiles, give them another type or another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.builder import current_emitter
from enceladus.ir.core import Value
from enceladus.ir.ops import MakeRange, NumPrograms, ProgramId
from enceladus.ir.types import DType, PointerType, int32
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe, require_int
from enceladus.language.constexpr import unwrap
from enceladus.language.tensor import raw, tensor, tensor_method, to_tensor


def _index_dtype() -> DType:
    emitter = current_emitter()
    return int32 if emitter is None else emitter.index_dtype


def as_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A tile's shape from an int or a sequence of ints, checked."""
    shape = unwrap(shape)
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return semantic.check_shape(tuple([require_int(name, "shape", size) for size in sizes]), name)


def require_dtype(name: str, dtype: Any, argument: str = "dtype") -> DType:
    """``dtype`` as an element type, or an error that says what it is."""
    dtype = unwrap(dtype)
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, PointerType):
        raise CompilationError(
            f"{name}: `{argument}` is the pointer type {dtype}",
            "use its element type: `ptr.dtype.element_ty`",
        )
    raise CompilationError(
        f"{name}: `{argument}` must be a type such as tl.float32, got {describe(dtype)}",
        "`x.dtype` is the type of a tile" if hasattr(dtype, "dtype") else "",
    )


# -------------------------------------------------------------------------------------- programs


def _axis(name: str, axis: Any) -> int:
    number = require_int(name, "axis", axis)
    if not 0 <= number <= 2:
        raise CompilationError(f"{name}: `axis` must be 0, 1 or 2, got {number}", "a grid has at most 3 axes")
    return number


@builtin
def program_id(axis: Any) -> tensor:
    """This program's index on grid axis 0, 1 or 2: a scalar int32 (int64 in the wide variant).

    Source: Triton's ``tl.program_id``.
    """
    return tensor(semantic.emit(ProgramId(_axis("tl.program_id", axis), _index_dtype())))


@builtin
def num_programs(axis: Any) -> tensor:
    """The grid's size on axis 0, 1 or 2: a scalar int32 (int64 in the wide variant).

    Source: Triton's ``tl.num_programs``.
    """
    return tensor(semantic.emit(NumPrograms(_axis("tl.num_programs", axis), _index_dtype())))


# -------------------------------------------------------------------------------------- new tiles


@builtin
def arange(start: Any, end: Any) -> tensor:
    """The tile ``start, start + 1, …, end - 1``: int32 (int64 in the wide variant), shape ``(end - start,)``.

    Both ends are compile-time integers; the length is a power of two from 1 to 65536.
    Source: Triton's ``tl.arange``.
    """
    first, last = require_int("tl.arange", "start", start), require_int("tl.arange", "end", end)
    length = last - first
    if length <= 0:
        raise CompilationError(f"tl.arange: `end` must be greater than `start`, got {first} and {last}")
    if length & (length - 1):
        power = 1 << (length - 1).bit_length()
        raise CompilationError(
            f"tl.arange: end - start must be a power of two, got {length}",
            f"use enceladus.next_power_of_2({length}) = {power} and mask the rest",
        )
    if length > semantic.MAX_DIMENSION:
        raise CompilationError(
            f"tl.arange: a tile has at most {semantic.MAX_DIMENSION} elements per dimension, got {length}",
            "use smaller blocks and more programs",
        )
    for bound in (first, last - 1):
        if not int32.minimum <= bound <= int32.maximum:
            raise CompilationError(
                f"tl.arange: {bound} does not fit int32", "add the large part to the tile instead"
            )
    return tensor(semantic.emit(MakeRange(first, last, _index_dtype())))


@builtin
def full(shape: Any, value: Any, dtype: Any = None) -> tensor:
    """A tile of ``shape`` filled with a scalar: a number (then ``dtype`` is needed) or a run-time scalar.

    Source: Triton's ``tl.full``.
    """
    sizes = as_shape("tl.full", shape)
    if not isinstance(value, tensor) and dtype is None:
        raise CompilationError(
            "tl.full: `dtype` is needed when `value` is a number", "for example tl.float32"
        )
    if isinstance(value, tensor) and value.shape:
        raise CompilationError(
            f"tl.full: `value` must be a scalar, got a tile {value.type}", "use tl.broadcast_to"
        )
    element = None if dtype is None else require_dtype("tl.full", dtype)
    return tensor(semantic.broadcast_to(semantic.materialize(raw(value), element, "tl.full"), sizes))


@builtin
def zeros(shape: Any, dtype: Any) -> tensor:
    """A tile of zeros. Source: Triton's ``tl.zeros``."""
    element = require_dtype("tl.zeros", dtype)
    return tensor(semantic.broadcast_to(semantic.constant(0, element), as_shape("tl.zeros", shape)))


@builtin
def zeros_like(input: Any) -> tensor:
    """Zeros with the shape and type of ``input``. Source: Triton's ``tl.zeros_like``."""
    return _like("tl.zeros_like", input, 0)


@builtin
def full_like(input: Any, value: Any) -> tensor:
    """``value`` (a number or run-time scalar) in the shape and type of ``input``.

    Source: Triton's ``tl.full_like``, spelled ``tl.full(x.shape, value, x.dtype)`` in older versions.
    """
    return _like("tl.full_like", input, value)


def _like(name: str, input: Any, value: Any) -> tensor:
    model = require_tensor(name, "input", input)
    if isinstance(model.dtype, PointerType):
        raise CompilationError(f"{name}: `input` is a pointer", "`tl.load` what it points at first")
    if isinstance(value, tensor) and value.shape:
        raise CompilationError(
            f"{name}: `value` must be a scalar, got a tile {value.type}", "use tl.broadcast_to"
        )
    return tensor(semantic.broadcast_to(semantic.materialize(raw(value), model.dtype, name), model.shape))


def require_tensor(name: str, argument: str, x: Any) -> tensor:
    """``x`` as a tile; numbers become constants."""
    if isinstance(x, tensor):
        return x
    if isinstance(semantic.plain_number(x), (bool, int, float)):
        return to_tensor(x)
    raise CompilationError(f"{name}: `{argument}` must be a tile or a number, got {describe(x)}")


# -------------------------------------------------------------------------------- type and shape


@tensor_method
@builtin
def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> tensor:
    """``input`` converted to ``dtype``; with ``bitcast=True`` its bits taken as a type of the same width.

    Floats to integers truncate, saturate out of range and give 0 for NaN; integers keep their low bits;
    int1 asks "is it not zero?"; floats round to nearest even. Source: Triton's ``tl.cast`` and ``x.to``.
    """
    return _cast("tl.cast", input, dtype, fp_downcast_rounding, bitcast)


@tensor_method
@builtin
def to(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> tensor:
    """The method form of :func:`cast`: ``x.to(tl.float16)``."""
    return _cast("x.to", input, dtype, fp_downcast_rounding, bitcast)


def _cast(name: str, input: Any, dtype: Any, fp_downcast_rounding: Any, bitcast: Any) -> tensor:
    if fp_downcast_rounding not in (None, "rtne"):
        raise CompilationError(
            f"{name}: rounding {fp_downcast_rounding!r} is not supported",
            "floats round to nearest even (`rtne`)",
        )
    element = require_dtype(name, dtype)
    value = require_tensor(name, "input", input).value
    return tensor(semantic.bitcast(value, element) if bitcast else semantic.cast(value, element))


@tensor_method
@builtin
def broadcast_to(input: Any, *shape: Any) -> tensor:
    """``input`` repeated to ``shape``: a tuple, or the sizes one by one.

    Source: Triton's ``tl.broadcast_to``.
    """
    sizes = unwrap(shape[0]) if len(shape) == 1 else shape
    value = require_tensor("tl.broadcast_to", "input", input).value
    return tensor(semantic.broadcast_to(value, as_shape("tl.broadcast_to", sizes), "tl.broadcast_to"))


@tensor_method
@builtin
def expand_dims(input: Any, axis: Any) -> tensor:
    """``input`` with dimensions of size 1 at ``axis``: an int or several, counted in the result.

    Negative axes count from the end. Source: Triton's ``tl.expand_dims``.
    """
    value: Value = require_tensor("tl.expand_dims", "input", input).value
    wanted = list(axis) if isinstance(axis, Sequence) else [axis]
    axes = [require_int("tl.expand_dims", "axis", a) for a in wanted]
    rank = len(value.type.shape) + len(axes)
    for a in axes:
        if not -rank <= a < rank:
            raise CompilationError(
                f"tl.expand_dims: axis {a} is out of range for a result of {rank} dimensions"
            )
    places = sorted(a % rank for a in axes)
    if len(set(places)) != len(places):
        raise CompilationError(f"tl.expand_dims: duplicate axes in {tuple(axes)}")
    for a in places:
        value = semantic.expand_dims(value, a)
    return tensor(value)
