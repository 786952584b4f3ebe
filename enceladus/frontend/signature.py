"""What the compiler sees of a kernel's arguments: frozen records, never the arrays themselves.

The bridge makes one record per parameter from the actual arguments (specialization); the front end
turns them into IR arguments or compile-time values; tests make them by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from enceladus.ir.types import DType


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """An array: a pointer to ``dtype`` in the kernel."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A run-time number. ``divisible_by_16`` is what specialization found out about an integer."""

    dtype: DType
    divisible_by_16: bool = False


@dataclass(frozen=True, slots=True)
class ConstantArgument:
    """A compile-time value: a constexpr, ``None``, or an integer argument that equals 1.

    ``text`` is what stands for the value in a specialization key.
    """

    value: object
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantArgument) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, slots=True)
class TupleArgument:
    """A tuple of arguments, possibly nested. ``names`` are a named tuple's field names, else empty."""

    items: tuple[Argument, ...]
    names: tuple[str, ...] = ()


Argument = ArrayArgument | ScalarArgument | ConstantArgument | TupleArgument
