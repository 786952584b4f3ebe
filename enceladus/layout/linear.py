"""Linear layouts: which element of a tile does register ``r`` of lane ``l`` in SIMD group ``w`` hold?

A worked example. A 4×4 tile is spread over 4 lanes with 4 registers each, a 2×2 block per lane::

            column 0  column 1  column 2  column 3
    row 0    l0 r0     l0 r1     l1 r0     l1 r1
    row 1    l0 r2     l0 r3     l1 r2     l1 r3
    row 2    l2 r0     l2 r1     l3 r0     l3 r1
    row 3    l2 r2     l2 r3     l3 r2     l3 r3

Four facts fix the whole table: where register bit 0, register bit 1, lane bit 0 and lane bit 1 lead.

>>> layout = LinearLayout.from_bases(
...     {"register": [(0, 1), (1, 0)], "lane": [(0, 2), (2, 0)]}, {"dim0": 4, "dim1": 4})
>>> layout.apply(register=1), layout.apply(lane=2)
((0, 1), (2, 0))

Every other entry is the xor of the facts for its set bits. Register 3 of lane 2 is (0,1) ^ (1,0) ^ (2,0):

>>> layout.apply(register=3, lane=2)
(3, 1)

Edge cases
----------
*Replication.* A bit that leads to zero changes nothing: all its values hold the same elements. Any bit whose
base is a combination of the bases before it is *free*; `free_masks` names these bits, and the copy with all
free bits zero owns the element. A layout without free bits is injective.

*Gaps.* When the bases do not span the tile, some elements are held nowhere: the layout is not surjective.

*Direction.* The map goes from hardware to tile, because one place holds one element, while one element may
sit in many places. `pseudo_invert` goes back, to the owner.

*Flattening.* Inputs are listed fastest first (register, lane, warp), outputs row-major, slowest first
(dim0, dim1). `columns[i]` is the flat output of flat input bit `i`. Reading a layout backwards therefore
reverses the two lists and leaves all integers alone: the inverse of the layout above maps (dim1, dim0) to
(lane, register).

Algebra
-------
Coordinates are vectors over GF(2), xor is addition, a layout is a matrix. ``outer @ inner`` is the matrix
product, ``a * b`` the direct sum in which `b` takes the higher bits of the dimensions that both have, and
``(a * b).divide_left(a) == b``. Layouts are immutable, hashable and compare by value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import gf2
from .dims import Dim, Dims, LayoutError, bits_of, low_bits, merged, moved, sized, total


@dataclass(frozen=True, slots=True, repr=False)
class LinearLayout:
    """A linear map over GF(2) between named dimensions; see the module's docstring."""

    ins: Dims
    outs: Dims
    columns: tuple[int, ...]
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.columns) != total(self.ins):
            raise LayoutError(f"{total(self.ins)} input bits need as many bases, got {len(self.columns)}")
        if self.columns and (max(self.columns) >> total(self.outs) or min(self.columns) < 0):
            raise LayoutError(f"a base lies outside the output dimensions {self.outs}")
        if any(len({dim.name for dim in dims}) != len(dims) for dims in (self.ins, self.outs)):
            raise LayoutError("dimension names must be unique")
        object.__setattr__(self, "_hash", hash((self.ins, self.outs, self.columns)))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def from_bases(bases: Mapping[str, Sequence[Sequence[int]]], sizes: Mapping[str, int]) -> LinearLayout:
        """For every input dimension, fastest first, the output coordinates of its bits, lowest first."""
        outs = sized(sizes)
        columns = []
        for name, bits in bases.items():
            for base in bits:
                fits = [0 <= c < dim.size for c, dim in zip(base, outs, strict=False)]
                if len(base) != len(outs) or not all(fits):
                    raise LayoutError(f"{name}: the base {tuple(base)} is not a coordinate of {dict(sizes)}")
                flat = 0
                for coordinate, dim in zip(base, outs, strict=True):
                    flat = flat << dim.bits | coordinate
                columns.append(flat)
        ins = tuple([Dim(name, len(bits)) for name, bits in bases.items()])
        return LinearLayout(ins, outs, tuple(columns))

    @staticmethod
    def identity(name: str, out: str, size: int) -> LinearLayout:
        """Input coordinate ``i`` leads to output coordinate ``i``."""
        bits = gf2.log2(size)
        return LinearLayout((Dim(name, bits),), (Dim(out, bits),), gf2.units(bits))

    @staticmethod
    def zeros(name: str, size: int, outs: Mapping[str, int] | None = None) -> LinearLayout:
        """Every coordinate of ``name`` holds the same: replication (outputs of size 1 unless given)."""
        bits = gf2.log2(size)
        return LinearLayout((Dim(name, bits),), sized(outs or {}), (0,) * bits)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the output dimensions."""
        return tuple([1 << dim.bits for dim in self.outs])

    @property
    def in_bits(self) -> int:
        return len(self.columns)

    @property
    def out_bits(self) -> int:
        return total(self.outs)

    def in_size(self, name: str) -> int:
        """The size of an input dimension, 1 when the layout lacks it."""
        return 1 << bits_of(self.ins, name)

    def out_size(self, name: str) -> int:
        return 1 << bits_of(self.outs, name)

    def columns_of(self, name: str) -> tuple[int, ...]:
        """The flat bases of one input dimension, none when the layout lacks it."""
        start = 0
        for dim in self.ins:
            if dim.name == name:
                return self.columns[start : start + dim.bits]
            start += dim.bits
        return ()

    def bases(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The inverse of `from_bases`."""
        return {d.name: tuple([self.unflatten(c) for c in self.columns_of(d.name)]) for d in self.ins}

    def unflatten(self, flat: int) -> tuple[int, ...]:
        """Output coordinates of a flat (row-major) output."""
        coordinates = []
        for dim in reversed(self.outs):
            coordinates.append(flat & (dim.size - 1))
            flat >>= dim.bits
        return tuple(reversed(coordinates))

    def apply(self, **coordinates: int) -> tuple[int, ...]:
        """The output coordinates of one input; dimensions left out are zero."""
        flat = 0
        for name, value in coordinates.items():
            if not 0 <= value < self.in_size(name):
                raise LayoutError(f"{name}={value} is outside [0, {self.in_size(name)})")
            flat ^= gf2.apply(self.columns_of(name), value)
        return self.unflatten(flat)

    def apply_flat(self, flat: int) -> int:
        """Flat input to flat output."""
        return gf2.apply(self.columns, flat)

    def compose(self, inner: LinearLayout) -> LinearLayout:
        """``self ∘ inner``: first ``inner``; its outputs feed the inputs of the same names of ``self``."""
        outer, wanted = self, inner.outs[::-1]
        if outer.ins != wanted:
            if sorted(outer.ins) != sorted(wanted):
                raise LayoutError(f"outputs {inner.outs} do not fit inputs {outer.ins}")
            outer = outer.permute_ins([dim.name for dim in wanted])
        return LinearLayout(inner.ins, outer.outs, gf2.product(outer.columns, inner.columns))

    def __matmul__(self, inner: LinearLayout) -> LinearLayout:
        return self.compose(inner)

    def product(self, other: LinearLayout) -> LinearLayout:
        """The direct sum: ``other`` takes the higher bits of dimensions that both have."""
        ins, outs = merged(self.ins, other.ins), merged(self.outs, other.outs)
        starts = low_bits(outs)
        upper = {name: start + bits_of(self.outs, name) for name, start in starts.items()}
        mine = LinearLayout(self.ins, outs, self._scattered(starts))
        theirs = LinearLayout(other.ins, outs, other._scattered(upper))
        columns: list[int] = []
        for dim in ins:
            columns += mine.columns_of(dim.name)
            columns += theirs.columns_of(dim.name)
        return LinearLayout(ins, outs, tuple(columns))

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        return self.product(other)

    def divide_left(self, divisor: LinearLayout) -> LinearLayout | None:
        """The quotient ``q`` with ``divisor * q == self`` up to the order of dimensions, or None.

        The quotient keeps all dimensions of ``self``, some of them perhaps of size 1.
        """
        for mine, theirs in ((self.ins, divisor.ins), (self.outs, divisor.outs)):
            names = {dim.name for dim in mine}
            if any(dim.name not in names or bits_of(mine, dim.name) < dim.bits for dim in theirs):
                return None
        ins = tuple([Dim(dim.name, dim.bits - bits_of(divisor.ins, dim.name)) for dim in self.ins])
        outs = tuple([Dim(dim.name, dim.bits - bits_of(divisor.outs, dim.name)) for dim in self.outs])
        starts = low_bits(self.outs)
        taken = sum([(dim.size - 1) << starts[dim.name] for dim in divisor.outs])
        low = LinearLayout(divisor.ins, self.outs, divisor._scattered(starts))
        columns: list[int] = []
        for dim in self.ins:
            mine_bits, split = self.columns_of(dim.name), bits_of(divisor.ins, dim.name)
            if mine_bits[:split] != low.columns_of(dim.name) or any(c & taken for c in mine_bits[split:]):
                return None
            columns += mine_bits[split:]
        target = low_bits(outs)
        moves = [(starts[d.name] + bits_of(divisor.outs, d.name), d.size - 1, target[d.name]) for d in outs]
        return LinearLayout(ins, outs, moved(tuple(columns), moves))

    def rank(self) -> int:
        return gf2.rank(self.columns)

    def is_surjective(self) -> bool:
        """Every element of the tile is held somewhere."""
        return self.rank() == self.out_bits

    def is_injective(self) -> bool:
        """No element is held twice."""
        return self.rank() == self.in_bits

    def kernel(self) -> tuple[int, ...]:
        """A basis of the flat inputs that lead to zero."""
        return gf2.kernel(self.columns)

    def free_masks(self) -> dict[str, int]:
        """Per input dimension the bits that only select another copy; the owner has all of them zero."""
        mask, masks = gf2.free_mask(self.columns), {}
        for dim in self.ins:
            masks[dim.name] = mask & (dim.size - 1)
            mask >>= dim.bits
        return masks

    def pseudo_invert(self) -> LinearLayout:
        """Element to owner: the smallest flat input among all that hold it."""
        if not self.is_surjective():
            raise LayoutError(f"only a surjective layout has a right inverse, not {self}")
        solver = gf2.Solver(self.columns)
        columns = tuple([solver.reduce(unit)[1] for unit in gf2.units(self.out_bits)])
        return LinearLayout(self.outs[::-1], self.ins[::-1], columns)

    def invert(self) -> LinearLayout:
        """The inverse of a bijective layout; both lists of dimensions come out reversed."""
        if not self.is_injective():
            raise LayoutError(f"only a bijective layout has an inverse, not {self}")
        return self.pseudo_invert()

    def permute_ins(self, names: Sequence[str]) -> LinearLayout:
        """The same map with its input dimensions listed in another order."""
        by_name = {dim.name: dim for dim in self.ins}
        if sorted(names) != sorted(by_name):
            raise LayoutError(f"{tuple(names)} is not a permutation of {tuple(by_name)}")
        columns = [column for name in names for column in self.columns_of(name)]
        return LinearLayout(tuple([by_name[name] for name in names]), self.outs, tuple(columns))

    def permute_outs(self, names: Sequence[str]) -> LinearLayout:
        """The same map with its output dimensions listed in another order."""
        by_name = {dim.name: dim for dim in self.outs}
        if sorted(names) != sorted(by_name):
            raise LayoutError(f"{tuple(names)} is not a permutation of {tuple(by_name)}")
        outs = tuple([by_name[name] for name in names])
        return LinearLayout(self.ins, outs, self._scattered(low_bits(outs)))

    def _scattered(self, starts: Mapping[str, int]) -> tuple[int, ...]:
        """The columns with each output dimension moved to its place in ``starts``."""
        mine = low_bits(self.outs)
        return moved(self.columns, [(mine[d.name], d.size - 1, starts[d.name]) for d in self.outs])

    def __str__(self) -> str:
        parts = []
        for name, bits in self.bases().items():
            parts.append(f"{name}[{' '.join([str(base).replace(' ', '') for base in bits])}]")
        return f"{' '.join(parts)} -> {'x'.join([str(size) for size in self.shape])}"

    def __repr__(self) -> str:
        return f"<{self}>"
