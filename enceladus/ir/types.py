"""Types of the tile IR: element types, pointers, and tiles of either.

Types are frozen and compare by value. A scalar is a tile of shape ``()``, so every rule about
element types exists once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod


class Kind(Enum):
    """What the bits of an element mean."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"


class DType:
    """An element type such as ``float32``. One instance each, so ``is`` and ``==`` agree.

    The attribute names are Triton's, because kernels use them: ``x.dtype.is_floating()``.
    """

    __slots__ = ("bits", "kind", "name")

    def __init__(self, name: str, kind: Kind, bits: int):
        self.name = name
        self.kind = kind
        self.bits = bits

    @property
    def primitive_bitwidth(self) -> int:
        """Width in bits; 1 for ``int1``."""
        return self.bits

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in memory; ``int1`` is stored as one byte."""
        return max(1, self.bits // 8)

    @property
    def scalar(self) -> DType:
        """The element type itself, as Triton spells it on tile types."""
        return self

    def is_floating(self) -> bool:
        """Whether this is float16, bfloat16 or float32."""
        return self.kind is Kind.FLOAT

    def is_int(self) -> bool:
        """Whether this is an integer type, ``int1`` included (as in Triton)."""
        return self.kind is not Kind.FLOAT

    def is_int_signed(self) -> bool:
        """Whether this is int8, int16, int32 or int64."""
        return self.kind is Kind.SIGNED

    def is_int_unsigned(self) -> bool:
        """Whether this is uint8, uint16, uint32 or uint64."""
        return self.kind is Kind.UNSIGNED

    def is_bool(self) -> bool:
        """Whether this is ``int1``."""
        return self.kind is Kind.BOOL

    def is_ptr(self) -> bool:
        """Always false: a pointer type is a :class:`PointerType`."""
        return False

    @property
    def minimum(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.SIGNED else 0

    @property
    def maximum(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.SIGNED else (1 << self.bits) - 1

    def wrap(self, value: int) -> int:
        """``value`` modulo 2**bits, in this integer type's range."""
        value &= (1 << self.bits) - 1
        if self.kind is Kind.SIGNED and value >> (self.bits - 1):
            value -= 1 << self.bits
        return value

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str:  # unpickles to the one instance of this module
        return self.name

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> DType:
        return self


int1 = DType("int1", Kind.BOOL, 1)
int8 = DType("int8", Kind.SIGNED, 8)
int16 = DType("int16", Kind.SIGNED, 16)
int32 = DType("int32", Kind.SIGNED, 32)
int64 = DType("int64", Kind.SIGNED, 64)
uint8 = DType("uint8", Kind.UNSIGNED, 8)
uint16 = DType("uint16", Kind.UNSIGNED, 16)
uint32 = DType("uint32", Kind.UNSIGNED, 32)
uint64 = DType("uint64", Kind.UNSIGNED, 64)
float16 = DType("float16", Kind.FLOAT, 16)
bfloat16 = DType("bfloat16", Kind.FLOAT, 16)
float32 = DType("float32", Kind.FLOAT, 32)

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PointerType:
    """A pointer into an array of ``element``. Arithmetic counts elements, as in Triton."""

    element: DType

    @property
    def element_ty(self) -> DType:
        """The type it points at (Triton's name)."""
        return self.element

    @property
    def scalar(self) -> PointerType:
        return self

    def is_ptr(self) -> bool:
        return True

    def is_floating(self) -> bool:
        return False

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_int_signed(self) -> bool:
        return False

    def is_int_unsigned(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"*{self.element}"


@dataclass(frozen=True, slots=True)
class TileType:
    """A tile of ``element`` with compile-time ``shape``; a scalar has shape ``()``."""

    element: DType | PointerType
    shape: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    @property
    def dtype(self) -> DType:
        """The element type of a tile of numbers (not of pointers)."""
        if isinstance(self.element, PointerType):
            raise TypeError(f"{self} is a tile of pointers")
        return self.element

    @property
    def scalar(self) -> DType | PointerType:
        """The element type (Triton's name)."""
        return self.element

    @property
    def element_ty(self) -> DType | PointerType:
        """As in Triton: what a scalar pointer points at, else the element type of the tile."""
        if isinstance(self.element, PointerType) and not self.shape:
            return self.element.element
        return self.element

    def with_element(self, element: DType | PointerType) -> TileType:
        return tile_type(element, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TileType:
        return tile_type(self.element, shape)

    def __str__(self) -> str:
        return _tile_text(self)


@lru_cache(maxsize=4096)
def _tile_text(type: TileType) -> str:
    return "x".join(map(str, (*type.shape, type.element)))


@lru_cache(maxsize=4096)
def tile_type(element: DType | PointerType, shape: tuple[int, ...] = ()) -> TileType:
    """The interned :class:`TileType`; use this where types are made often."""
    return TileType(element, shape)


@lru_cache(maxsize=64)
def pointer_type(element: DType) -> PointerType:
    """The interned :class:`PointerType` to ``element``."""
    return PointerType(element)
