"""Descriptions of outputs that do not exist yet.

A launch allocates nothing for them: MLX creates the output when the kernel runs. ``empty`` promises
nothing about elements the kernel does not write; ``zeros``, ``ones`` and ``full`` do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite, prod
from typing import Any

import mlx.core as mx

from enceladus.mlx_bridge.dtypes import FROM_MLX, from_any


@dataclass(frozen=True, slots=True)
class FreshArray:
    """An output of ``shape`` and ``dtype`` to be created by a launch; ``fill`` is ``None`` for ``empty``.

    Descriptions compare ``fill`` by its text, so that ``1`` and ``True``, ``0.0`` and ``-0.0`` differ.
    """

    shape: tuple[int, ...]
    dtype: mx.Dtype
    fill: bool | int | float | None = field(default=None, compare=False)
    fill_text: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Part of the key of every launch; once is enough.
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype, self.fill_text)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def materialize(self) -> mx.array:
        """A real (lazy) array with these contents; zeros for ``empty``."""
        if self.fill is None:
            return mx.zeros(self.shape, dtype=self.dtype)
        if self.dtype == mx.uint64 and self.fill >= 2**63:  # MLX takes numbers as int64
            return mx.full(self.shape, self.fill - 2**64, dtype=mx.int64).astype(mx.uint64)
        return mx.full(self.shape, self.fill, dtype=self.dtype)

    def __repr__(self) -> str:
        kind = "empty" if self.fill is None else "full"
        value = "" if self.fill is None else f"{self.fill!r}, "
        return f"enceladus.{kind}({self.shape}, {value}{self.dtype})"


def _shape(shape: Any, function: str) -> tuple[int, ...]:
    """A shape from an int or a sequence of ints."""
    items = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    sizes = []
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"{function}: shape {shape!r} must be an int or a tuple of ints")
        size = item.__index__()
        if size < 0:
            raise ValueError(f"{function}: shape {shape!r} has a negative dimension")
        sizes.append(size)
    return tuple(sizes)


def empty(shape: int | Sequence[int], dtype: Any = mx.float32) -> FreshArray:
    """Describe an output whose unwritten elements may hold anything.

    ``dtype`` may be MLX's, ``enceladus.language``'s or NumPy's.
    """
    return FreshArray(_shape(shape, "empty"), from_any(dtype, "empty: the output"))


def full(shape: int | Sequence[int], value: bool | int | float, dtype: Any = None) -> FreshArray:
    """Describe an output whose unwritten elements are ``value``.

    Without ``dtype``: bool, int32 or float32 by the type of ``value``. ``ValueError`` for a value that an
    integer type cannot hold exactly; floating-point types round it.
    """
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"full: value {value!r} must be a Python bool, int or float")
    return _filled(shape, value, type(value) if dtype is None else dtype, "full")


def _filled(shape: int | Sequence[int], value: bool | int | float, dtype: Any, function: str) -> FreshArray:
    chosen = from_any(dtype, f"{function}: the output")
    fill = _converted(value, chosen)
    return FreshArray(_shape(shape, function), chosen, fill, repr(fill))


def _converted(value: bool | int | float, dtype: mx.Dtype) -> bool | int | float:
    """``value`` as an element of ``dtype``, so that no engine has to convert it."""
    if dtype == mx.bool_:
        return bool(value)
    if dtype in (mx.float16, mx.bfloat16, mx.float32):
        code = "<e" if dtype == mx.float16 else "<f"
        try:
            rounded: float = struct.unpack(code, struct.pack(code, float(value)))[0]
        except OverflowError:
            rounded = inf if value > 0 else -inf
        return rounded
    element = FROM_MLX[dtype]
    if not isfinite(value) or value != int(value) or not element.minimum <= value <= element.maximum:
        raise ValueError(f"full: {value!r} does not fit {element}")
    return int(value)


def zeros(shape: int | Sequence[int], dtype: Any = mx.float32) -> FreshArray:
    """Describe an output whose unwritten elements are 0."""
    return _filled(shape, 0, dtype, "zeros")


def ones(shape: int | Sequence[int], dtype: Any = mx.float32) -> FreshArray:
    """Describe an output whose unwritten elements are 1."""
    return _filled(shape, 1, dtype, "ones")


def empty_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`empty`, with the shape and, unless given, the dtype of ``array``."""
    if dtype is None and type(array) is mx.array:
        return _empty(array.shape, array.dtype)  # on the way of many a launch
    return empty(tuple(array.shape), array.dtype if dtype is None else dtype)


@lru_cache(maxsize=4096)
def _empty(shape: tuple[int, ...], dtype: mx.Dtype) -> FreshArray:
    """One description for each shape and dtype: looking up a launch by it then compares identities."""
    return empty(shape, dtype)


def full_like(array: Any, value: bool | int | float, dtype: Any = None) -> FreshArray:
    """Like :func:`full`, with the shape and, unless given, the dtype of ``array``."""
    return full(tuple(array.shape), value, array.dtype if dtype is None else dtype)


def zeros_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`zeros`, with the shape and, unless given, the dtype of ``array``."""
    return zeros(tuple(array.shape), array.dtype if dtype is None else dtype)


def ones_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`ones`, with the shape and, unless given, the dtype of ``array``."""
    return ones(tuple(array.shape), array.dtype if dtype is None else dtype)
