"""How many registers tiles need per thread: refuse what cannot work, warn about what may spill.

Counts 32-bit registers of one tile, dealt evenly to the threads of a program. Analysis only.
"""

from __future__ import annotations

from enceladus.errors import CompilationError
from enceladus.ir.core import Function, Value
from enceladus.ir.laid_out import TileGroup
from enceladus.ir.types import PointerType

WARN_ABOVE = 128
REFUSE_ABOVE = 256


def registers_of(value: Value, threads: int) -> int:
    """32-bit registers that each thread needs to hold ``value``."""
    element = value.type.element
    bits = 64 if isinstance(element, PointerType) else max(8, element.bits)
    per_thread = max(1, value.type.numel // threads)
    return max(1, per_thread * bits // 32)


def check(function: Function) -> list[str]:
    """Warnings about large tiles; raises :class:`CompilationError` for tiles that are too large."""
    threads = 32 * function.num_warps
    worst: tuple[int, Value, object] | None = None
    for op in function.walk():
        for value in op.results:
            if value.type.is_scalar or isinstance(value.type.element, PointerType):
                continue  # a tile of pointers is one base and a tile of offsets
            count = registers_of(value, threads)
            if count > REFUSE_ABOVE:
                raise CompilationError(
                    f"a tile of {_describe(value)} needs {count} registers a thread with "
                    f"num_warps={function.num_warps}; at most {REFUSE_ABOVE} fit",
                    _advice(function, count),
                    op.loc,
                )
            if count > WARN_ABOVE and (worst is None or count > worst[0]):
                worst = (count, value, op.loc)
    if worst is None:
        return []
    count, value, loc = worst
    where = f"{loc}: " if loc is not None else ""
    return [
        f"{where}a tile of {_describe(value)} needs {count} registers a thread; the "
        f"kernel {function.name!r} may spill. {_advice(function, count).capitalize()}"
    ]


def _describe(value: Value) -> str:
    return f"{'x'.join(map(str, value.type.shape))} {value.type.dtype}"


def _advice(function: Function, count: int) -> str:
    larger = function.num_warps
    while larger < 32 and count * function.num_warps // larger > WARN_ABOVE:
        larger *= 2
    if count * function.num_warps // larger <= WARN_ABOVE and larger > function.num_warps:
        return f"use smaller blocks, or num_warps={larger}"
    return "use smaller blocks"


def estimate(function: Function) -> int:
    """An estimate of the registers a thread holds at once in laid-out IR: the tiles of the largest group."""
    most = 0
    for op in function.walk():
        if isinstance(op, TileGroup):
            kept = sum(op.layout.registers * max(1, v.type.dtype.bits // 32) for v in op.results)
            inner = sum(
                op.layout.vector * max(1, inner.results[0].type.dtype.bits // 32)
                for inner in op.body.ops
                if inner.results and inner.results[0].type.shape == op.layout.shape
            )
            most = max(most, kept + inner)
    return most
