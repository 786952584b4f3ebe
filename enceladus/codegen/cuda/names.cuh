// Make the vocabulary visible where generated text stands: helper functions in namespace enceladus,
// bodies in MLX's namespace. Declared by name, because a using-directive would tie with CUDA's own globals.
#define ENCELADUS_FUNCTION_NAMES(X)                                                      \
  X(as_type) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(cos) X(cosh) X(cospi) X(exp) \
  X(exp2) X(exp10) X(fabs) X(floor) X(log) X(log2) X(log10) X(rint) X(round) X(rsqrt) X(sin) X(sinh) \
  X(sinpi) X(sqrt) X(tan) X(tanh) X(trunc) X(atan2) X(copysign) X(divide) X(fdim) X(fmax) X(fmin) X(fmod) \
  X(nextafter) X(pow) X(powr) X(fma) X(ldexp) X(fract) X(sincos) X(isnan) X(isinf) X(isfinite) X(signbit) \
  X(min) X(max) X(clamp) X(select) X(abs) X(popcount) X(clz) X(ctz) X(reverse_bits) X(mulhi) \
  X(threadgroup_barrier) X(simdgroup_barrier) X(simd_shuffle) X(simd_broadcast) X(simd_broadcast_first) \
  X(simd_shuffle_xor) X(simd_shuffle_up) X(simd_shuffle_down) X(simd_shuffle_rotate_up) \
  X(simd_shuffle_rotate_down) X(simd_shuffle_and_fill_up) X(simd_shuffle_and_fill_down) X(simd_ballot) \
  X(simd_all) X(simd_any) X(simd_active_threads_mask) X(simd_is_first) X(simd_sum) X(simd_product) \
  X(simd_min) X(simd_max) X(simd_and) X(simd_or) X(simd_xor) X(quad_sum) X(quad_product) X(quad_min) \
  X(quad_max) X(quad_and) X(quad_or) X(quad_xor) X(quad_shuffle_xor) X(quad_broadcast) \
  X(simd_prefix_inclusive_sum) X(simd_prefix_exclusive_sum) X(simd_prefix_inclusive_product) \
  X(simd_prefix_exclusive_product) X(atomic_load_explicit) X(atomic_store_explicit) \
  X(atomic_exchange_explicit) X(atomic_fetch_add_explicit) X(atomic_fetch_sub_explicit) \
  X(atomic_fetch_and_explicit) X(atomic_fetch_or_explicit) X(atomic_fetch_xor_explicit) \
  X(atomic_fetch_min_explicit) X(atomic_fetch_max_explicit) X(atomic_min_explicit) X(atomic_max_explicit) \
  X(atomic_compare_exchange_weak_explicit) X(atomic_thread_fence)
#define ENCELADUS_TYPE_NAMES(X)                                                          \
  X(uchar) X(ushort) X(uint) X(ulong) X(half) X(bfloat) X(float16_t) X(bfloat16_t) X(vec) X(mem_flags) \
  X(simd_vote) X(atomic) X(atomic_int) X(atomic_uint) X(atomic_float) X(atomic_ulong) X(memory_order) \
  X(memory_order_relaxed) X(memory_order_acquire) X(memory_order_release) X(memory_order_acq_rel) \
  X(memory_order_seq_cst) X(thread_scope) X(thread_scope_thread) X(thread_scope_simdgroup) \
  X(thread_scope_threadgroup) X(thread_scope_device)
#define ENCELADUS_USING(NAME) using ::metal::NAME;
#define ENCELADUS_USING_VECTORS(T, NAME)                                                 \
  using ::metal::NAME##2;                                                                \
  using ::metal::NAME##3;                                                                \
  using ::metal::NAME##4;
#define ENCELADUS_VOCABULARY                                                             \
  ENCELADUS_FUNCTION_NAMES(ENCELADUS_USING)                                              \
  ENCELADUS_TYPE_NAMES(ENCELADUS_USING)                                                  \
  ENCELADUS_VECTOR_TYPES(ENCELADUS_USING_VECTORS)                                        \
  namespace precise = ::metal::precise;                                                  \
  namespace fast = ::metal::fast;

namespace enceladus {
ENCELADUS_VOCABULARY
}
namespace mlx::core::cu {
ENCELADUS_VOCABULARY
}
#undef ENCELADUS_VOCABULARY
#undef ENCELADUS_USING_VECTORS
#undef ENCELADUS_USING
#undef ENCELADUS_TYPE_NAMES
#undef ENCELADUS_FUNCTION_NAMES
#undef ENCELADUS_VECTOR_TYPES

