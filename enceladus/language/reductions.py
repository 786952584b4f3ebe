"""Builtins that combine the elements along an axis of a tile, or all of them.

The named reductions of 16-bit floats compute in float32 and round once, back to the type of the input.
``sum`` (and ``max``, ``min``) of integers below 32 bits give int32, or uint32 for unsigned ones.

NaN: ``max`` and ``min`` pass over NaN, unless there is nothing else; so do ``argmax`` and ``argmin``. Ties go
to the lower index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.core import Block, Value
from enceladus.ir.exchange import Reduce
from enceladus.ir.ops import Binary, BinaryKind, Compare, CompareKind, MakeRange, Select, Unary, UnaryKind
from enceladus.ir.types import DType, float32, int1, int32, uint32
from enceladus.language import semantic
from enceladus.language.builtin import builtin, describe
from enceladus.language.combine import Inlinable, binary_block, combine_block, takes_functions
from enceladus.language.creation import require_dtype
from enceladus.language.shapes import along, flattened, require_axis, require_numbers
from enceladus.language.tensor import tensor, tensor_method

# ------------------------------------------------------------------------------------ the common part


def accumulator(dtype: DType) -> DType:
    """The type in which elements of ``dtype`` add up: 32 bits, or 64."""
    if dtype.is_floating():
        return float32
    if dtype.bits >= 32:
        return dtype
    return uint32 if dtype.is_int_unsigned() else int32


def result_of(dtype: DType) -> DType:
    """The type of a sum of elements of ``dtype``: the accumulator's, but 16-bit floats keep their type."""
    return dtype if dtype.is_floating() else accumulator(dtype)


def require_flag(name: str, argument: str, x: Any) -> bool:
    if isinstance(x, (bool, int)):
        return bool(x)
    raise CompilationError(
        f"{name}: `{argument}` must be True or False at compile time, got {describe(x)}",
        "make the parameter it comes from a `tl.constexpr`",
    )


def _reduced(
    name: str,
    inputs: tuple[Value, ...],
    axis: Any,
    keep_dims: Any,
    combine: Callable[[], Block],
) -> tuple[Value, ...]:
    """Reduce tiles of one shape along ``axis``, or over all axes if it is ``None``."""
    keep = require_flag(name, "keep_dims", keep_dims)
    shape = inputs[0].type.shape
    if not shape:
        raise CompilationError(
            f"{name} needs a tile, got a scalar",
            "a scalar is its own reduction; tl.arange and tl.load of a tile of pointers make tiles",
        )
    if axis is None:
        if len(shape) > 1:
            inputs = tuple([flattened(v) for v in inputs])
        place = 0
    else:
        place = require_axis(name, "axis", axis, len(shape))
    results = semantic.perform(Reduce(inputs, place, combine()))
    if not keep:
        return results
    if axis is None:
        return tuple([semantic.broadcast_to(v, (1,) * len(shape)) for v in results])
    return tuple([semantic.expand_dims(v, place) for v in results])


def _by_kind(
    name: str, kind: BinaryKind, value: Value, axis: Any, keep_dims: Any, result: DType | None = None
) -> tensor:
    """Reduce with one operation, in the accumulator's type; the result is cast to ``result``."""
    dtype = value.type.dtype
    (total,) = _reduced(name, (value,), axis, keep_dims, lambda: binary_block(kind, dtype))
    return tensor(total if result is None else semantic.cast(total, result))


# -------------------------------------------------------------------------------------- arithmetic


@tensor_method
@builtin
def sum(input: Any, axis: Any = None, keep_dims: Any = False, dtype: Any = None) -> tensor:
    """The sum along ``axis``, or of all elements. ``dtype`` converts the elements before.

    Integers wrap; those below 32 bits and int1 are summed as int32 (uint32). Source: Triton's ``tl.sum``.
    """
    value = require_numbers("tl.sum", "input", input)
    if dtype is None:
        result = result_of(value.type.dtype)
    else:
        result = require_dtype("tl.sum", dtype)
        if result is int1:
            raise CompilationError("tl.sum: `dtype` int1 cannot hold a sum", "use tl.any or tl.xor_sum")
        value = semantic.cast(value, result)
    wide = accumulator(value.type.dtype)
    return _by_kind("tl.sum", BinaryKind.ADD, semantic.cast(value, wide), axis, keep_dims, result)


