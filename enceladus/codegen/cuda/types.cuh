// Types of Metal's language. 16-bit floats and vectors are our own: CUDA's 16-bit floats convert
// ambiguously and may be fused across roundings, and CUDA's vectors have no operators.
namespace metal {

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = ::uint64_t;

template <class T>
struct same_type {
  using type = T;
};
// A parameter that takes no part in deduction.
template <class T>
using no_deduction = typename same_type<T>::type;

template <class A, class B>
struct is_same {
  static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr bool value = true;
};
template <bool condition, class T = int>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};

// The same bits as another type of the same size.
template <class To, class From>
inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs operands of equal size");
  return __builtin_bit_cast(To, from);
}

// Converts to and from float without a cast, as in Metal.
struct half {
  ::__half native;
  half() = default;
  half(float x) : native(::__float2half_rn(x)) {}
  explicit half(::__half x) : native(x) {}
  operator float() const { return ::__half2float(native); }
  template <class T> half& operator+=(T x) { return *this = half(*this + x); }
  template <class T> half& operator-=(T x) { return *this = half(*this - x); }
  template <class T> half& operator*=(T x) { return *this = half(*this * x); }
  template <class T> half& operator/=(T x) { return *this = half(*this / x); }
};

// Converts to float without a cast; from anything only with one.
struct bfloat {
  ::__nv_bfloat16 native;
  bfloat() = default;
  explicit bfloat(float x) : native(::__float2bfloat16_rn(x)) {}
  explicit bfloat(::__nv_bfloat16 x) : native(x) {}
  // Written out, so that it folds with taking a word apart.
  operator float() const { return as_type<float>(uint(as_type<ushort>(native)) << 16); }
  template <class T> bfloat& operator+=(T x) { return *this = bfloat(*this + x); }
  template <class T> bfloat& operator-=(T x) { return *this = bfloat(*this - x); }
  template <class T> bfloat& operator*=(T x) { return *this = bfloat(*this * x); }
  template <class T> bfloat& operator/=(T x) { return *this = bfloat(*this / x); }
};

using float16_t = half;
using bfloat16_t = bfloat;

template <class T>
constexpr bool is_float16 = is_same<T, half>::value || is_same<T, bfloat>::value;
template <class T>
using if_float16 = typename enable_if<is_float16<T>>::type;

// Templates, so that operands of two different types convert to float instead. The _rn functions round
// each result: never one rounding for a product and a sum.
template <class T, if_float16<T> = 0>
inline T operator+(T a, T b) { return T(::__hadd_rn(a.native, b.native)); }
template <class T, if_float16<T> = 0>
inline T operator-(T a, T b) { return T(::__hsub_rn(a.native, b.native)); }
template <class T, if_float16<T> = 0>
inline T operator*(T a, T b) { return T(::__hmul_rn(a.native, b.native)); }
template <class T, if_float16<T> = 0>
inline T operator/(T a, T b) { return T(::__fdiv_rn(float(a), float(b))); }
// The sign bit, also of NaN.
template <class T, if_float16<T> = 0>
inline T operator-(T a) { return as_type<T>(ushort(as_type<ushort>(a) ^ 0x8000u)); }

static_assert(sizeof(half) == 2 && sizeof(bfloat) == 2 && alignof(half) == 2, "16-bit floats");

template <class T, int n>
struct vec;

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  vec(T s) : x(s), y(s) {}
  vec(T a, T b) : x(a), y(b) {}
  template <class U>
  explicit vec(vec<U, 2> o) : x(T(o.x)), y(T(o.y)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  vec(T s) : x(s), y(s), z(s) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  template <class U>
  explicit vec(vec<U, 3> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  vec(T s) : x(s), y(s), z(s), w(s) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  template <class U>
  explicit vec(vec<U, 4> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

#define ENCELADUS_VECTOR_OPERATOR(OP, RESULT)                                            \
  template <class T, int n>                                                              \
  inline vec<RESULT, n> operator OP(vec<T, n> a, vec<T, n> b) {                          \
    vec<RESULT, n> r;                                                                    \
    _Pragma("unroll") for (int i = 0; i < n; ++i) r[i] = RESULT(a[i] OP b[i]);           \
    return r;                                                                            \
  }                                                                                      \
  template <class T, int n>                                                              \
  inline vec<RESULT, n> operator OP(vec<T, n> a, no_deduction<T> b) {                    \
    return a OP vec<T, n>(b);                                                            \
  }                                                                                      \
  template <class T, int n>                                                              \
  inline vec<RESULT, n> operator OP(no_deduction<T> a, vec<T, n> b) {                    \
    return vec<T, n>(a) OP b;                                                            \
  }
#define ENCELADUS_VECTOR_ARITHMETIC(OP)                                                  \
  ENCELADUS_VECTOR_OPERATOR(OP, T)                                                       \
  template <class T, int n>                                                              \
  inline vec<T, n>& operator OP##=(vec<T, n>& a, vec<T, n> b) { return a = a OP b; }     \
  template <class T, int n>                                                              \
  inline vec<T, n>& operator OP##=(vec<T, n>& a, no_deduction<T> b) { return a = a OP b; }
ENCELADUS_VECTOR_ARITHMETIC(+) ENCELADUS_VECTOR_ARITHMETIC(-) ENCELADUS_VECTOR_ARITHMETIC(*)
ENCELADUS_VECTOR_ARITHMETIC(/) ENCELADUS_VECTOR_ARITHMETIC(%) ENCELADUS_VECTOR_ARITHMETIC(&)
ENCELADUS_VECTOR_ARITHMETIC(|) ENCELADUS_VECTOR_ARITHMETIC(^) ENCELADUS_VECTOR_ARITHMETIC(<<)
ENCELADUS_VECTOR_ARITHMETIC(>>)
ENCELADUS_VECTOR_OPERATOR(==, bool) ENCELADUS_VECTOR_OPERATOR(!=, bool)
ENCELADUS_VECTOR_OPERATOR(<, bool) ENCELADUS_VECTOR_OPERATOR(<=, bool)
ENCELADUS_VECTOR_OPERATOR(>, bool) ENCELADUS_VECTOR_OPERATOR(>=, bool)
#undef ENCELADUS_VECTOR_ARITHMETIC
#undef ENCELADUS_VECTOR_OPERATOR

template <class T, int n>
inline vec<T, n> operator-(vec<T, n> a) {
  vec<T, n> r;
  _Pragma("unroll") for (int i = 0; i < n; ++i) r[i] = T(-a[i]);
  return r;
}
template <class T, int n>
inline vec<T, n> operator~(vec<T, n> a) {
  vec<T, n> r;
  _Pragma("unroll") for (int i = 0; i < n; ++i) r[i] = T(~a[i]);
  return r;
}

#define ENCELADUS_VECTOR_TYPES(X)                                                        \
  X(bool, bool) X(char, char) X(uchar, uchar) X(short, short) X(ushort, ushort)          \
  X(int, int) X(uint, uint) X(::int64_t, long) X(ulong, ulong) X(half, half)             \
  X(bfloat, bfloat) X(float, float)
#define ENCELADUS_VECTOR_NAMES(T, NAME)                                                  \
  using NAME##2 = vec<T, 2>;                                                             \
  using NAME##3 = vec<T, 3>;                                                             \
  using NAME##4 = vec<T, 4>;
ENCELADUS_VECTOR_TYPES(ENCELADUS_VECTOR_NAMES)
#undef ENCELADUS_VECTOR_NAMES

static_assert(sizeof(uint4) == 16 && alignof(uint4) == 16 && sizeof(half4) == 8, "vectors");

}  // namespace metal
