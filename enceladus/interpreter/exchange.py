"""The NumPy meaning of the operations through which elements of a tile meet (``ir.exchange``).

As in ``semantics``, a tile of shape ``s`` may come with leading axes, which may differ between operands.
"""

from __future__ import annotations

import numpy as np

from enceladus.interpreter import combine
from enceladus.interpreter.arithmetic import widen
from enceladus.interpreter.arrays import NUMPY_DTYPES
from enceladus.ir.core import Value
from enceladus.ir.exchange import Gather, Histogram, Join, Pick, Reduce, Reshape, Scan, Sort, Transpose
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import DType, Kind, float32, int1

_FLOAT_UFUNCS: dict[BinaryKind, np.ufunc] = {
    BinaryKind.MIN: np.fmin,
    BinaryKind.MAX: np.fmax,
    BinaryKind.MIN_NAN: np.minimum,
    BinaryKind.MAX_NAN: np.maximum,
}
_INTEGER_UFUNCS: dict[BinaryKind, np.ufunc] = {
    BinaryKind.ADD: np.add,
    BinaryKind.MUL: np.multiply,
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
    BinaryKind.MIN: np.minimum,
    BinaryKind.MAX: np.maximum,
    BinaryKind.MIN_NAN: np.minimum,
    BinaryKind.MAX_NAN: np.maximum,
}
#: One bit: sums are taken modulo 2.
_BOOL_UFUNCS: dict[BinaryKind, np.ufunc] = {
    BinaryKind.ADD: np.logical_xor,
    BinaryKind.XOR: np.logical_xor,
    BinaryKind.MUL: np.logical_and,
    BinaryKind.AND: np.logical_and,
    BinaryKind.MIN: np.logical_and,
    BinaryKind.MIN_NAN: np.logical_and,
    BinaryKind.OR: np.logical_or,
    BinaryKind.MAX: np.logical_or,
    BinaryKind.MAX_NAN: np.logical_or,
}
_FLOAT32_UFUNCS: dict[BinaryKind, np.ufunc] = {
    BinaryKind.ADD: np.add,
    BinaryKind.MUL: np.multiply,
    **_FLOAT_UFUNCS,
}


def _ufunc(kind: BinaryKind, dtype: DType) -> tuple[np.ufunc, np.dtype] | None:
    """The ufunc that combines by ``kind`` and the type to do it in; ``None``: step by step.

    Sums and products of float32 are taken in float64 and rounded once, the reference that other engines are
    measured against. Those of 16-bit floats round at every step, so no ufunc does it.
    """
    working: np.dtype = NUMPY_DTYPES[dtype]
    if dtype is int1:
        found = _BOOL_UFUNCS.get(kind)
    elif dtype.kind is not Kind.FLOAT:
        found = _INTEGER_UFUNCS.get(kind)
    elif dtype is float32:
        found = _FLOAT32_UFUNCS.get(kind)
        working = np.dtype(np.float64) if kind in (BinaryKind.ADD, BinaryKind.MUL) else working
    else:
        found, working = _FLOAT_UFUNCS.get(kind), np.dtype(np.float32)
    return None if found is None else (found, working)


def _native(op: Reduce | Scan) -> list[tuple[np.ufunc, np.dtype]] | None:
    """A ufunc for each input, or ``None`` where at least one input needs the general way."""
    kinds = combine.single_kinds(op)
    if kinds is None:
        return None
    found = [_ufunc(kind, v.type.dtype) for kind, v in zip(kinds, op.inputs, strict=True)]
    return [pair for pair in found if pair is not None] if None not in found else None


def reduce(op: Reduce, *inputs: np.ndarray, arrays: combine.Arrays) -> tuple[np.ndarray, ...]:
    """Combine along ``op.axis``."""
    native = _native(op)
    if native is None:
        common = np.broadcast_arrays(*inputs)
        return tuple(combine.reduce(op, common, _axis(op.inputs[0], op.axis, common[0]), arrays))
    return tuple(
        np.asarray(ufunc.reduce(x.astype(dtype, copy=False), _axis(v, op.axis, x), dtype)).astype(x.dtype)
        for x, v, (ufunc, dtype) in zip(inputs, op.inputs, native, strict=True)
    )


def scan(op: Scan, *inputs: np.ndarray, arrays: combine.Arrays) -> tuple[np.ndarray, ...]:
    """Inclusive prefixes along ``op.axis``."""
    native = _native(op)
    if native is None:
        common = np.broadcast_arrays(*inputs)
        return tuple(combine.scan(op, common, _axis(op.inputs[0], op.axis, common[0]), arrays))
    results = []
    for x, v, (ufunc, dtype) in zip(inputs, op.inputs, native, strict=True):
        axis = _axis(v, op.axis, x)
        ordered = np.flip(x, axis) if op.reverse else x
        prefixes = ufunc.accumulate(ordered.astype(dtype, copy=False), axis).astype(x.dtype)
        results.append(np.flip(prefixes, axis) if op.reverse else prefixes)
    return tuple(results)


def _axis(value: Value, axis: int, x: np.ndarray) -> int:
    """The dimension of ``x`` that is the tile's dimension ``axis``."""
    return x.ndim - len(value.type.shape) + axis


def transpose(op: Transpose, x: np.ndarray) -> np.ndarray:
    leading = x.ndim - len(op.order)
    return x.transpose((*range(leading), *(leading + k for k in op.order)))


def reshape(op: Reshape, x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[: x.ndim - len(op.value.type.shape)] + op.shape)


def join(op: Join, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack(np.broadcast_arrays(first, second), axis=-1)


def pick(op: Pick, x: np.ndarray) -> np.ndarray:
    return x[..., op.index]


def gather(op: Gather, source: np.ndarray, index: np.ndarray) -> np.ndarray:
    rank = len(op.source.type.shape)
    wrapped = wrap_index(index, source.shape[op.axis - rank])
    leading = np.broadcast_shapes(source.shape[:-rank], index.shape[:-rank])
    source, wrapped = (np.broadcast_to(x, leading + x.shape[-rank:]) for x in (source, wrapped))
    return np.take_along_axis(source, wrapped, op.axis - rank)


def wrap_index(index: np.ndarray, size: int) -> np.ndarray:
    """``index`` modulo ``size`` as int64, in ``[0, size)``."""
    if index.dtype == np.uint64:
        return (index % np.uint64(size)).astype(np.int64)
    return index.astype(np.int64) % size


def sort(op: Sort, x: np.ndarray) -> np.ndarray:
    """NumPy puts NaN last. 16-bit floats sort as float32, which orders them alike."""
    ordered = widen(x) if op.value.type.dtype.kind is Kind.FLOAT else x
    ordered = np.sort(ordered, axis=-1).astype(x.dtype, copy=False)
    return ordered[..., ::-1] if op.descending else ordered


def histogram(op: Histogram, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    counted = (x >= 0) & (x <= np.asarray(min(op.bins - 1, op.value.type.dtype.maximum), x.dtype))
    if mask is not None:
        counted = counted & mask
    # One more bin takes what is not counted. Each row of the leading axes has bins of its own.
    bins = np.where(counted, x.astype(np.int64), op.bins)
    rows = bins.reshape(-1, bins.shape[-1])
    start = np.arange(len(rows))[:, None] * (op.bins + 1)
    counts = np.bincount((start + rows).ravel(), minlength=len(rows) * (op.bins + 1))
    return counts.reshape(*bins.shape[:-1], op.bins + 1)[..., : op.bins].astype(np.int32)
