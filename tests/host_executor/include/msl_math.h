// MSL mathematics, integer, common, relational and geometric functions.
//
// Scalar functions are overloads, not templates, so that the calls Metal reports as ambiguous are
// ambiguous here. `precise` and `fast` exist for float (a half argument converts and the result is
// float) and, as in MLX's preamble, for bfloat. Both are the host's libm: denormals are kept, and
// nothing imitates the lower accuracy of `fast`.
#pragma once
#include "msl_types.h"

namespace msl_host {
inline float sinpi(float x) {
  float r = x - 2.0f * __builtin_rintf(x * 0.5f);
  return r == __builtin_truncf(r) ? __builtin_copysignf(0.0f, x) : __builtin_sinf(r * M_PI_F);
}
inline float cospi(float x) {
  float r = __builtin_fabsf(x - 2.0f * __builtin_rintf(x * 0.5f));
  return r == 0.5f || r == 1.5f ? 0.0f : __builtin_cosf(r * M_PI_F);
}
inline float tanpi(float x) { return sinpi(x) / cospi(x); }
inline float fract(float x) { return __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f); }
inline float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f; }
inline float saturate(float x) { return __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float exp10(float x) { return __builtin_powf(10.0f, x); }
inline float divide(float a, float b) { return a / b; }
inline float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
inline float clamp(float x, float lo, float hi) { return __builtin_fminf(__builtin_fmaxf(x, lo), hi); }
inline float mix(float a, float b, float t) { return a + (b - a) * t; }
inline float smoothstep(float lo, float hi, float x) {
  float t = clamp((x - lo) / (hi - lo), 0.0f, 1.0f);
  return t * t * (3.0f - 2.0f * t);
}
inline float fmax3(float a, float b, float c) { return __builtin_fmaxf(__builtin_fmaxf(a, b), c); }
inline float fmin3(float a, float b, float c) { return __builtin_fminf(__builtin_fminf(a, b), c); }
inline float fmedian3(float a, float b, float c) {
  return __builtin_fmaxf(__builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c));
}
}  // namespace msl_host

#define MSL_UNARY(X)                                                                              \
  X(acos, __builtin_acosf) X(acosh, __builtin_acoshf) X(asin, __builtin_asinf)                    \
  X(asinh, __builtin_asinhf) X(atan, __builtin_atanf) X(atanh, __builtin_atanhf)                  \
  X(ceil, __builtin_ceilf) X(cos, __builtin_cosf) X(cosh, __builtin_coshf)                        \
  X(cospi, msl_host::cospi) X(exp, __builtin_expf) X(exp2, __builtin_exp2f)                       \
  X(exp10, msl_host::exp10) X(fabs, __builtin_fabsf) X(abs, __builtin_fabsf)                      \
  X(floor, __builtin_floorf) X(fract, msl_host::fract) X(log, __builtin_logf)                     \
  X(log2, __builtin_log2f) X(log10, __builtin_log10f) X(rint, __builtin_rintf)                    \
  X(round, __builtin_roundf) X(rsqrt, msl_host::rsqrt) X(sin, __builtin_sinf)                     \
  X(sinh, __builtin_sinhf) X(sinpi, msl_host::sinpi) X(sqrt, __builtin_sqrtf)                     \
  X(tan, __builtin_tanf) X(tanh, __builtin_tanhf) X(tanpi, msl_host::tanpi)                       \
  X(trunc, __builtin_truncf) X(saturate, msl_host::saturate)
#define MSL_BINARY(X)                                                                             \
  X(atan2, __builtin_atan2f) X(fdim, __builtin_fdimf) X(fmax, __builtin_fmaxf)                    \
  X(fmin, __builtin_fminf) X(max, __builtin_fmaxf) X(min, __builtin_fminf)                        \
  X(fmod, __builtin_fmodf) X(pow, __builtin_powf) X(powr, __builtin_powf)                         \
  X(nextafter, __builtin_nextafterf) X(divide, msl_host::divide)
