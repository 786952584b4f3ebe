// SIMD-group, quad-group and barrier functions.
//
// Every one is a rendezvous of the 32 lanes in the runtime: a lane publishes its operand and
// continues when all lanes of its SIMD group have published theirs. The rendezvous is identified
// by its place in the source (`Site`), which no optimisation can merge or split.
#pragma once
#include "msl_math.h"

namespace msl_host {
struct Site {
  uint line, column;
  static constexpr Site here(uint l = __builtin_LINE(), uint c = __builtin_COLUMN()) {
    return Site{l, c};
  }
};
// Shared with runtime.c: `struct rendezvous`.
struct Rendezvous {
  alignas(16) uchar values[32][16];
  alignas(16) uchar result[16];
  uint active;     // lanes that exist (the last SIMD group of a threadgroup may be short)
  uint reduced;    // set by the first lane that computes `result`
};
extern "C" Rendezvous* msl_collective(uint line, uint column, const thread void* value, uint bytes);
extern "C" void msl_threadgroup_barrier(uint line, uint column);
extern "C" uint msl_lane();
extern "C" void msl_inactive_lane(uint line, uint column, uint lane);
extern "C" uint msl_spurious_failure();
extern "C" threadgroup void* msl_threadgroup_memory(uint id, ulong bytes, ulong alignment);

template <class T> inline Rendezvous* meet(T value, Site s) {
  static_assert(sizeof(T) <= 16, "SIMD-group functions take at most 16 bytes a lane");
  return msl_collective(s.line, s.column, &value, sizeof(T));
}
template <class T> inline T published(const Rendezvous* r, uint lane, Site s) {
  if (lane >= 32 || !(r->active >> lane & 1)) msl_inactive_lane(s.line, s.column, lane);
  return *(const T*)r->values[lane & 31];
}

template <class T> struct accumulator { typedef T type; };
template <> struct accumulator<bfloat> { typedef float type; };  // MLX: in float, then rounded
template <int N> struct accumulator<vec<bfloat, N>> { typedef vec<float, N> type; };

struct Sum { template <class T> static T of(T a, T b) { return T(a + b); } };
struct Product { template <class T> static T of(T a, T b) { return T(a * b); } };
struct Min { template <class T> static T of(T a, T b) { return min(a, b); } };
struct Max { template <class T> static T of(T a, T b) { return max(a, b); } };
struct And { template <class T> static T of(T a, T b) { return T(a & b); } };
struct Or { template <class T> static T of(T a, T b) { return T(a | b); } };
struct Xor { template <class T> static T of(T a, T b) { return T(a ^ b); } };

// A balanced tree over the active lanes of [first, first + width); the first lane to arrive does it for all.
template <class Op, class T> T tree(const Rendezvous* r, uint first, uint width) {
  typedef typename accumulator<T>::type A;
  A a[32];
  uint n = 0;
  for (uint i = first; i < first + width; i++)
    if (r->active >> i & 1) a[n++] = A(*(const T*)r->values[i]);
  for (uint step = 1; step < n; step *= 2)
    for (uint i = 0; i + step < n; i += 2 * step) a[i] = Op::of(a[i], a[i + step]);
  return T(a[0]);
}
template <class Op, class T> T reduce(T value, Site s) {
  Rendezvous* r = meet(value, s);
  if (!r->reduced) {
    *(T*)r->result = tree<Op, T>(r, 0, 32);
    r->reduced = 1;
  }
  return *(T*)r->result;
}
template <class Op, class T> T quad_reduce(T value, Site s) {
  Rendezvous* r = meet(value, s);
  return tree<Op, T>(r, msl_lane() & ~3u, 4);
}
template <class Op, class T> T prefix(T value, T empty, bool inclusive, Site s) {
  typedef typename accumulator<T>::type A;
  Rendezvous* r = meet(value, s);
  uint end = msl_lane() + inclusive;
  if (end == 0) return empty;
  A sum = A(*(const T*)r->values[0]);
  for (uint i = 1; i < end; i++) sum = Op::of(sum, A(*(const T*)r->values[i]));
  return T(sum);
}
template <class T> T from_lane(T value, uint lane, Site s) {
  Rendezvous* r = meet(value, s);
  return published<T>(r, lane, s);
}
// Lanes without a source keep their own value. `width` is 32 for SIMD groups and 4 for quads.
template <class T> T from_below(T value, uint delta, uint width, Site s) {
  Rendezvous* r = meet(value, s);
  uint lane = msl_lane();
  if ((lane & (width - 1)) < delta) return value;
  return published<T>(r, lane - delta, s);
}
template <class T> T from_above(T value, uint delta, uint width, Site s) {
  Rendezvous* r = meet(value, s);
  uint lane = msl_lane();
  if ((lane & (width - 1)) + delta >= width) return value;
  return published<T>(r, lane + delta, s);
}
template <class T> T rotated(T value, uint delta, uint width, Site s) {
  Rendezvous* r = meet(value, s);
  uint lane = msl_lane(), base = lane & ~(width - 1);
  return published<T>(r, base + ((lane + delta) & (width - 1)), s);
}
template <class T> T filled_up(T value, T fill, uint delta, uint modulo, Site s) {
  Rendezvous* r = meet(value, s);
  Rendezvous* f = meet(fill, s);
  uint lane = msl_lane(), base = lane & ~(modulo - 1), place = lane & (modulo - 1);
  return place >= delta ? published<T>(r, lane - delta, s)
                        : published<T>(f, base + modulo - delta + place, s);
}
template <class T> T filled_down(T value, T fill, uint delta, uint modulo, Site s) {
  Rendezvous* r = meet(value, s);
  Rendezvous* f = meet(fill, s);
  uint lane = msl_lane(), base = lane & ~(modulo - 1), place = lane & (modulo - 1);
  return place + delta < modulo ? published<T>(r, lane + delta, s)
                                : published<T>(f, base + place + delta - modulo, s);
}
inline uint ballot(bool value, Site s) {
  Rendezvous* r = meet(uint(value), s);
  uint mask = 0;
  for (uint i = 0; i < 32; i++)
    if (r->active >> i & 1) mask |= *(const uint*)r->values[i] << i;
  return mask;
}
template <class T, uint ID, ulong ALIGNMENT> threadgroup T& threadgroup_variable() {
  return *(threadgroup T*)msl_threadgroup_memory(
      ID, sizeof(T), ALIGNMENT > alignof(T) ? ALIGNMENT : alignof(T));
}
}  // namespace msl_host

