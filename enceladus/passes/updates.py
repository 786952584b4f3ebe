"""How a kernel's atomic updates reach an array, given that MLX's inputs are immutable and its outputs fresh.

The output holds one 32-bit word per element, 0 at first, whatever the element type. The launch makes the new
contents from it and the old ones (``mlx_bridge.updates``). Two manners:

* *collected*: all updates of the array are of one kind whose order does not matter. The word is the
  combination of the updates alone, and 0 its neutral element: the sum, the "or" or "xor" of the bits, the
  "or" of complements (for "and"), the largest key (``codegen.atomic_helpers``) for maxima and minima. One
  instruction of the GPU updates it, for every element type. The old value of an update is the old
  contents, combined with what the word held before.
* *difference*: anything else (exchange, compare and swap, several kinds, stores as well). The word is the
  xor of the present bits with the old ones, so the kernel always knows the present contents. A store is an
  exchange whose old value nobody wants; :func:`run` rewrites it so.

Words of their own also mean that 8- and 16-bit elements never share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.types import DType, float32, int32, uint32
from enceladus.passes.affine import uses_of

Atomic = exchange.ArrayAtomic | exchange.ArrayAtomicCas
ATOMICS = (exchange.ArrayAtomic, exchange.ArrayAtomicCas)
#: Operations that change an array.
WRITES = (ops.ArrayStore, *ATOMICS)

#: Kinds whose order does not matter among themselves.
COMMUTATIVE = frozenset(AtomicKind) - {AtomicKind.XCHG}


@dataclass(frozen=True, slots=True)
class Manner:
    """How one array is updated. ``kind``: of collected updates, or ``None`` for differences."""

    kind: AtomicKind | None
    element: DType
    needs_old: bool  #: whether the kernel reads the old contents for the updates

    @property
    def name(self) -> str:
        """The kind's name, or ``"difference"``."""
        return "difference" if self.kind is None else self.kind.value

    @property
    def word(self) -> DType:
        """The type of the output's elements."""
        return self.number if self.kind is AtomicKind.ADD else uint32

    @property
    def number(self) -> DType:
        """The type in which collected updates are handed over."""
        return accumulator(self.element)

    @property
    def is_open(self) -> bool:
        """Whether nobody can tell in which order the updates happened."""
        return not self.needs_old


def accumulator(dtype: DType) -> DType:
    """The 32-bit type in which elements of ``dtype`` combine."""
    if dtype.is_floating():
        return float32
    return uint32 if dtype.is_int_unsigned() else int32


def manners(function: Function) -> dict[Value, Manner]:
    """The manner of every array that is updated atomically. ``function`` is in stage ARRAY."""
    atomics = [op for op in function.walk() if isinstance(op, WRITES)]
    arrays = {op.array for op in atomics if isinstance(op, ATOMICS)}
    if not arrays:
        return {}
    uses = uses_of(function.body)
    found: dict[Value, Manner] = {}
    for array in function.arguments:
        if array not in arrays:
            continue
        mine = [op for op in atomics if op.array is array]
        kinds = {getattr(op, "kind", None) for op in mine}
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if kind not in COMMUTATIVE:
            kind = None
        needs_old = kind is None or any(uses.get(v, 0) for op in mine for v in op.results)
        found[array] = Manner(kind, array.type.element.element, needs_old)  # type: ignore[union-attr]
    return found


def run(function: Function, found: Mapping[Value, Manner]) -> Function:
    """Rewrite stores to arrays that are also updated atomically as exchanges, in place."""
    if found:
        _block(function.body, found)
    return function


def _block(block: Block, found: Mapping[Value, Manner]) -> None:
    for position, op in enumerate(block.ops):
        if isinstance(op, ops.ArrayStore) and op.array in found:
            swap = exchange.ArrayAtomic(AtomicKind.XCHG, op.array, op.offset, op.value, op.mask)
            swap.loc = op.loc
            swap.results = tuple(Value(t, swap) for t in swap.result_types())
            block.ops[position] = swap
        for nested in op.blocks if op.control_flow else ():
            _block(nested, found)
