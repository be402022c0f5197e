static inline float max_f32(float a, float b) {
  const float m = a > b ? a : b;  // without a branch, which could not be predicted
  return a != a ? a : m;
}
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int i32x4 __attribute__((vector_size(16), aligned(4), may_alias));
#ifndef DONE_EXTREME512
#define DONE_EXTREME512
#ifdef __clang__
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512(a, b, 4)
#else
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512_mask(a, b, a, -1, 4)
#endif
#endif
#ifndef DONE_pick_f32x4
#define DONE_pick_f32x4
static inline f32x4 pick_f32x4(i32x4 m, f32x4 a, f32x4 b) {
#if 4 == 8 && defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps256(b, a, (f32x4)m);
#elif 4 == 4 && defined(__SSE4_1__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvps(b, a, (f32x4)m);
#else
#ifdef __AVX512F__
  m = m != 0;
#endif
  return (f32x4)((m & (i32x4)a) ^ (~m & (i32x4)b));
#endif
}
#endif
#ifndef DONE_clamp_f32x4
#define DONE_clamp_f32x4
static inline f32x4 clamp_f32x4(f32x4 x, float low, float high) {
  const f32x4 least = low - (f32x4){0}, most = high - (f32x4){0};
#if 4 == 16 && defined(__AVX512F__)
  return EXTREME512(max, ps, least, EXTREME512(min, ps, most, x));
#elif 4 == 8 && defined(__AVX__)
  return __builtin_ia32_maxps256(least, __builtin_ia32_minps256(most, x));
#elif 4 == 4 && defined(__SSE__)
  return __builtin_ia32_maxps(least, __builtin_ia32_minps(most, x));
#else
  return pick_f32x4(x < low, least, pick_f32x4(x > high, most, x));
#endif
}
#endif
#ifndef DONE_scale_f32x4
#define DONE_scale_f32x4
#if 4 >= 4 && 4 <= 16 && defined(__AVX512VL__)
static inline f32x4 grown_f32x4(f32x4 p, f32x4 n) {
#if 4 == 16
  return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#elif 4 == 8
  return __builtin_ia32_scalefps256_mask(p, n, p, -1);
#else
  return __builtin_ia32_scalefps128_mask(p, n, p, -1);
#endif
}
#endif
static inline f32x4 scale_f32x4(f32x4 p, f32x4 shifted) {
#if 4 >= 4 && 4 <= 16 && defined(__AVX512VL__)
  return grown_f32x4(p, shifted - 12582912.0f);
#else
  const i32x4 n = (i32x4)(shifted), half = n >> 1;
  return p * (f32x4)((half << 23) + 0x3f800000) * (f32x4)(((n - half) << 23) + 0x3f800000);
#endif
}
#endif
static inline f32x4 exp_f32x4(f32x4 x) {
  f32x4 t = clamp_f32x4(x, -176.1f, 89.0f);
  const f32x4 shifted = t * 1.44269504f + 12582912.0f;  // round to nearest by losing low bits
  const f32x4 n = shifted - 12582912.0f;
  t = t - n * 0.693359375f;
  t = t + n * 2.12194440e-4f;
  f32x4 p = t * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * t + 8.3334519073e-3f;
  p = p * t + 4.1665795894e-2f;
  p = p * t + 1.6666665459e-1f;
  p = p * t + 5.0000001201e-1f;

  return scale_f32x4(p * (t * t) + t + 1.0f, shifted);
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
void max_sum_neg_add_64x256_r256_19faf3af(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  for (long block = start; block < end; ++block) {
    for (long i0 = 0; i0 < 64; ++i0) {
      float acc0 = -__builtin_inff();
      for (long r0 = 0; r0 < 256; ++r0) {
        const float v1 = slot1[i0 * 256 + r0];
        acc0 = max_f32(v1, acc0);
      }
      float acc2 = 0.0f;
      const float v5 = -acc0;
      #pragma clang loop unroll(disable)
      for (long r0_s = 0; r0_s < 8; ++r0_s) {
        float acc3 = 0.0f;
        for (long r0_i = 0; r0_i < 32; ++r0_i) {
          const float v4 = slot1[i0 * 256 + r0_s * 32 + r0_i];
          const float v6 = exp_f32x4(v4 + v5 - (f32x4){0})[0];
          acc3 += v6;
        }
        acc2 += acc3;
      }
      for (long j0 = 0; j0 < 256; ++j0) {
        const float v7 = slot1[i0 * 256 + j0];
        const float v8 = exp_f32x4(v7 + v5 - (f32x4){0})[0];
        slot0[i0 * 256 + j0] = v8 / acc2;
      }
    }
  }
}
