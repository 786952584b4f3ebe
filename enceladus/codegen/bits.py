"""Expressions that take the bits of an index apart and put them together again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


def _runs(positions: list[int]) -> list[tuple[int, int, int]]:
    """Maximal runs of consecutive ``positions`` as (rank of the first, first, length)."""
    runs: list[tuple[int, int, int]] = []
    for rank, position in enumerate(positions):
        if runs and runs[-1][1] + runs[-1][2] == position:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((rank, position, 1))
    return runs


def gather_bits(value: str, positions: list[int], width: int) -> str:
    """An expression that puts the bits of ``value`` at ``positions`` side by side; ``""`` for none."""
    terms = []
    for rank, first, length in _runs(positions):
        term = f"{value} >> {first}" if first else value
        if first + length < width:
            term = f"({term}) & {(1 << length) - 1}" if first else f"{term} & {(1 << length) - 1}"
        if rank:
            term = f"({term}) << {rank}"
        terms.append(term)
    return terms[0] if len(terms) == 1 else " | ".join(f"({term})" for term in terms)


def spread_bits(value: str, positions: list[int]) -> str:
    """The inverse of :func:`gather_bits`: the low bits of ``value`` moved to ``positions``."""
    terms = []
    runs = _runs(positions)
    for rank, first, length in runs:
        term = f"{value} >> {rank}" if rank else value
        if len(runs) > 1:
            term = f"(({term}) & {(1 << length) - 1})"
        terms.append(f"({term} << {first})" if first else term)
    return terms[0] if len(terms) == 1 else f"({' | '.join(terms)})"


@dataclass(slots=True)
class _Run:
    """Consecutive bits of one name that go to consecutive places."""

    name: str
    source: int
    target: int
    length: int
    width: int

    def goes_on(self, name: str, source: int, target: int) -> bool:
        return (self.name, self.source + self.length, self.target + self.length) == (name, source, target)

    def text(self) -> str:
        term = f"{self.name} >> {self.source}" if self.source else self.name
        if self.source + self.length < self.width:
            term = f"{_inside(term)} & {(1 << self.length) - 1}"
        return f"{_inside(term)} << {self.target}" if self.target else term


def _inside(term: str) -> str:
    """``term`` as an operand: in parentheses unless it is a name or number."""
    return term if re.fullmatch(r"\w+", term) else f"({term})"


def assemble_bits(bits: Sequence[tuple[str, int, int] | int]) -> str:
    """An expression of the number with these ``bits``, lowest first.

    A bit is 0, 1, or (name, bit of it, how many bits it has); the names stand for non-negative numbers.
    """
    constant = sum(1 << k for k, bit in enumerate(bits) if bit == 1)
    runs: list[_Run] = []
    for target, bit in enumerate(bits):
        if isinstance(bit, int):
            continue
        name, source, width = bit
        last = runs[-1] if runs else None
        if last and last.goes_on(name, source, target):
            last.length += 1
        else:
            runs.append(_Run(name, source, target, 1, width))
    terms = [run.text() for run in runs]
    if constant or not terms:
        terms.append(str(constant))
    return terms[0] if len(terms) == 1 else " | ".join(map(_inside, terms))


def linear_expression(value: str, columns: Sequence[int]) -> str:
    """An expression of the xor of ``columns[k]`` over the set bits k of ``value``; ``"0"`` if all are 0."""
    diagonals: dict[int, int] = {}
    for k, column in enumerate(columns):
        for bit in range(column.bit_length()):
            if column >> bit & 1:
                diagonals[bit - k] = diagonals.get(bit - k, 0) | 1 << k
    terms = []
    for shift, mask in sorted(diagonals.items()):
        term = value if mask == (1 << len(columns)) - 1 else f"({value} & {mask})"
        if shift:
            term = f"{term} << {shift}" if shift > 0 else f"{term} >> {-shift}"
        terms.append(term)
    if not terms:
        return "0"
    return terms[0] if len(terms) == 1 else " ^ ".join(map(_inside, terms))
