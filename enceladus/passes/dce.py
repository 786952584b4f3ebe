"""Remove what nobody needs.

After: every operation has an effect or a used result, and loops carry only values that reach one.
Roots are operations with effects (stores, barriers, control flow that contains one). Cost: one backward
walk, repeated only for loops whose carried values turn out to matter late.
"""

from __future__ import annotations

from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Value


def run(function: Function) -> Function:
    """Remove dead operations of ``function`` in place and return it."""
    _sweep(function.body, set())
    return function


def _sweep(block: Block, live: set[Value]) -> None:
    """Drop dead operations of ``block``; ``live`` holds the values needed later and grows."""
    kept = []
    for op in reversed(block.ops):
        match op:
            case ops.For():
                if not any(v in live for v in op.results) and not _has_effect(op.body):
                    continue
                _sweep_loop(op, live)
            case ops.If():
                used = any(v in live for v in op.results)
                if not used and not _has_effect(op.then_block) and not _has_effect(op.else_block):
                    continue
                _sweep_branch(op, live)
            case _ if op.pure and not any(v in live for v in op.results):
                continue
            case _:
                live.update(op.operands)
        kept.append(op)
    kept.reverse()
    block.ops = kept


def _sweep_branch(op: ops.If, live: set[Value]) -> None:
    needed = [i for i, v in enumerate(op.results) if v in live]
    op.results = tuple(op.results[i] for i in needed)
    live.add(op.condition)
    for block in op.blocks:
        terminator = block.terminator
        assert isinstance(terminator, ops.Yield)
        terminator.values = tuple(terminator.values[i] for i in needed)
        _sweep(block, live)


def _sweep_loop(op: ops.For, live: set[Value]) -> None:
    terminator = op.body.terminator
    assert isinstance(terminator, ops.Yield)
    carried = op.body.arguments[1:]
    needed = {i for i, v in enumerate(op.results) if v in live}
    while True:  # a carried value may be needed only by the next iteration of another one
        inner = live
        terminator.values, everything = tuple(terminator.values[i] for i in sorted(needed)), terminator.values
        inner = _live_in(op.body, inner)
        terminator.values = everything
        more = {i for i, v in enumerate(carried) if v in inner} - needed
        if not more:
            break
        needed |= more
    keep = sorted(needed)
    terminator.values = tuple(terminator.values[i] for i in keep)
    op.results = tuple(op.results[i] for i in keep)
    op.initial = tuple(op.initial[i] for i in keep)
    op.body.arguments = (op.body.arguments[0], *(carried[i] for i in keep))
    _sweep(op.body, live)
    live.update((op.lower, op.upper, op.step))
    live.update(op.initial)


def _live_in(block: Block, live: set[Value]) -> set[Value]:
    """Values that the live operations of ``block`` use; nothing is removed."""
    live = set(live)
    for op in reversed(block.ops):
        if op.control_flow:
            for nested in op.blocks:
                live |= _live_in(nested, live)
            live.update(op.operands)
        elif not op.pure or any(v in live for v in op.results):
            live.update(op.operands)
    return live


def _has_effect(block: Block) -> bool:
    return any(not op.pure and not op.control_flow and not op.terminator for op in block.walk())
