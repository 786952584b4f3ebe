"""One program of a launch on NumPy: where it is in the grid, and what it does to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from enceladus.errors import EnceladusError, InternalError, Location
from enceladus.interpreter.arithmetic import binary
from enceladus.interpreter.arrays import NUMPY_DTYPES, BoundArray, Data, Pointers
from enceladus.interpreter.semantics import EVALUATORS, evaluate_all
from enceladus.ir import exchange, ops
from enceladus.ir.core import Op, Value

Triple = tuple[int, int, int]


class KernelRuntimeError(EnceladusError):
    """A kernel went wrong while it ran. ``reason`` says how, ``location`` where (``None``: unknown)."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason
        self.location: Location | None = None

    def __str__(self) -> str:
        if self.location is None:
            return self.reason
        excerpt = self.location.excerpt()
        return f"{self.location}: {self.reason}" + (f"\n{excerpt}" if excerpt else "")


class OutOfBoundsError(KernelRuntimeError, IndexError):
    """A kernel touched memory outside an array.

    Attributes: ``parameter`` (name of the array), ``offset`` (the first bad element offset), ``size`` (the
    array's size in elements), ``program`` (the program's grid index), ``element`` (index in the tile).
    """

    def __init__(
        self, access: str, array: BoundArray, offset: int, element: tuple[int, ...], program: Triple
    ):
        self.parameter = array.name
        self.offset = offset
        self.size = array.flat.size
        self.program = program
        self.element = element
        where = f"program {program}" + (f", tile element {list(element)}" if element else "")
        super().__init__(f"{access} of {array.name}[{offset}], an array of {self.size} elements ({where})")


class AssumptionError(KernelRuntimeError):
    """A promise made with ``tl.assume`` does not hold."""


@dataclass(slots=True)
class Program:
    """A program's position: ``index`` in a ``grid`` of programs."""

    grid: Triple
    index: Triple = (0, 0, 0)