@tensor_method
@builtin
def xor_sum(input: Any, axis: Any = None, keep_dims: Any = False) -> tensor:
    """The exclusive or along ``axis``, or of all elements: integers and int1, in their own type.

    Source: Triton's ``tl.xor_sum``.
    """
    return _bits("tl.xor_sum", BinaryKind.XOR, input, axis, keep_dims)


@tensor_method
@builtin
def reduce_or(input: Any, axis: Any = None, keep_dims: Any = False) -> tensor:
    """The bitwise or along ``axis``, or of all elements: integers and int1, in their own type.

    Source: Triton's ``tl.reduce_or``.
    """
    return _bits("tl.reduce_or", BinaryKind.OR, input, axis, keep_dims)


def _bits(name: str, kind: BinaryKind, input: Any, axis: Any, keep_dims: Any) -> tensor:
    value = require_numbers(name, "input", input)
    if value.type.dtype.is_floating():
        raise CompilationError(
            f"{name} needs integers, not {value.type.dtype}",
            f"look at the bits with .to(tl.uint{value.type.dtype.bits}, bitcast=True)",
        )
    return _by_kind(name, kind, value, axis, keep_dims)


@tensor_method
@builtin
def any(input: Any, axis: Any = None, keep_dims: Any = False) -> tensor:
    """int1: whether an element along ``axis``, or of all, is not zero. Source: ``numpy.any``."""
    test = semantic.truth(require_numbers("tl.any", "input", input), "tl.any")
    return _by_kind("tl.any", BinaryKind.OR, test, axis, keep_dims)


@tensor_method
@builtin
def all(input: Any, axis: Any = None, keep_dims: Any = False) -> tensor:
    """int1: whether no element along ``axis``, or of all, is zero. Source: ``numpy.all``."""
    test = semantic.truth(require_numbers("tl.all", "input", input), "tl.all")
    return _by_kind("tl.all", BinaryKind.AND, test, axis, keep_dims)


# ---------------------------------------------------------------------------------------- extrema


@tensor_method
@builtin
def max(
    input: Any,
    axis: Any = None,
    return_indices: Any = False,
    return_indices_tie_break_left: Any = True,
    keep_dims: Any = False,
) -> Any:
    """The largest element along ``axis``, or of all; with ``return_indices`` also its index, an int32.

    NaN is passed over. The index counts along ``axis``, or in row-major order of all elements.
    Source: Triton's ``tl.max``.
    """
    return _extremum("tl.max", True, input, axis, return_indices, return_indices_tie_break_left, keep_dims)


@tensor_method
@builtin
def min(
    input: Any,
    axis: Any = None,
    return_indices: Any = False,
    return_indices_tie_break_left: Any = True,
    keep_dims: Any = False,
) -> Any:
    """The smallest element along ``axis``, or of all; with ``return_indices`` also its index.

    See :func:`max`. Source: Triton's ``tl.min``.
    """
    return _extremum("tl.min", False, input, axis, return_indices, return_indices_tie_break_left, keep_dims)


@tensor_method
@builtin
def argmax(input: Any, axis: Any = None, tie_break_left: Any = True, keep_dims: Any = False) -> tensor:
    """The index of the largest element, an int32; NaN is passed over, and of equal ones the first counts.

    Without ``axis`` it counts in row-major order of all elements. ``tie_break_left=False`` allows any of
    equal ones, and gives the first as well. Source: Triton's ``tl.argmax``.
    """
    return _extremum("tl.argmax", True, input, axis, True, tie_break_left, keep_dims)[1]


@tensor_method
@builtin
def argmin(input: Any, axis: Any = None, tie_break_left: Any = True, keep_dims: Any = False) -> tensor:
    """The index of the smallest element: see :func:`argmax`. Source: Triton's ``tl.argmin``."""
    return _extremum("tl.argmin", False, input, axis, True, tie_break_left, keep_dims)[1]


