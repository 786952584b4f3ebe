"""Operations of the laid-out stage: what code generation reads.

After layout assignment a block holds scalar operations (the same for all threads of the program), control
flow, barriers, and :class:`TileGroup`: a loop over the elements that each thread holds, with the
elementwise operations of one or more statements fused inside. Values that outlive a group are *register
tiles*: each thread keeps its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from enceladus.ir.coordinates import Bit, Coordinates, bits_of, log2
from enceladus.ir.core import Block, Op, Value, operation
from enceladus.ir.types import PointerType, TileType, tile_type


class Places(NamedTuple):
    """The (dimension, bit) of the tile's index that each bit of a register's or thread's number moves.

    Registers are numbered (chunk, element of the vector); ``None``: threads that hold copies.
    """

    elements: tuple[tuple[int, int], ...]
    threads: tuple[tuple[int, int] | None, ...]
    chunks: tuple[tuple[int, int], ...]

    @property
    def registers(self) -> tuple[tuple[int, int], ...]:
        """Bits of the register number, lowest first."""
        return self.elements + self.chunks


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

    @property
    def has_copies(self) -> bool:
        """Whether some threads hold copies of others' elements."""
        return self.busy_threads < self.threads

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes themselves; see :class:`Sliced`."""
        return tuple(range(len(self.shape)))

    @property
    def blocked(self) -> Blocked:
        """The layout that deals registers and threads: this one."""
        return self

    def bits(self) -> tuple[list[int], list[int | None], list[int]]:
        """The axis that each bit of (element in the vector, thread, chunk) moves along, lowest bit first.

        ``None``: a thread bit that holds copies.
        """
        axes = [axis for axis in self.order for _ in range(self.shape[axis].bit_length() - 1)]
        vector = self.vector.bit_length() - 1
        threads = self.threads.bit_length() - 1
        dealt: list[int | None] = list(axes[vector : vector + threads])
        return axes[:vector], dealt + [None] * (threads - len(dealt)), axes[vector + threads :]

    @property
    def places(self) -> Places:
        """Where each bit of (element, thread, chunk) moves."""
        flat = [(axis, k) for axis in self.order for k in range(log2(self.shape[axis]))]
        vector, threads = log2(self.vector), log2(self.threads)
        dealt: list[tuple[int, int] | None] = list(flat[vector : vector + threads])
        dealt += [None] * (threads - len(dealt))
        return Places(tuple(flat[:vector]), tuple(dealt), tuple(flat[vector + threads :]))

    def __str__(self) -> str:
        return f"blocked(order={self.order}, vector={self.vector}, threads={self.threads})"


@dataclass(frozen=True, slots=True)
class Sliced:
    """What remains of a tile in ``parent`` layout without some axes, as a reduction leaves it.

    Dimension ``k`` lies along the parent's axis ``kept[k]``. A thread holds the elements at its parent
    coordinates; threads that differ only along the lost axes hold copies of one another.
    """

    parent: Blocked
    kept: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parent.shape[axis] for axis in self.kept)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the parent's fastest axis first."""
        return tuple(self.kept.index(axis) for axis in self.parent.order if axis in self.kept)

    @property
    def blocked(self) -> Blocked:
        """The layout that deals registers and threads."""
        return self.parent

    @property
    def threads(self) -> int:
        return self.parent.threads

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def vector(self) -> int:
        return self.parent.vector if self.parent.order[0] in self.kept else 1

    @property
    def chunks(self) -> int:
        return 1 << sum(axis in self.kept for axis in self.parent.bits()[2])

    @property
    def registers(self) -> int:
        return self.chunks * self.vector

    @property
    def places(self) -> Places:
        """Where each bit of (element, thread, chunk) moves."""
        outer = self.parent.places

        def inside(bits: tuple[tuple[int, int] | None, ...]) -> list[tuple[int, int] | None]:
            kept = self.kept
            return [(kept.index(b[0]), b[1]) if b is not None and b[0] in kept else None for b in bits]

        elements, threads, chunks = (inside(bits) for bits in outer)
        return Places(
            tuple(b for b in elements if b is not None),
            tuple(threads),
            tuple(b for b in chunks if b is not None),
        )

    @property
    def copy_bits(self) -> int:
        """The bits of a thread's index along which threads hold copies."""
        return sum(1 << k for k, axis in enumerate(self.parent.bits()[1]) if axis not in self.kept)

    @property
    def has_copies(self) -> bool:
        """Whether some threads hold copies of others' elements."""
        return self.copy_bits != 0

    def __str__(self) -> str:
        return f"axes {self.kept} of {self.parent}"


@dataclass(frozen=True, slots=True)
class Viewed:
    """What the threads of a group must hold of a tile that it reads under other ``coordinates``.

    Bits of the index that are constant there are in registers, so that both values can be read.
    """

    shape: tuple[int, ...]
    group: Blocked | Sliced
    coordinates: Coordinates

    @property
    def places(self) -> Places:
        """Where each bit of (element, thread, chunk) moves; registers that would be copies are left out."""
        where: dict[Bit, tuple[int, int]] = {}
        constant: list[tuple[int, int]] = []
        for dimension, (coordinate, size) in enumerate(zip(self.coordinates, self.shape, strict=True)):
            for k, bit in enumerate(bits_of(coordinate, size)):
                if isinstance(bit, int):
                    constant.append((dimension, k))
                else:
                    where[bit] = (dimension, k)
        elements, threads, chunks = self.group.places
        return Places(
            tuple(where[b] for b in elements if b in where),
            tuple(None if b is None else where.get(b) for b in threads),
            (*(where[b] for b in chunks if b in where), *constant),
        )

    @property
    def registers(self) -> int:
        """How many elements each thread holds."""
        return 1 << len(self.places.registers)

    def __str__(self) -> str:
        return f"{self.coordinates} of {self.group}"


Layout = Blocked | Sliced


@operation("tile_group", pure=False, control_flow=True)
class TileGroup(Op):
    """For each element (or vector) that a thread holds of a tile of ``layout.shape``: run ``body``.

    The body ends in a ``Yield`` of the values that become register tiles in this layout.
    """

    layout: Layout
    body: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(v.type for v in self.body.terminator.operands)


@operation("convert")
class Convert(Op):
    """The same tile in the layout that the group after it reads it in; the result's ``layout`` says which."""

    value: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


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


@operation("shared_gather")
class SharedGather(Op):
    """Inside a group: the element of slot ``slot`` at this element's place in ``shape``, but ``index`` along
    ``axis``, modulo the axis."""

    index: Value
    slot: int
    element: PointerType
    shape: tuple[int, ...]
    axis: int

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.element.element, self.index.type.shape),)


@operation("shared_load")
class SharedLoad(Op):
    """Inside a group: the element of slot ``slot`` at this element's row-major index in ``shape``."""

    slot: int
    element: PointerType
    shape: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.element.element, self.shape),)
