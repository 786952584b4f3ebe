"""Helper functions for sorting and counting, in MSL, only those that a body needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from enceladus.codegen.mathlib import type_name
from enceladus.codegen.threadgroup_memory import Region
from enceladus.ir.types import DType, bfloat16, float16, float32, int16, int32

#: float type → (integer type of its keys, bits of infinity)
_KEYS = {float32: (int32, 0x7F800000), float16: (int16, 0x7C00), bfloat16: (int16, 0x7F80)}

# The bits of a float order as its magnitude does; those of negative floats have to turn round.
_SORT_KEY = """\
// Integers in the order of floats, NaN last: comparing them needs no care for NaN or tiny numbers.
inline {key} sort_key({name} x) {{
  const {key} bits = as_type<{key}>(x);
  const {key} magnitude = bits & {magnitude:#x};
  return {key}(bits < 0 && magnitude <= {infinity:#x} ? bits ^ {magnitude:#x} : magnitude);
}}
// The float of a key.
inline {name} {dtype}_of_key({key} key) {{
  return as_type<{name}>({key}(key < 0 ? key ^ {magnitude:#x} : key));
}}
"""

_COUNT = """\
// One more in a bin that all threads of the threadgroup count in.
inline void count_one(threadgroup int* bin) {
  atomic_fetch_add_explicit(reinterpret_cast<threadgroup atomic_int*>(bin), 1, memory_order_relaxed);
}
"""


def key_type(dtype: DType) -> DType:
    """The integer type that numbers of ``dtype`` are compared in: their own for integers."""
    return _KEYS[dtype][0] if dtype in _KEYS else dtype


@dataclass(slots=True)
class ExchangeHelpers:
    """Collects what a body needs: float types that are sorted, and whether it counts in bins."""

    sorted: set[DType] = field(default_factory=set)
    counts: bool = False
    #: (type, keys) → threadgroup array that sorts use, and the name of the offset to add to its indices
    places: dict[tuple[DType, int], tuple[Region, str]] = field(default_factory=dict)

    def header(self) -> str:
        """The functions' text in namespace ``enceladus``; ``""`` if none is needed."""
        parts = [_sort_key(dtype) for dtype in sorted(self.sorted, key=lambda d: d.name)]
        if self.counts:
            parts.append(_COUNT)
        if not parts:
            return ""
        return "namespace enceladus {\n\n" + "\n".join(parts) + "\n}  // namespace enceladus\n"


def _sort_key(dtype: DType) -> str:
    key, infinity = _KEYS[dtype]
    magnitude = (1 << (dtype.bits - 1)) - 1
    return _SORT_KEY.format(
        key=type_name(key), name=type_name(dtype), dtype=dtype.name, magnitude=magnitude, infinity=infinity
    )
