"""Builtins that change the shape of tiles, or where their elements stand."""

from __future__ import annotations

from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Value
from enceladus.ir.exchange import Gather, Join, Pick, Reshape, Transpose
from enceladus.ir.ops import MakeRange
from enceladus.ir.types import PointerType, int32
from enceladus.language import semantic
from enceladus.language.builtin import builtin, require_int
from enceladus.language.combine import mapped, takes_functions
from enceladus.language.constexpr import unwrap
from enceladus.language.creation import as_shape, require_tensor
from enceladus.language.elementwise import minimum
from enceladus.language.tensor import tensor, tensor_method, to_tensor


def require_numbers(name: str, argument: str, x: Any) -> Value:
    """``x`` as a tile of numbers (or a scalar); pointers are refused."""
    value = require_tensor(name, argument, x).value
    if isinstance(value.type.element, PointerType):
        raise CompilationError(
            f"{name}: `{argument}` is made of pointers", "use the offsets, or `tl.load` the values first"
        )
    return value


def require_axis(name: str, argument: str, axis: Any, rank: int) -> int:
    """``axis`` counted from the front, checked against the rank of a tile."""
    number = require_int(name, argument, axis)
    if rank == 0:
        raise CompilationError(
            f"{name} needs a tile, got a scalar", "make a tile of it with tl.full, or leave this out"
        )
    if not -rank <= number < rank:
        plural = "s" if rank > 1 else ""
        raise CompilationError(
            f"{name}: `{argument}` {number} is out of range for a tile of {rank} dimension{plural}",
            f"use 0 to {rank - 1}, or {-rank} to -1" if rank > 1 else "use 0",
        )
    return number % rank


# ------------------------------------------------------------------------------ the same elements


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """The elements of ``value`` in row-major order as ``shape``, of the same size."""
    old = value.type.shape
    if old == shape:
        return value
    if not old:
        return semantic.broadcast_to(value, shape)
    if not shape:
        return semantic.emit(Pick(reshaped(value, (1,)), 0))
    return semantic.emit(Reshape(value, shape))


def flattened(value: Value) -> Value:
    """``value`` as a 1-D tile, in row-major order."""
    return reshaped(value, (value.type.numel,))


def _reshape(name: str, input: Any, shape: tuple[Any, ...]) -> tensor:
    value = require_tensor(name, "input", input).value
    sizes = as_shape(name, unwrap(shape[0]) if len(shape) == 1 else shape)
    numel = 1
    for size in sizes:
        numel *= size
    if numel != value.type.numel:
        raise CompilationError(
            f"{name}: a tile of shape {value.type.shape} has {value.type.numel} elements, "
            f"the shape {sizes} has {numel}",
            "reshaping keeps every element; tl.broadcast_to repeats them",
        )
    return tensor(reshaped(value, sizes))


@tensor_method
@builtin
def reshape(input: Any, *shape: Any, can_reorder: Any = False) -> tensor:
    """The elements of ``input`` in row-major order as another shape: a tuple, or the sizes one by one.

    ``can_reorder`` is accepted; the order is always kept. Source: Triton's ``tl.reshape``.
    """
    return _reshape("tl.reshape", input, shape)


@tensor_method
@builtin
def view(input: Any, *shape: Any) -> tensor:
    """The same as :func:`reshape`. Source: Triton's ``tl.view``."""
    return _reshape("tl.view", input, shape)


@tensor_method
@builtin
def ravel(x: Any, can_reorder: Any = False) -> tensor:
    """The elements in row-major order as a 1-D tile. Source: Triton's ``tl.ravel``."""
    return tensor(flattened(require_tensor("tl.ravel", "x", x).value))


@tensor_method
@builtin
def squeeze(x: Any, dim: Any) -> tensor:
    """``x`` without the dimension ``dim``, which must have size 1. Source: Triton's ``tl.squeeze``."""
    value = require_tensor("tl.squeeze", "x", x).value
    shape = value.type.shape
    axis = require_axis("tl.squeeze", "dim", dim, len(shape))
    if shape[axis] != 1:
        raise CompilationError(
            f"tl.squeeze: dimension {axis} of {shape} has size {shape[axis]}, not 1", "reduce it first"
        )
    return tensor(reshaped(value, (*shape[:axis], *shape[axis + 1 :])))