def _extremum(
    name: str, largest: bool, input: Any, axis: Any, indices: Any, tie_break_left: Any, keep_dims: Any
) -> Any:
    value = require_numbers(name, "input", input)
    require_flag(name, "tie_break_left", tie_break_left)
    result = result_of(value.type.dtype)
    wide = accumulator(value.type.dtype)
    value = semantic.cast(value, wide)
    if not require_flag(name, "return_indices", indices):
        kind = BinaryKind.MAX if largest else BinaryKind.MIN
        return _by_kind(name, kind, value, axis, keep_dims, result)
    shape = value.type.shape
    if shape and axis is None:
        # The index is that of the flattened tile; dimensions to keep are put back by hand.
        keep = require_flag(name, "keep_dims", keep_dims)
        found = _with_index(name, largest, flattened(value), 0, False)
        if keep:
            found = tuple([semantic.broadcast_to(v, (1,) * len(shape)) for v in found])
    else:
        found = _with_index(name, largest, value, axis, keep_dims)
    return tensor(semantic.cast(found[0], result)), tensor(found[1])


def _with_index(name: str, largest: bool, value: Value, axis: Any, keep_dims: Any) -> tuple[Value, ...]:
    shape = value.type.shape
    place = require_axis(name, "axis", axis, len(shape))
    row = semantic.emit(MakeRange(0, shape[place], int32))
    index = along(row, place, shape)
    dtype = value.type.dtype

    def combine(a: tensor, i: tensor, b: tensor, j: tensor) -> tuple[tensor, tensor]:
        better = _beats(a.value, b.value, largest)
        equal = _same(a.value, b.value)
        first = semantic.emit(Compare(CompareKind.LT, i.value, j.value))
        tie = semantic.emit(Binary(BinaryKind.AND, equal, first))
        left = semantic.emit(Binary(BinaryKind.OR, better, tie))
        return (
            tensor(semantic.emit(Select(left, a.value, b.value))),
            tensor(semantic.emit(Select(left, i.value, j.value))),
        )

    function = Inlinable(name, combine)
    return _reduced(
        name, (value, index), axis, keep_dims, lambda: combine_block(name, function, (dtype, int32))
    )


def _is_nan(value: Value) -> Value:
    return semantic.emit(Unary(UnaryKind.ISNAN, value))


def _beats(a: Value, b: Value, largest: bool) -> Value:
    """Whether ``a`` wins against ``b``: a number wins against NaN."""
    better = semantic.emit(Compare(CompareKind.GT if largest else CompareKind.LT, a, b))
    if not a.type.dtype.is_floating():
        return better
    number = semantic.emit(Unary(UnaryKind.NOT, _is_nan(a)))
    only = semantic.emit(Binary(BinaryKind.AND, number, _is_nan(b)))
    return semantic.emit(Binary(BinaryKind.OR, better, only))


def _same(a: Value, b: Value) -> Value:
    """Whether neither wins: equal numbers, or two NaN."""
    equal = semantic.emit(Compare(CompareKind.EQ, a, b))
    if not a.type.dtype.is_floating():
        return equal
    both = semantic.emit(Binary(BinaryKind.AND, _is_nan(a), _is_nan(b)))
    return semantic.emit(Binary(BinaryKind.OR, equal, both))


# ----------------------------------------------------------------------------------------- general


def tiles_of(name: str, input: Any) -> tuple[tuple[Value, ...], bool]:
    """A tile or a tuple of tiles, broadcast to one shape; and whether it was a tuple."""
    several = isinstance(input, (tuple, list))
    items = input if several else (input,)
    if not items:
        raise CompilationError(f"{name}: `input` is an empty tuple", "pass at least one tile")
    labels = [f"input[{i}]" for i in range(len(items))] if several else ["input"]
    values = [require_numbers(name, label, x) for label, x in zip(labels, items, strict=True)]
    return semantic.broadcast(*values), several


@takes_functions
@tensor_method
@builtin
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """Combine the elements along ``axis`` (``None``: of all) with a function under ``@enceladus.jit``.

    ``input`` is a tile, or a tuple of n tiles that broadcast together. ``combine_fn(a_1 … a_n, b_1 … b_n)``
    takes scalars, ``a`` from earlier elements than ``b``, and returns n scalars of the same types. It must be
    associative and may only compute. Elements keep their order and their type.
    Source: Triton's ``tl.reduce``.
    """
    values, several = tiles_of("tl.reduce", input)
    dtypes = [v.type.dtype for v in values]
    results = _reduced(
        "tl.reduce", values, axis, keep_dims, lambda: combine_block("tl.reduce", combine_fn, dtypes)
    )
    return tuple(map(tensor, results)) if several else tensor(results[0])