// MLX's preamble gives these no bfloat overload: the float version is chosen.
#define MSL_BINARY_FLOAT_ONLY(X) X(copysign, __builtin_copysignf) X(step, msl_host::step)
#define MSL_TERNARY(X)                                                                            \
  X(fma, __builtin_fmaf) X(fmax3, msl_host::fmax3) X(fmin3, msl_host::fmin3)                      \
  X(max3, msl_host::fmax3) X(min3, msl_host::fmin3) X(fmedian3, msl_host::fmedian3)               \
  X(median3, msl_host::fmedian3)
#define MSL_TERNARY_FLOAT_ONLY(X)                                                                 \
  X(clamp, msl_host::clamp) X(mix, msl_host::mix) X(smoothstep, msl_host::smoothstep)

#define MSL_F1(NAME, IMPL)                                                                        \
  inline float NAME(float x) { return IMPL(x); }                                                  \
  template <class T, int N> vec<T, N> NAME(vec<T, N> x) {                                         \
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = T(NAME(x[i])); return r;                      \
  }
#define MSL_F2(NAME, IMPL)                                                                        \
  inline float NAME(float x, float y) { return IMPL(x, y); }                                      \
  template <class T, int N> vec<T, N> NAME(vec<T, N> x, identity_t<vec<T, N>> y) {                \
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = T(NAME(x[i], y[i])); return r;                \
  }
#define MSL_F3(NAME, IMPL)                                                                        \
  inline float NAME(float x, float y, float z) { return IMPL(x, y, z); }                          \
  template <class T, int N> vec<T, N> NAME(vec<T, N> x, identity_t<vec<T, N>> y, identity_t<vec<T, N>> z) { \
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = T(NAME(x[i], y[i], z[i])); return r;          \
  }
#define MSL_H1(NAME, IMPL) inline half NAME(half x) { return half(IMPL(float(x))); }
#define MSL_H2(NAME, IMPL) inline half NAME(half x, half y) { return half(IMPL(float(x), float(y))); }
#define MSL_H3(NAME, IMPL)                                                                        \
  inline half NAME(half x, half y, half z) { return half(IMPL(float(x), float(y), float(z))); }
#define MSL_B1(NAME, IMPL) inline bfloat NAME(bfloat x) { return bfloat(IMPL(x.widen())); }
#define MSL_B2(NAME, IMPL)                                                                        \
  inline bfloat NAME(bfloat x, bfloat y) { return bfloat(IMPL(x.widen(), y.widen())); }
#define MSL_B3(NAME, IMPL)                                                                        \
  inline bfloat NAME(bfloat x, bfloat y, bfloat z) {                                              \
    return bfloat(IMPL(x.widen(), y.widen(), z.widen()));                                         \
  }
#define MSL_FLOAT_FUNCTIONS                                                                       \
  MSL_UNARY(MSL_F1) MSL_UNARY(MSL_B1) MSL_F1(sign, msl_host::sign)                                \
  MSL_BINARY(MSL_F2) MSL_BINARY(MSL_B2) MSL_BINARY_FLOAT_ONLY(MSL_F2)                             \
  MSL_TERNARY(MSL_F3) MSL_TERNARY(MSL_B3) MSL_TERNARY_FLOAT_ONLY(MSL_F3)                          \
  inline float sincos(float x, thread float& c) { c = __builtin_cosf(x); return __builtin_sinf(x); } \
  inline float frexp(float x, thread int& e) { int t; float m = __builtin_frexpf(x, &t); e = t; return m; } \
  inline float modf(float x, thread float& whole) {                                               \
    whole = __builtin_truncf(x);                                                                  \
    return __builtin_copysignf(__builtin_isinf(x) ? 0.0f : x - whole, x);                         \
  }                                                                                               \
  inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }                           \
  inline int ilogb(float x) { return __builtin_ilogbf(x); }

