typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 max_f32_x8(f32x8 a, f32x8 b) {
#ifdef __AVX__
  const i32x8 m = (i32x8)(a != a);
  b = __builtin_ia32_maxps256(a, b);  // b if one is NaN
#else
  const i32x8 m = (i32x8)(a > b | a != a);
#endif
#if defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps256(b, a, (f32x8)m);
#else
  return (f32x8)((m & (i32x8)a) ^ (~m & (i32x8)b));
#endif
}
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int i32x4 __attribute__((vector_size(16), aligned(4), may_alias));
static inline f32x4 max_f32_x4(f32x4 a, f32x4 b) {
#ifdef __SSE__
  const i32x4 m = (i32x4)(a != a);
  b = __builtin_ia32_maxps(a, b);  // b if one is NaN
#else
  const i32x4 m = (i32x4)(a > b | a != a);
#endif
#if defined(__SSE4_1__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps(b, a, (f32x4)m);
#else
  return (f32x4)((m & (i32x4)a) ^ (~m & (i32x4)b));
#endif
}
static inline float across_max_float32x8(f32x8 a) {
  const f32x4 a4 = max_f32_x4(*(const f32x4 *)&a, *((const f32x4 *)&a + 1));
  const f32x4 a2 = max_f32_x4(a4, (f32x4){a4[2], a4[3], a4[2], a4[3]});
  const f32x4 a1 = max_f32_x4(a2, (f32x4){a2[1], a2[1], a2[1], a2[1]});
  return a1[0];
}
#ifndef DONE_EXTREME512
#define DONE_EXTREME512
#ifdef __clang__
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512(a, b, 4)
#else
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512_mask(a, b, a, -1, 4)
#endif
#endif
#ifndef DONE_pick_f32x8
#define DONE_pick_f32x8
static inline f32x8 pick_f32x8(i32x8 m, f32x8 a, f32x8 b) {
#if 8 == 8 && defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps256(b, a, (f32x8)m);
#elif 8 == 4 && defined(__SSE4_1__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps(b, a, (f32x8)m);
#else
#ifdef __AVX512F__
  m = m != 0;
#endif
  return (f32x8)((m & (i32x8)a) ^ (~m & (i32x8)b));
#endif
}
#endif
#ifndef DONE_clamp_f32x8
#define DONE_clamp_f32x8
static inline f32x8 clamp_f32x8(f32x8 x, float low, float high) {
  const f32x8 least = low - (f32x8){0}, most = high - (f32x8){0};
#if 8 == 16 && defined(__AVX512F__)
  return EXTREME512(max, ps, least, EXTREME512(min, ps, most, x));
#elif 8 == 8 && defined(__AVX__)
  return __builtin_ia32_maxps256(least, __builtin_ia32_minps256(most, x));
#elif 8 == 4 && defined(__SSE__)
  return __builtin_ia32_maxps(least, __builtin_ia32_minps(most, x));
#else
  return pick_f32x8(x < low, least, pick_f32x8(x > high, most, x));
#endif
}
#endif
#ifndef DONE_scale_f32x8
#define DONE_scale_f32x8
#if 8 >= 4 && 8 <= 16 && defined(__AVX512VL__)
static inline f32x8 grown_f32x8(f32x8 p, f32x8 n) {
#if 8 == 16
  return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#elif 8 == 8
  return __builtin_ia32_scalefps256_mask(p, n, p, -1);
#else
  return __builtin_ia32_scalefps128_mask(p, n, p, -1);
#endif
}
#endif
static inline f32x8 scale_f32x8(f32x8 p, f32x8 shifted) {
#if 8 >= 4 && 8 <= 16 && defined(__AVX512VL__)
  return grown_f32x8(p, shifted - 12582912.0f);
#else
  const i32x8 n = (i32x8)(shifted), half = n >> 1;
  return p * (f32x8)((half << 23) + 0x3f800000) * (f32x8)(((n - half) << 23) + 0x3f800000);
#endif
}
#endif
#ifndef DONE_entry_f32x8
#define DONE_entry_f32x8
#if 8 >= 4 && 8 <= 16 && defined(__AVX512F__)
static inline f32x8 entry_f32x8(const float *entries, f32x8 at) {
  typedef float wide __attribute__((vector_size(64), may_alias));
  typedef int bits __attribute__((vector_size(64)));
#if 8 == 16
  const bits where = (bits)at;
#elif defined(__clang__)
  const bits where = (bits)__builtin_shufflevector(
      at, at, 0, 1, 2, 3, 4 % 8, 5 % 8, 6 % 8, 7 % 8, 0, 0, 0, 0, 0, 0, 0, 0);
#elif 8 == 8
  const bits where = (bits)__builtin_ia32_ps512_256ps(at);
#else
  const bits where = (bits)__builtin_ia32_ps512_ps(at);
#endif
#ifdef __clang__
  const wide found = __builtin_ia32_permvarsf512(*(const wide *)entries, where);
#else
  const wide found = __builtin_ia32_permvarsf512_mask(*(const wide *)entries, where, (wide){0}, -1);
#endif
  return *(const f32x8 *)&found;
}
#endif
#endif
#ifndef DONE_nearer_f32x8
#define DONE_nearer_f32x8
#if 8 >= 4 && 8 <= 16 && defined(__AVX512VL__) && defined(__AVX512DQ__)
static inline f32x8 nearer_f32x8(f32x8 a, f32x8 b) {
#if 8 == 16
  return __builtin_ia32_rangeps512_mask(a, b, 2, a, -1, 4);
#elif 8 == 8
  return __builtin_ia32_rangeps256_mask(a, b, 2, a, -1);
#else
  return __builtin_ia32_rangeps128_mask(a, b, 2, a, -1);
#endif
}
#endif
#endif
static inline f32x8 exp_f32x8(f32x8 x) {
#if 8 >= 4 && 8 <= 16 && defined(__AVX512VL__) && defined(__AVX512DQ__)
  static const float roots[16] __attribute__((aligned(64))) = {
    1.0f, 1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f,
    1.3542556f, 1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f,
    1.8340081f, 1.9152066f};
  static const float lacking[16] __attribute__((aligned(64))) = {
    0.0f, 4.628547e-8f, -1.19921575e-8f, 4.7297824e-8f, 3.193418e-8f, 3.6210572e-8f,
    -3.099072e-8f, -7.475213e-9f, 1.7114271e-8f, -3.0476834e-8f, 5.233334e-9f,
    6.1075918e-9f, -1.4719605e-8f, -5.258795e-9f, -6.1282597e-9f, 5.1406093e-9f};
  const f32x8 shifted = x * 1.44269504f + 786432.0f;  // round to sixteenths
  const f32x8 n = shifted - 786432.0f, root = entry_f32x8(roots, shifted);
  f32x8 t = x - n * 0.693359375f;
  t = nearer_f32x8(t + n * 2.12194440e-4f, (f32x8){0} + 1.0f);
  f32x8 p = t * 0.16666667f + 0.50001618f;
  p = p * t + 1.0f;
  p = p * t + entry_f32x8(lacking, shifted);
  return grown_f32x8(p * root + root, n);
#else
  f32x8 t = clamp_f32x8(x, -176.1f, 89.0f);
  const f32x8 shifted = t * 1.44269504f + 12582912.0f;  // round to nearest by losing low bits
  const f32x8 n = shifted - 12582912.0f;
  t = t - n * 0.693359375f;
  t = t + n * 2.12194440e-4f;
  f32x8 p = t * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * t + 8.3334519073e-3f;
  p = p * t + 4.1665795894e-2f;
  p = p * t + 1.6666665459e-1f;
  p = p * t + 5.0000001201e-1f;

  return scale_f32x8(p * (t * t) + t + 1.0f, shifted);
#endif
}