@tensor_method
@builtin
def unsqueeze(x: Any, dim: Any) -> tensor:
    """``x`` with a dimension of size 1 at ``dim`` of the result. Source: Triton's ``tl.unsqueeze``."""
    value = require_tensor("tl.unsqueeze", "x", x).value
    axis = require_axis("tl.unsqueeze", "dim", dim, len(value.type.shape) + 1)
    return tensor(semantic.expand_dims(value, axis))


# ------------------------------------------------------------------------------------ transposing


def transposed(value: Value, order: tuple[int, ...]) -> Value:
    """``value`` with its dimensions in ``order``."""
    return value if order == tuple(range(len(order))) else semantic.emit(Transpose(value, order))


def _permute(name: str, input: Any, dims: tuple[Any, ...]) -> tensor:
    value = require_tensor(name, "input", input).value
    rank = len(value.type.shape)
    items = unwrap(dims[0]) if len(dims) == 1 else dims
    items = items if isinstance(items, (tuple, list)) else (items,)
    order = tuple([require_axis(name, "dims", d, rank) for d in items])
    if sorted(order) != list(range(rank)):
        raise CompilationError(
            f"{name}: `dims` {tuple(items)} must name each of the {rank} dimensions once",
            f"for example {tuple(reversed(range(rank)))}",
        )
    return tensor(transposed(value, order))


@tensor_method
@builtin
def trans(input: Any, *dims: Any) -> tensor:
    """``input`` with its last two dimensions swapped, or with its dimensions in the order ``dims``.

    Source: Triton's ``tl.trans``.
    """
    if not dims:
        return tensor(semantic.swap_last("tl.trans", require_tensor("tl.trans", "input", input).value))
    return _permute("tl.trans", input, dims)


@tensor_method
@builtin
def permute(input: Any, *dims: Any) -> tensor:
    """``input`` with its dimensions in the order ``dims``: a tuple, or one by one.

    Source: Triton's ``tl.permute``.
    """
    return _permute("tl.permute", input, dims)


# --------------------------------------------------------------------------- several tiles, parts


def _pair(name: str, a: Any, b: Any, names: tuple[str, str]) -> tuple[Value, Value]:
    """Two tiles of numbers in their common type and shape."""
    values = [require_numbers(name, n, x) for n, x in zip(names, (a, b), strict=True)]
    first, second = semantic.broadcast(*semantic.promote(name, *values))
    return first, second


@builtin
def join(a: Any, b: Any) -> tensor:
    """``a`` and ``b`` (broadcast, in their common type) side by side along a new last dimension of size 2.

    Source: Triton's ``tl.join``.
    """
    return tensor(semantic.emit(Join(*_pair("tl.join", a, b, ("a", "b")))))


@tensor_method
@builtin
def split(a: Any) -> tuple[tensor, tensor]:
    """The two halves of a tile along its last dimension, which must have size 2; undoes :func:`join`.

    Source: Triton's ``tl.split``.
    """
    value = require_tensor("tl.split", "a", a).value
    shape = value.type.shape
    if not shape or shape[-1] != 2:
        raise CompilationError(
            f"tl.split needs a tile whose last dimension is 2, got {shape}",
            "reshape it first: `x.reshape(…, 2)`, or move the dimension with tl.permute",
        )
    return tensor(semantic.emit(Pick(value, 0))), tensor(semantic.emit(Pick(value, 1)))


@builtin
def interleave(a: Any, b: Any) -> tensor:
    """``a`` and ``b`` taking turns along the last dimension. Source: Triton's ``tl.interleave``."""
    value = semantic.emit(Join(*_pair("tl.interleave", a, b, ("a", "b"))))
    if len(value.type.shape) == 1:  # of two scalars
        return tensor(value)
    *outer, last, _ = value.type.shape
    return tensor(reshaped(value, semantic.check_shape((*outer, 2 * last), "tl.interleave")))


@builtin
def cat(input: Any, other: Any, can_reorder: Any = False, dim: Any = 0) -> tensor:
    """``other`` after ``input`` along ``dim``; both have one shape.

    ``can_reorder`` is accepted; the order is always kept. Source: Triton's ``tl.cat``.
    """
    first, second = require_numbers("tl.cat", "input", input), require_numbers("tl.cat", "other", other)
    if first.type.shape != second.type.shape:
        raise CompilationError(
            f"tl.cat needs two tiles of one shape, got {first.type.shape} and {second.type.shape}",
            "tl.broadcast_to repeats a tile to a shape",
        )
    shape = first.type.shape
    axis = require_axis("tl.cat", "dim", dim, len(shape))
    total = semantic.check_shape((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), "tl.cat")
    value = semantic.emit(Join(*semantic.promote("tl.cat", first, second)))
    rank = len(shape)
    order = (*range(axis), rank, *range(axis, rank))
    return tensor(reshaped(transposed(value, order), total))


