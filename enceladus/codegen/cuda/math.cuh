// Functions of Metal's library. precise:: is CUDA's accurate function; fast:: its approximation where
// that keeps what Metal promises for fast::, else the accurate one. Names without a variant are precise.
// NVRTC gets no --use_fast_math from MLX: denormals are kept, division and square root round correctly.
namespace metal {

namespace precise {
// 1 / x, correctly rounded; takes the place of divide(1.0f, x). Without the branch of __frcp_rn, which would
// keep a thread from working on several elements at once, so denormals count as zero. One Newton step, where
// the estimate is near: not of 0, infinity and NaN, nor where it was flushed.
inline float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  const float error = ::__fmaf_rn(-x, r, 1.0f);
  const float refined = ::__fmaf_rn(error, r, r);
  return ::fabsf(error) < 1.0f ? refined : r;
}
}  // namespace precise
namespace fast {
inline float approximate_sqrt(float x) {
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// One instruction: denormal operands and results count as zero.
inline float approximate_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
}  // namespace fast

// NAME, accurate, approximate
#define ENCELADUS_UNARY(X)                                                               \
  X(acos, ::acosf, ::acosf) X(acosh, ::acoshf, ::acoshf) X(asin, ::asinf, ::asinf)       \
  X(asinh, ::asinhf, ::asinhf) X(atan, ::atanf, ::atanf) X(atanh, ::atanhf, ::atanhf)    \
  X(ceil, ::ceilf, ::ceilf) X(cos, ::cosf, ::__cosf) X(cosh, ::coshf, ::coshf)           \
  X(cospi, ::cospif, ::cospif) X(exp, ::expf, ::__expf) X(exp2, ::exp2f, approximate_exp2) \
  X(exp10, ::exp10f, ::__exp10f) X(fabs, ::fabsf, ::fabsf) X(floor, ::floorf, ::floorf)  \
  X(log, ::logf, ::__logf) X(log2, ::log2f, ::__log2f) X(log10, ::log10f, ::__log10f)    \
  X(rint, ::rintf, ::rintf) X(round, ::roundf, ::roundf) X(rsqrt, ::rsqrtf, ::rsqrtf)    \
  X(sin, ::sinf, ::__sinf) X(sinh, ::sinhf, ::sinhf) X(sinpi, ::sinpif, ::sinpif)        \
  X(sqrt, ::__fsqrt_rn, approximate_sqrt) X(tan, ::tanf, ::__tanf)                       \
  X(tanh, ::tanhf, ::tanhf) X(trunc, ::truncf, ::truncf)
#define ENCELADUS_BINARY(X)                                                              \
  X(atan2, ::atan2f, ::atan2f) X(copysign, ::copysignf, ::copysignf)                     \
  X(divide, ::__fdiv_rn, ::__fdividef) X(fdim, ::fdimf, ::fdimf)                         \
  X(fmax, ::fmaxf, ::fmaxf) X(fmin, ::fminf, ::fminf) X(fmod, ::fmodf, ::fmodf)          \
  X(nextafter, ::nextafterf, ::nextafterf) X(pow, ::powf, ::powf) X(powr, ::powf, ::powf)

#define ENCELADUS_DEFINE(NAME, ACCURATE, APPROXIMATE)                                    \
  namespace precise { inline float NAME(float x) { return ACCURATE(x); } }               \
  namespace fast { inline float NAME(float x) { return APPROXIMATE(x); } }               \
  inline float NAME(float x) { return ACCURATE(x); }                                     \
  template <int n>                                                                       \
  inline vec<float, n> NAME(vec<float, n> x) {                                           \
    _Pragma("unroll") for (int i = 0; i < n; ++i) x[i] = ACCURATE(x[i]);                 \
    return x;                                                                            \
  }
ENCELADUS_UNARY(ENCELADUS_DEFINE)
#undef ENCELADUS_DEFINE
#define ENCELADUS_DEFINE(NAME, ACCURATE, APPROXIMATE)                                    \
  namespace precise { inline float NAME(float x, float y) { return ACCURATE(x, y); } }   \
  namespace fast { inline float NAME(float x, float y) { return APPROXIMATE(x, y); } }   \
  inline float NAME(float x, float y) { return ACCURATE(x, y); }
ENCELADUS_BINARY(ENCELADUS_DEFINE)
#undef ENCELADUS_DEFINE
#undef ENCELADUS_UNARY
#undef ENCELADUS_BINARY

inline float fma(float x, float y, float z) { return ::__fmaf_rn(x, y, z); }
template <int n>
inline vec<float, n> fma(vec<float, n> x, vec<float, n> y, vec<float, n> z) {
  _Pragma("unroll") for (int i = 0; i < n; ++i) x[i] = ::__fmaf_rn(x[i], y[i], z[i]);
  return x;
}
inline float ldexp(float x, int e) { return ::ldexpf(x, e); }
inline float fract(float x) { return ::fminf(x - ::floorf(x), 0x1.fffffep-1f); }
inline float sincos(float x, float& cosine) {
  float sine;
  ::sincosf(x, &sine, &cosine);
  return sine;
}

inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return ::fabsf(x) == as_type<float>(0x7f800000u); }
inline bool isfinite(float x) { return ::fabsf(x) < as_type<float>(0x7f800000u); }
inline bool signbit(float x) { return as_type<uint>(x) >> 31 != 0; }

