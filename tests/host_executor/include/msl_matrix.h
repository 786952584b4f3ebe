// simdgroup_matrix<T, 8, 8>, with the lane layout that MLX's kernels rely on.
#pragma once
#include "msl_simd.h"

namespace msl_host {
// With lane bits b4..b0: row = 4*b4 + 2*b2 + b1, columns 4*b3 + 2*b0 and the next one.
inline uint fragment_row(uint lane) { return (lane >> 2 & 4) | (lane >> 1 & 3); }
inline uint fragment_column(uint lane) { return (lane >> 1 & 4) | (lane << 1 & 2); }
inline uint fragment_lane(uint row, uint column) {
  return (row << 2 & 16) | (column << 1 & 8) | (row << 1 & 6) | (column >> 1 & 1);
}
}  // namespace msl_host

namespace metal {
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8 SIMD-group matrices exist");
  static_assert(__is_same(T, float) || __is_same(T, half) || __is_same(T, bfloat), "no such matrix type");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  // A scalar makes a diagonal matrix.
  explicit simdgroup_matrix(T diagonal) {
    uint lane = msl_host::msl_lane(), row = msl_host::fragment_row(lane), column = msl_host::fragment_column(lane);
    elements = vec<T, 2>(row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0));
  }
  thread vec<T, 2>& thread_elements() { return *(thread vec<T, 2>*)&elements; }
  const thread vec<T, 2>& thread_elements() const { return *(const thread vec<T, 2>*)&elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m; m.elements = vec<T, 2>(value); return m;
}

// Loads read before the rendezvous and stores write after it, so that the rendezvous does not
// stand in for a barrier that the kernel forgot.
#define MSL_MATRIX_MEMORY(SPACE)                                                                  \
  template <class T, int R, int C>                                                                \
  void simdgroup_load(thread simdgroup_matrix<T, R, C>& m, const SPACE T* p, ulong stride = 8,    \
                      vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false,            \
                      Site s = Site::here()) {                                                    \
    uint lane = msl_host::msl_lane();                                                             \
    for (uint i = 0; i < 2; i++) {                                                                \
      ulong row = msl_host::fragment_row(lane), column = msl_host::fragment_column(lane) + i;     \
      if (transpose) { ulong t = row; row = column; column = t; }                                 \
      m.elements[i] = p[(row + origin.y) * stride + column + origin.x];                           \
    }                                                                                             \
    msl_host::msl_collective(s.line, s.column, nullptr, 0);                                       \
  }
#define MSL_MATRIX_STORE(SPACE)                                                                   \
  template <class T, int R, int C>                                                                \
  void simdgroup_store(simdgroup_matrix<T, R, C> m, SPACE T* p, ulong stride = 8,                 \
                       vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false,           \
                       Site s = Site::here()) {                                                   \
    msl_host::msl_collective(s.line, s.column, nullptr, 0);                                       \
    uint lane = msl_host::msl_lane();                                                             \
    for (uint i = 0; i < 2; i++) {                                                                \
      ulong row = msl_host::fragment_row(lane), column = msl_host::fragment_column(lane) + i;     \
      if (transpose) { ulong t = row; row = column; column = t; }                                 \
      p[(row + origin.y) * stride + column + origin.x] = m.elements[i];                           \
    }                                                                                             \
  }
MSL_MATRIX_MEMORY(device) MSL_MATRIX_MEMORY(threadgroup)
MSL_MATRIX_STORE(device) MSL_MATRIX_STORE(threadgroup)
#undef MSL_MATRIX_MEMORY
#undef MSL_MATRIX_STORE

template <class D, class A, class B, class E>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<E, 8, 8> c,
                                   Site s = Site::here()) {
  struct Pair { vec<A, 2> a; vec<B, 2> b; };
  msl_host::Rendezvous* r = msl_host::meet(Pair{a.elements, b.elements}, s);
  uint lane = msl_host::msl_lane(), row = msl_host::fragment_row(lane), column = msl_host::fragment_column(lane);
  float sum[2] = {float(c.elements[0]), float(c.elements[1])};
  for (uint k = 0; k < 8; k++) {
    float left = float(((const Pair*)r->values[msl_host::fragment_lane(row, k)])->a[k & 1]);
    const Pair* right = (const Pair*)r->values[msl_host::fragment_lane(k, column)];
    for (uint i = 0; i < 2; i++) sum[i] = __builtin_fmaf(left, float(right->b[i]), sum[i]);
  }
  d.elements = vec<D, 2>(D(sum[0]), D(sum[1]));
}
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                        simdgroup_matrix<B, 8, 8> b, Site s = Site::here()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), s);
}
}  // namespace metal