namespace metal {
MSL_FLOAT_FUNCTIONS
MSL_UNARY(MSL_H1) MSL_H1(sign, msl_host::sign) MSL_BINARY(MSL_H2) MSL_BINARY_FLOAT_ONLY(MSL_H2)
MSL_TERNARY(MSL_H3) MSL_TERNARY_FLOAT_ONLY(MSL_H3)
inline half ldexp(half x, int e) { return half(__builtin_ldexpf(float(x), e)); }
namespace precise {
MSL_FLOAT_FUNCTIONS
}
namespace fast {
MSL_FLOAT_FUNCTIONS
}

// ---- relational ----
#define MSL_CLASSIFY(T)                                                                           \
  inline bool isnan(T x) { return __builtin_isnan(float(x)); }                                    \
  inline bool isinf(T x) { return __builtin_isinf(float(x)); }                                    \
  inline bool isfinite(T x) { return __builtin_isfinite(float(x)); }                              \
  inline bool isordered(T x, T y) { return !isnan(x) && !isnan(y); }                              \
  inline bool isunordered(T x, T y) { return isnan(x) || isnan(y); }                              \
  inline bool signbit(T x) { return __builtin_signbit(float(x)); }
MSL_CLASSIFY(float) MSL_CLASSIFY(half) MSL_CLASSIFY(bfloat)
inline bool isnormal(float x) { return __builtin_isnormal(x); }
inline bool isnormal(half x) { float a = __builtin_fabsf(float(x)); return a >= 0x1p-14f && a <= 0x1.ffcp15f; }
#define MSL_CLASSIFY_VECTOR(NAME)                                                                 \
  template <class T, int N> vec<bool, N> NAME(vec<T, N> x) {                                      \
    vec<bool, N> r; for (int i = 0; i < N; i++) r[i] = NAME(x[i]); return r;                      \
  }
MSL_CLASSIFY_VECTOR(isnan) MSL_CLASSIFY_VECTOR(isinf) MSL_CLASSIFY_VECTOR(isfinite)
MSL_CLASSIFY_VECTOR(isnormal) MSL_CLASSIFY_VECTOR(signbit)
inline bool any(bool x) { return x; }
inline bool all(bool x) { return x; }
template <int N> bool any(vec<bool, N> x) { bool r = false; for (int i = 0; i < N; i++) r |= x[i]; return r; }
template <int N> bool all(vec<bool, N> x) { bool r = true; for (int i = 0; i < N; i++) r &= x[i]; return r; }
#define MSL_SELECT(T, NAME) inline T select(T a, T b, bool c) { return c ? b : a; }
MSL_NUMERIC_TYPES(MSL_SELECT) MSL_SELECT(bool, bool)
template <class T, int N> vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  vec<T, N> r; for (int i = 0; i < N; i++) r[i] = c[i] ? b[i] : a[i]; return r;
}

