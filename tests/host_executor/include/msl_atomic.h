// Atomics. Threads are fibers of one operating-system thread, so plain memory operations are atomic.
// Only what MSL 3.1 has: relaxed order, no float min/max, float add in device memory only.
#pragma once
#include "msl_simd.h"

namespace metal {
template <class T> struct atomic {
  static_assert(__is_same(T, int) || __is_same(T, uint) || __is_same(T, float) ||
                    __is_same(T, bool) || __is_same(T, ulong),
                "no such atomic type in Metal");
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;

template <class T> using if_atomic_word = enable_if_t<!__is_same(T, ulong)>;
template <class T> using if_atomic_integer = enable_if_t<__is_same(T, int) || __is_same(T, uint)>;

#define MSL_ATOMIC_FETCH(SPACE, NAME, EXPRESSION, CONDITION)                                      \
  template <class T, class = CONDITION<T>>                                                        \
  T NAME(volatile SPACE atomic<T>* object, identity_t<T> b, memory_order) {                       \
    T a = object->value;                                                                          \
    object->value = T(EXPRESSION);                                                                \
    return a;                                                                                     \
  }
#define MSL_ATOMICS(SPACE)                                                                        \
  template <class T, class = if_atomic_word<T>>                                                   \
  T atomic_load_explicit(const volatile SPACE atomic<T>* object, memory_order) { return object->value; } \
  template <class T, class = if_atomic_word<T>>                                                   \
  void atomic_store_explicit(volatile SPACE atomic<T>* object, identity_t<T> b, memory_order) { object->value = b; } \
  MSL_ATOMIC_FETCH(SPACE, atomic_exchange_explicit, b, if_atomic_word)                            \
  /* Fails spuriously now and then, as the weak form may: callers must loop. */                   \
  template <class T, class = if_atomic_word<T>>                                                   \
  bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>* object, thread T* expected, \
                                             identity_t<T> b, memory_order, memory_order) {       \
    T a = object->value;                                                                          \
    if (a == *expected && !msl_host::msl_spurious_failure()) { object->value = b; return true; }  \
    *expected = a;                                                                                \
    return false;                                                                                 \
  }                                                                                               \
  MSL_ATOMIC_FETCH(SPACE, atomic_fetch_and_explicit, a & b, if_atomic_integer)                    \
  MSL_ATOMIC_FETCH(SPACE, atomic_fetch_or_explicit, a | b, if_atomic_integer)                     \
  MSL_ATOMIC_FETCH(SPACE, atomic_fetch_xor_explicit, a ^ b, if_atomic_integer)                    \
  MSL_ATOMIC_FETCH(SPACE, atomic_fetch_min_explicit, min(a, b), if_atomic_integer)                \
  MSL_ATOMIC_FETCH(SPACE, atomic_fetch_max_explicit, max(a, b), if_atomic_integer)
template <class T> using if_atomic_device_sum = enable_if_t<__is_same(T, int) || __is_same(T, uint) || __is_same(T, float)>;
// Signed sums wrap silently.
template <class T> inline T wrapping_add(T a, T b) { return T(uint(a) + uint(b)); }
template <class T> inline T wrapping_sub(T a, T b) { return T(uint(a) - uint(b)); }
inline float wrapping_add(float a, float b) { return a + b; }
inline float wrapping_sub(float a, float b) { return a - b; }
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
MSL_ATOMIC_FETCH(device, atomic_fetch_add_explicit, wrapping_add(a, b), if_atomic_device_sum)
MSL_ATOMIC_FETCH(device, atomic_fetch_sub_explicit, wrapping_sub(a, b), if_atomic_device_sum)
MSL_ATOMIC_FETCH(threadgroup, atomic_fetch_add_explicit, wrapping_add(a, b), if_atomic_integer)
MSL_ATOMIC_FETCH(threadgroup, atomic_fetch_sub_explicit, wrapping_sub(a, b), if_atomic_integer)
inline void atomic_min_explicit(volatile device atomic_ulong* o, ulong b, memory_order) { if (b < o->value) o->value = b; }
inline void atomic_max_explicit(volatile device atomic_ulong* o, ulong b, memory_order) { if (b > o->value) o->value = b; }
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}
#undef MSL_ATOMICS
#undef MSL_ATOMIC_FETCH
}  // namespace metal
