"""Helper functions for vector accesses and alignment, in MSL, only those that a body needs.

A thread moves several elements as one unsigned vector of their total size and takes them apart with
``as_type``: no assumption about aliasing, and the same text serves every element type, Metal and CUDA.
Loads are overloaded on the address space because MLX binds inputs of fewer than 8 elements as ``constant``;
where the vocabulary has one address space (CUDA) the second overload would be the first again, so it
is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

#: bytes of a vector access → the unsigned vector type that moves it
_VECTOR_TYPES = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort"}

_UNPACK = {
    8: "as_type<T>(uint2({word}(v, 2 * k), {word}(v, 2 * k + 1)))",
    4: "as_type<T>({word}(v, k))",
    2: "as_type<T>(ushort({word}(v, k / 2) >> (k % 2 * 16)))",
    1: "as_type<T>(uchar({word}(v, k / 4) >> (k % 4 * 8)))",
}
_PACK = {
    8: "as_type<uint2>(x[k / 2])[k % 2]",
    4: "as_type<uint>(x[k])",
    2: "uint(as_type<ushort>(x[2 * k])) | uint(as_type<ushort>(x[2 * k + 1])) << 16",
    1: (
        "uint(as_type<uchar>(x[4 * k])) | uint(as_type<uchar>(x[4 * k + 1])) << 8 |\n"
        "         uint(as_type<uchar>(x[4 * k + 2])) << 16 | uint(as_type<uchar>(x[4 * k + 3])) << 24"
    ),
}
_WORDS = {
    "uint4": "inline uint word(uint4 v, int k) { return v[k]; }",
    "uint2": "inline uint word(uint2 v, int k) { return v[k]; }",
    "uint": "inline uint word(uint v, int) { return v; }",
    "ushort": "inline uint word(ushort v, int) { return v; }",
}

_LOAD = """\
// Read x from p, {count} elements of {size} byte{s} at a time; p is a multiple of {bytes} bytes.
template <typename T, int n>
inline void load{count}x{size}(thread T (&x)[n], const {space} T* p) {{
  #pragma unroll
  for (int i = 0; i < n; i += {count}) {{
    const {vector} v = *reinterpret_cast<const {space} {vector}*>(p + i);
    #pragma unroll
    for (int k = 0; k < {count}; ++k) x[i + k] = {unpack};
  }}
}}
"""

_STORE = """\
// Write x to p, {count} elements of {size} byte{s} at a time; p is a multiple of {bytes} bytes.
template <typename T, int n>
inline void store{count}x{size}(device T* p, const thread T (&x)[n]) {{
  #pragma unroll
  for (int i = 0; i < n; i += {count}) *reinterpret_cast<device {vector}*>(p + i) = {packed};
}}
"""

_PACK_FUNCTION = """\
// Word k of the elements x[0], x[1], ...
template <typename T>
inline uint word{size}(const thread T* x, int k) {{
  return {pack};
}}
"""

_IS_ALIGNED = """\
// Whether p is a multiple of so many bytes.
template <int bytes, typename T>
inline bool is_aligned(const {space} T* p) {{
  return (reinterpret_cast<ulong>(p) & (bytes - 1)) == 0;
}}
"""


_AS_ARRAY = """\
// Part of the threadgroup memory as an array of T.
template <typename T>
inline threadgroup T* as_array(threadgroup uint4* arena) {
  return reinterpret_cast<threadgroup T*>(arena);
}
"""


@dataclass(slots=True)
class MemoryHelpers:
    """Collects what a body needs: vector accesses as (elements, bytes of an element), and alignment tests."""

    loads: set[tuple[int, int]] = field(default_factory=set)
    stores: set[tuple[int, int]] = field(default_factory=set)
    alignment: bool = False
    arena: bool = False

    def load(self, count: int, size: int) -> str:
        """The name of the function that reads ``count`` elements of ``size`` bytes at a time."""
        self.loads.add((count, size))
        return f"enceladus::load{count}x{size}"

    def store(self, count: int, size: int) -> str:
        """The name of the function that writes ``count`` elements of ``size`` bytes at a time."""
        self.stores.add((count, size))
        return f"enceladus::store{count}x{size}"

    def header(self) -> str:
        """The helpers' text in namespace ``enceladus``; ``""`` if none is needed."""
        return _header(frozenset(self.loads), frozenset(self.stores), self.alignment, self.arena)


@lru_cache(maxsize=256)
def _header(
    loads: frozenset[tuple[int, int]], stores: frozenset[tuple[int, int]], alignment: bool, arena: bool
) -> str:
    words = {_VECTOR_TYPES[count * size] for count, size in loads}
    parts = [_WORDS[name] for name in _VECTOR_TYPES.values() if name in words]
    if parts:
        parts[-1] += "\n"
    for count, size in sorted(loads):
        parts += _both_spaces(
            _LOAD,
            count=count,
            size=size,
            s="" if size == 1 else "s",
            bytes=count * size,
            vector=_VECTOR_TYPES[count * size],
            unpack=_UNPACK[size].format(word="word"),
        )
    parts += [
        _PACK_FUNCTION.format(size=s, pack=_PACK[s]) for s in sorted({s for c, s in stores if c * s >= 4})
    ]
    for count, size in sorted(stores):
        vector, total = _VECTOR_TYPES[count * size], count * size
        packed = ", ".join(f"word{size}(&x[i], {k})" for k in range(total // 4))
        if total == 2:
            packed = "uint(as_type<uchar>(x[i])) | uint(as_type<uchar>(x[i + 1])) << 8"
        packed = packed if total == 4 else f"{vector}({packed})"
        plural = "" if size == 1 else "s"
        parts.append(
            _STORE.format(count=count, size=size, s=plural, bytes=total, vector=vector, packed=packed)
        )
    if alignment:
        parts += _both_spaces(_IS_ALIGNED)
    if arena:
        parts.append(_AS_ARRAY)
    if not parts:
        return ""
    return "namespace enceladus {\n\n" + "\n".join(parts) + "\n}  // namespace enceladus\n"


def _both_spaces(template: str, **values: object) -> list[str]:
    other = template.format(space="constant", **values)
    code = other[other.index("\n") + 1 :]  # one comment serves both
    return [
        template.format(space="device", **values),
        f"#ifndef ENCELADUS_ONE_ADDRESS_SPACE\n{code}#endif\n",
    ]
