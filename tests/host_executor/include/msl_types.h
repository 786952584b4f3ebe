// MSL scalar and vector types for clang in "C++ for OpenCL 2021" mode.
//
// Address spaces are clang's own, so `device`, `constant`, `threadgroup` and `thread` are
// distinct types here as they are in Metal. Methods without a qualifier take a generic `this`
// (device, threadgroup or thread); only `constant` objects need overloads of their own.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant
// OpenCL keywords that are ordinary identifiers in Metal.
#define global msl_identifier_global
#define local msl_identifier_local
#define private msl_identifier_private
#define generic msl_identifier_generic
#define pipe msl_identifier_pipe
#define uniform msl_identifier_uniform

// OpenCL predeclares these with other meanings.
#define atomic_int msl_atomic_int
#define atomic_uint msl_atomic_uint
#define atomic_long msl_atomic_long
#define atomic_ulong msl_atomic_ulong
#define atomic_float msl_atomic_float

#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL_VERSION__ 310
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_huge_valf()
#define HUGE_VALH ((half)__builtin_huge_valf())
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_E_F 2.71828182845904523536f
#define M_SQRT2_F 1.41421356237309504880f
#define M_1_PI_F 0.31830988618379067154f
#define M_PI_2_F 1.57079632679489661923f
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef ulong uintptr_t;
typedef half float16_t;

