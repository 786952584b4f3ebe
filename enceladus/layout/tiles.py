"""What tile operations do to the layout of their operand.

The outputs of a tile's layout are named dim0, dim1, …, slowest first. Each function answers: if the operand
has this layout and no data moves, which layout does the result have? `reshape` and `expand_dims` only rename
bits.

>>> tile = LinearLayout.from_bases({"register": [(0, 1)], "lane": [(1, 0)]}, {"dim0": 2, "dim1": 2})
>>> transpose(tile, (1, 0))
<register[(1,0)] lane[(0,1)] -> 2x2>
>>> slice_axis(tile, 1)             # a row sum held by registers 0 and 1 alike
<register[(0,)] lane[(1,)] -> 2>
>>> broadcast(expand_dims(slice_axis(tile, 1, unique_registers=True), 1), 1, 2) == tile
True
"""

from __future__ import annotations

from collections.abc import Sequence

from . import gf2
from .dims import Dim, Dims, LayoutError
from .linear import LinearLayout


def _tile(sizes_in_bits: Sequence[int]) -> Dims:
    return tuple([Dim(f"dim{axis}", bits) for axis, bits in enumerate(sizes_in_bits)])


def _require_axis(axis: int, count: int) -> None:
    if not 0 <= axis < count:
        raise LayoutError(f"axis {axis} is outside the {count} dimensions of the tile")


def transpose(layout: LinearLayout, order: Sequence[int]) -> LinearLayout:
    """Axis ``i`` of the result is axis ``order[i]`` of the operand."""
    if sorted(order) != list(range(len(layout.outs))):
        raise LayoutError(f"{tuple(order)} does not permute {len(layout.outs)} axes")
    moved = layout.permute_outs([layout.outs[axis].name for axis in order])
    return LinearLayout(moved.ins, _tile([dim.bits for dim in moved.outs]), moved.columns)


def reshape(layout: LinearLayout, shape: Sequence[int]) -> LinearLayout:
    """The same elements in row-major order under another shape."""
    outs = _tile([gf2.log2(size) for size in shape])
    if sum([dim.bits for dim in outs]) != layout.out_bits:
        raise LayoutError(f"cannot reshape {layout.shape} to {tuple(shape)}")
    return LinearLayout(layout.ins, outs, layout.columns)


def expand_dims(layout: LinearLayout, axis: int) -> LinearLayout:
    """A new axis of size 1."""
    _require_axis(axis, len(layout.outs) + 1)
    bits = [dim.bits for dim in layout.outs]
    return LinearLayout(layout.ins, _tile([*bits[:axis], 0, *bits[axis:]]), layout.columns)


def slice_axis(
    layout: LinearLayout, axis: int, *, keepdims: bool = False, unique_registers: bool = False
) -> LinearLayout:
    """The tile without an axis as seen in the parent: whoever held any element along it holds the result.

    Copies remain unless ``unique_registers`` drops the registers that repeat others of the same thread.
    """
    _require_axis(axis, len(layout.outs))
    bits = [dim.bits for dim in layout.outs]
    below = sum(bits[axis + 1 :])
    low, above = (1 << below) - 1, below + bits[axis]
    columns = tuple([(c >> above) << below | c & low for c in layout.columns])
    rest = [*bits[:axis], *([0] if keepdims else []), *bits[axis + 1 :]]
    sliced = LinearLayout(layout.ins, _tile(rest), columns)
    return drop_duplicate_registers(sliced) if unique_registers else sliced


def drop_duplicate_registers(layout: LinearLayout) -> LinearLayout:
    """Keep the register bits that are independent of lower ones; copies in other threads stay."""
    registers = layout.columns_of("register")
    free = gf2.free_mask(registers)
    if not free:
        return layout
    columns: list[int] = []
    for dim in layout.ins:
        kept = layout.columns_of(dim.name)
        columns += [c for j, c in enumerate(kept) if not free >> j & 1] if dim.name == "register" else kept
    ins = [Dim(d.name, d.bits - free.bit_count()) if d.name == "register" else d for d in layout.ins]
    return LinearLayout(tuple(ins), layout.outs, tuple(columns))


def broadcast(layout: LinearLayout, axis: int, size: int) -> LinearLayout:
    """Repeat an axis of size 1 in new, higher registers (after `expand_dims`: the layout of a join)."""
    _require_axis(axis, len(layout.outs))
    if layout.outs[axis].bits:
        raise LayoutError(f"axis {axis} has size {layout.outs[axis].size}, only size 1 broadcasts")
    return layout * LinearLayout.identity("register", layout.outs[axis].name, size)


def bits_along(layout: LinearLayout, axis: int) -> dict[str, int]:
    """Per input dimension the bits that move along an axis: the steps of a reduction over it.

    A lane bit ``b`` of the mask means that the value of lane ``l ^ b`` takes part as well.
    """
    _require_axis(axis, len(layout.outs))
    below = sum([dim.bits for dim in layout.outs[axis + 1 :]])
    field = (layout.outs[axis].size - 1) << below
    return {
        dim.name: sum([1 << j for j, c in enumerate(layout.columns_of(dim.name)) if c & field])
        for dim in layout.ins
    }


def vector_width(layout: LinearLayout) -> int:
    """How many consecutive registers hold consecutive, aligned elements in row-major order."""
    width = 1
    for column in layout.columns_of("register"):
        if column != width or sum([bool(other & width) for other in layout.columns]) != 1:
            break
        width <<= 1
    return width
