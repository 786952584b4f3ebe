"""Where an element of one tile lies in another, when views (reshape, transpose …) stand between.

All sizes are powers of two, so a view moves, drops or fixes *bits* of the index. The coordinates of a value
as seen from a tile of another shape are, for each of the value's dimensions, one of

* an axis of the other tile (an ``int``): the same index;
* ``None``: index 0;
* a tuple of bits, lowest first: ``(axis, bit)`` of the other tile's index, or a constant 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from enceladus.ir import exchange, ops
from enceladus.ir.core import Op, Value

Bit = tuple[int, int] | int
Coordinate = int | None | tuple[Bit, ...]
Coordinates = tuple[Coordinate, ...]

#: Operations that move no data: their result's elements are elements of their operands.
VIEWS = (ops.ExpandDims, ops.Broadcast, exchange.Reshape, exchange.Transpose, exchange.Join, exchange.Pick)


def identity(rank: int) -> Coordinates:
    """A tile as seen from itself."""
    return tuple(range(rank))


def log2(size: int) -> int:
    return size.bit_length() - 1


def bits_of(coordinate: Coordinate, size: int) -> tuple[Bit, ...]:
    """The bits of an index below ``size``, lowest first."""
    if coordinate is None:
        return (0,) * log2(size)
    if isinstance(coordinate, int):
        return tuple((coordinate, k) for k in range(log2(size)))
    return coordinate


def _simplified(bits: tuple[Bit, ...], shape: Sequence[int]) -> Coordinate:
    """The plainest form of a coordinate seen from a tile of ``shape``."""
    if not any(bits):
        return None
    first = bits[0]
    if isinstance(first, tuple) and 1 << len(bits) == shape[first[0]]:
        axis = first[0]
        if bits == tuple((axis, k) for k in range(len(bits))):
            return axis
    return bits


def operands_of_view(
    op: Op, coordinates: Coordinates, shape: Sequence[int]
) -> list[tuple[Value, Coordinates]]:
    """A view's operands and their coordinates, given those of its result, seen from a tile of ``shape``."""
    match op:
        case ops.ExpandDims():
            return [(op.value, (*coordinates[: op.axis], *coordinates[op.axis + 1 :]))]
        case ops.Broadcast():
            sizes = op.value.type.shape
            narrowed = (None if n == 1 else c for n, c in zip(sizes, coordinates, strict=True))
            return [(op.value, tuple(narrowed))]
        case exchange.Transpose():
            found: list[Coordinate] = [None] * len(coordinates)
            for place, source in enumerate(op.order):
                found[source] = coordinates[place]
            return [(op.value, tuple(found))]
        case exchange.Reshape():
            return [(op.value, _reshaped(coordinates, op.shape, op.value.type.shape, shape))]
        case exchange.Join():
            return [(op.first, coordinates[:-1]), (op.second, coordinates[:-1])]
        case exchange.Pick():
            size = log2(op.value.type.shape[-1])
            fixed = tuple((op.index >> k) & 1 for k in range(size))
            return [(op.value, (*coordinates, _simplified(fixed, shape)))]
    raise TypeError(f"{op.mnemonic} is not a view")


def _reshaped(
    coordinates: Coordinates, sizes: Sequence[int], target: Sequence[int], shape: Sequence[int]
) -> Coordinates:
    flat: list[Bit] = []
    for coordinate, size in zip(reversed(coordinates), reversed(sizes), strict=True):
        flat.extend(bits_of(coordinate, size))
    found: list[Coordinate] = []
    start = 0
    for size in reversed(target):
        count = log2(size)
        found.append(_simplified(tuple(flat[start : start + count]), shape) if count else None)
        start += count
    return tuple(reversed(found))
