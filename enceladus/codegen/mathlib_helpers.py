"""The helper functions that generated bodies call, as MSL text.

They are plain functions on numbers, without pointers, so that the same text compiles as MSL, as CUDA
C++ and (in tests) as C++ on a CPU. Everything from Metal's library is called by its full name.

The compiler may reassociate floating-point expressions (math mode *relaxed*) and fuse multiply and add.
The algorithms below do not depend on its good will: no error-free sums, no ``(1 + x) - 1``; where one
rounding matters, it is an explicit ``fma``. ``math_mode(safe)`` in addition keeps the comparisons with NaN
and infinity alive in *fast* mode. Compilers that do not know the pragma ignore it.

Accuracy: ``python -m tests.measure_accuracy`` measures every function; docs/numerics.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from enceladus.codegen.mathlib_spelling import constant, type_name, unsigned_name
from enceladus.errors import InternalError
from enceladus.ir.types import DTYPES, DType, Kind


@dataclass(frozen=True, slots=True)
class Helper:
    """One MSL function of namespace ``enceladus``. ``needs`` names the helpers it calls."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------- real functions

# erf. Below 15/16: x + x * P(x^2), so small x keep full relative accuracy. Above: 1 - 2^R(|x|), where R
# approximates log2(erfc) and falls to -infinity; at 4 the result has long rounded to 1. Both polynomials are
# minimax in relative error of erf (2e-8), rounded to the floats that measure best. Both are computed and one
# is chosen: lanes that branch differently would run both anyway, one after the other. 2^R is at most 0.19, so
# an ulp of it is at most a quarter of one of the result, and the fast function will do. NaN fails the
# comparison and comes out as NaN.
_ERF = """\
inline float erf(float x) {
#pragma METAL fp math_mode(safe)
  float t = metal::fabs(x);
  float r = -0.0017625279f;
  r = metal::fma(r, t, 0.022138026f);
  r = metal::fma(r, t, -0.13041057f);
  r = metal::fma(r, t, -0.9403792f);
  r = metal::fma(r, t, -1.6149757f);
  r = metal::fma(r, t, -0.003026569f);
  r = metal::copysign(1.0f - metal::fast::exp2(r), x);
  float s = x * x;
  float p = -0.0005919443f;
  p = metal::fma(p, s, 0.004979137f);
  p = metal::fma(p, s, -0.026757034f);
  p = metal::fma(p, s, 0.112815544f);
  p = metal::fma(p, s, -0.3761247f);
  p = metal::fma(p, s, 0.12837915f);
  p = metal::fma(p, x, x);
  return t > 0.9375f ? r : p;
}
"""

# expm1. x = n * ln2 + f, |f| <= ln2 / 2; p = expm1(f) = f + f^2 * Q(f); then 2^n * p + (2^n - 1), computed at
# half scale because 2^128 is no float. The last line returns tiny x as they are (with the sign of zero, and
# without passing through denormals), and NaN.
_EXPM1 = """\
inline float expm1(float x) {
#pragma METAL fp math_mode(safe)
  float t = x > -20.0f ? (x < 89.0f ? x : 89.0f) : -20.0f;
  int n = int(metal::rint(t * 1.44269502f));
  float f = metal::fma(float(n), -0.693145752f, t);
  f = metal::fma(float(n), -1.42860677e-6f, f);
  float p = 0.000197669942f;
  p = metal::fma(p, f, 0.00139332283f);
  p = metal::fma(p, f, 0.00833354145f);
  p = metal::fma(p, f, 0.0416664854f);
  p = metal::fma(p, f, 0.166666657f);
  p = metal::fma(p, f, 0.5f);
  p = metal::fma(f * f, p, f);
  float half_scale = as_type<float>(uint(n + 126) << 23);
  float r = metal::fma(p, half_scale, half_scale - 0.5f);
  return metal::fabs(x) > 1e-8f ? r + r : x;
}
"""