namespace metal {
using msl_host::Site;

enum class mem_flags : uint {
  mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4,
  mem_threadgroup_imageblock = 8, mem_object_data = 16, mem_device_and_threadgroup = 3
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order { memory_order_relaxed };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

inline void threadgroup_barrier(mem_flags, Site s = Site::here()) {
  msl_host::msl_threadgroup_barrier(s.line, s.column);
}
inline void simdgroup_barrier(mem_flags, Site s = Site::here()) {
  msl_host::msl_collective(s.line, s.column, nullptr, 0);
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit constexpr simd_vote(vote_t v = 0) : bits(v) {}
  explicit constexpr operator vote_t() const { return bits; }
  bool all() const { return (uint)bits == 0xffffffffu; }
  bool any() const { return (uint)bits != 0; }
};
inline simd_vote simd_ballot(bool value, Site s = Site::here()) { return simd_vote(msl_host::ballot(value, s)); }
inline simd_vote simd_active_threads_mask(Site s = Site::here()) { return simd_vote(msl_host::ballot(true, s)); }
inline bool simd_any(bool value, Site s = Site::here()) { return msl_host::ballot(value, s) != 0; }
inline bool simd_all(bool value, Site s = Site::here()) { return msl_host::ballot(!value, s) == 0; }
inline bool simd_is_first(Site s = Site::here()) { msl_host::ballot(true, s); return msl_host::msl_lane() == 0; }
inline bool quad_any(bool v, Site s = Site::here()) { return (msl_host::ballot(v, s) >> (msl_host::msl_lane() & ~3u) & 15) != 0; }
inline bool quad_all(bool v, Site s = Site::here()) { return (msl_host::ballot(!v, s) >> (msl_host::msl_lane() & ~3u) & 15) == 0; }

// HEAD opens the function: an overload for each scalar type, and one template for vectors of them.
#define MSL_GROUP_FUNCTIONS(HEAD, T)                                                              \
  HEAD T simd_sum(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Sum>(v, s); }   \
  HEAD T simd_product(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Product>(v, s); } \
  HEAD T simd_min(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Min>(v, s); }   \
  HEAD T simd_max(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Max>(v, s); }   \
  HEAD T quad_sum(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Sum>(v, s); } \
  HEAD T quad_product(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Product>(v, s); } \
  HEAD T quad_min(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Min>(v, s); } \
  HEAD T quad_max(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Max>(v, s); } \
  HEAD T simd_prefix_inclusive_sum(T v, Site s = Site::here()) { return msl_host::prefix<msl_host::Sum>(v, T(0), true, s); } \
  HEAD T simd_prefix_exclusive_sum(T v, Site s = Site::here()) { return msl_host::prefix<msl_host::Sum>(v, T(0), false, s); } \
  HEAD T simd_prefix_inclusive_product(T v, Site s = Site::here()) { return msl_host::prefix<msl_host::Product>(v, T(1), true, s); } \
  HEAD T simd_prefix_exclusive_product(T v, Site s = Site::here()) { return msl_host::prefix<msl_host::Product>(v, T(1), false, s); } \
  HEAD T simd_broadcast(T v, ushort lane, Site s = Site::here()) { return msl_host::from_lane(v, lane, s); } \
  HEAD T simd_broadcast_first(T v, Site s = Site::here()) { return msl_host::from_lane(v, 0, s); } \
  HEAD T simd_shuffle(T v, ushort lane, Site s = Site::here()) { return msl_host::from_lane(v, lane, s); } \
  HEAD T simd_shuffle_xor(T v, ushort mask, Site s = Site::here()) { return msl_host::from_lane(v, msl_host::msl_lane() ^ mask, s); } \
  HEAD T simd_shuffle_up(T v, ushort d, Site s = Site::here()) { return msl_host::from_below(v, d, 32, s); } \
  HEAD T simd_shuffle_down(T v, ushort d, Site s = Site::here()) { return msl_host::from_above(v, d, 32, s); } \
  HEAD T simd_shuffle_rotate_up(T v, ushort d, Site s = Site::here()) { return msl_host::rotated(v, 32u - (d & 31u), 32, s); } \
  HEAD T simd_shuffle_rotate_down(T v, ushort d, Site s = Site::here()) { return msl_host::rotated(v, d, 32, s); } \
  HEAD T simd_shuffle_and_fill_up(T v, T f, ushort d, Site s = Site::here()) { return msl_host::filled_up(v, f, d, 32, s); } \
  HEAD T simd_shuffle_and_fill_up(T v, T f, ushort d, ushort m, Site s = Site::here()) { return msl_host::filled_up(v, f, d, m, s); } \
  HEAD T simd_shuffle_and_fill_down(T v, T f, ushort d, Site s = Site::here()) { return msl_host::filled_down(v, f, d, 32, s); } \
  HEAD T simd_shuffle_and_fill_down(T v, T f, ushort d, ushort m, Site s = Site::here()) { return msl_host::filled_down(v, f, d, m, s); } \
  HEAD T quad_broadcast(T v, ushort lane, Site s = Site::here()) { return msl_host::from_lane(v, (msl_host::msl_lane() & ~3u) + lane, s); } \
  HEAD T quad_shuffle(T v, ushort lane, Site s = Site::here()) { return msl_host::from_lane(v, (msl_host::msl_lane() & ~3u) + lane, s); } \
  HEAD T quad_shuffle_xor(T v, ushort mask, Site s = Site::here()) { return msl_host::from_lane(v, msl_host::msl_lane() ^ (mask & 3u), s); } \
  HEAD T quad_shuffle_up(T v, ushort d, Site s = Site::here()) { return msl_host::from_below(v, d, 4, s); } \
  HEAD T quad_shuffle_down(T v, ushort d, Site s = Site::here()) { return msl_host::from_above(v, d, 4, s); } \
  HEAD T quad_shuffle_rotate_up(T v, ushort d, Site s = Site::here()) { return msl_host::rotated(v, 4u - (d & 3u), 4, s); } \
  HEAD T quad_shuffle_rotate_down(T v, ushort d, Site s = Site::here()) { return msl_host::rotated(v, d, 4, s); }
#define MSL_GROUP_BITWISE(HEAD, T)                                                                \
  HEAD T simd_and(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::And>(v, s); }   \
  HEAD T simd_or(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Or>(v, s); }     \
  HEAD T simd_xor(T v, Site s = Site::here()) { return msl_host::reduce<msl_host::Xor>(v, s); }   \
  HEAD T quad_and(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::And>(v, s); } \
  HEAD T quad_or(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Or>(v, s); } \
  HEAD T quad_xor(T v, Site s = Site::here()) { return msl_host::quad_reduce<msl_host::Xor>(v, s); }

// 64-bit integers and bool are absent on purpose: Metal does not have them.
#define MSL_GROUP_INTEGERS(X) X(char) X(uchar) X(short) X(ushort) X(int) X(uint)
#define MSL_GROUP_SCALAR(T) MSL_GROUP_FUNCTIONS(inline, T)
#define MSL_GROUP_SCALAR_BITS(T) MSL_GROUP_BITWISE(inline, T)
MSL_GROUP_INTEGERS(MSL_GROUP_SCALAR) MSL_GROUP_SCALAR(half) MSL_GROUP_SCALAR(float) MSL_GROUP_SCALAR(bfloat)
MSL_GROUP_INTEGERS(MSL_GROUP_SCALAR_BITS)
#define MSL_COMMA ,
MSL_GROUP_FUNCTIONS(template <class E MSL_COMMA int N> inline, vec<E MSL_COMMA N>)
MSL_GROUP_BITWISE(template <class E MSL_COMMA int N> inline, vec<E MSL_COMMA N>)
}  // namespace metal

// MLX's preamble adds these at global scope, and only these.
#define MSL_MLX_LANE(T)                                                                           \
  inline T simd_shuffle(T v, ushort lane, Site s = Site::here()) { return msl_host::from_lane(v, lane, s); } \
  inline T simd_shuffle_up(T v, ushort d, Site s = Site::here()) { return msl_host::from_below(v, d, 32, s); } \
  inline T simd_shuffle_down(T v, ushort d, Site s = Site::here()) { return msl_host::from_above(v, d, 32, s); } \
  inline T simd_shuffle_and_fill_up(T v, T f, ushort d, Site s = Site::here()) { return msl_host::filled_up(v, f, d, 32, s); }
MSL_MLX_LANE(int64_t) MSL_MLX_LANE(uint64_t) MSL_MLX_LANE(bool)
#undef MSL_MLX_LANE
