"""Evaluate the compiler's proof obligations for "every element of this output is written".

``passes/coverage.py`` makes them and describes their form: nested lists, as JSON keeps them, such as
``["le", ["size"], ["min", ["mul", ["grid", 0], 1024], ["scalar", "n"]]]``. The array is covered when all
conditions hold for the launch at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enceladus.errors import InternalError


def evaluate(expression: Any, grid: Sequence[int], size: int, scalars: Mapping[str, Any]) -> int | bool:
    """The value of an expression for a launch with ``grid`` over an array of ``size`` elements."""
    if isinstance(expression, int):
        return expression
    match expression:
        case ["size"]:
            return size
        case ["grid", int(axis)]:
            return grid[axis]
        case ["scalar", str(name)]:
            if name not in scalars:
                raise InternalError(f"a coverage condition names the unknown scalar {name!r}")
            return scalars[name]
        case [str(operation), left, right]:
            a, b = (evaluate(side, grid, size, scalars) for side in (left, right))
            if operation == "mul":
                return a * b
            if operation == "min":
                return min(a, b)
            if operation == "cdiv":
                return -(-a // b)
            if operation == "le":
                return a <= b
    raise InternalError(f"a coverage condition has the unknown form {expression!r}")


def holds(
    conditions: Sequence[Any], grid: Sequence[int], size: int, scalars: Mapping[str, Any]
) -> bool:
    """Whether all conditions are true of this launch."""
    return all(evaluate(condition, grid, size, scalars) for condition in conditions)
