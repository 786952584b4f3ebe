"""Which register tiles must have one layout: union of tiles, and tiles that are slices of others.

A class is free (its tiles get a blocked layout of their own shape) or a slice of another class: what a
reduction leaves, or what is broadcast back along the axes that were reduced.
"""

from __future__ import annotations

from enceladus.ir.core import Value


class LayoutClasses:
    """Union-find over register tiles, with slice relations between classes."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}
        #: representative → (a tile of the parent class, the parent's axes that are kept)
        self._slices: dict[Value, tuple[Value, tuple[int, ...]]] = {}

    def find(self, value: Value) -> Value:
        """The representative of ``value``'s class."""
        while (up := self._parent.get(value, value)) is not value:
            value = up
        return value

    def slice_of(self, value: Value) -> tuple[Value, tuple[int, ...]] | None:
        """(representative of the parent class, kept axes), or ``None`` for a free class."""
        found = self._slices.get(self.find(value))
        return None if found is None else (self.find(found[0]), found[1])

    def unite(self, a: Value, b: Value) -> bool:
        """Give two tiles one layout; ``False``, and nothing done, where that is impossible."""
        a, b = self.find(a), self.find(b)
        if a is b:
            return True
        x, y = self.slice_of(a), self.slice_of(b)
        if x is not None and y is not None and x != y:
            return False
        if self._depends(a, b) or self._depends(b, a):
            return False  # a class cannot be a slice of itself
        self._parent[a] = b
        if x is not None:
            self._slices[b] = x
        return True

    def make_slice(self, value: Value, parent: Value, kept: tuple[int, ...]) -> bool:
        """Make ``value`` what remains of ``parent`` along ``kept``; ``False`` where it is something else."""
        outer = self.slice_of(parent)
        if outer is not None:  # a slice of a slice is a slice
            parent, kept = outer[0], tuple(outer[1][axis] for axis in kept)
        mine = self.find(value)
        known = self.slice_of(mine)
        if known is not None:
            return known == (self.find(parent), kept)
        if mine is self.find(parent) or self._depends(self.find(parent), mine):
            return False
        self._slices[mine] = (self.find(parent), kept)
        return True

    def _depends(self, a: Value, b: Value) -> bool:
        """Whether class ``a`` is a slice of class ``b``."""
        relation = self.slice_of(a)
        return relation is not None and relation[0] is b