static inline float across_add_float32x8(f32x8 a) {
  const f32x4 a4 = *(const f32x4 *)&a + *((const f32x4 *)&a + 1);
  const f32x4 a2 = a4 + (f32x4){a4[2], a4[3], a4[2], a4[3]};
  const f32x4 a1 = a2 + (f32x4){a2[1], a2[1], a2[1], a2[1]};
  return a1[0];
}
// max_sum_neg_add_64x256_r256
//   v0 = max(slot1) over axis 1           : 64x1 float32
//   v1 = neg(v0)                          : 64x1 float32
//   v2 = expand(v1)                       : 64x256 float32
//   v3 = slot1 + v2                       : 64x256 float32
//   v4 = exp(v3)                          : 64x256 float32
//   v5 = sum(v4) over axis 1              : 64x1 float32
//   v6 = expand(v5)                       : 64x256 float32
//   v7 = v4 / v6                          : 64x256 float32
// slot0 = v7
void max_sum_neg_add_64x256_r256_54e6e78b(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  float kept0[256] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i0 = block;
    f32x8 acc0 = -__builtin_inff() - (f32x8){0};
    f32x8 acc1 = -__builtin_inff() - (f32x8){0};
    f32x8 acc2 = -__builtin_inff() - (f32x8){0};
    f32x8 acc3 = -__builtin_inff() - (f32x8){0};
    for (long r0 = 0; r0 < 8; ++r0) {
      const f32x8 v4 = *(const f32x8 *)(slot1 + (i0 * 256 + r0 * 32));
      const f32x8 v5 = *(const f32x8 *)(slot1 + (i0 * 256 + r0 * 32) + 8);
      const f32x8 v6 = *(const f32x8 *)(slot1 + (i0 * 256 + r0 * 32) + 16);
      const f32x8 v7 = *(const f32x8 *)(slot1 + (i0 * 256 + r0 * 32) + 24);
      acc0 = max_f32_x8(v4, acc0);
      acc1 = max_f32_x8(v5, acc1);
      acc2 = max_f32_x8(v6, acc2);
      acc3 = max_f32_x8(v7, acc3);
    }
    acc0 = max_f32_x8(acc2, acc0);
    acc1 = max_f32_x8(acc3, acc1);
    acc0 = max_f32_x8(acc1, acc0);
    float acc8 = across_max_float32x8(acc0);
    const float v10 = -acc8;
    for (long j0_kept0 = 0; j0_kept0 < 32; ++j0_kept0) {
      const f32x8 v9 = *(const f32x8 *)(slot1 + (i0 * 256 + j0_kept0 * 8));
      const f32x8 v11 = exp_f32x8(v9 + (v10 - (f32x8){0}));
      *(f32x8 *)(kept0 + j0_kept0 * 8) = v11;
    }
    f32x8 acc12 = 0.0f - (f32x8){0};
    f32x8 acc13 = 0.0f - (f32x8){0};
    f32x8 acc14 = 0.0f - (f32x8){0};
    f32x8 acc15 = 0.0f - (f32x8){0};
    for (long r0 = 0; r0 < 8; ++r0) {
      acc12 += *(const f32x8 *)(kept0 + r0 * 32);
      acc13 += *(const f32x8 *)(kept0 + r0 * 32 + 8);
      acc14 += *(const f32x8 *)(kept0 + r0 * 32 + 16);
      acc15 += *(const f32x8 *)(kept0 + r0 * 32 + 24);
    }
    acc12 += acc14;
    acc13 += acc15;
    acc12 += acc13;
    float acc16 = across_add_float32x8(acc12);
    for (long j0 = 0; j0 < 32; ++j0) {
      *(f32x8 *)(slot0 + (i0 * 256 + j0 * 8)) = *(const f32x8 *)(kept0 + j0 * 8) / (acc16 - (f32x8){0});
    }
  }
}
