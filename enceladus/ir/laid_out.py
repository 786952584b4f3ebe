"""Operations of the laid-out stage: what code generation reads.

After layout assignment a block holds scalar operations (the same for all threads of the program), control
flow, barriers, and :class:`TileGroup`: a loop over the elements that each thread holds, with the
elementwise operations of one or more statements fused inside. Values that outlive a group are *register
tiles*: each thread keeps its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from enceladus.ir.core import Block, Op, Value, operation
from enceladus.ir.types import PointerType, TileType, tile_type


@dataclass(frozen=True, slots=True)
class Blocked:
    """Elements dealt to threads: ``vector`` consecutive ones along ``order[0]``, then the next thread's.

    The linear index over the shape, ``order[0]`` fastest, of register ``(r, j)`` of thread ``t`` is
    ``(r · threads + t) · vector + j``. With fewer elements than ``threads · vector`` the surplus threads
    hold copies. ``layout.blocked`` gives the same map as a linear layout.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    vector: int
    threads: int

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def chunks(self) -> int:
        """How many vectors each thread holds."""
        return max(1, self.numel // (self.threads * self.vector))

    @property
    def registers(self) -> int:
        """How many elements each thread holds."""
        return self.chunks * self.vector

    @property
    def busy_threads(self) -> int:
        """Threads that hold elements of their own; the others hold copies."""
        return min(self.threads, self.numel // self.vector)

    def __str__(self) -> str:
        return f"blocked(order={self.order}, vector={self.vector}, threads={self.threads})"


@operation("tile_group", pure=False)
class TileGroup(Op):
    """For each element (or vector) that a thread holds of a tile of ``layout.shape``: run ``body``.

    The body ends in a ``Yield`` of the values that become register tiles in this layout.
    """

    layout: Blocked
    body: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(v.type for v in self.body.terminator.operands)


@operation("continue_if", pure=False)
class ContinueIf(Op):
    """Inside a group: elements whose ``condition`` is false end here."""

    condition: Value

    def result_types(self) -> tuple[TileType, ...]:
        return ()


@operation("shared_store", pure=False)
class SharedStore(Op):
    """Inside a group: put ``value`` into threadgroup memory slot ``slot``, at its row-major index."""

    value: Value
    slot: int

    def result_types(self) -> tuple[TileType, ...]:
        return ()


@operation("shared_load")
class SharedLoad(Op):
    """Inside a group: the element of slot ``slot`` at this element's row-major index in ``shape``."""

    slot: int
    element: PointerType
    shape: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.element.element, self.shape),)
