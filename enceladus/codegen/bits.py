"""Expressions that take the bits of an index apart and put them together again."""

from __future__ import annotations


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
