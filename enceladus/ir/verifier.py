"""Check that tile IR is well formed, and legal for its stage.

Reports every problem at once, inside the printed function, because a broken invariant rarely
comes alone.
"""

from __future__ import annotations

from enum import Enum

from enceladus.errors import InternalError
from enceladus.ir import exchange, laid_out, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.printer import Printer


class Stage(Enum):
    """Which operations are legal."""

    TILE = "tile"  # as the front end leaves it: pointers are values
    ARRAY = "array"  # after resolve_pointers: memory accesses name their array
    LAID_OUT = "laid-out"  # after form_groups: tile operations stand in groups


_ONLY_TILE = (ops.AddPointer, ops.Load, ops.Store, exchange.Atomic, exchange.AtomicCas)
_ONLY_ARRAY = (
    ops.ArrayLoad, ops.ArrayStore, ops.IsAligned, exchange.ArrayAtomic, exchange.ArrayAtomicCas,
)  # fmt: skip
_ONLY_LAID_OUT = (
    laid_out.TileGroup, laid_out.ContinueIf, laid_out.Convert,
    laid_out.SharedGather, laid_out.SharedLoad, laid_out.SharedStore,
)  # fmt: skip
_ILLEGAL = {
    Stage.TILE: _ONLY_ARRAY + _ONLY_LAID_OUT,
    Stage.ARRAY: _ONLY_TILE + _ONLY_LAID_OUT,
    Stage.LAID_OUT: _ONLY_TILE,
}
#: What may handle tiles outside groups in the laid-out stage: control flow hands register tiles on.
_CARRIES_TILES = (
    ops.For, ops.If, ops.Yield, laid_out.TileGroup, laid_out.Convert,
    exchange.Reduce, exchange.Scan, exchange.Sort, exchange.Histogram, exchange.Pick,
)  # fmt: skip


def verify(function: Function, stage: Stage = Stage.TILE) -> None:
    """Raise :class:`InternalError` listing every violated rule."""
    problems: list[tuple[Op, str]] = []
    _check_block(function.body, set(), stage, problems)
    if stage is Stage.LAID_OUT:
        _check_groups(function.body, problems)
    if problems:
        printer = Printer()
        text = printer.function(function)
        found = "\n".join(
            f"  {op.mnemonic} {[printer.name(v) for v in op.results]}: {why}" for op, why in problems
        )
        raise InternalError(f"tile IR is broken (stage {stage.value}):\n{found}\n{text}")


def _check_block(block: Block, outer: set[Value], stage: Stage, problems: list[tuple[Op, str]]) -> None:
    visible = outer | set(block.arguments)
    illegal = _ILLEGAL[stage]
    for position, op in enumerate(block.ops):
        if isinstance(op, illegal):
            problems.append((op, f"not legal in stage {stage.value}"))
        problems.extend((op, f"uses {v!r} before it is defined") for v in op.operands if v not in visible)
        expected = None if op.control_flow else op.result_types()
        if expected is not None and tuple(v.type for v in op.results) != expected:
            problems.append((op, f"result types should be {expected}"))
        wrong = op.verify()
        if wrong:
            problems.append((op, wrong))
        if op.terminator and position != len(block.ops) - 1:
            problems.append((op, "a terminator must come last"))
        for nested in op.blocks:
            _check_block(nested, visible if op.control_flow else set(), stage, problems)
        _check_regions(op, problems)
        visible.update(op.results)


def _check_groups(block: Block, problems: list[tuple[Op, str]]) -> None:
    """Outside groups only control flow handles tiles."""
    for op in block.ops:
        if isinstance(op, laid_out.TileGroup):
            if op.layout.numel % op.layout.vector:
                problems.append((op, "the vector does not divide the tile"))
            continue
        tiles = [v for v in (*op.results, *op.operands) if not v.type.is_scalar]
        if tiles and not isinstance(op, _CARRIES_TILES):
            problems.append((op, "a tile operation stands outside a group"))
        for nested in op.blocks:
            _check_groups(nested, problems)


def _check_regions(op: Op, problems: list[tuple[Op, str]]) -> None:
    results = tuple(v.type for v in op.results)
    for block in op.blocks:
        if not block.ops or not isinstance(block.terminator, ops.Yield):
            problems.append((op, "a nested block must end in yield"))
        elif op.control_flow and tuple(v.type for v in block.terminator.operands) != results:
            problems.append((op, "yield does not match the result types"))
    if isinstance(op, ops.For):
        carried = tuple(v.type for v in op.body.arguments[1:])
        if carried != results or op.body.arguments[0].type != op.lower.type:
            problems.append((op, "loop arguments do not match the carried values"))
