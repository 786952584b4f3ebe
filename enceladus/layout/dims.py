"""Named dimensions, and where their bits lie in a flat coordinate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import gf2


class LayoutError(ValueError):
    """A layout with the requested properties does not exist."""


class Dim(NamedTuple):
    """A named dimension of ``2**bits`` coordinates."""

    name: str
    bits: int

    @property
    def size(self) -> int:
        return 1 << self.bits


Dims = tuple[Dim, ...]


def total(dims: Dims) -> int:
    return sum([dim.bits for dim in dims])


def bits_of(dims: Dims, name: str) -> int:
    return next((dim.bits for dim in dims if dim.name == name), 0)


def merged(first: Dims, second: Dims) -> Dims:
    known = {dim.name for dim in first}
    grown = [Dim(dim.name, dim.bits + bits_of(second, dim.name)) for dim in first]
    return (*grown, *(dim for dim in second if dim.name not in known))


def low_bits(dims: Dims) -> dict[str, int]:
    """Where each output dimension starts in the flat output."""
    position, starts = 0, {}
    for dim in reversed(dims):
        starts[dim.name] = position
        position += dim.bits
    return starts


def sized(sizes: Mapping[str, int]) -> Dims:
    return tuple([Dim(name, gf2.log2(size)) for name, size in sizes.items()])

def moved(columns: tuple[int, ...], moves: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    """Fields of each column, as (from, mask, to), moved to new places."""
    if all(source == target for source, _, target in moves):
        return columns
    return tuple([sum([((c >> source) & mask) << target for source, mask, target in moves]) for c in columns])