def bind_array(name: str, array: np.ndarray) -> BoundArray:
    """A 1-D view of ``array``'s memory, so that stores reach it.

    Raises ``TypeError`` for something else than an array, ``ValueError`` for one that is not C-contiguous.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"argument {name!r} must be a NumPy array, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise ValueError(f"argument {name!r} must be a C-contiguous array (see numpy.ascontiguousarray)")
    return BoundArray(name, array.reshape(-1))


def check_bounds(access: str, pointers: Pointers, active: np.ndarray, program: Program) -> None:
    """Raise :class:`OutOfBoundsError` if a pointer leads outside its array where ``active`` (bool_) holds."""
    offsets = pointers.offsets
    bad = active & ((offsets < 0) | (offsets >= pointers.array.flat.size))
    if bad.any():
        element = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), offsets.shape))
        raise OutOfBoundsError(access, pointers.array, int(offsets[element]), element, program.index)


def _active(mask: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)


def load(
    pointers: Pointers, mask: np.ndarray | None, other: np.ndarray | None, program: Program
) -> np.ndarray:
    """The elements under ``pointers``; where ``mask`` is false, ``other`` or 0, and no memory is touched."""
    array, offsets = pointers.array, pointers.offsets
    active = _active(mask, offsets.shape)
    check_bounds("load", pointers, active, program)
    result = np.zeros(offsets.shape, array.flat.dtype)
    if other is not None:
        result[...] = other
    result[active] = array.before[offsets[active]]
    return result


def store(pointers: Pointers, value: np.ndarray, mask: np.ndarray | None, program: Program) -> None:
    """Write ``value`` where ``mask`` is true; of elements with equal offsets the last one stays."""
    array, offsets = pointers.array, pointers.offsets
    active = _active(mask, offsets.shape)
    check_bounds("store", pointers, active, program)
    _make_writable(array)
    array.flat[offsets[active]] = np.broadcast_to(value, offsets.shape)[active]


def _make_writable(array: BoundArray) -> None:
    """Keep the contents from before the launch, for the loads."""
    if not array.flat.flags.writeable:
        raise ValueError(f"the kernel writes to {array.name!r}, which is a read-only array")
    if array.before is array.flat:
        array.before = array.flat.copy()


#: What an atomic update computes from the old value and the operand.
ATOMIC_BINARY = {
    exchange.AtomicKind.ADD: ops.BinaryKind.ADD,
    exchange.AtomicKind.MAX: ops.BinaryKind.MAX,
    exchange.AtomicKind.MIN: ops.BinaryKind.MIN,
    exchange.AtomicKind.AND: ops.BinaryKind.AND,
    exchange.AtomicKind.OR: ops.BinaryKind.OR,
    exchange.AtomicKind.XOR: ops.BinaryKind.XOR,
}

Update = Callable[..., np.ndarray]


def update(
    pointers: Pointers,
    new: Update,
    operands: tuple[np.ndarray, ...],
    mask: np.ndarray | None,
    program: Program,
) -> np.ndarray:
    """``*pointer = new(old, *operands)`` where ``mask`` holds, element after element; the old values, else 0.

    Works on the present contents, so it sees what earlier updates and stores did. ``new`` takes 1-D arrays.
    """
    array, offsets = pointers.array, pointers.offsets
    active = _active(mask, offsets.shape)
    check_bounds("atomic update", pointers, active, program)
    _make_writable(array)
    result = np.zeros(offsets.shape, array.flat.dtype)
    where = offsets[active]
    chosen = [np.broadcast_to(x, offsets.shape)[active] for x in operands]
    old = np.zeros(where.shape, array.flat.dtype)
    for lanes in without_collisions(where):
        old[lanes] = array.flat[where[lanes]]
        array.flat[where[lanes]] = new(old[lanes], *(x[lanes] for x in chosen))
    result[active] = old
    return result


def without_collisions(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """All lanes in groups of different offsets: a lane comes after the earlier lanes of its offset."""
    order = np.argsort(offsets, kind="stable")
    ordered = offsets[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    lengths = np.diff(starts, append=len(ordered))
    for turn in range(int(lengths.max(initial=0))):
        yield order[starts[lengths > turn] + turn]


Read = Callable[[Value], Data]


def execute(op: Op, read: Read, program: Program) -> tuple[Data, ...]:
    """Perform one operation other than control flow; ``read`` gives the data of its operands.

    Raises :class:`OutOfBoundsError`, :class:`AssumptionError`, ``ValueError`` for a store to a read-only
    array, and ``InternalError`` for control flow, which has no place here.
    """
    if type(op) in EVALUATORS:
        return evaluate_all(op, *map(read, op.operands))
    action = _EFFECTS.get(type(op))
    if action is None:
        raise InternalError(f"operation {op.mnemonic!r} cannot be executed on its own")
    return action(op, read, program)


def _optional(read: Read, value: Value | None) -> np.ndarray | None:
    if value is None:
        return None
    data = read(value)
    assert isinstance(data, np.ndarray)
    return data


def _at(
    op: ops.ArrayLoad | ops.ArrayStore | ops.IsAligned | exchange.ArrayAtomic | exchange.ArrayAtomicCas,
    read: Read,
) -> Pointers:
    array, offset = read(op.array), read(op.offset)
    assert isinstance(array, Pointers) and isinstance(offset, np.ndarray)
    return Pointers(array.array, array.offsets + offset.astype(np.int64))


def _program_id(op: ops.ProgramId, read: Read, program: Program) -> tuple[Data, ...]:
    return (np.asarray(program.index[op.axis], NUMPY_DTYPES[op.dtype]),)


def _num_programs(op: ops.NumPrograms, read: Read, program: Program) -> tuple[Data, ...]:
    return (np.asarray(program.grid[op.axis], NUMPY_DTYPES[op.dtype]),)


def _load(op: ops.Load, read: Read, program: Program) -> tuple[Data, ...]:
    pointers = read(op.pointer)
    assert isinstance(pointers, Pointers)
    return (load(pointers, _optional(read, op.mask), _optional(read, op.other), program),)


def _store(op: ops.Store, read: Read, program: Program) -> tuple[Data, ...]:
    pointers, value = read(op.pointer), read(op.value)
    assert isinstance(pointers, Pointers) and isinstance(value, np.ndarray)
    store(pointers, value, _optional(read, op.mask), program)
    return ()


def _array_load(op: ops.ArrayLoad, read: Read, program: Program) -> tuple[Data, ...]:
    return (load(_at(op, read), _optional(read, op.mask), _optional(read, op.other), program),)


def _array_store(op: ops.ArrayStore, read: Read, program: Program) -> tuple[Data, ...]:
    value = read(op.value)
    assert isinstance(value, np.ndarray)
    store(_at(op, read), value, _optional(read, op.mask), program)
    return ()


def _update(
    op: exchange.Atomic | exchange.ArrayAtomic, pointers: Data, read: Read, program: Program
) -> tuple[Data, ...]:
    value = read(op.value)
    assert isinstance(pointers, Pointers) and isinstance(value, np.ndarray)
    kind = ATOMIC_BINARY.get(op.kind)
    dtype = op.value.type.dtype

    def new(old: np.ndarray, operand: np.ndarray) -> np.ndarray:
        if kind is None:  # XCHG
            return operand
        with np.errstate(all="ignore"):
            return binary(kind, old, operand, dtype)

    return (update(pointers, new, (value,), _optional(read, op.mask), program),)


def _compare_and_swap(
    op: exchange.AtomicCas | exchange.ArrayAtomicCas, pointers: Data, read: Read, program: Program
) -> tuple[Data, ...]:
    compare, value = _optional(read, op.compare), _optional(read, op.value)
    assert isinstance(pointers, Pointers) and compare is not None and value is not None

    def new(old: np.ndarray, compare: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.where(old == compare, value, old)

    return (update(pointers, new, (compare, value), None, program),)


def _is_aligned(op: ops.IsAligned, read: Read, program: Program) -> tuple[Data, ...]:
    pointer = _at(op, read)
    flat = pointer.array.flat
    address = flat.ctypes.data + int(pointer.offsets) * flat.itemsize
    return (np.asarray(address % op.bytes == 0),)


def _assume(op: ops.Assume, read: Read, program: Program) -> tuple[Data, ...]:
    if not read(op.condition):
        raise AssumptionError(f"the condition of tl.assume is false in program {program.index}")
    return ()


_EFFECTS: dict[type[Op], Callable[..., tuple[Data, ...]]] = {
    ops.ProgramId: _program_id,
    ops.NumPrograms: _num_programs,
    ops.Load: _load,
    ops.Store: _store,
    ops.ArrayLoad: _array_load,
    ops.ArrayStore: _array_store,
    exchange.Atomic: lambda op, read, program: _update(op, read(op.pointer), read, program),
    exchange.ArrayAtomic: lambda op, read, program: _update(op, _at(op, read), read, program),
    exchange.AtomicCas: lambda op, read, program: _compare_and_swap(op, read(op.pointer), read, program),
    exchange.ArrayAtomicCas: lambda op, read, program: _compare_and_swap(op, _at(op, read), read, program),
    ops.IsAligned: _is_aligned,
    ops.Assume: _assume,
    ops.Barrier: lambda op, read, program: (),
}
