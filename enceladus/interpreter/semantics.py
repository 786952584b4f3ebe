"""The meaning of the pure operations on NumPy arrays, keyed by operation class.

Shape rules look only at trailing dimensions: a tile of shape ``s`` may come as an array of shape
``(*leading, *s)``, for instance with one leading axis for all programs at once, and operands without
leading axes combine with operands that have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from enceladus.errors import CompilationError, InternalError
from enceladus.interpreter import arithmetic, combine
from enceladus.interpreter import exchange as meet
from enceladus.interpreter.arrays import NUMPY_DTYPES, BoundArray, Data, Pointers, constant
from enceladus.ir import exchange, ops
from enceladus.ir.core import Op


def evaluate(op: Op, *operands: Data) -> Data:
    """The result of a pure operation that has one.

    ``operands`` are the data of ``op.operands``, in that order; their element types are those that
    the operation's values declare. Raises ``InternalError`` for an operation or kind without a
    meaning on these types.
    """
    (result,) = evaluate_all(op, *operands)
    return result


def evaluate_all(op: Op, *operands: Data) -> tuple[Data, ...]:
    """The results of a pure operation, as :func:`evaluate`."""
    function = EVALUATORS.get(type(op))
    if function is None:
        raise InternalError(f"operation {op.mnemonic!r} is not a pure function of its operands")
    try:
        with np.errstate(all="ignore"):
            result = function(op, *operands)
    except KeyError as error:
        types = ", ".join(str(v.type) for v in op.operands)
        raise InternalError(f"{op.mnemonic} {error.args[0]} has no meaning on ({types})") from error
    results = result if isinstance(result, tuple) else (result,)
    return tuple(x if isinstance(x, Pointers) else np.asarray(x) for x in results)


def _per_element(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, Data], Data]:
    """Apply a change of shape to numbers, or to the offsets of pointers."""

    def apply(op: Any, data: Data) -> Data:
        if isinstance(data, Pointers):
            return Pointers(data.array, function(op, data.offsets))  # type: ignore[call-arg]
        return function(op, data)  # type: ignore[call-arg]

    return apply


def _splat(op: ops.Splat, x: np.ndarray) -> np.ndarray:
    leading = x.shape
    return np.broadcast_to(x.reshape(leading + (1,) * len(op.shape)), leading + op.shape)


def _expand_dims(op: ops.ExpandDims, x: np.ndarray) -> np.ndarray:
    rank = len(op.value.type.shape) + 1
    return np.expand_dims(x, op.axis - rank)


def _broadcast(op: ops.Broadcast, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, x.shape[: x.ndim - len(op.shape)] + op.shape)


def _select(op: ops.Select, condition: np.ndarray, on_true: Data, on_false: Data) -> Data:
    if isinstance(on_true, Pointers) or isinstance(on_false, Pointers):
        array, x, y = _into_one_array("a choice between pointers", on_true, on_false)
        return Pointers(array, np.where(condition, x, y))
    return np.where(condition, on_true, on_false)


def _join(op: exchange.Join, first: Data, second: Data) -> Data:
    if isinstance(first, Pointers) or isinstance(second, Pointers):
        array, x, y = _into_one_array("a tile of pointers", first, second)
        return Pointers(array, meet.join(op, x, y))
    return meet.join(op, first, second)


def _into_one_array(what: str, a: Data, b: Data) -> tuple[BoundArray, np.ndarray, np.ndarray]:
    """The array that two tiles of pointers lead into, and their offsets."""
    assert isinstance(a, Pointers) and isinstance(b, Pointers)
    if a.array is not b.array:
        raise CompilationError(
            f"{what} into two arrays, {a.array.name!r} and {b.array.name!r}",
            "load from both and choose between the values",
        )
    return a.array, a.offsets, b.offsets


def _add_pointer(op: ops.AddPointer, pointer: Pointers, offset: np.ndarray) -> Pointers:
    return Pointers(pointer.array, pointer.offsets + offset.astype(np.int64))


def _make_range(op: ops.MakeRange) -> np.ndarray:
    return np.arange(op.start, op.end, dtype=NUMPY_DTYPES[op.dtype])


_NUMPY = combine.Arrays(
    apply=evaluate, choose=np.where, concatenate=np.concatenate, broadcast_to=np.broadcast_to
)

EVALUATORS: dict[type[Op], Callable[..., Data | tuple[Data, ...]]] = {
    ops.Constant: lambda op: constant(op.value, op.dtype),
    ops.MakeRange: _make_range,
    ops.Splat: _per_element(_splat),  # type: ignore[arg-type]
    ops.ExpandDims: _per_element(_expand_dims),  # type: ignore[arg-type]
    ops.Broadcast: _per_element(_broadcast),  # type: ignore[arg-type]
    ops.Unary: lambda op, x: arithmetic.unary(op.kind, x, op.value.type.dtype),
    ops.Binary: lambda op, x, y: arithmetic.binary(op.kind, x, y, op.lhs.type.dtype),
    ops.Compare: lambda op, x, y: arithmetic.compare(op.kind, x, y, op.lhs.type.dtype),
    ops.Select: _select,
    ops.Fma: lambda op, a, b, c: arithmetic.fma(a, b, c, op.a.type.dtype),
    ops.Cast: lambda op, x: arithmetic.cast(x, op.value.type.dtype, op.dtype),
    ops.Bitcast: lambda op, x: x.view(NUMPY_DTYPES[op.dtype]),
    ops.Hint: lambda op, x: x,
    ops.AddPointer: _add_pointer,
    exchange.Reduce: lambda op, *inputs: meet.reduce(op, *inputs, arrays=_NUMPY),
    exchange.Scan: lambda op, *inputs: meet.scan(op, *inputs, arrays=_NUMPY),
    exchange.Transpose: _per_element(meet.transpose),  # type: ignore[arg-type]
    exchange.Reshape: _per_element(meet.reshape),  # type: ignore[arg-type]
    exchange.Pick: _per_element(meet.pick),  # type: ignore[arg-type]
    exchange.Join: _join,
    exchange.Gather: meet.gather,
    exchange.Sort: meet.sort,
    exchange.Histogram: meet.histogram,
}