// ---- integer ----
// The wide type holds every intermediate result of the narrower ones; 64-bit needs care of its own.
#define MSL_INTEGER(T, U, BITS, SIGNED)                                                           \
  inline T min(T a, T b) { return b < a ? b : a; }                                                \
  inline T max(T a, T b) { return a < b ? b : a; }                                                \
  inline T min3(T a, T b, T c) { return min(min(a, b), c); }                                      \
  inline T max3(T a, T b, T c) { return max(max(a, b), c); }                                      \
  inline T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }                   \
  inline T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }                                 \
  inline T abs(T x) { return x < T(0) ? T(U(0) - U(x)) : x; }                                     \
  inline U absdiff(T a, T b) { return a > b ? U(U(a) - U(b)) : U(U(b) - U(a)); }                  \
  inline T addsat(T a, T b) {                                                                     \
    T r; if (!__builtin_add_overflow(a, b, &r)) return r;                                         \
    return a < T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max();                        \
  }                                                                                               \
  inline T subsat(T a, T b) {                                                                     \
    T r; if (!__builtin_sub_overflow(a, b, &r)) return r;                                         \
    return SIGNED && a >= T(0) ? numeric_limits<T>::max() : numeric_limits<T>::min();             \
  }                                                                                               \
  inline T hadd(T a, T b) { return T((a >> 1) + (b >> 1) + (a & b & T(1))); }                     \
  inline T rhadd(T a, T b) { return T((a >> 1) + (b >> 1) + ((a | b) & T(1))); }                  \
  inline T clz(T x) { return T(U(x) == 0 ? BITS : __builtin_clzl(ulong(U(x))) - (64 - BITS)); }  \
  inline T ctz(T x) { return T(U(x) == 0 ? BITS : __builtin_ctzl(ulong(U(x)))); }                \
  inline T popcount(T x) { return T(__builtin_popcountl(ulong(U(x)))); }                         \
  inline T rotate(T x, T n) {                                                                     \
    uint k = uint(n) & (BITS - 1);                                                                \
    return k == 0 ? x : T(U(U(x) << k) | U(U(x) >> (BITS - k)));                                  \
  }                                                                                               \
  inline T reverse_bits(T x) { return T(__builtin_bitreverse64(ulong(U(x))) >> (64 - BITS)); }    \
  inline T extract_bits(T x, uint offset, uint bits) {                                            \
    if (bits == 0) return T(0);                                                                   \
    return T(T(U(x) << (BITS - bits - offset)) >> (BITS - bits));                                 \
  }                                                                                               \
  inline T insert_bits(T base, T insert, uint offset, uint bits) {                                \
    U mask = bits >= BITS ? U(~U(0)) : U(((ulong(1) << bits) - 1) << offset);                     \
    return T((U(base) & ~mask) | (U(U(insert) << offset) & mask));                                \
  }                                                                                               \
  inline T mulhi(T a, T b) {                                                                      \
    typedef conditional_t<SIGNED, __int128, unsigned __int128> wide;                              \
    return T((wide(a) * wide(b)) >> BITS);                                                        \
  }                                                                                               \
  inline T madhi(T a, T b, T c) { return T(mulhi(a, b) + c); }                                    \
  inline T madsat(T a, T b, T c) {                                                                \
    typedef conditional_t<SIGNED, __int128, unsigned __int128> wide;                              \
    wide r = wide(a) * wide(b) + wide(c);                                                         \
    wide lo = numeric_limits<T>::min(), hi = numeric_limits<T>::max();                            \
    return T(r < lo ? lo : r > hi ? hi : r);                                                      \
  }
MSL_INTEGER(char, uchar, 8, true) MSL_INTEGER(uchar, uchar, 8, false)
MSL_INTEGER(short, ushort, 16, true) MSL_INTEGER(ushort, ushort, 16, false)
MSL_INTEGER(int, uint, 32, true) MSL_INTEGER(uint, uint, 32, false)
MSL_INTEGER(long, ulong, 64, true) MSL_INTEGER(ulong, ulong, 64, false)
inline int mul24(int a, int b) { return int(long(a << 8 >> 8) * (b << 8 >> 8)); }
inline uint mul24(uint a, uint b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int mad24(int a, int b, int c) { return mul24(a, b) + c; }
inline uint mad24(uint a, uint b, uint c) { return mul24(a, b) + c; }
#define MSL_INTEGER_V1(NAME)                                                                      \
  template <class T, int N> vec<T, N> NAME(vec<T, N> a) {                                         \
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = NAME(a[i]); return r;                         \
  }
#define MSL_INTEGER_V2(NAME)                                                                      \
  template <class T, int N> vec<T, N> NAME(vec<T, N> a, vec<T, N> b) {                            \
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = NAME(a[i], b[i]); return r;                   \
  }
MSL_INTEGER_V1(clz) MSL_INTEGER_V1(ctz) MSL_INTEGER_V1(popcount) MSL_INTEGER_V1(reverse_bits)
MSL_INTEGER_V2(addsat) MSL_INTEGER_V2(subsat) MSL_INTEGER_V2(hadd) MSL_INTEGER_V2(rhadd)
MSL_INTEGER_V2(mulhi) MSL_INTEGER_V2(rotate)

// ---- geometric ----
template <class T, int N> T dot(vec<T, N> a, vec<T, N> b) {
  T r = T(a[0] * b[0]); for (int i = 1; i < N; i++) r = T(r + a[i] * b[i]); return r;
}
template <class T, int N> T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T> vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
}  // namespace metal
