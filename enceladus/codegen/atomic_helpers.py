"""Helper functions for atomic updates, in MSL, only those that a body needs.

What the words of the output mean is told in ``passes.updates``. Functions named ``atomic_*`` collect updates
of one kind; those named ``present_*`` work on differences: they get ``was``, the old contents, and see and
leave the present ones. A compare-and-swap of the bits may fail for no reason, so all loops repeat it; it
compares integers, because a float that is NaN equals nothing.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import lru_cache

from enceladus.codegen import mathlib
from enceladus.codegen.mathlib import Expression, type_name
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import DType, float32, int32, uint32
from enceladus.passes.updates import Manner, accumulator

#: What combines the old value with the operand.
_BINARY = {
    AtomicKind.ADD: BinaryKind.ADD, AtomicKind.MAX: BinaryKind.MAX, AtomicKind.MIN: BinaryKind.MIN,
    AtomicKind.AND: BinaryKind.AND, AtomicKind.OR: BinaryKind.OR, AtomicKind.XOR: BinaryKind.XOR,
}  # fmt: skip

_ORDER_KEY = {
    float32: """\
// Unsigned numbers in the order of floats. Any number beats NaN, which is 0.
inline uint order_key(float x) {
  const uint bits = as_type<uint>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  return bits >> 31 != 0u ? ~bits : bits | 0x80000000u;
}
""",
    int32: """\
// Unsigned numbers in the order of signed ones.
inline uint order_key(int x) {
  return as_type<uint>(x) ^ 0x80000000u;
}
""",
    uint32: "inline uint order_key(uint x) { return x; }\n",
}
_REVERSE_KEY = {
    float32: """\
// The same in reverse order: any number beats NaN here, too.
inline uint reverse_key(float x) {
  const uint key = order_key(x);
  return key == 0u ? 0u : ~key;
}
""",
    int32: "inline uint reverse_key(int x) { return ~order_key(x); }\n",
    uint32: "inline uint reverse_key(uint x) { return ~x; }\n",
}
_FROM_KEY = {
    float32: """\
