// SIMD-groups are warps; barriers. Generated bodies call these in uniform control flow, with whole
// SIMD-groups: every function waits for all 32 lanes.
namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
// Orders device memory within the threadgroup too.
inline void threadgroup_barrier(mem_flags) { ::__syncthreads(); }
inline void simdgroup_barrier(mem_flags) { ::__syncwarp(); }

constexpr uint all_lanes = 0xffffffffu;
inline uint lane_index() { return threadIdx.x & 31u; }

// Move a value of any size through a shuffle of 32-bit words.
template <class T, class Shuffle>
inline T by_words(T value, Shuffle shuffle) {
  if constexpr (sizeof(T) == 1) return as_type<T>(uchar(shuffle(uint(as_type<uchar>(value)))));
  else if constexpr (sizeof(T) == 2) return as_type<T>(ushort(shuffle(uint(as_type<ushort>(value)))));
  else if constexpr (sizeof(T) == 4) return as_type<T>(shuffle(as_type<uint>(value)));
  else {
    static_assert(sizeof(T) % 4 == 0, "whole words");
    struct Words { uint word[sizeof(T) / 4]; };
    Words words = as_type<Words>(value);
    _Pragma("unroll") for (int i = 0; i < int(sizeof(T) / 4); ++i) words.word[i] = shuffle(words.word[i]);
    return as_type<T>(words);
  }
}

template <class T>
inline T simd_shuffle(T value, ushort lane) {
  return by_words(value, [=](uint w) { return ::__shfl_sync(all_lanes, w, lane); });
}
template <class T>
inline T simd_broadcast(T value, ushort lane) { return simd_shuffle(value, lane); }
template <class T>
inline T simd_broadcast_first(T value) { return simd_shuffle(value, 0); }
template <class T>
inline T simd_shuffle_xor(T value, ushort mask) {
  return by_words(value, [=](uint w) { return ::__shfl_xor_sync(all_lanes, w, mask); });
}
// Lanes without a source keep their own value.
template <class T>
inline T simd_shuffle_up(T value, ushort delta) {
  return by_words(value, [=](uint w) { return ::__shfl_up_sync(all_lanes, w, delta); });
}
template <class T>
inline T simd_shuffle_down(T value, ushort delta) {
  return by_words(value, [=](uint w) { return ::__shfl_down_sync(all_lanes, w, delta); });
}
template <class T>
inline T simd_shuffle_rotate_up(T value, ushort delta) {
  return simd_shuffle(value, ushort((lane_index() - delta) & 31u));
}
template <class T>
inline T simd_shuffle_rotate_down(T value, ushort delta) {
  return simd_shuffle(value, ushort((lane_index() + delta) & 31u));
}
// Lanes without a source take the values of ``fill`` from the other end of the segment.
template <class T>
inline T simd_shuffle_and_fill_up(T value, no_deduction<T> fill, ushort delta, ushort modulo = 32) {
  const uint position = lane_index() & (modulo - 1u);
  const ushort source = ushort((lane_index() - position) | ((position - delta) & (modulo - 1u)));
  const T moved = simd_shuffle(value, source), filled = simd_shuffle(fill, source);
  return position < delta ? filled : moved;
}
template <class T>
inline T simd_shuffle_and_fill_down(T value, no_deduction<T> fill, ushort delta, ushort modulo = 32) {
  const uint position = lane_index() & (modulo - 1u);
  const ushort source = ushort((lane_index() - position) | ((position + delta) & (modulo - 1u)));
  const T moved = simd_shuffle(value, source), filled = simd_shuffle(fill, source);
  return position + delta >= modulo ? filled : moved;
}

struct simd_vote {
  using vote_t = ulong;
  uint lanes;
  explicit operator vote_t() const { return lanes; }
  bool all() const { return lanes == all_lanes; }
  bool any() const { return lanes != 0; }
};
inline simd_vote simd_ballot(bool x) { return simd_vote{::__ballot_sync(all_lanes, x)}; }
inline bool simd_all(bool x) { return ::__all_sync(all_lanes, x); }
inline bool simd_any(bool x) { return ::__any_sync(all_lanes, x); }
inline simd_vote simd_active_threads_mask() { return simd_vote{::__activemask()}; }
inline bool simd_is_first() { return lane_index() == 0; }

// Integers wrap, signed ones too.
struct sum_of {
  float operator()(float a, float b) const { return a + b; }
  template <class T> T operator()(T a, T b) const { return T(ulong(a) + ulong(b)); }
};
struct product_of {
  float operator()(float a, float b) const { return a * b; }
  template <class T> T operator()(T a, T b) const { return T(ulong(a) * ulong(b)); }
};
struct min_of { template <class T> T operator()(T a, T b) const { return min(a, b); } };
struct max_of { template <class T> T operator()(T a, T b) const { return max(a, b); } };
struct and_of { template <class T> T operator()(T a, T b) const { return T(a & b); } };
struct or_of { template <class T> T operator()(T a, T b) const { return T(a | b); } };
struct xor_of { template <class T> T operator()(T a, T b) const { return T(a ^ b); } };

