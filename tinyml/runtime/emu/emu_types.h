// The number formats and arithmetic that CUDA C has and C++ lacks.
#pragma once

// ------------------------------------------------------------------ vectors

// Aligned like CUDA's: T2 and T4 to their size, though to 16 bytes at most; T3 like T.
#define EMU_VECTOR(T, name)                                                                      \
  struct alignas(sizeof(T) * 2 > 16 ? 16 : sizeof(T) * 2) name##2 { T x, y; };                   \
  struct name##3 { T x, y, z; };                                                                 \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) name##4 { T x, y, z, w; };             \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

#define uint3 emu_uint3  // emu_scheduler.h has it already
EMU_VECTOR(unsigned, uint)
#undef uint3
EMU_VECTOR(signed char, char)
EMU_VECTOR(unsigned char, uchar)
EMU_VECTOR(short, short)
EMU_VECTOR(unsigned short, ushort)
EMU_VECTOR(int, int)
EMU_VECTOR(long long, longlong)
EMU_VECTOR(unsigned long long, ulonglong)
EMU_VECTOR(float, float)
EMU_VECTOR(double, double)
#undef EMU_VECTOR

// ------------------------------------------------------------------ bits

namespace emu {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emu

inline int __float_as_int(float x) { return emu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bits_as<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned __int128>(a) * b >> 64;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (uint64_t(high) << 32 | low) << (shift & 31) >> 32;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return uint32_t((uint64_t(high) << 32 | low) >> (shift & 31));
}

// ------------------------------------------------------------------ arithmetic

#define EMU_MIN_MAX(T)                                 \
  inline T min(T a, T b) { return b < a ? b : a; }     \
  inline T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
// Macros, because glibc declares functions of these names.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)

template <class T>
T __ldg(const T *place) {
  return *place;
}
template <class T>
T __ldcs(const T *place) {
  return *place;
}
template <class T>
void __stcs(T *place, T value) {
  *place = value;
}

// ------------------------------------------------------------------ 16-bit floats

namespace emu {

// `x` as a float whose last bit says whether something was cut off. Rounded once more, to fewer
// bits, it gives what rounding `x` itself would give ("rounding to odd").
inline float narrowed(double x) {
  float result = float(x);
  if (double(result) == x || x != x || isinf(result)) return result;
  if (fabs(double(result)) > fabs(x)) {
    result = bits_as<float>(bits_as<uint32_t>(result) - 1);  // the next one towards zero
  }
  return bits_as<float>(bits_as<uint32_t>(result) | 1);
}

// Round a float's bits to nearest, ties to even, dropping the `dropped` lowest.
inline uint32_t rounded(uint32_t bits, int dropped) {
  uint32_t odd = bits >> dropped & 1;
  return (bits + (1u << (dropped - 1)) - 1 + odd) >> dropped;
}

inline uint16_t half_bits(float x) {
  uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7fff;           // NaN, as the card writes it
  if (bits >= 0x477ff000) return sign | 0x7c00;   // rounds above 65504
  if (bits < 0x38800000) {                        // subnormal: count in units of 2^-24
    float magnitude = bits_as<float>(bits);
    return sign | uint16_t(lrintf(magnitude * 16777216.0f));
  }
  return sign | uint16_t(rounded(bits - (112u << 23), 13));  // exponent bias 127 -> 15
}

inline float half_value(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, bits = half & 0x7fff;
  float magnitude;
  if (bits >= 0x7c00) {
    magnitude = bits_as<float>(0x7f800000 | (bits & 0x3ff) << 13);
  } else if (bits < 0x0400) {
    magnitude = bits * (1.0f / 16777216.0f);
  } else {
    magnitude = bits_as<float>((bits << 13) + (112u << 23));
  }
  return bits_as<float>(bits_as<uint32_t>(magnitude) | sign);
}

inline uint16_t bfloat16_bits(float x) {
  if (x != x) return 0x7fff;
  return uint16_t(rounded(bits_as<uint32_t>(x), 16));
}

inline float bfloat16_value(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }

}  // namespace emu

// Arithmetic rounds after each operation, as the card's does.
#define EMU_SHORT_FLOAT(name, to_bits, to_value)                                              \
  struct name {                                                                               \
    uint16_t bits;                                                                            \
    name() = default;                                                                         \
    name(float x) : bits(to_bits(x)) {}                                                       \
    name(double x) : bits(to_bits(emu::narrowed(x))) {}                                       \
    name(int x) : name(double(x)) {}                                                          \
    operator float() const { return to_value(bits); }                                         \
  };                                                                                          \
  inline name operator+(name a, name b) { return name(float(a) + float(b)); }                 \
  inline name operator-(name a, name b) { return name(float(a) - float(b)); }                 \
  inline name operator*(name a, name b) { return name(float(a) * float(b)); }                 \
  inline name operator/(name a, name b) { return name(float(a) / float(b)); }                 \
  inline name operator-(name a) { return name(-float(a)); }                                   \
  inline bool operator==(name a, name b) { return float(a) == float(b); }                     \
  inline bool operator!=(name a, name b) { return float(a) != float(b); }                     \
  inline bool operator<(name a, name b) { return float(a) < float(b); }                       \
  inline bool operator>(name a, name b) { return float(a) > float(b); }                       \
  inline bool operator<=(name a, name b) { return float(a) <= float(b); }                     \
  inline bool operator>=(name a, name b) { return float(a) >= float(b); }                     \
  struct alignas(4) name##2 { name x, y; };
EMU_SHORT_FLOAT(__half, emu::half_bits, emu::half_value)
EMU_SHORT_FLOAT(__nv_bfloat16, emu::bfloat16_bits, emu::bfloat16_value)
#undef EMU_SHORT_FLOAT
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;

inline float __half2float(__half x) { return float(x); }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { return emu::bits_as<__half>(x); }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }

inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) {
  return emu::bits_as<__nv_bfloat16>(x);
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
