"""Linear algebra over GF(2) on Python integers.

A vector is an int, bit ``i`` is its ``i``-th coordinate, addition is ``^``. A matrix is a sequence of column
vectors; a *combination* of columns is an int whose bit ``j`` says that column ``j`` takes part.

>>> apply((0b01, 0b11), 0b10)       # the second column alone
3
>>> solve_with((0b01, 0b11), 0b10)  # 0b10 = column 0 ^ column 1
3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache


class Solver:
    """An incremental echelon basis which remembers how each row came from the columns that were added.

    Only columns independent of all earlier ones ever take part in a solution, so a solution is the smallest
    integer among all combinations that reach the target.
    """

    __slots__ = ("_count", "_rows")

    def __init__(self, columns: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}
        self._count = 0
        for column in columns:
            self.add(column)

    def reduce(self, vector: int) -> tuple[int, int]:
        """What remains of ``vector`` (zero inside the span) and the combination that was subtracted."""
        rows, combination = self._rows, 0
        row = rows.get(vector.bit_length())
        while row is not None:
            vector ^= row[0]
            combination ^= row[1]
            row = rows.get(vector.bit_length())
        return vector, combination

    def add(self, column: int) -> int | None:
        """Add the next column. None if it is new; else the combination, itself included, that gives zero."""
        remainder, combination = self.reduce(column)
        combination |= 1 << self._count
        self._count += 1
        if not remainder:
            return combination
        self._rows[remainder.bit_length()] = remainder, combination
        return None

    def add_if_new(self, column: int) -> bool:
        """Add the column only when it is independent; say whether it was."""
        remainder, combination = self.reduce(column)
        if remainder:
            self._rows[remainder.bit_length()] = remainder, combination | 1 << self._count
            self._count += 1
        return remainder != 0

    def solve(self, target: int) -> int | None:
        """The smallest combination that gives ``target``, or None outside the span."""
        remainder, combination = self.reduce(target)
        return None if remainder else combination

    @property
    def rank(self) -> int:
        return len(self._rows)


def apply(columns: Sequence[int], vector: int) -> int:
    """Matrix times vector: the xor of the columns at the set bits of ``vector``."""
    result = 0
    while vector:
        low = vector & -vector
        result ^= columns[low.bit_length() - 1]
        vector ^= low
    return result


def product(outer: Sequence[int], inner: Iterable[int]) -> tuple[int, ...]:
    """Matrix product: first ``inner``, then ``outer``."""
    return tuple([apply(outer, column) for column in inner])


@lru_cache(maxsize=4096)
def rank(columns: tuple[int, ...]) -> int:
    return Solver(columns).rank


@lru_cache(maxsize=4096)
def free_mask(columns: tuple[int, ...]) -> int:
    """The columns (as bits) that depend on earlier ones."""
    solver = Solver()
    return sum(1 << j for j, column in enumerate(columns) if not solver.add_if_new(column))


def kernel(columns: Iterable[int]) -> tuple[int, ...]:
    """A basis of the combinations that give zero; each has a top bit of its own, a bit of ``free_mask``."""
    solver = Solver()
    found = [solver.add(column) for column in columns]
    return tuple([combination for combination in found if combination is not None])


def solve_with(columns: Iterable[int], target: int) -> int | None:
    return Solver(columns).solve(target)


def new_modulo(known: Iterable[int], candidates: Iterable[int]) -> list[int]:
    """The candidates that are independent of ``known`` and of the earlier candidates."""
    solver = Solver(known)
    return [vector for vector in candidates if solver.add_if_new(vector)]


def units(bits: int) -> tuple[int, ...]:
    return tuple([1 << i for i in range(bits)])


def intersection(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """A basis of the vectors that lie in both spans."""
    first, second = new_modulo((), left), new_modulo((), right)
    mask = (1 << len(first)) - 1
    return [apply(first, combination & mask) for combination in kernel(first + second)]


@lru_cache(maxsize=1024)
def inverse(columns: tuple[int, ...]) -> tuple[int, ...]:
    """The inverse of an invertible square matrix."""
    solver = Solver(columns)
    if solver.rank != len(columns):
        raise ValueError("the matrix is singular")
    return tuple([solver.reduce(unit)[1] for unit in units(len(columns))])


def span(basis: Sequence[int]) -> tuple[int, ...]:
    """All combinations in counting order: entry ``i`` is ``apply(basis, i)``."""
    vectors = [0]
    for vector in basis:
        vectors += [vector ^ other for other in vectors]
    return tuple(vectors)


def log2(size: int) -> int:
    """The exponent of a power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"{size} is not a power of two")
    return size.bit_length() - 1
