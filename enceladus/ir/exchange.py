"""Operations of the tile IR through which elements of a tile meet: reductions, scans, shapes, sorting.

All are pure. Results follow the order of elements that NumPy would use (row-major); floating-point sums may
associate in any order, so engines agree within rounding.
"""

from __future__ import annotations

from enum import Enum

from enceladus.ir.core import Block, Op, Value, operation
from enceladus.ir.types import TileType, int32, tile_type


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


@operation("reduce")
class Reduce(Op):
    """Combine the elements along ``axis`` of one or several tiles of one shape.

    ``combine`` takes the scalars ``(a_1 … a_n, b_1 … b_n)``, ``a`` being the combination of earlier elements,
    and yields n scalars of the same types. It must be associative; the order of the elements is kept. Results
    are tiles without the axis; of a 1-D tile, a scalar.
    """

    inputs: tuple[Value, ...]
    axis: int
    combine: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(tile_type(v.type.element, _without(v.type.shape, self.axis)) for v in self.inputs)

    def verify(self) -> str | None:
        if len({v.type.shape for v in self.inputs}) != 1:
            return "inputs differ in shape"
        if not 0 <= self.axis < len(self.inputs[0].type.shape):
            return "axis out of range"
        return _wrong_combine(self.combine, self.inputs)


@operation("scan")
class Scan(Op):
    """Inclusive prefix combination along ``axis`` (from the end if ``reverse``), as for ``Reduce``.

    In a reverse scan ``a`` is the combination of *later* elements.
    """

    inputs: tuple[Value, ...]
    axis: int
    reverse: bool
    combine: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(v.type for v in self.inputs)

    def verify(self) -> str | None:
        return _wrong_combine(self.combine, self.inputs)


def _wrong_combine(combine: Block, inputs: tuple[Value, ...]) -> str | None:
    expected = [tile_type(v.type.element) for v in inputs]
    if [v.type for v in combine.arguments] != expected * 2:
        return "the combine block's arguments do not match the inputs"
    if [v.type for v in combine.terminator.operands] != expected:
        return "the combine block yields other types"
    return None


@operation("transpose")
class Transpose(Op):
    """Permute the dimensions: result dimension ``k`` is operand dimension ``order[k]``."""

    value: Value
    order: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_shape(tuple(self.value.type.shape[k] for k in self.order)),)


@operation("reshape")
class Reshape(Op):
    """The same elements in row-major order as another shape."""

    value: Value
    shape: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_shape(self.shape),)

    def verify(self) -> str | None:
        return None if tile_type(int32, self.shape).numel == self.value.type.numel else "sizes differ"


@operation("join")
class Join(Op):
    """Two tiles side by side along a new last dimension of size 2."""

    first: Value
    second: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.first.type.with_shape((*self.first.type.shape, 2)),)

    def verify(self) -> str | None:
        return None if self.first.type == self.second.type else "operands differ"


@operation("pick")
class Pick(Op):
    """The tile at ``index`` of the last dimension (``tl.split`` picks 0 and 1)."""

    value: Value
    index: int

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_shape(self.value.type.shape[:-1]),)


@operation("gather")
class Gather(Op):
    """``source`` at ``index`` along ``axis``: as ``numpy.take_along_axis``. Out-of-range indices wrap
    around modulo the axis (sizes are powers of two), so that no engine reads outside the tile."""

    source: Value
    index: Value
    axis: int

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.source.type.element, self.index.type.shape),)


@operation("sort")
class Sort(Op):
    """Sort along the last dimension, ascending or descending; NaN counts as larger than any number."""

    value: Value
    descending: bool

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


@operation("histogram")
class Histogram(Op):
    """How many elements of a 1-D integer tile equal 0, 1, …, ``bins``-1 (others are not counted); int32."""

    value: Value
    bins: int
    mask: Value | None = None

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(int32, (self.bins,)),)


# ------------------------------------------------------------------------------------- atomics


class AtomicKind(Enum):
    """What an atomic update does with the old value."""

    ADD = "add"  # integers wrap
    MAX = "max"  # NaN: the number, as MAX
    MIN = "min"
    AND = "and"  # integers
    OR = "or"
    XOR = "xor"
    XCHG = "xchg"


@operation("atomic", pure=False)
class Atomic(Op):
    """``old = *pointer; *pointer = old <kind> value`` as one step, where ``mask`` holds; gives ``old``.

    Masked-off elements give 0. Several elements of one tile may meet in one address; the order is open.
    """

    kind: AtomicKind
    pointer: Value
    value: Value
    mask: Value | None = None

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


@operation("atomic_cas", pure=False)
class AtomicCas(Op):
    """``old = *pointer; if old == compare: *pointer = value`` as one step; gives ``old``. Integers."""

    pointer: Value
    compare: Value
    value: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


@operation("array_atomic", pure=False)
class ArrayAtomic(Op):
    """``Atomic`` on ``array[offset]``, after ``resolve_pointers``."""

    kind: AtomicKind
    array: Value
    offset: Value
    value: Value
    mask: Value | None = None

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


@operation("array_atomic_cas", pure=False)
class ArrayAtomicCas(Op):
    """``AtomicCas`` on ``array[offset]``, after ``resolve_pointers``."""

    array: Value
    offset: Value
    compare: Value
    value: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


__all__ = [
    "ArrayAtomic", "ArrayAtomicCas", "Atomic", "AtomicCas", "AtomicKind",
    "Gather", "Histogram", "Join", "Pick", "Reduce", "Reshape", "Scan", "Sort", "Transpose",
]  # fmt: skip
