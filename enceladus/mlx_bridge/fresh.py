"""Descriptions of outputs that do not exist yet.

A launch allocates nothing for them: MLX creates the output when the kernel runs. ``empty`` promises
nothing about elements the kernel does not write; ``zeros``, ``ones`` and ``full`` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import mlx.core as mx

from enceladus.mlx_bridge.dtypes import from_any


@dataclass(frozen=True, slots=True)
class FreshArray:
    """An output of ``shape`` and ``dtype`` to be created by a launch; ``fill`` is ``None`` for ``empty``.

    ``fill_type`` keeps ``1``, ``1.0`` and ``True`` apart when two descriptions are compared.
    """

    shape: tuple[int, ...]
    dtype: mx.Dtype
    fill: bool | int | float | None = None
    fill_type: type | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def materialize(self) -> mx.array:
        """A real (lazy) array with these contents; zeros for ``empty``."""
        if self.fill is None or self.fill == 0:
            return mx.zeros(self.shape, dtype=self.dtype)
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

    Without ``dtype``: bool, int32 or float32 by the type of ``value``.
    """
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"full: value {value!r} must be a Python bool, int or float")
    chosen = from_any(type(value) if dtype is None else dtype, "full: the output")
    integer = chosen not in (mx.float16, mx.bfloat16, mx.float32)
    if integer and not isfinite(value):
        raise ValueError(f"full: {value!r} does not fit {chosen}")
    return FreshArray(_shape(shape, "full"), chosen, value, type(value))


def zeros(shape: int | Sequence[int], dtype: Any = mx.float32) -> FreshArray:
    """Describe an output whose unwritten elements are 0."""
    return FreshArray(_shape(shape, "zeros"), from_any(dtype, "zeros: the output"), 0, int)


def ones(shape: int | Sequence[int], dtype: Any = mx.float32) -> FreshArray:
    """Describe an output whose unwritten elements are 1."""
    return FreshArray(_shape(shape, "ones"), from_any(dtype, "ones: the output"), 1, int)


def empty_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`empty`, with the shape and, unless given, the dtype of ``array``."""
    return empty(tuple(array.shape), array.dtype if dtype is None else dtype)


def full_like(array: Any, value: bool | int | float, dtype: Any = None) -> FreshArray:
    """Like :func:`full`, with the shape and, unless given, the dtype of ``array``."""
    return full(tuple(array.shape), value, array.dtype if dtype is None else dtype)


def zeros_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`zeros`, with the shape and, unless given, the dtype of ``array``."""
    return zeros(tuple(array.shape), array.dtype if dtype is None else dtype)


def ones_like(array: Any, dtype: Any = None) -> FreshArray:
    """Like :func:`ones`, with the shape and, unless given, the dtype of ``array``."""
    return ones(tuple(array.shape), array.dtype if dtype is None else dtype)