// From here on follow only generated text and MLX's signature; nothing is included any more.

// Macros of the included headers that a kernel may well use as names.
#undef MAX_NDIM
#undef WARP_SIZE
#undef CHAR_BIT
#undef CHAR_MAX
#undef CHAR_MIN
#undef SCHAR_MAX
#undef SCHAR_MIN
#undef UCHAR_MAX
#undef SHRT_MAX
#undef SHRT_MIN
#undef USHRT_MAX
#undef INT_MAX
#undef INT_MIN
#undef UINT_MAX
#undef LONG_MAX
#undef LONG_MIN
#undef ULONG_MAX
#undef LLONG_MAX
#undef LLONG_MIN
#undef ULLONG_MAX
#undef SIZE_MAX
#undef PTRDIFF_MAX
#undef PTRDIFF_MIN
#undef INT8_MAX
#undef INT8_MIN
#undef UINT8_MAX
#undef INT16_MAX
#undef INT16_MIN
#undef UINT16_MAX
#undef INT32_MAX
#undef INT32_MIN
#undef UINT32_MAX
#undef INT64_MAX
#undef INT64_MIN
#undef UINT64_MAX
#undef FLT_DECIMAL_DIG
#undef FLT_DIG
#undef FLT_EPSILON
#undef FLT_HAS_SUBNORM
#undef FLT_MANT_DIG
#undef FLT_MAX
#undef FLT_MAX_10_EXP
#undef FLT_MAX_EXP
#undef FLT_MIN
#undef FLT_MIN_10_EXP
#undef FLT_MIN_EXP
#undef FLT_TRUE_MIN
#undef DBL_DECIMAL_DIG
#undef DBL_DIG
#undef DBL_EPSILON
#undef DBL_HAS_SUBNORM
#undef DBL_MANT_DIG
#undef DBL_MAX
#undef DBL_MAX_10_EXP
#undef DBL_MAX_EXP
#undef DBL_MIN
#undef DBL_MIN_10_EXP
#undef DBL_MIN_EXP
#undef DBL_TRUE_MIN
#undef FLT_RADIX
#undef FLT_ROUNDS
#undef FLT_EVAL_METHOD
#undef DECIMAL_DIG
#undef FP_INFINITE
#undef FP_NAN
#undef FP_NORMAL
#undef FP_SUBNORMAL
#undef FP_ZERO
#undef TIME_UTC

// The types that MLX writes into the signature.
#define __half ::metal::half
#define __nv_bfloat16 ::metal::bfloat

// CUDA has one address space for pointers. threadgroup declares arrays in a body; a pointer to one is "auto".
#define ENCELADUS_ONE_ADDRESS_SPACE
#define device
#define constant
#define thread
#define threadgroup __shared__

// Threadgroups are one-dimensional.
#define threadgroup_position_in_grid (::metal::uint3(blockIdx.x, blockIdx.y, blockIdx.z))
#define threadgroups_per_grid (::metal::uint3(gridDim.x, gridDim.y, gridDim.z))
#define threads_per_threadgroup (::metal::uint3(blockDim.x, blockDim.y, blockDim.z))
#define threads_per_grid (::metal::uint3(gridDim.x * blockDim.x, gridDim.y, gridDim.z))
#define thread_position_in_threadgroup (::metal::uint3(threadIdx.x, 0u, 0u))
#define thread_position_in_grid \
  (::metal::uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y, blockIdx.z))
#define thread_index_in_threadgroup (threadIdx.x)
#define thread_index_in_simdgroup (threadIdx.x & 31u)
#define simdgroup_index_in_threadgroup (threadIdx.x >> 5)
#define simdgroups_per_threadgroup ((blockDim.x + 31u) >> 5)
#define dispatch_simdgroups_per_threadgroup ((blockDim.x + 31u) >> 5)
#define dispatch_threads_per_threadgroup (::metal::uint3(blockDim.x, blockDim.y, blockDim.z))
#define threads_per_simdgroup (32u)
#define thread_execution_width (32u)
#define thread_index_in_quadgroup (threadIdx.x & 3u)
#define quadgroup_index_in_threadgroup (threadIdx.x >> 2)

// "#pragma METAL" and "threadgroup" before a pointer's type mean nothing here.
#pragma nv_diag_suppress 161
#pragma nv_diag_suppress 1835
