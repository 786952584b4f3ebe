"""Compile spellings of ``codegen.mathlib`` as plain C++ and call them on NumPy arrays.

The C++ side knows just the vocabulary that mathlib's texts use, over the C mathematics library. Undefined
behaviour (signed overflow, wild shifts, division by zero, float to integer out of range) is counted: a text
that relies on it is wrong for Metal even if the CPU happens to give the wanted number.
"""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from enceladus.codegen.mathlib import Expression, Spelling, header, type_name
from enceladus.ir.types import DType

NUMPY_TYPES: dict[str, Any] = {
    "int1": np.bool_, "bfloat16": ml_dtypes.bfloat16,
    **{n: np.dtype(n) for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "float16": np.float16, "float32": np.float32,
}  # fmt: skip

_FLOAT_1 = (
    "exp", "exp2", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "fabs", "floor", "ceil", "trunc", "rint", "round",
)  # fmt: skip
_FLOAT_2 = ("pow", "atan2", "fmin", "fmax", "copysign")


def _float_functions() -> str:
    lines = [f"inline float {f}(float x) {{ return __builtin_{f}f(x); }}" for f in _FLOAT_1]
    lines += [f"inline float {f}(float x, float y) {{ return __builtin_{f}f(x, y); }}" for f in _FLOAT_2]
    # The library's own division stays exact whatever the flags.
    exact = "\n#pragma clang fp reciprocal(off) reassociate(off)\n"
    lines.append(f"inline float divide(float x, float y) {{{exact}  return x / y; }}")
    lines.append(f"inline float rsqrt(float x) {{{exact}  return 1.0f / __builtin_sqrtf(x); }}")
    return "\n".join(lines)


_INTEGERS = ("int8_t", "int16_t", "int", "int64_t", "uint8_t", "uint16_t", "uint", "uint64_t")
_VOCABULARY = f"""\
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t; typedef unsigned uint;
typedef long int64_t; typedef unsigned long uint64_t;
typedef _Float16 half; typedef __bf16 bfloat16_t;
template <class To, class From> inline To as_type(From from) {{
  static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}}
namespace metal {{
namespace precise {{
{_float_functions()}
}}
namespace fast = precise;
using namespace precise;
inline float fma(float x, float y, float z) {{ return __builtin_fmaf(x, y, z); }}
inline bool isnan(float x) {{ return __builtin_isnan(x); }}
inline bool isinf(float x) {{ return __builtin_isinf(x); }}
{chr(10).join(f"inline {t} min({t} x, {t} y) {{ return x < y ? x : y; }}" for t in _INTEGERS)}
{chr(10).join(f"inline {t} max({t} x, {t} y) {{ return x > y ? x : y; }}" for t in _INTEGERS)}
inline uint popcount(uint x) {{ return __builtin_popcount(x); }}
inline uint64_t popcount(uint64_t x) {{ return __builtin_popcountl(x); }}
inline uint clz(uint x) {{ return x ? __builtin_clz(x) : 32; }}
inline uint64_t clz(uint64_t x) {{ return x ? __builtin_clzl(x) : 64; }}
inline uint mulhi(uint x, uint y) {{ return uint(uint64_t(x) * y >> 32); }}
inline uint64_t mulhi(uint64_t x, uint64_t y) {{ return uint64_t((unsigned __int128)x * y >> 64); }}
}}
using namespace metal;
extern "C" {{
long undefined_behaviour = 0;
"""
# Apple's GPUs flush denormals; so can this CPU.
_VOCABULARY += """\
void flush_denormals(int on) {
#if defined(__x86_64__)
  unsigned state = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? state | 0x8040u : state & ~0x8040u);
#endif
}
"""
# float to bfloat16 is a library call on many machines, and not every library has it.
_VOCABULARY += """\
__attribute__((weak)) __bf16 __truncsfbf2(float x) {
  uint bits = as_type<uint>(x);
  bits = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  return as_type<__bf16>(uint16_t(bits >> 16));
}
"""
# The sanitizer's minimal runtime calls these; ours count.
_CHECKS = (
    "add_overflow", "sub_overflow", "mul_overflow", "negate_overflow", "divrem_overflow",
    "shift_out_of_bounds", "float_cast_overflow",
)  # fmt: skip
_VOCABULARY += "\n".join(f"void __ubsan_handle_{c}_minimal() {{ undefined_behaviour++; }}" for c in _CHECKS)
_VOCABULARY += "\n}\n"

_FLAGS = (
    "-std=c++17", "-O1", "-shared", "-fPIC", "-nostdinc++", "-fno-math-errno",
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
    "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-function",
    "-Wno-unused-variable", "-Wno-tautological-compare", "-Wno-xor-used-as-pow",
    "-fno-sanitize=all", "-fsanitize-minimal-runtime", "-fsanitize-recover=all",
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,float-cast-overflow",
)  # fmt: skip
if platform.machine().lower() in ("x86_64", "amd64"):
    # These instructions flush denormal bfloat16 to zero, which is allowed but not what we compare with.
    _FLAGS += ("-mcpu=native-avx512bf16-avxneconvert",)
#: Every operation rounds once, as the texts say.
STRICT = ("-ffp-contract=off",)
#: What Metal's math mode "relaxed" allows: reassociation, reciprocals, lost signs of zero, contraction.
RELAXED = ("-O2", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros", "-fno-trapping-math",
           "-ffp-contract=fast")  # fmt: skip


class Library:
    """Functions, each the spelling of one operation, compiled together and called by key."""

    def __init__(
        self,
        functions: dict[Any, tuple[Spelling, tuple[DType, ...], DType]],
        folder: Path,
        flags: tuple[str, ...] = STRICT,
    ):
        self._functions = functions
        # Keys with one and the same text share a function.
        numbers: dict[Any, int] = {}
        self._index = {key: f"f{numbers.setdefault(f, len(numbers))}" for key, f in functions.items()}
        self.text = self._source()
        source, library = folder / "mathlib.cpp", folder / "mathlib.so"
        source.write_text(self.text, encoding="ascii")
        import ziglang  # not on every machine that imports this module for its tables

        zig = str(Path(ziglang.__file__).parent / "zig")
        command = [zig, "cc", "-x", "c++", *_FLAGS, *flags, str(source), "-o", str(library), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise AssertionError(result.stderr)
        #: What the compiler had to say, for tests that want silence.
        self.warnings = re.findall(r".*warning:.*", result.stderr)
        self._library = ctypes.CDLL(str(library))

    def _source(self) -> str:
        needs: set[str] = set()
        bodies: dict[str, str] = {}
        for key, (spelling, sources, target) in self._functions.items():
            needs.update(spelling.needs)
            names = [Expression(n) for n in "abc"[: len(sources)]]
            pointers = "".join(f"const {type_name(s)}* {n}_, " for s, n in zip(sources, "abc", strict=False))
            reads = " ".join(f"{type_name(s)} {n} = {n}_[i];" for s, n in zip(sources, "abc", strict=False))
            result = type_name(target)
            # The braces refuse a result of another type if that could change its value.
            bodies[self._index[key]] = (
                f'extern "C" void {self._index[key]}({pointers}{result}* out, long n) {{\n'
                f"  for (long i = 0; i < n; ++i) {{ {reads}\n"
                f"    out[i] = {result}{{{spelling(*names).text}}}; }}\n}}\n"
            )
        return _VOCABULARY + header(needs) + "".join(bodies.values())

    def __call__(self, key: Any, *operands: np.ndarray) -> np.ndarray:
        """The function ``key`` of every element of ``operands`` (arrays of one shape and the right types)."""
        _, sources, target = self._functions[key]
        arrays = [np.ascontiguousarray(x) for x in operands]
        for array, dtype in zip(arrays, sources, strict=True):
            assert array.dtype == NUMPY_TYPES[dtype.name], (key, array.dtype, dtype)
        out = np.empty(arrays[0].shape, NUMPY_TYPES[target.name])
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in [*arrays, out]]
        getattr(self._library, self._index[key])(*pointers, ctypes.c_long(out.size))
        return out

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Within a ``with`` block denormal operands and results are zero (on x86-64 only)."""
        self._library.flush_denormals(1)
        try:
            yield
        finally:
            self._library.flush_denormals(0)

    @property
    def undefined_behaviour(self) -> int:
        """How many undefined operations were executed so far."""
        return ctypes.c_long.in_dll(self._library, "undefined_behaviour").value