// The float of a key from order_key that is not 0.
inline float float_of(uint key) {
  return as_type<float>(key >> 31 != 0u ? key & 0x7fffffffu : ~key);
}
""",
    int32: "inline int int_of(uint key) { return as_type<int>(key ^ 0x80000000u); }\n",
    uint32: "inline uint uint_of(uint key) { return key; }\n",
}

#: Collected updates: what is done to the word, and what the word held says about the old value.
_FETCH = {
    AtomicKind.ADD: "atomic_fetch_add_explicit({word}, {value}, memory_order_relaxed)",
    AtomicKind.OR: "atomic_fetch_or_explicit({word}, uint({value}), memory_order_relaxed)",
    AtomicKind.XOR: "atomic_fetch_xor_explicit({word}, uint({value}), memory_order_relaxed)",
    AtomicKind.AND: "atomic_fetch_or_explicit({word}, ~uint({value}), memory_order_relaxed)",
    AtomicKind.MAX: "atomic_fetch_max_explicit({word}, order_key({value}), memory_order_relaxed)",
    AtomicKind.MIN: "atomic_fetch_max_explicit({word}, reverse_key({value}), memory_order_relaxed)",
}
_ABOUT = {
    AtomicKind.ADD: "*p is the sum so far",
    AtomicKind.OR: '*p is the "or" of the values so far',
    AtomicKind.XOR: '*p is the "xor" of the values so far',
    AtomicKind.AND: '*p is the "or" of the values\' complements so far',
    AtomicKind.MAX: "*p is the largest key so far",
    AtomicKind.MIN: "*p is the largest key in reverse order so far",
}


@dataclass(slots=True)
class AtomicHelpers:
    """Collects what a body needs: (kind or ``None`` for CAS, manner's kind, element type, old value used)."""

    needed: set[tuple[AtomicKind | None, AtomicKind | None, DType, bool]] = field(default_factory=set)

    def name(self, kind: AtomicKind | None, manner: Manner, uses_old: bool) -> str:
        """The function for one update. ``kind`` is ``None`` for compare and swap.

        Arguments: the word's address, the element's old contents (with differences, and where
        ``uses_old``), and the operands. It returns the old value.
        """
        self.needed.add((kind, manner.kind, manner.element, uses_old or manner.kind is None))
        prefix = "present" if manner.kind is None else "atomic"
        return f"enceladus::{prefix}_{'cas' if kind is None else kind.value}"

    @property
    def needs(self) -> set[str]:
        """Helpers of ``mathlib`` that these call."""
        found: set[str] = set()
        for kind, manner, element, _ in self.needed:
            if manner is None and kind in _BINARY:
                found.update(mathlib.binary(_BINARY[kind], element).needs)
        return found

    def header(self) -> str:
        """The functions' text in namespace ``enceladus``; ``""`` if none is needed."""
        return _header(frozenset(self.needed)) if self.needed else ""


@lru_cache(maxsize=256)
def _header(needed: Set[tuple[AtomicKind | None, AtomicKind | None, DType, bool]]) -> str:
    parts: dict[str, None] = {}  # in order, each once
    ordered = sorted(
        needed, key=lambda n: (n[1] is None, n[0] is None, n[0] is not None and n[0].value, n[2].name, n[3])
    )
    for kind, manner, element, uses_old in ordered:
        if manner is not None:
            parts.update(dict.fromkeys(_collected(manner, element, uses_old)))
        elif kind is None:
            parts[_present_cas(element)] = None
        elif kind is AtomicKind.XCHG:
            parts[_present_xchg(element)] = None
        else:
            parts[_present(kind, element)] = None
    return "namespace enceladus {\n\n" + "\n".join(parts) + "\n}  // namespace enceladus\n"


def _collected(kind: AtomicKind, element: DType, uses_old: bool) -> list[str]:
    number = accumulator(element)
    word = type_name(number) if kind is AtomicKind.ADD else "uint"
    parts = []
    if kind in (AtomicKind.MAX, AtomicKind.MIN):
        parts.append(_ORDER_KEY[number])
        if kind is AtomicKind.MIN:
            parts.append(_REVERSE_KEY[number])
    pointer = f"reinterpret_cast<device atomic_{word}*>(p)"
    if not uses_old:
        fetch = _FETCH[kind].format(word=pointer, value="value")
        parts.append(
            f"// Update *p; {_ABOUT[kind]}.\n"
            f"inline void atomic_{kind.value}(device {word}* p, {type_name(number)} value) {{\n"
            f"  {fetch};\n}}\n"
        )
        return parts
    name, wide = type_name(element), type_name(number)
    value = "value" if element is number else f"{wide}(value)"
    lines = [f"  const {word} before = {_FETCH[kind].format(word=pointer, value=value)};"]
    match kind:
        case AtomicKind.ADD:
            old, held = (x if element is number else f"{wide}({x})" for x in ("was", "before"))
            total = mathlib.binary(BinaryKind.ADD, number)(Expression(old), Expression(held)).text
            lines.append(f"  return {total};" if element is number else f"  return {name}({total});")
        case AtomicKind.OR | AtomicKind.XOR:
            operator = "|" if kind is AtomicKind.OR else "^"
            lines.append(f"  return {name}(uint(was) {operator} before);")
        case AtomicKind.AND:
            lines.append(f"  return {name}(uint(was) & ~before);")
        case _:
            key = "order_key" if kind is AtomicKind.MAX else "reverse_key"
            order = "before" if kind is AtomicKind.MAX else "~before"
            parts.append(_FROM_KEY[number])
            found = f"{wide}_of({order})"
            found = found if element is number else f"{name}({found})"
            old = "was" if element is number else f"{wide}(was)"
            lines.append(f"  return before > {key}({old}) ? {found} : was;")
    parts.append(
        f"// Update *p and return the old value; {_ABOUT[kind]}, and was is what the array held before.\n"
        f"inline {name} atomic_{kind.value}(device {word}* p, {name} was, {name} value) {{\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    return parts


# ------------------------------------------------------------------------------------ differences


def _to_bits(dtype: DType, text: str) -> str:
    """``text`` as the bits of a word."""
    match dtype.bits:
        case 32:
            return text if dtype is uint32 else f"as_type<uint>({text})"
        case 16:
            return f"uint(as_type<ushort>({text}))"
    return f"uint(as_type<uchar>({text}))"


def _from_bits(dtype: DType, text: str) -> str:
    name = type_name(dtype)
    match dtype.bits:
        case 32:
            return text if dtype is uint32 else f"as_type<{name}>({text})"
        case 16:
            return f"as_type<{name}>(ushort({text}))"
    return f"as_type<{name}>(uchar({text}))"


_PRESENT = "*p ^ the bits of was are those of the present value"


def _loop(dtype: DType, name: str, parameters: str, about: str, body: list[str]) -> str:
    """A function that tries until the word it has seen is still there."""
    element = type_name(dtype)
    orders = "memory_order_relaxed, memory_order_relaxed"
    swap = f"atomic_compare_exchange_weak_explicit(word, &seen, desired, {orders})"
    return "\n".join(
        [
            f"// {about}; {_PRESENT}.",
            f"inline {element} {name}(device uint* p, {element} was, {parameters}) {{",
            "  device atomic_uint* word = reinterpret_cast<device atomic_uint*>(p);",
            f"  const uint base = {_to_bits(dtype, 'was')};",
            "  uint seen = atomic_load_explicit(word, memory_order_relaxed);",
            "  while (true) {",
            f"    const {element} old = {_from_bits(dtype, 'seen ^ base')};",
            *(f"    {line}" for line in body),
            f"    if ({swap}) return old;",
            "  }",
            "}\n",
        ]
    )


def _present(kind: AtomicKind, dtype: DType) -> str:
    spelling = mathlib.binary(_BINARY[kind], dtype)
    updated = spelling(Expression("old"), Expression("value")).text
    body = [
        f"const {type_name(dtype)} updated = {updated};",
        f"const uint desired = {_to_bits(dtype, 'updated')} ^ base;",
    ]
    about = f'Update an element by "{kind.value}" and return the old value'
    return _loop(dtype, f"present_{kind.value}", f"{type_name(dtype)} value", about, body)


def _present_cas(dtype: DType) -> str:
    name = type_name(dtype)
    body = ["if (old != expected) return old;", f"const uint desired = {_to_bits(dtype, 'value')} ^ base;"]
    about = "Put value in the place of expected and return the old value"
    return _loop(dtype, "present_cas", f"{name} expected, {name} value", about, body)


def _present_xchg(dtype: DType) -> str:
    name = type_name(dtype)
    return (
        f"// Put value into an element and return the old one; {_PRESENT}.\n"
        f"inline {name} present_xchg(device uint* p, {name} was, {name} value) {{\n"
        "  device atomic_uint* word = reinterpret_cast<device atomic_uint*>(p);\n"
        f"  const uint base = {_to_bits(dtype, 'was')};\n"
        f"  const uint desired = {_to_bits(dtype, 'value')} ^ base;\n"
        "  const uint seen = atomic_exchange_explicit(word, desired, memory_order_relaxed);\n"
        f"  return {_from_bits(dtype, 'seen ^ base')};\n"
        "}\n"
    )
