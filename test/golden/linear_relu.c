typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 max_f32_x8(f32x8 a, f32x8 b) {
#ifdef __AVX__
  const i32x8 m = (i32x8)(a != a);
  b = __builtin_ia32_maxps256(a, b);  // b if one is NaN
#else
  const i32x8 m = (i32x8)(a > b | a != a);
#endif
  return (f32x8)((m & (i32x8)a) ^ (~m & (i32x8)b));
}
// sum_mul_add_max_64x96_r128
//   v0 = reshape(slot1)                   : 64x128x1 float32
//   v1 = expand(v0)                       : 64x128x96 float32
//   v2 = reshape(slot2)                   : 1x128x96 float32
//   v3 = expand(v2)                       : 64x128x96 float32
//   v4 = v1 * v3                          : 64x128x96 float32
//   v5 = sum(v4) over axis 1              : 64x1x96 float32
//   v6 = reshape(v5)                      : 64x96 float32
//   v7 = reshape(slot3)                   : 1x96 float32
//   v8 = expand(v7)                       : 64x96 float32
//   v9 = v6 + v8                          : 64x96 float32
//  v10 = max(v9, 0)                       : 64x96 float32
// slot0 = v10
void sum_mul_add_max_64x96_r128_46fc6e60(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  float tile0[2048] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i1 = block;
    for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
      const f32x8 v0_0 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + 0 * 8));
      *(f32x8 *)(tile0 + (r0_tile0 * 16 + 0 * 8)) = v0_0;
      const f32x8 v0_1 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + 1 * 8));
      *(f32x8 *)(tile0 + (r0_tile0 * 16 + 1 * 8)) = v0_1;
    }
    const f32x8 v4 = *(const f32x8 *)(slot3 + i1 * 16);
    const f32x8 v5 = *(const f32x8 *)(slot3 + (i1 * 16 + 8));
    for (long i0 = 0; i0 < 10; ++i0) {
      f32x8 acc1_0 = 0.0f - (f32x8){0};
      f32x8 acc2_0 = 0.0f - (f32x8){0};
      f32x8 acc1_1 = 0.0f - (f32x8){0};
      f32x8 acc2_1 = 0.0f - (f32x8){0};
      f32x8 acc1_2 = 0.0f - (f32x8){0};
      f32x8 acc2_2 = 0.0f - (f32x8){0};
      f32x8 acc1_3 = 0.0f - (f32x8){0};
      f32x8 acc2_3 = 0.0f - (f32x8){0};
      f32x8 acc1_4 = 0.0f - (f32x8){0};
      f32x8 acc2_4 = 0.0f - (f32x8){0};
      f32x8 acc1_5 = 0.0f - (f32x8){0};
      f32x8 acc2_5 = 0.0f - (f32x8){0};
      for (long r0 = 0; r0 < 128; ++r0) {
        const float v3_0 = slot1[i0 * 768 + r0 + 0 * 128];
        acc1_0 += (v3_0 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_0 += (v3_0 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v3_1 = slot1[i0 * 768 + r0 + 1 * 128];
        acc1_1 += (v3_1 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_1 += (v3_1 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v3_2 = slot1[i0 * 768 + r0 + 2 * 128];
        acc1_2 += (v3_2 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_2 += (v3_2 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v3_3 = slot1[i0 * 768 + r0 + 3 * 128];
        acc1_3 += (v3_3 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_3 += (v3_3 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v3_4 = slot1[i0 * 768 + r0 + 4 * 128];
        acc1_4 += (v3_4 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_4 += (v3_4 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v3_5 = slot1[i0 * 768 + r0 + 5 * 128];
        acc1_5 += (v3_5 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc2_5 += (v3_5 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      }
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 0 * 96)) = max_f32_x8(acc1_0 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 0 * 96 + 8)) = max_f32_x8(acc2_0 + v5, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 1 * 96)) = max_f32_x8(acc1_1 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 1 * 96 + 8)) = max_f32_x8(acc2_1 + v5, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 2 * 96)) = max_f32_x8(acc1_2 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 2 * 96 + 8)) = max_f32_x8(acc2_2 + v5, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 3 * 96)) = max_f32_x8(acc1_3 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 3 * 96 + 8)) = max_f32_x8(acc2_3 + v5, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 4 * 96)) = max_f32_x8(acc1_4 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 4 * 96 + 8)) = max_f32_x8(acc2_4 + v5, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 5 * 96)) = max_f32_x8(acc1_5 + v4, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 5 * 96 + 8)) = max_f32_x8(acc2_5 + v5, 0.0f - (f32x8){0});
    }
    f32x8 acc6_0 = 0.0f - (f32x8){0};
    f32x8 acc7_0 = 0.0f - (f32x8){0};
    f32x8 acc6_1 = 0.0f - (f32x8){0};
    f32x8 acc7_1 = 0.0f - (f32x8){0};
    f32x8 acc6_2 = 0.0f - (f32x8){0};
    f32x8 acc7_2 = 0.0f - (f32x8){0};
    f32x8 acc6_3 = 0.0f - (f32x8){0};
    f32x8 acc7_3 = 0.0f - (f32x8){0};
    for (long r0 = 0; r0 < 128; ++r0) {
      const float v8_0 = slot1[r0 + 0 * 128 + 7680];
      acc6_0 += (v8_0 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc7_0 += (v8_0 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v8_1 = slot1[r0 + 1 * 128 + 7680];
      acc6_1 += (v8_1 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc7_1 += (v8_1 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v8_2 = slot1[r0 + 2 * 128 + 7680];
      acc6_2 += (v8_2 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc7_2 += (v8_2 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v8_3 = slot1[r0 + 3 * 128 + 7680];
      acc6_3 += (v8_3 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc7_3 += (v8_3 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
    }
    *(f32x8 *)(slot0 + (i1 * 16 + 0 * 96 + 5760)) = max_f32_x8(acc6_0 + v4, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 0 * 96 + 5768)) = max_f32_x8(acc7_0 + v5, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 1 * 96 + 5760)) = max_f32_x8(acc6_1 + v4, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 1 * 96 + 5768)) = max_f32_x8(acc7_1 + v5, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 2 * 96 + 5760)) = max_f32_x8(acc6_2 + v4, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 2 * 96 + 5768)) = max_f32_x8(acc7_2 + v5, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 3 * 96 + 5760)) = max_f32_x8(acc6_3 + v4, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 3 * 96 + 5768)) = max_f32_x8(acc7_3 + v5, 0.0f - (f32x8){0});
  }
}
