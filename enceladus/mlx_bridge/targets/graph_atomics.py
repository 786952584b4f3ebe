"""Atomic updates in the graph engine.

All programs perform an update at the same time, so it takes place as if in the order of the programs, and
within one in the order of its elements. Where nobody asks for the old values, sums, maxima and minima are
one scatter. Otherwise lanes are sorted by address, and a segmented scan gives each lane what the
lanes before it at its address leave behind.

An update may hit one address from every program and element, so operands are taken at full size, also in
dimensions that the engine holds once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from enceladus.errors import CompilationError
from enceladus.interpreter.program import ATOMIC_BINARY, without_collisions
from enceladus.ir.core import Value
from enceladus.ir.exchange import ArrayAtomic, ArrayAtomicCas, AtomicKind
from enceladus.ir.types import DType, Kind, int1
from enceladus.mlx_bridge.targets import graph_arithmetic as arithmetic
from enceladus.mlx_bridge.targets.graph_memory import ArrayContents, Data, target_index, to_mlx

if TYPE_CHECKING:
    from enceladus.mlx_bridge.targets.graph import Evaluator

Combine = Callable[[mx.array, mx.array], mx.array]

#: Compare-and-swaps of one address that are written one after the other into the graph.
MAX_TURNS = 64


def atomic(self: Evaluator, op: ArrayAtomic) -> mx.array | None:
    contents = self.written(op.array)
    shape, index = _lanes(self, op.offset, self.guarded(op.mask, len(op.offset.type.shape)), contents)
    value = _spread(self.values[op.value], shape)
    dtype = op.value.type.dtype
    is_used = self.is_used(op.results[0])
    flat = contents.finish()
    if flat.size == 0:
        return mx.zeros(shape, flat.dtype) if is_used else None
    spare = mx.concatenate([flat, mx.zeros((1,), flat.dtype)])
    if not is_used and op.kind in _SCATTERS and dtype is not int1:
        contents.flat = _SCATTERS[op.kind](spare, to_mlx(index), value, dtype)[: flat.size]
        return None
    spare, old = _in_order(spare, index, value, _combine(op.kind, dtype))
    contents.flat = spare[: flat.size]
    return _visible(old, index, flat.size).reshape(shape) if is_used else None


def compare_and_swap(self: Evaluator, op: ArrayAtomicCas) -> mx.array:
    """One turn for each lane of the most contended address, so the addresses must be known.

    Raises ``CompilationError`` where they are not, or where there would be more than ``MAX_TURNS``.
    """
    contents = self.written(op.array)
    offsets = self.values[op.offset]
    shape, index = _lanes(self, op.offset, self.guarded(None, len(op.offset.type.shape)), contents)
    if not isinstance(offsets, np.ndarray):
        raise _too_hard("at addresses that depend on array data", op)
    compare, value = (_spread(self.values[v], shape) for v in (op.compare, op.value))
    flat = contents.finish()
    spare = mx.concatenate([flat, mx.zeros((1,), flat.dtype)])
    known = index if isinstance(index, np.ndarray) else np.broadcast_to(offsets, shape).reshape(-1)
    lanes = np.flatnonzero((known >= 0) & (known < flat.size))
    turns = [lanes[turn] for turn in without_collisions(known[lanes])]
    if len(turns) > MAX_TURNS:
        raise _too_hard(f"of which {len(turns)} meet in one address", op)
    old = mx.zeros((prod(shape),), flat.dtype)
    for turn in turns:
        chosen = mx.array(turn.astype(np.int32))
        where = to_mlx(index)[chosen]
        before = spare[where]
        after = mx.where(before == compare[chosen], value[chosen], before)
        spare = mx.put_along_axis(spare, where, after, axis=0)
        old = mx.put_along_axis(old, chosen, before, axis=0)
    contents.flat = spare[: flat.size]
    return _visible(old, index, flat.size).reshape(shape)


def _too_hard(how: str, op: ArrayAtomicCas) -> CompilationError:
    return CompilationError(
        f"the graph engine (CPU) cannot order compare-and-swaps {how}",
        "run with ENCELADUS_INTERPRET=1 or on a GPU",
        op.loc,
    )


def _lanes(
    self: Evaluator, offset: Value, mask: Data | None, contents: ArrayContents
) -> tuple[tuple[int, ...], Data]:
    """The shape of the lanes of all programs, and the element that each updates; int32, flat."""
    shape = (len(self.programs), *offset.type.shape)
    index = target_index(self.values[offset], mask, contents.flat.size)
    if isinstance(index, np.ndarray):
        return shape, np.broadcast_to(index, shape).reshape(-1)
    return shape, mx.broadcast_to(index, shape).reshape(-1)


def _spread(data: Data, shape: tuple[int, ...]) -> mx.array:
    return mx.broadcast_to(to_mlx(data), shape).reshape(-1)


def _visible(old: mx.array, index: Data, size: int) -> mx.array:
    """The old values; 0 where nothing is updated."""
    if isinstance(index, np.ndarray) and index.max(initial=0) < size:
        return old
    return mx.where(to_mlx(index) < mx.array(size, mx.int32), old, mx.array(0, old.dtype))


def _combine(kind: AtomicKind, dtype: DType) -> Combine:
    binary = ATOMIC_BINARY.get(kind)
    if binary is None:  # XCHG
        return lambda old, new: new
    return lambda x, y: arithmetic.binary(binary, x, y, dtype)


# ------------------------------------------------------------------------------- one scatter


def _add(flat: mx.array, index: mx.array, value: mx.array, dtype: DType) -> mx.array:
    return flat.at[index].add(value)


def _maximum(flat: mx.array, index: mx.array, value: mx.array, dtype: DType) -> mx.array:
    if dtype.kind is Kind.FLOAT:
        return _extreme(flat, index, value, is_maximum=True)
    return flat.at[index].maximum(value)


def _minimum(flat: mx.array, index: mx.array, value: mx.array, dtype: DType) -> mx.array:
    if dtype.kind is Kind.FLOAT:
        return _extreme(flat, index, value, is_maximum=False)
    return flat.at[index].minimum(value)


_SCATTERS: dict[AtomicKind, Callable[[mx.array, mx.array, mx.array, DType], mx.array]] = {
    AtomicKind.ADD: _add,
    AtomicKind.MAX: _maximum,
    AtomicKind.MIN: _minimum,
}


def _extreme(flat: mx.array, index: mx.array, value: mx.array, is_maximum: bool) -> mx.array:
    """Floats compare as integers of the same order, in which NaN loses; then the winning lane is taken."""
    before, keys = (arithmetic.order_keys(x, is_maximum) for x in (flat, value))
    after = before.at[index].maximum(keys) if is_maximum else before.at[index].minimum(keys)
    count = value.size
    lanes, none = mx.arange(count, dtype=mx.int32), mx.array(count, mx.int32)
    first = (
        mx.full(flat.shape, count, mx.int32).at[index].minimum(mx.where(keys == after[index], lanes, none))
    )
    winner = value[mx.minimum(first, mx.array(count - 1, mx.int32))]
    return mx.where(before == after, flat, winner)


# ---------------------------------------------------------------------------------- in order


def _in_order(spare: mx.array, index: Data, value: mx.array, combine: Combine) -> tuple[mx.array, mx.array]:
    """The array after all lanes have combined with it one after the other, and what each lane found.

    ``spare`` has a last element for the lanes that do nothing. ``combine`` must be associative.
    """
    count = value.size
    order, addresses = _by_address(index, count)
    prefix = value[to_mlx(order)]
    distance = 1
    while distance < count:
        together = addresses[distance:] == addresses[:-distance]
        if isinstance(together, np.ndarray) and not together.any():
            break
        later = prefix[distance:]
        combined = combine(prefix[:-distance], later)
        prefix = mx.concatenate([prefix[:distance], mx.where(to_mlx(together), combined, later)])
        distance *= 2
    is_new = to_mlx(addresses[1:] != addresses[:-1])
    end = mx.array([True])
    where = to_mlx(addresses)
    before = spare[where]
    found = combine(before, mx.concatenate([prefix[:1], prefix[:-1]]))
    found = mx.where(mx.concatenate([end, is_new]), before, found)
    old = mx.put_along_axis(mx.zeros_like(value), to_mlx(order), found, axis=0)
    # Only the last lane of an address writes; the others go to the element to spare.
    last = mx.concatenate([is_new, end])
    target = mx.where(last, where, mx.array(spare.size - 1, mx.int32))
    return mx.put_along_axis(spare, target, combine(before, prefix), axis=0), old


def _by_address(index: Data, count: int) -> tuple[Data, Data]:
    """The lanes by address, equal ones in their order, and the addresses in this order; int32."""
    if isinstance(index, np.ndarray):
        order = np.argsort(index, kind="stable").astype(np.int32)
        return order, index[order]
    lanes = mx.arange(count, dtype=mx.int64)
    found = mx.argsort(index.astype(mx.int64) * mx.array(count, mx.int64) + lanes).astype(mx.int32)
    return found, index[found]