@builtin
def broadcast(input: Any, other: Any) -> tuple[tensor, tensor]:
    """Both tiles repeated to their common shape; their types stay. Source: Triton's ``tl.broadcast``."""
    a, b = require_tensor("tl.broadcast", "input", input), require_tensor("tl.broadcast", "other", other)
    first, second = semantic.broadcast(a.value, b.value)
    return tensor(first), tensor(second)


# --------------------------------------------------------------------------------------- by index


@tensor_method
@builtin
def gather(src: Any, index: Any, axis: Any) -> tensor:
    """``src`` at ``index`` along ``axis``, as ``numpy.take_along_axis``.

    ``index`` has integers and the shape of ``src``, except along ``axis``. An index outside the axis is taken
    modulo its size. Source: Triton's ``tl.gather``.
    """
    source = require_numbers("tl.gather", "src", src)
    places = require_numbers("tl.gather", "index", index)
    shape, wanted = source.type.shape, places.type.shape
    place = require_axis("tl.gather", "axis", axis, len(shape))
    if places.type.dtype.is_floating() or places.type.dtype.is_bool():
        raise CompilationError(
            f"tl.gather: `index` must be integers, not {places.type.dtype}", "cast it: `.to(tl.int32)`"
        )
    if len(shape) != len(wanted) or any(
        m != n for k, (m, n) in enumerate(zip(shape, wanted, strict=True)) if k != place
    ):
        raise CompilationError(
            f"tl.gather: `index` has shape {wanted}, `src` {shape}; they may differ along axis {place} only",
            "tl.broadcast_to repeats the index over the other dimensions",
        )
    # Sizes are powers of two, so the low bits are the index modulo the axis in any type.
    return tensor(semantic.emit(Gather(source, semantic.cast(places, int32), place)))


@tensor_method
@builtin
def flip(x: Any, dim: Any = None) -> tensor:
    """``x`` in reverse order along ``dim``, by default the last. Source: Triton's ``tl.flip``."""
    value = require_numbers("tl.flip", "x", x)
    shape = value.type.shape
    axis = require_axis("tl.flip", "dim", -1 if dim is None else dim, len(shape))
    size = shape[axis]
    backwards = size - 1 - tensor(semantic.emit(MakeRange(0, size, int32)))
    index = along(backwards.value, axis, shape)
    return tensor(semantic.emit(Gather(value, index, axis)))


def along(row: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """A 1-D tile laid along ``axis`` of ``shape``."""
    for place in range(len(shape)):
        if place != axis:
            row = semantic.expand_dims(row, place)
    return semantic.broadcast_to(row, shape)


# ------------------------------------------------------------------------------------------ other


@takes_functions
@builtin
def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """``scalar_fn`` under ``@enceladus.jit`` applied to every element of tiles, which broadcast together.

    Inside, the arguments are scalars, so ``if`` works on them; both sides are computed and chosen between.
    The function may only compute. It returns a value or a tuple of them. Only ``pack=1`` is supported.
    Source: Triton's ``tl.map_elementwise``.
    """
    if require_int("tl.map_elementwise", "pack", pack) != 1:
        raise CompilationError("tl.map_elementwise: only pack=1 is supported", "leave `pack` out")
    if not args:
        raise CompilationError("tl.map_elementwise needs a tile", "pass the tiles after the function")
    inputs = [require_numbers("tl.map_elementwise", f"args[{i}]", x) for i, x in enumerate(args)]
    return mapped("tl.map_elementwise", scalar_fn, semantic.broadcast(*inputs))


@builtin
def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple[Any, Any]:
    """The place of ``(i, j)``, counted row by row, where groups of ``size_g`` rows go column by column.

    Neighbouring programs then share columns. Source: Triton's ``tl.swizzle2d``.
    """
    i, j = to_tensor(i), to_tensor(j)
    number = i * size_j + j
    in_group = size_g * size_j
    first = number // in_group * size_g
    rows = minimum(size_i - first, size_g)
    number = number % in_group
    return first + number % rows, number // rows