// Operands of different types are refused, as in Metal; a float min or max of integers would be wrong.
template <class A, class B>
void min(A, B) = delete;
template <class A, class B>
void max(A, B) = delete;
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }
// One NaN: the other operand.
inline float min(float a, float b) { return ::fminf(a, b); }
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline half min(half a, half b) { return half(::fminf(float(a), float(b))); }
inline half max(half a, half b) { return half(::fmaxf(float(a), float(b))); }
inline bfloat min(bfloat a, bfloat b) { return bfloat(::fminf(float(a), float(b))); }
inline bfloat max(bfloat a, bfloat b) { return bfloat(::fmaxf(float(a), float(b))); }
template <class T>
inline T clamp(T x, no_deduction<T> low, no_deduction<T> high) { return min(max(x, low), high); }
template <class T>
inline T select(T on_false, no_deduction<T> on_true, bool condition) { return condition ? on_true : on_false; }

inline float abs(float x) { return ::fabsf(x); }
template <class T>
inline T abs(T x) { return x < T(0) ? T(T(0) - x) : x; }

template <class T>
inline T popcount(T x) {
  if constexpr (sizeof(T) == 8) return T(::__popcll(x));
  if constexpr (sizeof(T) == 4) return T(::__popc(x));
  static_assert(sizeof(T) >= 4, "popcount of 32 or 64 bits");
}
// The width of the type for 0.
template <class T>
inline T clz(T x) {
  if constexpr (sizeof(T) == 8) return T(::__clzll(x));
  if constexpr (sizeof(T) == 4) return T(::__clz(x));
  static_assert(sizeof(T) >= 4, "clz of 32 or 64 bits");
}
template <class T>
inline T ctz(T x) {
  if constexpr (sizeof(T) == 8) return T(::__clzll(::__brevll(x)));
  if constexpr (sizeof(T) == 4) return T(::__clz(::__brev(x)));
  static_assert(sizeof(T) >= 4, "ctz of 32 or 64 bits");
}
template <class T>
inline T reverse_bits(T x) {
  if constexpr (sizeof(T) == 8) return T(::__brevll(x));
  if constexpr (sizeof(T) == 4) return T(::__brev(x));
  static_assert(sizeof(T) >= 4, "reverse_bits of 32 or 64 bits");
}
template <class T>
inline T mulhi(T x, no_deduction<T> y) {
  constexpr bool is_signed = T(-1) < T(0);
  static_assert(sizeof(T) >= 4, "mulhi of 32 or 64 bits");
  if constexpr (sizeof(T) == 8) {
    if constexpr (is_signed) return T(::__mul64hi(x, y));
    else return T(::__umul64hi(x, y));
  } else {
    if constexpr (is_signed) return T(::__mulhi(x, y));
    else return T(::__umulhi(x, y));
  }
}

}  // namespace metal