# log1p. 1 + x = 2^e * (1 + m) with m in [-1/3, 1/3]; m = x * 2^-e + (2^-e - 1) has no cancellation error: the
# rounded sum 1 + x only chooses e. Everything is scaled by 4 so that 2^-127 does not turn up. Then
# e * ln2 + m + m^2 * Q(m).
_LOG1P = """\
inline float log1p(float x) {
#pragma METAL fp math_mode(safe)
  if (!(x > -1.0f && x < as_type<float>(0x7f800000u))) {
    return x < -1.0f ? as_type<float>(0x7fc00000u) : x == -1.0f ? as_type<float>(0xff800000u) : x;
  }
  int e = (as_type<int>(x + 1.0f) - 0x3f2aaaab) >> 23;
  float scale = as_type<float>(uint(129 - e) << 23);
  float m = metal::fma(0.25f * x, scale, metal::fma(0.25f, scale, -1.0f));
  float p = 0.119564384f;
  p = metal::fma(p, m, -0.128343165f);
  p = metal::fma(p, m, 0.107701316f);
  p = metal::fma(p, m, -0.12198475f);
  p = metal::fma(p, m, 0.14302665f);
  p = metal::fma(p, m, -0.16679363f);
  p = metal::fma(p, m, 0.199996829f);
  p = metal::fma(p, m, -0.249998257f);
  p = metal::fma(p, m, 0.333333343f);
  p = metal::fma(p, m, -0.5f);
  p = metal::fma(m * m, p, m);
  p = metal::fma(float(e), 0.693147182f, p);
  return metal::fabs(x) > 1e-8f ? p : x;
}
"""

# tanh for math mode "fast": Metal's own fast::tanh divides infinity by infinity for large x. NaN stays NaN.
_FAST_TANH = """\
inline float fast_tanh(float x) {
#pragma METAL fp math_mode(safe)
  float t = metal::fabs(x);
  if (t < 0.625f) {
    float s = x * x;
    float p = -0.00569634326f;
    p = metal::fma(p, s, 0.0206309054f);
    p = metal::fma(p, s, -0.053737063f);
    p = metal::fma(p, s, 0.133314088f);
    p = metal::fma(p, s, -0.333332807f);
    return t > 1e-4f ? metal::fma(p * s, x, x) : x;
  }
  t = t > 10.0f ? 10.0f : t;
  float r = 1.0f - metal::fast::divide(2.0f, metal::fast::exp(t + t) + 1.0f);
  return x < 0.0f ? -r : r;
}
"""

# NaN if either is NaN: a NaN x wins the test, a NaN y falls to the other branch.
_MIN_NAN = """\
inline float min_nan(float x, float y) {
#pragma METAL fp math_mode(safe)
  return x < y || x != x ? x : y;
}
"""
_MAX_NAN = """\
inline float max_nan(float x, float y) {
#pragma METAL fp math_mode(safe)
  return x > y || x != x ? x : y;
}
"""

_FLOAT_HELPERS = {
    "erf": _ERF, "expm1": _EXPM1, "log1p": _LOG1P, "fast_tanh": _FAST_TANH, "min_nan": _MIN_NAN,
    "max_nan": _MAX_NAN,
}  # fmt: skip

# -------------------------------------------------------------------------------- integer functions

# {T}: the type; {U}: its unsigned type, at least 32 bits wide; {bits}, {min}, {max}: of the type; {low},
# {high}: the float32 powers of two that bound it. Metal leaves x / 0, the smallest number / -1, x % 0 and
# % of negative numbers open, and takes shift amounts modulo the width.
_INTEGER_HELPERS = {
    "idiv": """\
inline {T} idiv_{name}({T} x, {T} y) {{
  {T} d = y == 0 || (y == -1 && x == {min}) ? {T}(1) : y;
  return y == 0 ? {T}(0) : {T}(x / d);
}}
""",
    "idiv_nonzero": """\
inline {T} idiv_nonzero_{name}({T} x, {T} y) {{
  {T} d = y == -1 && x == {min} ? {T}(1) : y;
  return {T}(x / d);
}}
""",
    "irem": """\
inline {T} irem_{name}({T} x, {T} y) {{
  {T} d = y == 0 || (y == -1 && x == {min}) ? {T}(1) : y;
  {T} r = {T}(x - {T}(x / d) * d);
  return y == 0 ? x : r;
}}
""",
    "irem_nonzero": """\
inline {T} irem_nonzero_{name}({T} x, {T} y) {{
  {T} d = y == -1 && x == {min} ? {T}(1) : y;
  return {T}(x - {T}(x / d) * d);
}}
""",
    "shl": """\
inline {T} shl_{name}({T} x, {T} n) {{
  return {U}(n) < {bits}u ? {T}({U}(x) << {U}(n)) : {T}(0);
}}
""",
    "shr": """\
inline {T} shr_{name}({T} x, {T} n) {{
  return {T}(x >> ({U}(n) < {bits}u ? n : {T}({last})));
}}
""",
    "abs": """\
inline {T} abs_{name}({T} x) {{
  return x < 0 ? {T}({U}(0) - {U}(x)) : x;
}}
""",
    # NaN fails both comparisons with the upper bound and gives 0.
    "to": """\
inline {T} to_{name}(float x) {{
#pragma METAL fp math_mode(safe)
  if (x < {high}f) return x > {low}f ? {T}(x) : {min};
  return x >= {high}f ? {max} : {T}(0);
}}
""",
}