namespace metal {

// ---- the few traits that the vocabulary and kernels need ----
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  constexpr operator T() const { return V; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <class A, class B> constexpr bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : integral_constant<bool, __is_same(A, B)> {};
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<device T> { typedef T type; };
template <class T> struct remove_cv<const device T> { typedef T type; };
template <class T> struct remove_cv<constant T> { typedef T type; };
template <class T> struct remove_cv<const constant T> { typedef T type; };
template <class T> struct remove_cv<threadgroup T> { typedef T type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct identity { typedef T type; };
template <class T> using identity_t = typename identity<T>::type;

template <class T> constexpr bool is_integral_v = __is_integral(T);
template <class T> struct is_integral : integral_constant<bool, __is_integral(T)> {};
// `half` is arithmetic in Metal; clang's trait agrees.
template <class T> constexpr bool is_builtin_arithmetic = __is_arithmetic(T);

// ---- bfloat: a class, because clang converts its own __bf16 more freely than Metal ----
// It converts implicitly to float only; nothing converts to it implicitly; it never mixes with half.
struct bfloat {
  ushort bits;

  bfloat() = default;
  bfloat(const bfloat&) = default;
  bfloat& operator=(const bfloat&) = default;
  struct raw {};
  constexpr bfloat(ushort b, raw) : bits(b) {}
  template <class T, class = enable_if_t<is_builtin_arithmetic<T>>>
  constexpr explicit bfloat(T value) : bits(round(float(value))) {}
  template <class T, class = enable_if_t<__is_same(T, bfloat)>>
  constexpr bfloat(const constant T& other) : bits(other.bits) {}

  static constexpr ushort round(float value) {
    uint u = __builtin_bit_cast(uint, value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return ushort((u >> 16) | 0x40);
    return ushort((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
  constexpr float widen() const { return __builtin_bit_cast(float, uint(bits) << 16); }
  constexpr float widen() const constant { return __builtin_bit_cast(float, uint(bits) << 16); }

  template <class T, enable_if_t<__is_same(T, float), int> = 0>
  constexpr operator T() const { return widen(); }
  template <class T, enable_if_t<__is_same(T, float), int> = 0>
  constexpr operator T() const constant { return widen(); }
  template <class T, enable_if_t<is_builtin_arithmetic<T> && !__is_same(T, float), int> = 0>
  constexpr explicit operator T() const { return T(widen()); }
  template <class T, enable_if_t<is_builtin_arithmetic<T> && !__is_same(T, float), int> = 0>
  constexpr explicit operator T() const constant { return T(widen()); }

  constexpr bfloat operator-() const { return bfloat(ushort(bits ^ 0x8000), raw()); }
  constexpr bfloat operator-() const constant { return bfloat(ushort(bits ^ 0x8000), raw()); }
  constexpr bfloat operator+() const { return *this; }
  constexpr bool operator!() const { return widen() == 0.0f; }
  bfloat& operator++() { *this = bfloat(widen() + 1.0f); return *this; }
  bfloat& operator--() { *this = bfloat(widen() - 1.0f); return *this; }
};

#define MSL_BFLOAT_OPERATOR(OP, RESULT_SAME)                                                      \
  constexpr RESULT_SAME operator OP(bfloat a, bfloat b) {                                         \
    return RESULT_SAME(a.widen() OP b.widen());                                                   \
  }                                                                                               \
  template <class I, class = enable_if_t<is_integral_v<I>>>                                       \
  constexpr RESULT_SAME operator OP(bfloat a, I b) { return a OP bfloat(b); }                     \
  template <class I, class = enable_if_t<is_integral_v<I>>>                                       \
  constexpr RESULT_SAME operator OP(I a, bfloat b) { return bfloat(a) OP b; }                     \
  constexpr decltype(0.0f OP 0.0f) operator OP(bfloat a, float b) { return a.widen() OP b; }      \
  constexpr decltype(0.0f OP 0.0f) operator OP(float a, bfloat b) { return a OP b.widen(); }      \
  void operator OP(bfloat, half) = delete;                                                        \
  void operator OP(half, bfloat) = delete;
MSL_BFLOAT_OPERATOR(+, bfloat)
MSL_BFLOAT_OPERATOR(-, bfloat)
MSL_BFLOAT_OPERATOR(*, bfloat)
MSL_BFLOAT_OPERATOR(/, bfloat)
MSL_BFLOAT_OPERATOR(==, bool)
MSL_BFLOAT_OPERATOR(!=, bool)
MSL_BFLOAT_OPERATOR(<, bool)
MSL_BFLOAT_OPERATOR(<=, bool)
MSL_BFLOAT_OPERATOR(>, bool)
MSL_BFLOAT_OPERATOR(>=, bool)
#undef MSL_BFLOAT_OPERATOR
#define MSL_BFLOAT_ASSIGN(OP)                                                                     \
  inline bfloat& operator OP##=(bfloat& a, bfloat b) { a = a OP b; return a; }
MSL_BFLOAT_ASSIGN(+)
MSL_BFLOAT_ASSIGN(-)
MSL_BFLOAT_ASSIGN(*)
MSL_BFLOAT_ASSIGN(/)
#undef MSL_BFLOAT_ASSIGN

template <class T> constexpr bool is_scalar = is_builtin_arithmetic<T> || __is_same(T, bfloat);
template <class T> constexpr bool is_floating = (is_builtin_arithmetic<T> && !is_integral_v<T>) ||
                                                __is_same(T, bfloat);
template <class T> constexpr bool is_floating_point_v = is_floating<T>;
template <class T> struct is_floating_point : integral_constant<bool, is_floating<T>> {};
template <class T> constexpr bool is_arithmetic_v = is_scalar<T>;
template <class T> struct is_arithmetic : integral_constant<bool, is_scalar<T>> {};
template <class T> constexpr bool is_signed_v = T(-1) < T(0);
template <class T> constexpr bool is_unsigned_v = !(T(-1) < T(0));

// ---- vectors ----
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;

// Constructors and operators that all widths share. `first` is the address of element 0.
#define MSL_VEC_COMMON(N)                                                                         \
  vec() = default;                                                                                \
  vec(const vec&) = default;                                                                      \
  vec& operator=(const vec&) = default;                                                           \
  MSL_VEC_STORE(N, device) MSL_VEC_STORE(N, threadgroup)                                          \
  template <class U, class = enable_if_t<__is_same(U, T)>>                                        \
  vec(const constant vec<U, N>& o) { for (int i = 0; i < N; i++) (*this)[i] = o[i]; }             \
  template <class U, class = enable_if_t<!__is_same(U, T)>, class = void>                         \
  explicit vec(const vec<U, N>& o) { for (int i = 0; i < N; i++) (*this)[i] = T(o[i]); }          \
  template <class U, class = enable_if_t<!__is_same(U, T)>, class = void>                         \
  explicit vec(const constant vec<U, N>& o) {                                                     \
    for (int i = 0; i < N; i++) (*this)[i] = T(o[i]);                                             \
  }                                                                                               \
  vec(const packed_vec<T, N>& o) { for (int i = 0; i < N; i++) (*this)[i] = o[i]; }               \
  vec(const constant packed_vec<T, N>& o) { for (int i = 0; i < N; i++) (*this)[i] = o[i]; }      \
  template <class U, class = enable_if_t<!__is_same(U, T)>, class = void>                         \
  explicit vec(const packed_vec<U, N>& o) { for (int i = 0; i < N; i++) (*this)[i] = T(o[i]); }   \
  T& operator[](int i) { return (&x)[i]; }                                                        \
  const T& operator[](int i) const { return (&x)[i]; }                                            \
  const constant T& operator[](int i) const constant { return (&x)[i]; }                          \
  vec operator-() const { vec r; for (int i = 0; i < N; i++) r[i] = T(-(*this)[i]); return r; }   \
  vec operator+() const { return *this; }                                                         \
  vec operator~() const { vec r; for (int i = 0; i < N; i++) r[i] = T(~(*this)[i]); return r; }   \
  vec<bool, N> operator!() const {                                                                \
    vec<bool, N> r; for (int i = 0; i < N; i++) r[i] = !(*this)[i]; return r;                     \
  }                                                                                               \
  MSL_VEC_ASSIGN(N, +) MSL_VEC_ASSIGN(N, -) MSL_VEC_ASSIGN(N, *) MSL_VEC_ASSIGN(N, /)             \
  MSL_VEC_ASSIGN(N, %) MSL_VEC_ASSIGN(N, &) MSL_VEC_ASSIGN(N, |) MSL_VEC_ASSIGN(N, ^)             \
  MSL_VEC_ASSIGN(N, <<) MSL_VEC_ASSIGN(N, >>)
// clang checks the alignment of the object of a call, but not of a trivial assignment. These are
// better matches than the trivial one for memory that can be misaligned.
#define MSL_VEC_STORE(N, SPACE)                                                                   \
  template <class U, class = enable_if_t<__is_same(U, T)>>                                        \
  SPACE vec& operator=(const vec<U, N>& o) SPACE {                                                \
    for (int i = 0; i < N; i++) (&x)[i] = o[i];                                                   \
    return *this;                                                                                 \
  }
#define MSL_VEC_ASSIGN(N, OP)                                                                     \
  vec& operator OP##=(const vec& o) {                                                             \
    for (int i = 0; i < N; i++) (*this)[i] = T((*this)[i] OP o[i]);                               \
    return *this;                                                                                 \
  }
#define MSL_SWIZZLE2(A, B)                                                                        \
  vec<T, 2> get_##A##B() const { return vec<T, 2>(A, B); }                                        \
  void put_##A##B(vec<T, 2> v) { A = v.x; B = v.y; }                                              \
  __declspec(property(get = get_##A##B, put = put_##A##B)) vec<T, 2> A##B;
#define MSL_SWIZZLE3(A, B, C)                                                                     \
  vec<T, 3> get_##A##B##C() const { return vec<T, 3>(A, B, C); }                                  \
  void put_##A##B##C(vec<T, 3> v) { A = v.x; B = v.y; C = v.z; }                                  \
  __declspec(property(get = get_##A##B##C, put = put_##A##B##C)) vec<T, 3> A##B##C;
#define MSL_SWIZZLE4(A, B, C, D)                                                                  \
  vec<T, 4> get_##A##B##C##D() const { return vec<T, 4>(A, B, C, D); }                            \
  __declspec(property(get = get_##A##B##C##D)) vec<T, 4> A##B##C##D;
#define MSL_COLOR(COLOR, A)                                                                       \
  T get_##COLOR() const { return A; }                                                             \
  void put_##COLOR(T v) { A = v; }                                                                \
  __declspec(property(get = get_##COLOR, put = put_##COLOR)) T COLOR;

template <class T> struct alignas(sizeof(T) * 2) vec<T, 2> {
  T x, y;
  MSL_VEC_COMMON(2)
  constexpr vec(T s) : x(s), y(s) {}
  constexpr vec(T a, T b) : x(a), y(b) {}
  MSL_COLOR(r, x) MSL_COLOR(g, y)
  MSL_SWIZZLE2(x, y) MSL_SWIZZLE2(y, x)
  vec<T, 2> get_xx() const { return vec<T, 2>(x, x); }
  __declspec(property(get = get_xx)) vec<T, 2> xx;
  vec<T, 2> get_yy() const { return vec<T, 2>(y, y); }
  __declspec(property(get = get_yy)) vec<T, 2> yy;
};
template <class T> struct alignas(sizeof(T) * 4) vec<T, 3> {
  T x, y, z;
  MSL_VEC_COMMON(3)
  constexpr vec(T s) : x(s), y(s), z(s) {}
  constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
  vec(vec<T, 2> a, T b) : x(a.x), y(a.y), z(b) {}
  vec(T a, vec<T, 2> b) : x(a), y(b.x), z(b.y) {}
  MSL_COLOR(r, x) MSL_COLOR(g, y) MSL_COLOR(b, z)
  MSL_SWIZZLE2(x, y) MSL_SWIZZLE2(x, z) MSL_SWIZZLE2(y, z) MSL_SWIZZLE2(y, x)
  MSL_SWIZZLE2(z, x) MSL_SWIZZLE2(z, y)
  MSL_SWIZZLE3(x, y, z) MSL_SWIZZLE3(z, y, x) MSL_SWIZZLE3(y, z, x) MSL_SWIZZLE3(z, x, y)
};
template <class T> struct alignas(sizeof(T) * 4) vec<T, 4> {
  T x, y, z, w;
  MSL_VEC_COMMON(4)
  constexpr vec(T s) : x(s), y(s), z(s), w(s) {}
  constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  vec(vec<T, 2> a, T b, T c) : x(a.x), y(a.y), z(b), w(c) {}
  vec(T a, vec<T, 2> b, T c) : x(a), y(b.x), z(b.y), w(c) {}
  vec(T a, T b, vec<T, 2> c) : x(a), y(b), z(c.x), w(c.y) {}
  vec(vec<T, 3> a, T b) : x(a.x), y(a.y), z(a.z), w(b) {}
  vec(T a, vec<T, 3> b) : x(a), y(b.x), z(b.y), w(b.z) {}
  MSL_COLOR(r, x) MSL_COLOR(g, y) MSL_COLOR(b, z) MSL_COLOR(a, w)
  MSL_SWIZZLE2(x, y) MSL_SWIZZLE2(x, z) MSL_SWIZZLE2(x, w) MSL_SWIZZLE2(y, z)
  MSL_SWIZZLE2(y, w) MSL_SWIZZLE2(z, w) MSL_SWIZZLE2(y, x) MSL_SWIZZLE2(z, x)
  MSL_SWIZZLE2(z, y) MSL_SWIZZLE2(w, x) MSL_SWIZZLE2(w, y) MSL_SWIZZLE2(w, z)
  MSL_SWIZZLE3(x, y, z) MSL_SWIZZLE3(y, z, w) MSL_SWIZZLE3(z, y, x) MSL_SWIZZLE3(w, z, y)
  MSL_SWIZZLE4(x, y, z, w) MSL_SWIZZLE4(w, z, y, x) MSL_SWIZZLE4(y, x, w, z)
  MSL_SWIZZLE4(z, w, x, y) MSL_SWIZZLE4(y, z, w, x) MSL_SWIZZLE4(w, x, y, z)
};

// Element alignment only; arithmetic happens on the equivalent vec.
template <class T, int N> struct packed_vec {
  T elements[N];
  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  packed_vec& operator=(const packed_vec&) = default;
  template <class U, class = enable_if_t<__is_same(U, T)>>
  packed_vec(const constant packed_vec<U, N>& o) { for (int i = 0; i < N; i++) elements[i] = o[i]; }
  packed_vec(const vec<T, N>& o) { for (int i = 0; i < N; i++) elements[i] = o[i]; }
  template <class U, class = enable_if_t<!__is_same(U, T)>>
  explicit packed_vec(const vec<U, N>& o) { for (int i = 0; i < N; i++) elements[i] = T(o[i]); }
  packed_vec(T s) { for (int i = 0; i < N; i++) elements[i] = s; }
  packed_vec(T a, T b) : elements{a, b} { static_assert(N == 2, "wrong number of elements"); }
  packed_vec(T a, T b, T c) : elements{a, b, c} { static_assert(N == 3, "wrong number of elements"); }
  packed_vec(T a, T b, T c, T d) : elements{a, b, c, d} { static_assert(N == 4, "wrong number of elements"); }
  T& operator[](int i) { return elements[i]; }
  const T& operator[](int i) const { return elements[i]; }
  const constant T& operator[](int i) const constant { return elements[i]; }
#define MSL_PACKED_MEMBER(NAME, I)                                                                \
  T get_##NAME() const { return elements[I]; }                                                    \
  T get_##NAME() const constant { return elements[I]; }                                           \
  void put_##NAME(T v) { elements[I] = v; }                                                       \
  __declspec(property(get = get_##NAME, put = put_##NAME)) T NAME;
  MSL_PACKED_MEMBER(x, 0) MSL_PACKED_MEMBER(y, 1) MSL_PACKED_MEMBER(z, 2) MSL_PACKED_MEMBER(w, 3)
#undef MSL_PACKED_MEMBER
};

#define MSL_VEC_BINARY(OP, RESULT)                                                                \
  template <class T, int N> vec<RESULT, N> operator OP(vec<T, N> a, vec<T, N> b) {                \
    vec<RESULT, N> r; for (int i = 0; i < N; i++) r[i] = RESULT(a[i] OP b[i]); return r;          \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(vec<T, N> a, identity_t<T> b) {            \
    return a OP vec<T, N>(b);                                                                     \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(identity_t<T> a, vec<T, N> b) {            \
    return vec<T, N>(a) OP b;                                                                     \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(packed_vec<T, N> a, packed_vec<T, N> b) {  \
    return vec<T, N>(a) OP vec<T, N>(b);                                                          \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(packed_vec<T, N> a, vec<T, N> b) {         \
    return vec<T, N>(a) OP b;                                                                     \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(vec<T, N> a, packed_vec<T, N> b) {         \
    return a OP vec<T, N>(b);                                                                     \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(packed_vec<T, N> a, identity_t<T> b) {     \
    return vec<T, N>(a) OP vec<T, N>(b);                                                          \
  }                                                                                               \
  template <class T, int N> vec<RESULT, N> operator OP(identity_t<T> a, packed_vec<T, N> b) {     \
    return vec<T, N>(a) OP vec<T, N>(b);                                                          \
  }
MSL_VEC_BINARY(+, T) MSL_VEC_BINARY(-, T) MSL_VEC_BINARY(*, T) MSL_VEC_BINARY(/, T)
MSL_VEC_BINARY(%, T) MSL_VEC_BINARY(&, T) MSL_VEC_BINARY(|, T) MSL_VEC_BINARY(^, T)
MSL_VEC_BINARY(<<, T) MSL_VEC_BINARY(>>, T)
MSL_VEC_BINARY(==, bool) MSL_VEC_BINARY(!=, bool) MSL_VEC_BINARY(<, bool)
MSL_VEC_BINARY(<=, bool) MSL_VEC_BINARY(>, bool) MSL_VEC_BINARY(>=, bool)
MSL_VEC_BINARY(&&, bool) MSL_VEC_BINARY(||, bool)
#undef MSL_VEC_BINARY

#define MSL_VECTOR_NAMES(T, ALIAS)                                                                \
  typedef vec<T, 2> ALIAS##2; typedef vec<T, 3> ALIAS##3; typedef vec<T, 4> ALIAS##4;
#define MSL_PACKED_NAMES(T, ALIAS)                                                                \
  typedef packed_vec<T, 2> packed_##ALIAS##2; typedef packed_vec<T, 3> packed_##ALIAS##3;         \
  typedef packed_vec<T, 4> packed_##ALIAS##4;
#define MSL_NUMERIC_TYPES(X)                                                                      \
  X(char, char) X(uchar, uchar) X(short, short) X(ushort, ushort) X(int, int) X(uint, uint)       \
  X(long, long) X(ulong, ulong) X(half, half) X(float, float) X(bfloat, bfloat)
MSL_NUMERIC_TYPES(MSL_VECTOR_NAMES)
MSL_VECTOR_NAMES(bool, bool)
MSL_NUMERIC_TYPES(MSL_PACKED_NAMES)

template <class To, class From> inline To bit_cast_value(From from) {
  return __builtin_bit_cast(To, from);
}

static_assert(__is_trivially_copyable(float4) && sizeof(float4) == 16 && alignof(float4) == 16);
static_assert(sizeof(float3) == 16 && sizeof(half4) == 8 && sizeof(bool4) == 4);
static_assert(sizeof(packed_float3) == 12 && alignof(packed_float3) == 4);
static_assert(__is_trivially_copyable(bfloat) && sizeof(bfloat) == 2);

// ---- numeric_limits ----
template <class T> struct numeric_limits {
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr int digits = sizeof(T) * 8 - is_signed;
  static constexpr T max() { return T((1ul << (digits - 1)) - 1 + (1ul << (digits - 1))); }
  static constexpr T min() { return is_signed ? T(-max() - T(1)) : T(0); }
  static constexpr T lowest() { return min(); }
};
template <> struct numeric_limits<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
  static constexpr bool lowest() { return false; }
};
#define MSL_FLOAT_LIMITS(T, MAX, MIN, EPS, DENORM)                                                \
  template <> struct numeric_limits<T> {                                                          \
    static constexpr bool is_signed = true;                                                       \
    static constexpr T max() { return T(MAX); }                                                   \
    static constexpr T min() { return T(MIN); }                                                   \
    static constexpr T lowest() { return T(-(MAX)); }                                             \
    static constexpr T epsilon() { return T(EPS); }                                               \
    static constexpr T denorm_min() { return T(DENORM); }                                         \
    static constexpr T infinity() { return T(__builtin_inff()); }                                 \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                              \
  };
MSL_FLOAT_LIMITS(float, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f, 0x1p-149f)
MSL_FLOAT_LIMITS(half, 0x1.ffcp15f, 0x1p-14f, 0x1p-10f, 0x1p-24f)
MSL_FLOAT_LIMITS(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f, 0x1p-133f)
#undef MSL_FLOAT_LIMITS

}  // namespace metal

using namespace metal;
typedef bfloat bfloat16_t;

// `as_type<T>(v)`: sizes must agree; a 3-vector has the size of a 4-vector, as in Metal.
template <class To, class From> inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs operands of equal size");
  return __builtin_bit_cast(To, from);
}
