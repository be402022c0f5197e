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
static inline float bfloat16_value(unsigned short bits) {
  const union { unsigned u; float f; } wide = {(unsigned)bits << 16};
  return wide.f;
}
static inline unsigned short bfloat16_bits(float value) {
  const union { float f; unsigned u; } wide = {value};
  const unsigned u = wide.u;
  if (value != value) return (unsigned short)(u >> 16 | 0x40);
  return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
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
  return (f32x8)((m & (i32x8)a) | (~m & (i32x8)b));
}
static inline u16x8 bfloat16_bits_x8(f32x8 a) {
  return __builtin_convertvector((u32x8)a >> 16, u16x8);
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
void sum_mul_add_max_64x96_r128_d72c8634(void *const *buffers, long start, long end) {
  unsigned short *restrict slot0 = buffers[0];
  const unsigned short *restrict slot1 = buffers[1];
  const unsigned short *restrict slot2 = buffers[2];
  const unsigned short *restrict slot3 = buffers[3];
  float tile0[2048] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    if (block < 12) {
      const long i0 = block / 6;
      const long i1 = block % 6;
      for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
        const f32x8 v0 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16)));
        *(f32x8 *)(tile0 + r0_tile0 * 16) = v0;
        const f32x8 v1 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + 8)));
        *(f32x8 *)(tile0 + (r0_tile0 * 16 + 8)) = v1;
      }
      const f32x8 v20 = bfloat16_value_x8(*(const u16x8 *)(slot3 + i1 * 16));
      const f32x8 v21 = bfloat16_value_x8(*(const u16x8 *)(slot3 + (i1 * 16 + 8)));
      for (long i0s = 0; i0s < 5; ++i0s) {
        f32x8 acc2 = 0.0f - (f32x8){0};
        f32x8 acc3 = 0.0f - (f32x8){0};
        f32x8 acc4 = 0.0f - (f32x8){0};
        f32x8 acc5 = 0.0f - (f32x8){0};
        f32x8 acc6 = 0.0f - (f32x8){0};
        f32x8 acc7 = 0.0f - (f32x8){0};
        f32x8 acc8 = 0.0f - (f32x8){0};
        f32x8 acc9 = 0.0f - (f32x8){0};
        f32x8 acc10 = 0.0f - (f32x8){0};
        f32x8 acc11 = 0.0f - (f32x8){0};
        f32x8 acc12 = 0.0f - (f32x8){0};
        f32x8 acc13 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 128; ++r0) {
          const float v14 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0]);
          acc2 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc3 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v15 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0 + 128]);
          acc4 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc5 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v16 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0 + 256]);
          acc6 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc7 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v17 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0 + 384]);
          acc8 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc9 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v18 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0 + 512]);
          acc10 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc11 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v19 = bfloat16_value(slot1[i0 * 3840 + i0s * 768 + r0 + 640]);
          acc12 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc13 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        }
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc2) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 8)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc3) + v21), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 96)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc4) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 104)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc5) + v21), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 192)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc6) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 200)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7) + v21), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 288)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 296)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc9) + v21), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 384)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc10) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 392)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc11) + v21), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 480)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc12) + v20), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16 + 488)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc13) + v21), 0.0f - (f32x8){0}));
      }
    } else if (block < 13) {
      for (long i1e1s = 0; i1e1s < 6; ++i1e1s) {
        f32x8 acc0_1 = 0.0f - (f32x8){0};
        f32x8 acc1_1 = 0.0f - (f32x8){0};
        f32x8 acc2_1 = 0.0f - (f32x8){0};
        f32x8 acc3_1 = 0.0f - (f32x8){0};
        f32x8 acc4_1 = 0.0f - (f32x8){0};
        f32x8 acc5_1 = 0.0f - (f32x8){0};
        f32x8 acc6_1 = 0.0f - (f32x8){0};
        f32x8 acc7_1 = 0.0f - (f32x8){0};
        for (long r0e1 = 0; r0e1 < 128; ++r0e1) {
          const float v8_1 = bfloat16_value(slot1[r0e1 + 7680]);
          const f32x8 v9_1 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16)));
          acc0_1 += (v8_1 - (f32x8){0}) * v9_1;
          const f32x8 v10_1 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16 + 8)));
          acc1_1 += (v8_1 - (f32x8){0}) * v10_1;
          const float v11_1 = bfloat16_value(slot1[r0e1 + 7808]);
          acc2_1 += (v11_1 - (f32x8){0}) * v9_1;
          acc3_1 += (v11_1 - (f32x8){0}) * v10_1;
          const float v12_1 = bfloat16_value(slot1[r0e1 + 7936]);
          acc4_1 += (v12_1 - (f32x8){0}) * v9_1;
          acc5_1 += (v12_1 - (f32x8){0}) * v10_1;
          const float v13_1 = bfloat16_value(slot1[r0e1 + 8064]);
          acc6_1 += (v13_1 - (f32x8){0}) * v9_1;
          acc7_1 += (v13_1 - (f32x8){0}) * v10_1;
        }
        const f32x8 v14_1 = bfloat16_value_x8(*(const u16x8 *)(slot3 + i1e1s * 16));
        const f32x8 v15_1 = bfloat16_value_x8(*(const u16x8 *)(slot3 + (i1e1s * 16 + 8)));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5760)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc0_1) + v14_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5768)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc1_1) + v15_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5856)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc2_1) + v14_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5864)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc3_1) + v15_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5952)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc4_1) + v14_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 5960)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc5_1) + v15_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 6048)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc6_1) + v14_1), 0.0f - (f32x8){0}));
        *(u16x8 *)(slot0 + (i1e1s * 16 + 6056)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7_1) + v15_1), 0.0f - (f32x8){0}));
      }
    }
  }
}
