"""How a kernel uses each array: roles, and loads that would have to see the program's own stores.

MLX's inputs are immutable and its outputs fresh, so a load always sees the contents from before the
launch. A load that follows a store to the same array in program order must see that store in Triton;
unless the two provably touch the same or different elements in an order that does not matter, it is
refused here. Analysis only: nothing is rewritten.
"""

from __future__ import annotations

from enceladus.codegen.kernel import Role
from enceladus.errors import CompilationError
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Value

#: What a later load of the array would have to see.
Write = ops.ArrayStore | exchange.ArrayAtomic | exchange.ArrayAtomicCas


def roles(function: Function) -> dict[Value, Role]:
    """The role of every array argument. One that is updated atomically is read and written as well."""
    read, written, atomic = set(), set(), set()
    for op in function.walk():
        if isinstance(op, ops.ArrayLoad):
            read.add(op.array)
        elif isinstance(op, ops.ArrayStore):
            written.add(op.array)
        elif isinstance(op, Write):
            atomic.add(op.array)
    found = {}
    for value in function.arguments:
        if value.type.element.is_ptr():
            if value in atomic:
                found[value] = Role.ATOMIC
                continue
            found[value] = {
                (False, False): Role.UNUSED,
                (True, False): Role.READ,
                (False, True): Role.WRITTEN,
                (True, True): Role.READ_WRITTEN,
            }[value in read, value in written]
    return found


def hazards(function: Function) -> set[tuple[Value, Value]]:
    """Pairs (stored array, loaded array) of *different* parameters where a load may follow a store.

    Passing one array for both would need the load to see the store. A load that follows a store of the
    same parameter raises :class:`CompilationError`.
    """
    found: set[tuple[Value, Value]] = set()
    _walk(function.body, {}, found)
    return found


def _walk(block: Block, stored: dict[Value, Write], found: set[tuple[Value, Value]]) -> None:
    """``stored`` maps each array to a store that may have happened before the present operation."""
    for op in block.ops:
        match op:
            case ops.ArrayStore() | exchange.ArrayAtomic() | exchange.ArrayAtomicCas():
                stored.setdefault(op.array, op)
            case ops.ArrayLoad():
                if op.array in stored:
                    _refuse(op, stored[op.array])
                found.update(
                    (array, op.array) for array in stored if array.type.element == op.array.type.element
                )
            case ops.For():
                # What the body stores, the next iteration may load: walk it as if it had just run.
                for inner in op.body.walk():
                    if isinstance(inner, Write) and not _moves_on(inner, op):
                        stored.setdefault(inner.array, inner)
                _walk(op.body, stored, found)
            case ops.If():
                before = dict(stored)
                _walk(op.then_block, stored, found)
                _walk(op.else_block, before, found)
                for array, store in before.items():
                    stored.setdefault(array, store)


def _moves_on(store: Write, loop: ops.For) -> bool:
    """Whether every load of the array in ``loop`` reads exactly the elements this iteration stores.

    Then an iteration reads before it writes its own elements, and no other iteration's, provided that
    the offsets advance without coming back: true for an offset whose only loop-varying part is the
    induction variable times a constant at least as large as the tile's extent.
    """
    loads = [x for x in loop.body.walk() if isinstance(x, ops.ArrayLoad) and x.array is store.array]
    if any(x.offset is not store.offset for x in loads):
        return False
    return not loads or _advances(store.offset, loop)


def _advances(offset: Value, loop: ops.For) -> bool:
    """Whether ``offset`` is ``induction + fixed + range``, with a step no smaller than the range's length."""
    op = offset.owner
    if not isinstance(op, ops.Binary) or op.kind is not ops.BinaryKind.ADD:
        return False
    step = loop.step.owner
    if not isinstance(step, ops.Constant):
        return False
    inner = {v for o in loop.body.walk() for v in o.results}
    # The induction variables of nested loops too.
    inner.update(v for o in loop.body.walk() for block in o.blocks for v in block.arguments)
    inner.update(loop.body.arguments)
    for splat, tile in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if not isinstance(splat.owner, ops.Splat) or not isinstance(tile.owner, ops.MakeRange):
            continue
        moves = _is_shifted(splat.owner.value, loop.body.arguments[0], inner)
        if moves and abs(int(step.value)) >= tile.type.numel:
            return True
    return False


def _is_shifted(value: Value, induction: Value, inner: set[Value]) -> bool:
    """Whether ``value`` is ``induction`` plus terms that are not in ``inner``: the same in all iterations."""
    if value is induction:
        return True
    op = value.owner
    if not isinstance(op, ops.Binary) or op.kind is not ops.BinaryKind.ADD:
        return False
    return any(
        fixed not in inner and _is_shifted(rest, induction, inner)
        for fixed, rest in ((op.lhs, op.rhs), (op.rhs, op.lhs))
    )


def _refuse(load: ops.ArrayLoad, store: Write) -> None:
    where = f" at line {store.loc.line}" if store.loc else ""
    what = "store" if isinstance(store, ops.ArrayStore) else "atomic update"
    raise CompilationError(
        f"this load of {load.array.name!r} may have to see the program's own {what}{where}, "
        "but a kernel sees an array as it was before the launch",
        "keep the stored value in a variable and use it, store to another array, or split the kernel in two",
        load.loc,
    )
