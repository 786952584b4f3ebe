"""How tiles look in NumPy: element types, and pointers as an array with offsets."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from enceladus.ir.types import DTYPES, DType, bfloat16, int1

#: Element type → the NumPy type that holds it.
NUMPY_DTYPES: dict[DType, np.dtype] = {
    dtype: np.dtype(np.bool_ if dtype is int1 else ml_dtypes.bfloat16 if dtype is bfloat16 else dtype.name)
    for dtype in DTYPES.values()
}

_FROM_NUMPY = {numpy_dtype: dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}


def numpy_dtype(dtype: DType) -> np.dtype:
    """The NumPy type of ``dtype``; int1 is ``bool_``, bfloat16 is that of ``ml_dtypes``."""
    return NUMPY_DTYPES[dtype]


def dtype_of(array: np.ndarray) -> DType | None:
    """The element type of a NumPy array, or ``None`` where the language has no such type."""
    return _FROM_NUMPY.get(array.dtype)


@dataclass(slots=True, eq=False)
class BoundArray:
    """An array argument: ``flat`` is a 1-D view of the caller's memory, ``name`` the parameter's name.

    Loads read ``before``, the contents from before the launch: as on a GPU, where MLX's inputs are
    immutable, no program sees what another one stores. It is ``flat`` itself until the first store.
    """

    name: str
    flat: np.ndarray
    before: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.before = self.flat


@dataclass(frozen=True, slots=True, eq=False)
class Pointers:
    """A tile of pointers into one array: int64 element ``offsets`` of the tile's shape."""

    array: BoundArray
    offsets: np.ndarray

    def __repr__(self) -> str:
        return f"{self.array.name} + {self.offsets}"


#: What a value of the tile IR is while it is evaluated.
Data = np.ndarray | Pointers


def constant(value: bool | int | float, dtype: DType) -> np.ndarray:
    """A 0-d array of ``value``; floats are rounded to nearest even."""
    with np.errstate(all="ignore"):
        # ml_dtypes would go through float32 as well; said here so that the two roundings are no accident.
        exact = np.float32(value) if dtype is bfloat16 else value
        return np.asarray(exact, NUMPY_DTYPES[dtype])
