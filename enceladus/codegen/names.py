"""The one allocator of identifiers in generated bodies.

A name must be legal in Metal and CUDA C++, must not hide a function the body may call, and must not make
MLX add kernel parameters by accident: MLX looks for thread attributes and for ``<input>_shape``,
``<input>_strides``, ``<input>_ndim`` anywhere in the body, comments and longer identifiers included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Thread attributes that MLX adds when the body mentions them. Bodies use three of them on purpose.
ATTRIBUTES = (
    "dispatch_quadgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup", "grid_origin", "grid_size", "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup", "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup",
    "thread_execution_width", "thread_index_in_quadgroup", "thread_index_in_simdgroup",
    "thread_index_in_threadgroup", "thread_position_in_grid", "thread_position_in_threadgroup",
    "threadgroup_position_in_grid", "threadgroups_per_grid", "threads_per_grid", "threads_per_simdgroup",
    "threads_per_threadgroup",
)  # fmt: skip
_SHAPE_SUFFIXES = ("_shape", "_strides", "_ndim")
_WIDTH = "thread_execution_width"  #: the only attribute without "gr" in its name

_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    constexpr const_cast consteval constinit continue co_await co_return co_yield decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq final override import module kernel vertex fragment mesh object device
    constant thread threadgroup threadgroup_imageblock ray_data object_data half bfloat uchar ushort uint
    ulong size_t ptrdiff_t sampler texture array vec matrix packed coherent metal precise fast raytracing simd
    quad enceladus mlx std cg abs absdiff acos acosh addsat all any asin asinh as_type atan atan2 atanh ceil
    clamp clz copysign cos cosh cospi cross ctz determinant distance divide dot exp exp10 exp2 extract_bits
    fabs faceforward fdim floor fma fmax fmedian3 fmin fmod fract frexp hadd ilogb insert_bits isfinite isinf
    isnan isnormal isordered isunordered ldexp length log log10 log1p log2 mad24 mad mad_hi madhi madsat max
    max3 median3 min min3 mix modf mul24 mulhi nextafter normalize pow powr popcount reflect refract
    reverse_bits rhadd rint rotate round rsqrt saturate select sign signbit sin sincos sinh sinpi smoothstep
    sqrt step subsat tan tanh tanpi transpose trunc hypot ceildiv cast_to erf expm1 NAN INFINITY HUGE_VALF
    M_PI_F complex32_t complex64_t complex_t Limits elem_to_loc elem_to_loc_1 elem_to_loc_2 elem_to_loc_3
    LoopedElemToLoc WorkPerThread ConditionalType bfloat16_t float16_t int8_t int16_t int32_t int64_t uint8_t
    uint16_t uint32_t uint64_t blockIdx threadIdx blockDim gridDim warpSize dim3 __global__ __device__
    __shared__ __restrict__ erfc printf assert memcpy memset main NULL True False None linux unix i386
    """.split()  # noqa: SIM905 (a list of 400 quoted words is no clearer)
)

#: Vector and matrix types: ``half2``, ``float4x4``, ``packed_int3`` …
_INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_SCALARS = ("bool", *_INTEGERS, "half", "float", "bfloat")
_VECTORS = frozenset(
    f"{prefix}{scalar}{size}"
    for prefix in ("", "packed_")
    for scalar in _SCALARS
    for size in ("2", "3", "4", *(f"{n}x{m}" for n in "234" for m in "234"))
)
#: Macros for limits and constants, in Metal or CUDA: ``INT_MAX``, ``FLT_EPSILON``, ``M_PI_H`` …
_LIMITS = frozenset(
    f"{kind}_{limit}"
    for kinds, limits in (
        ("CHAR SCHAR UCHAR SHRT USHRT INT UINT LONG ULONG LLONG ULLONG SIZE PTRDIFF", "BIT WIDTH MAX MIN"),
        ("INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64", "MAX MIN C"),
        ("FLT HALF BFLT DBL", "DIG MANT_DIG MAX_10_EXP MAX_EXP MIN_10_EXP MIN_EXP RADIX MAX MIN EPSILON"),
        ("HUGE", "VAL VALH VALBF"),
        ("FP", "ILOGB0 ILOGBNAN NAN INFINITE ZERO SUBNORMAL NORMAL"),
    )
    for kind in kinds.split()
    for limit in limits.split()
)
_NUMBERS = "E LOG2E LOG10E LN2 LN10 PI PI_2 PI_4 1_PI 2_PI 2_SQRTPI SQRT2 SQRT1_2"
_CONSTANTS = frozenset(
    f"M_{number}{suffix}" for number in _NUMBERS.split() for suffix in ("", "_F", "_H", "_BF")
)
_OTHERS = frozenset(("MAXFLOAT", "MAXHALF", "MAXBFLOAT", "EOF", "errno"))
_FORBIDDEN = _RESERVED | _VECTORS | _LIMITS | _CONSTANTS | _OTHERS


class Names:
    """Hands out identifiers, each once per scope; a nested scope's names are free again after it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._patterns: list[str] = []  #: texts that would make MLX pass an input's shape
        self._scopes: list[list[str]] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names handed out inside may be handed out again afterwards (braces in the body)."""
        self._scopes.append([])
        try:
            yield
        finally:
            self._taken.difference_update(self._scopes.pop())

    def input(self, wanted: str) -> str:
        """A name for an input of the kernel; no other name will contain it before a magic suffix."""
        name = self.unique(wanted)
        patterns = [name + suffix for suffix in _SHAPE_SUFFIXES]
        if any(p in taken for taken in self._taken for p in patterns):
            name = self.unique(f"{name}_in")
            patterns = [name + suffix for suffix in _SHAPE_SUFFIXES]
        self._patterns += patterns
        return name

    def unique(self, wanted: str, outermost: bool = False) -> str:
        """An unused identifier that resembles ``wanted``; ``outermost``: taken for the whole body."""
        base = self.harmless(_identifier(wanted))
        name, number = base, 1
        while name in self._taken or name in _FORBIDDEN or not self.is_harmless(name):
            number += 1
            name = f"{base}{'_' if base[-1].isdigit() or base in _RESERVED else ''}{number}"
        self._taken.add(name)
        if self._scopes and not outermost:
            self._scopes[-1].append(name)
        return name

    def is_harmless(self, text: str) -> bool:
        """Whether ``text`` in a body adds no parameter."""
        if "_" not in text:
            return True  # as every magic text has one, this is the short way for most names
        if "gr" in text and any(attribute in text for attribute in ATTRIBUTES):
            return False
        return _WIDTH not in text and not any(pattern in text for pattern in self._patterns)

    def harmless(self, name: str) -> str:
        """``name`` with its magic parts respelled."""
        if not self.is_harmless(name):
            for attribute in ATTRIBUTES:
                name = name.replace(attribute, attribute.replace("_", ""))
        if not self.is_harmless(name):
            for suffix, other in zip(_SHAPE_SUFFIXES, ("_dims", "_steps", "_rank"), strict=True):
                name = name.replace(suffix, other)
        return name


def _identifier(text: str) -> str:
    """ASCII identifier characters only, no leading digit or underscore (reserved in C++)."""
    if text.isidentifier() and text.isascii() and "__" not in text and text[0] != "_" != text[-1]:
        return text
    import re  # seldom needed, and compiling expressions is slow

    name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_")  # a double underscore is reserved in C++
    if not name:
        return "v"
    return f"v{name}" if name[0].isdigit() else name
