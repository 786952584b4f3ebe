"""Which type a variable has where the two paths of a run-time ``if``, or the iterations of a loop, meet.

``x = 0`` followed by ``if c: x = tl.load(p)`` gives ``x`` the type of the load, also where the branch is not
taken. Running one path cannot show that, so the kernel is also walked by the front end, and the types are
read off the results of its ``If``, ``For`` and ``Select`` operations.
"""

from __future__ import annotations

from enceladus.errors import CompilationError, Location
from enceladus.interpreter.locations import CallChain, call_chain_of
from enceladus.ir import ops
from enceladus.ir.core import Function
from enceladus.ir.types import DType, PointerType, TileType

#: Line, column and end column in a function's source, and where the function was called from.
Site = tuple[int, int, int, str, CallChain]


class Joins:
    """The types of what meets at each place of a kernel."""

    def __init__(self, function: Function):
        self._results: dict[Site, list[list[tuple[str, TileType]]]] = {}
        for op in function.walk():
            if not isinstance(op, ops.If | ops.For | ops.Select) or op.loc is None:
                continue
            results = [(v.name, v.type) for v in op.results]
            found = self._results.setdefault(_site(op.loc), [])
            if isinstance(op, ops.Select) and found:
                found[-1].extend(results)  # one select a value
            else:
                found.append(results)

    def named(self, site: Site, name: str) -> DType | None:
        """The type of the number in variable ``name``, or ``None`` where it is a compile-time value."""
        found = self._results.get(site, [])
        return _one({t.element for results in found for n, t in results if n == name}, name)

    def anonymous(self, site: Site, count: int) -> list[DType | None]:
        """The types of the ``count`` leaves of a conditional expression's value, as :meth:`named`."""
        found = self._results.get(site, [])
        if not found:
            return [None] * count
        types = [[t.element for _, t in results] for results in found]
        if any(len(elements) % count for elements in types):
            raise CompilationError(
                "the interpreter cannot tell the types of this conditional expression",
                "use one conditional expression for each value",
            )
        return [_one({elements[i] for e in types for elements in _parts(e, count)}, "") for i in range(count)]


def _parts(elements: list[DType | PointerType], count: int) -> list[list[DType | PointerType]]:
    return [elements[i : i + count] for i in range(0, len(elements), count)]


def _site(location: Location) -> Site:
    return (location.line, location.column, location.end_column, location.file, call_chain_of(location))


def _one(types: set[DType | PointerType], name: str) -> DType | None:
    if not types:
        return None
    if len(types) > 1:
        raise CompilationError(
            f"the type of {name or 'this expression'!r} differs between copies of an unrolled loop",
            "convert it with .to(…) where it is assigned",
        )
    (element,) = types
    return element if isinstance(element, DType) else None
