"""Layouts with a meaning for the hardware: blocked tiles and matrix fragments.

>>> blocked((2, 8), order=(1, 0), vector=4, threads=4, warps=1)
<register[(0,1) (0,2)] lane[(0,4) (1,0)] warp[] -> 2x8>
>>> SIMDGROUP_8X8.layout().apply(register=1, lane=13)      # lane 13 = 0b01101
(2, 7)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from . import gf2
from .dims import Dim, LayoutError
from .linear import LinearLayout

SIMD_WIDTH = 32


@lru_cache(maxsize=1024)
def blocked(
    shape: tuple[int, ...], order: tuple[int, ...], vector: int, threads: int = SIMD_WIDTH, warps: int = 1
) -> LinearLayout:
    """Deal the elements, ``order[0]`` fastest: ``vector`` to registers, then lanes, warps, registers again.

    ``vector`` is cut to the size of the fastest axis. Lanes and warps left over when the tile is small hold
    copies; registers never do.
    """
    if sorted(order) != list(range(len(shape))):
        raise LayoutError(f"order {order} does not permute the axes of {shape}")
    bits = [gf2.log2(size) for size in shape]
    dealt = [1 << (sum(bits[axis + 1 :]) + bit) for axis in order for bit in range(bits[axis])]
    held = min(gf2.log2(vector), bits[order[0]] if order else 0)
    to_lanes = held + gf2.log2(threads)
    to_warps = to_lanes + gf2.log2(warps)
    registers = dealt[:held] + dealt[to_warps:]
    shared = dealt[held:to_warps]
    shared += [0] * (to_warps - held - len(shared))
    ins = (Dim("register", len(registers)), Dim("lane", to_lanes - held), Dim("warp", to_warps - to_lanes))
    outs = tuple([Dim(f"dim{axis}", size) for axis, size in enumerate(bits)])
    return LinearLayout(ins, outs, (*registers, *shared))


@dataclass(frozen=True, slots=True)
class Fragment:
    """How the threads of one SIMD group hold a small matrix: (row, column) bases, lowest bit first.

    The constructor refuses a record whose threads and elements do not match one to one.
    """

    name: str
    rows: int
    columns: int
    register_bases: tuple[tuple[int, int], ...]
    lane_bases: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if 1 << len(self.lane_bases) != SIMD_WIDTH:
            raise LayoutError(f"{self.name}: {1 << len(self.lane_bases)} lanes, expected {SIMD_WIDTH}")
        if self.rows * self.columns != SIMD_WIDTH << len(self.register_bases):
            raise LayoutError(f"{self.name}: {self.rows}x{self.columns} elements do not fill the registers")
        if not self.layout().is_injective():
            raise LayoutError(f"{self.name}: some element is held twice")

    def layout(self) -> LinearLayout:
        bases = {"register": self.register_bases, "lane": self.lane_bases}
        return LinearLayout.from_bases(bases, {"dim0": self.rows, "dim1": self.columns})

    def tiled(self, shape: tuple[int, int], warps: Sequence[tuple[int | None, int]]) -> LinearLayout:
        """Repeat the fragment over a tile: registers along the columns, then the rows, warps outermost.

        ``warps`` lists, from the lowest warp bit up, (axis, count): that many warps side by side along the
        axis, or copies of one another when the axis is None or too short. With ``m × n`` warps the result
        takes ``((1, n), (0, m))``, the left operand ``((None, n), (0, m))`` and the right one
        ``((1, n), (None, m))``.
        """
        return _tiled(self, shape, tuple(warps))


@lru_cache(maxsize=256)
def _tiled(
    fragment: Fragment, shape: tuple[int, int], warps: tuple[tuple[int | None, int], ...]
) -> LinearLayout:
    room = [gf2.log2(shape[0]) - gf2.log2(fragment.rows), gf2.log2(shape[1]) - gf2.log2(fragment.columns)]
    if min(room) < 0:
        raise LayoutError(f"{shape} is smaller than the fragment {fragment.name}")
    placed = []
    for axis, count in warps:
        bits = gf2.log2(count)
        spread = min(bits, room[axis]) if axis is not None else 0
        if axis is not None:
            room[axis] -= spread
            placed.append(LinearLayout.identity("warp", f"dim{axis}", 1 << spread))
        placed.append(LinearLayout.zeros("warp", 1 << (bits - spread)))
    layout = fragment.layout()
    for axis in (1, 0):
        layout *= LinearLayout.identity("register", f"dim{axis}", 1 << room[axis])
    for part in placed:
        layout *= part
    return layout


SIMDGROUP_8X8 = Fragment(
    "simdgroup_8x8",
    rows=8,
    columns=8,
    register_bases=((0, 1),),
    lane_bases=((0, 2), (1, 0), (2, 0), (0, 4), (4, 0)),
)
