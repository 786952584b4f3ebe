// Everything a body from `mx.fast.metal_kernel` sees: the Metal vocabulary, then MLX's preamble.
// Precompiled once; see toolchain.py.
#pragma once
#include "msl_atomic.h"
#include "msl_matrix.h"

// See wrap_conditionals in translate.py.
template <class T> constexpr T msl_value(T value) { return value; }

#define MLX_MTL_PRAGMA_UNROLL _Pragma("clang loop unroll(full)")

template <class U> struct Limits {
  static constexpr U max = numeric_limits<U>::max();
  static constexpr U min = numeric_limits<U>::min();
  static constexpr U finite_max = numeric_limits<U>::max();
  static constexpr U finite_min = numeric_limits<U>::min();
};
#define MLX_FLOAT_LIMITS(T)                                                                       \
  template <> struct Limits<T> {                                                                  \
    static constexpr T max = numeric_limits<T>::infinity();                                       \
    static constexpr T min = -numeric_limits<T>::infinity();                                      \
    static constexpr T finite_max = numeric_limits<T>::max();                                     \
    static constexpr T finite_min = numeric_limits<T>::lowest();                                  \
  };
MLX_FLOAT_LIMITS(half) MLX_FLOAT_LIMITS(float) MLX_FLOAT_LIMITS(bfloat)
#undef MLX_FLOAT_LIMITS
template <> struct Limits<bool> {
  static constexpr bool max = true;
  static constexpr bool min = false;
};

inline float log1p(float x) {
  float xp1 = 1.0f + x;
  if (xp1 == __builtin_inff()) return __builtin_inff();
  if (xp1 == 1.0f) return x;
  return x * (log(xp1) / (xp1 - 1.0f));
}
inline bfloat16_t log1p(bfloat16_t x) { return bfloat16_t(log1p(float(x))); }
inline float hypot(float x, float y) { return precise::sqrt(x * x + y * y); }
inline size_t ceildiv(size_t n, size_t m) { return (n + m - 1) / m; }
inline uint16_t bfloat16_to_uint16(const bfloat16_t x) { return as_type<uint16_t>(x); }
inline bfloat16_t uint16_to_bfloat16(const uint16_t x) { return as_type<bfloat16_t>(x); }

template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  IdxT loc = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    loc += (elem % shape[i]) * IdxT(strides[i]);
    elem /= shape[i];
  }
  return loc;
}

// From here on, as in Metal: what lies in constant space is const.
#undef constant
#define constant __constant const
