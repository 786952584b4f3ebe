// Atomics, relaxed as in Metal. One function serves device and threadgroup memory.
namespace metal {

enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel,
                    memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

template <class T>
struct atomic {
  static_assert(is_same<T, int>::value || is_same<T, uint>::value || is_same<T, float>::value ||
                    is_same<T, ulong>::value,
                "atomics of int, uint, ulong and float");
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
using atomic_ulong = atomic<ulong>;

// CUDA's functions take unsigned long long, which ulong may not be; the bits are the same.
template <class T>
struct atomic_word { using type = T; };
template <>
struct atomic_word<ulong> { using type = unsigned long long; };
template <class T>
inline typename atomic_word<T>::type* word_of(atomic<T>* object) {
  return reinterpret_cast<typename atomic_word<T>::type*>(object);
}

template <class T>
inline T atomic_load_explicit(const atomic<T>* object, memory_order) {
  return *const_cast<const volatile T*>(&object->value);
}
template <class T>
inline void atomic_store_explicit(atomic<T>* object, no_deduction<T> x, memory_order) {
  *const_cast<volatile T*>(&object->value) = x;
}

#define ENCELADUS_ATOMIC(NAME, FUNCTION)                                                 \
  template <class T>                                                                     \
  inline T NAME(atomic<T>* object, no_deduction<T> x, memory_order) {                    \
    return T(::FUNCTION(word_of(object), typename atomic_word<T>::type(x)));             \
  }
ENCELADUS_ATOMIC(atomic_exchange_explicit, atomicExch)
ENCELADUS_ATOMIC(atomic_fetch_add_explicit, atomicAdd)
ENCELADUS_ATOMIC(atomic_fetch_and_explicit, atomicAnd)
ENCELADUS_ATOMIC(atomic_fetch_or_explicit, atomicOr)
ENCELADUS_ATOMIC(atomic_fetch_xor_explicit, atomicXor)
ENCELADUS_ATOMIC(atomic_fetch_min_explicit, atomicMin)
ENCELADUS_ATOMIC(atomic_fetch_max_explicit, atomicMax)
#undef ENCELADUS_ATOMIC
template <class T>
inline T atomic_fetch_sub_explicit(atomic<T>* object, no_deduction<T> x, memory_order order) {
  if constexpr (is_same<T, int>::value) return atomic_fetch_add_explicit(object, int(0u - uint(x)), order);
  else return atomic_fetch_add_explicit(object, T(-x), order);
}
inline void atomic_min_explicit(atomic_ulong* object, ulong x, memory_order) { ::atomicMin(word_of(object), x); }
inline void atomic_max_explicit(atomic_ulong* object, ulong x, memory_order) { ::atomicMax(word_of(object), x); }

// Compares the bits; Metal compares float values (a NaN never equals itself). Callers must use integers
// for bits, and loop.
template <class T>
inline bool atomic_compare_exchange_weak_explicit(
    atomic<T>* object, T* expected, no_deduction<T> desired, memory_order, memory_order) {
  static_assert(!is_same<T, float>::value, "compare and exchange the bits of a float as uint");
  const T old = T(::atomicCAS(word_of(object), typename atomic_word<T>::type(*expected),
                              typename atomic_word<T>::type(desired)));
  const bool done = old == *expected;
  *expected = old;
  return done;
}

inline void atomic_thread_fence(mem_flags, memory_order, thread_scope scope = thread_scope_device) {
  if (scope == thread_scope_device) ::__threadfence();
  else ::__threadfence_block();
}

}  // namespace metal