// The type a reduction computes in: float for 16-bit floats, 32 bits for narrow integers.
template <class T>
struct reduction_type { using type = T; };
template <> struct reduction_type<half> { using type = float; };
template <> struct reduction_type<bfloat> { using type = float; };
template <> struct reduction_type<signed char> { using type = int; };
template <> struct reduction_type<char> { using type = int; };
template <> struct reduction_type<uchar> { using type = uint; };
template <> struct reduction_type<short> { using type = int; };
template <> struct reduction_type<ushort> { using type = uint; };

// All lanes get the same bits: at each step both partners compute the same sum.
template <int lanes, class T, class Op>
inline T butterfly(T value, Op op) {
  _Pragma("unroll") for (int mask = lanes / 2; mask > 0; mask /= 2) {
    value = op(value, simd_shuffle_xor(value, ushort(mask)));
  }
  return value;
}

#if __CUDA_ARCH__ >= 800
#define ENCELADUS_WARP_REDUCTION(NAME, INSTRUCTION, T)                                   \
  inline T reduce_lanes(T value, NAME) { return ::INSTRUCTION(all_lanes, value); }
ENCELADUS_WARP_REDUCTION(sum_of, __reduce_add_sync, uint)
ENCELADUS_WARP_REDUCTION(sum_of, __reduce_add_sync, int)
ENCELADUS_WARP_REDUCTION(min_of, __reduce_min_sync, uint)
ENCELADUS_WARP_REDUCTION(min_of, __reduce_min_sync, int)
ENCELADUS_WARP_REDUCTION(max_of, __reduce_max_sync, uint)
ENCELADUS_WARP_REDUCTION(max_of, __reduce_max_sync, int)
ENCELADUS_WARP_REDUCTION(and_of, __reduce_and_sync, uint)
ENCELADUS_WARP_REDUCTION(or_of, __reduce_or_sync, uint)
ENCELADUS_WARP_REDUCTION(xor_of, __reduce_xor_sync, uint)
#undef ENCELADUS_WARP_REDUCTION
#endif
template <class T, class Op>
inline T reduce_lanes(T value, Op op) { return butterfly<32>(value, op); }

#define ENCELADUS_REDUCTION(NAME, OP)                                                    \
  template <class T>                                                                     \
  inline T simd_##NAME(T value) {                                                        \
    using Wide = typename reduction_type<T>::type;                                       \
    return T(reduce_lanes(Wide(value), OP()));                                           \
  }                                                                                      \
  template <class T>                                                                     \
  inline T quad_##NAME(T value) {                                                        \
    using Wide = typename reduction_type<T>::type;                                       \
    return T(butterfly<4>(Wide(value), OP()));                                           \
  }
ENCELADUS_REDUCTION(sum, sum_of) ENCELADUS_REDUCTION(product, product_of)
ENCELADUS_REDUCTION(min, min_of) ENCELADUS_REDUCTION(max, max_of)
ENCELADUS_REDUCTION(and, and_of) ENCELADUS_REDUCTION(or, or_of) ENCELADUS_REDUCTION(xor, xor_of)
#undef ENCELADUS_REDUCTION

template <class T, class Op>
inline T inclusive_prefix(T value, Op op) {
  _Pragma("unroll") for (uint delta = 1; delta < 32; delta *= 2) {
    const T below = simd_shuffle_up(value, ushort(delta));
    if (lane_index() >= delta) value = op(below, value);
  }
  return value;
}
template <class T, class Op>
inline T exclusive_prefix(T value, Op op, T neutral) {
  const T below = simd_shuffle_up(inclusive_prefix(value, op), ushort(1));
  return lane_index() == 0 ? neutral : below;
}
#define ENCELADUS_PREFIX(NAME, OP, NEUTRAL)                                              \
  template <class T>                                                                     \
  inline T simd_prefix_inclusive_##NAME(T value) {                                       \
    using Wide = typename reduction_type<T>::type;                                       \
    return T(inclusive_prefix(Wide(value), OP()));                                       \
  }                                                                                      \
  template <class T>                                                                     \
  inline T simd_prefix_exclusive_##NAME(T value) {                                       \
    using Wide = typename reduction_type<T>::type;                                       \
    return T(exclusive_prefix(Wide(value), OP(), Wide(NEUTRAL)));                        \
  }
ENCELADUS_PREFIX(sum, sum_of, 0) ENCELADUS_PREFIX(product, product_of, 1)
#undef ENCELADUS_PREFIX

template <class T>
inline T quad_shuffle_xor(T value, ushort mask) { return simd_shuffle_xor(value, mask); }
template <class T>
inline T quad_broadcast(T value, ushort lane) {
  return simd_shuffle(value, ushort((lane_index() & ~3u) | lane));
}

}  // namespace metal