# The same, where unsigned types need less.
_UNSIGNED_HELPERS = {
    "idiv": """\
inline {T} idiv_{name}({T} x, {T} y) {{
  return y == 0 ? {T}(0) : {T}(x / y);
}}
""",
    "irem": """\
inline {T} irem_{name}({T} x, {T} y) {{
  return y == 0 ? x : {T}(x % y);
}}
""",
    "shr": """\
inline {T} shr_{name}({T} x, {T} n) {{
  return n < {bits}u ? {T}(x >> n) : {T}(0);
}}
""",
}


def integer_helper(base: str, dtype: DType) -> str:
    """The name of the helper ``base`` ("idiv", "shl", …) for ``dtype``, for example ``"idiv_int32"``."""
    return f"{base}_{dtype.name}"


@lru_cache(maxsize=256)
def helper(name: str) -> Helper:
    """The helper called ``name``; ``InternalError`` if there is none."""
    if name in _FLOAT_HELPERS:
        return Helper(name, _FLOAT_HELPERS[name])
    base, _, suffix = name.rpartition("_")
    dtype = DTYPES.get(suffix)
    template = _INTEGER_HELPERS.get(base)
    if dtype is None or template is None or dtype.kind not in (Kind.SIGNED, Kind.UNSIGNED):
        raise InternalError(f"no helper function {name!r}")
    if dtype.kind is Kind.UNSIGNED:
        template = _UNSIGNED_HELPERS.get(base, template)
    bound = dtype.maximum + 1
    text = template.format(
        T=type_name(dtype), U=unsigned_name(dtype), name=dtype.name, bits=dtype.bits, last=dtype.bits - 1,
        min=constant(dtype.minimum, dtype), max=constant(dtype.maximum, dtype),
        low=float(-bound if dtype.kind is Kind.SIGNED else 0), high=float(bound),
    )  # fmt: skip
    return Helper(name, text)


def all_helpers() -> list[str]:
    """Every helper's name, for tests."""
    names = list(_FLOAT_HELPERS)
    for dtype in DTYPES.values():
        if dtype.kind is Kind.SIGNED:
            # A narrow quotient is computed in int and cannot overflow.
            bases = [b for b in _INTEGER_HELPERS if b != "idiv_nonzero" or dtype.bits >= 32]
            names += [integer_helper(base, dtype) for base in bases]
        elif dtype.kind is Kind.UNSIGNED:
            names += [integer_helper(base, dtype) for base in ("idiv", "irem", "shl", "shr", "to")]
    return names


def header(names: Iterable[str]) -> str:
    """The header text that defines ``names`` and what they call: pure ASCII, ending in a newline.

    The same set gives the same text in any order; no names give ``""``. Dependencies come first.
    """
    ordered: dict[str, Helper] = {}

    def add(name: str) -> None:
        if name not in ordered:
            item = helper(name)
            for needed in item.needs:
                add(needed)
            ordered[name] = item

    for name in sorted(set(names)):
        add(name)
    if not ordered:
        return ""
    body = "\n".join(item.text for item in ordered.values())
    return f"namespace enceladus {{\n\n{body}\n}}  // namespace enceladus\n"
