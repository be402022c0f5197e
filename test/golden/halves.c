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
void sum_mul_add_max_64x96_r128_ff74a963(void *const *buffers, long start, long end) {
  unsigned short *restrict slot0 = buffers[0];
  const unsigned short *restrict slot1 = buffers[1];
  const unsigned short *restrict slot2 = buffers[2];
  const unsigned short *restrict slot3 = buffers[3];
  float tile0[2048] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i1 = block;
    for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
      const f32x8 v0 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16)));
      *(f32x8 *)(tile0 + r0_tile0 * 16) = v0;
      const f32x8 v1 = bfloat16_value_x8(*(const u16x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + 8)));
      *(f32x8 *)(tile0 + (r0_tile0 * 16 + 8)) = v1;
    }
    const f32x8 v20 = bfloat16_value_x8(*(const u16x8 *)(slot3 + i1 * 16));
    const f32x8 v21 = bfloat16_value_x8(*(const u16x8 *)(slot3 + (i1 * 16 + 8)));
    for (long i0 = 0; i0 < 10; ++i0) {
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
        const float v14 = bfloat16_value(slot1[i0 * 768 + r0]);
        acc2 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc3 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v15 = bfloat16_value(slot1[i0 * 768 + r0 + 128]);
        acc4 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc5 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v16 = bfloat16_value(slot1[i0 * 768 + r0 + 256]);
        acc6 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc7 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v17 = bfloat16_value(slot1[i0 * 768 + r0 + 384]);
        acc8 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc9 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v18 = bfloat16_value(slot1[i0 * 768 + r0 + 512]);
        acc10 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc11 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v19 = bfloat16_value(slot1[i0 * 768 + r0 + 640]);
        acc12 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc13 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      }
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc2) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 8)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc3) + v21), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 96)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc4) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 104)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc5) + v21), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 192)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc6) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 200)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc7) + v21), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 288)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc8) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 296)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc9) + v21), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 384)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc10) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 392)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc11) + v21), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 480)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc12) + v20), 0.0f - (f32x8){0}));
      *(u16x8 *)(slot0 + (i0 * 576 + i1 * 16 + 488)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc13) + v21), 0.0f - (f32x8){0}));
    }
    f32x8 acc22 = 0.0f - (f32x8){0};
    f32x8 acc23 = 0.0f - (f32x8){0};
    f32x8 acc24 = 0.0f - (f32x8){0};
    f32x8 acc25 = 0.0f - (f32x8){0};
    f32x8 acc26 = 0.0f - (f32x8){0};
    f32x8 acc27 = 0.0f - (f32x8){0};
    f32x8 acc28 = 0.0f - (f32x8){0};
    f32x8 acc29 = 0.0f - (f32x8){0};
    for (long r0 = 0; r0 < 128; ++r0) {
      const float v30 = bfloat16_value(slot1[r0 + 7680]);
      acc22 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc23 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v31 = bfloat16_value(slot1[r0 + 7808]);
      acc24 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc25 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v32 = bfloat16_value(slot1[r0 + 7936]);
      acc26 += (v32 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc27 += (v32 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v33 = bfloat16_value(slot1[r0 + 8064]);
      acc28 += (v33 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc29 += (v33 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
    }
    *(u16x8 *)(slot0 + (i1 * 16 + 5760)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc22) + v20), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 5768)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc23) + v21), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 5856)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc24) + v20), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 5864)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc25) + v21), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 5952)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc26) + v20), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 5960)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc27) + v21), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 6048)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc28) + v20), 0.0f - (f32x8){0}));
    *(u16x8 *)(slot0 + (i1 * 16 + 6056)) = bfloat16_bits_x8(max_f32_x8(bfloat16_rounded_x8(bfloat16_rounded_x8(acc29) + v21), 0.0f - (f32x8){0}));
  }
}
