typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef unsigned short u16x8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef unsigned u32x8 __attribute__((vector_size(32), aligned(4), may_alias));
#if defined(__AVX2__) && !defined(__clang__)
static inline f32x8 bfloat16_value_x8(u16x8 a) {
  return (f32x8)((u32x8)__builtin_ia32_pmovzxwd256((short __attribute__((vector_size(16))))a) << 16);
}
#else
static inline f32x8 bfloat16_value_x8(u16x8 a) {
  return (f32x8)(__builtin_convertvector(a, u32x8) << 16);
}
#endif
static inline f32x8 bfloat16_rounded_x8(f32x8 a) {
  return (f32x8)((((u32x8)a + 0x7fff + ((u32x8)a >> 16 & 1)) | ((u32x8)(a != a) & 0x7fc00000)) & 0xffff0000);
}
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
#if defined(__AVX2__) && !defined(__AVX512VL__) && !defined(__clang__)
static inline u16x8 bfloat16_upper_x8(u32x8 a) {
  return ({ typedef long long parts __attribute__((vector_size(32))); const int __attribute__((vector_size(32))) v = (int __attribute__((vector_size(32))))(a >> 16); const parts near = (parts)__builtin_ia32_packusdw256(v, v); const parts all = __builtin_shuffle(near, (parts){0, 2, 1, 3}); *(const u16x8 *)&all; });
}
#else
static inline u16x8 bfloat16_upper_x8(u32x8 a) {
  return __builtin_convertvector(a >> 16, u16x8);
}
#endif
static inline u16x8 bfloat16_bits_x8(f32x8 a) {
  return bfloat16_upper_x8((u32x8)a);
}
// sum_mul_add_max_64x96_r128
//   v0 = cast(slot1, float32)             : 64x128 float32
//   v1 = reshape(v0)                      : 64x128x1 float32
//   v2 = expand(v1)                       : 64x128x96 float32
//   v3 = cast(slot2, float32)             : 128x96 float32
//   v4 = reshape(v3)                      : 1x128x96 float32
//   v5 = expand(v4)                       : 64x128x96 float32
//   v6 = v2 * v5                          : 64x128x96 float32
//   v7 = sum(v6) over axis 1              : 64x1x96 float32
//   v8 = reshape(v7)                      : 64x96 float32
//   v9 = cast(v8, bfloat16)               : 64x96 bfloat16
//  v10 = reshape(slot3)                   : 1x96 bfloat16
//  v11 = expand(v10)                      : 64x96 bfloat16
//  v12 = v9 + v11                         : 64x96 bfloat16
//  v13 = max(v12, 0)                      : 64x96 bfloat16
// slot0 = v13
void sum_mul_add_max_64x96_r128_ed8cc723(void *const *buffers, long start, long end) {
  unsigned short *restrict slot0 = buffers[0];
  const unsigned short *restrict slot1 = buffers[1];
  const unsigned short *restrict slot2 = buffers[2];
  const unsigned short *restrict slot3 = buffers[3];
  float tile1[8448] __attribute__((aligned(64)));
  float tile0[6144] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i1 = block;
    for (long i0s_tile1 = 0; i0s_tile1 < 11; ++i0s_tile1) {
      for (long r0_tile1 = 0; r0_tile1 < 16; ++r0_tile1) {
        const f32x8 v0 = bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8)));
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8)) = v0;
        const f32x8 v1 = bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 128));
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 128) = v1;
        const f32x8 v2 = bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 256));
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 256) = v2;
        const f32x8 v3 = bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 384));
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 384) = v3;
        const f32x8 v4 = i0s_tile1 <= 9 ? (f32x8)bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 512)) : (f32x8){0};
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 512) = v4;
        const f32x8 v5 = i0s_tile1 <= 9 ? (f32x8)bfloat16_value_x8(*(const u16x8 *)(slot1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 640)) : (f32x8){0};
        *(f32x8 *)(tile1 + (i0s_tile1 * 768 + r0_tile1 * 8) + 640) = v5;
      }
    }
    for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
      for (long i1s_tile0 = 0; i1s_tile0 < 3; ++i1s_tile0) {
        const f32x8 v6_0 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 48 + i1s_tile0 * 16) + 0 * 8));
        *(f32x8 *)(tile0 + (i1s_tile0 * 2048 + r0_tile0 * 16) + 0 * 8) = v6_0;
        const f32x8 v6_1 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 48 + i1s_tile0 * 16) + 1 * 8));
        *(f32x8 *)(tile0 + (i1s_tile0 * 2048 + r0_tile0 * 16) + 1 * 8) = v6_1;
      }
    }
    for (long i0s = 0; i0s < 11; ++i0s) {
      for (long i1s = 0; i1s < 3; ++i1s) {
        f32x8 acc7_0 = 0.0f - (f32x8){0};
        f32x8 acc8_0 = 0.0f - (f32x8){0};
        f32x8 acc7_1 = 0.0f - (f32x8){0};
        f32x8 acc8_1 = 0.0f - (f32x8){0};
        f32x8 acc7_2 = 0.0f - (f32x8){0};
        f32x8 acc8_2 = 0.0f - (f32x8){0};
        f32x8 acc7_3 = 0.0f - (f32x8){0};
        f32x8 acc8_3 = 0.0f - (f32x8){0};
        f32x8 acc7_4 = 0.0f - (f32x8){0};
        f32x8 acc8_4 = 0.0f - (f32x8){0};
        f32x8 acc7_5 = 0.0f - (f32x8){0};
        f32x8 acc8_5 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 128; ++r0) {
          acc7_0 += (tile1[i0s * 768 + r0 + 0 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_0 += (tile1[i0s * 768 + r0 + 0 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
          acc7_1 += (tile1[i0s * 768 + r0 + 1 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_1 += (tile1[i0s * 768 + r0 + 1 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
          acc7_2 += (tile1[i0s * 768 + r0 + 2 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_2 += (tile1[i0s * 768 + r0 + 2 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
          acc7_3 += (tile1[i0s * 768 + r0 + 3 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_3 += (tile1[i0s * 768 + r0 + 3 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
          acc7_4 += (tile1[i0s * 768 + r0 + 4 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_4 += (tile1[i0s * 768 + r0 + 4 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
          acc7_5 += (tile1[i0s * 768 + r0 + 5 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16));
          acc8_5 += (tile1[i0s * 768 + r0 + 5 * 128] - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0 * 16) + 8);
        }
        const f32x8 v9 = bfloat16_value_x8(*(const u16x8 *)(slot3 + (i1 * 48 + i1s * 16)));
        const f32x8 v10 = bfloat16_value_x8(*(const u16x8 *)(slot3 + (i1 * 48 + i1s * 16) + 8));
        if (i0s * 6 <= 63 - 0) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 0 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_0) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 0) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 0 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_0) + v10), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 1) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 1 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_1) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 1) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 1 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_1) + v10), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 2) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 2 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_2) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 2) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 2 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_2) + v10), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 3) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 3 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_3) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 3) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 3 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_3) + v10), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 4) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 4 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_4) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 4) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 4 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_4) + v10), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 5) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 5 * 96) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_5) + v9), 0.0f - (f32x8){0}));
        if (i0s * 6 <= 63 - 5) *(u16x8 *)(slot0 + (i0s * 576 + i1 * 48 + i1s * 16) + 5 * 96 + 8) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8_5) + v10), 0.0f - (f32x8){0}));
      }
    }
  }
}
