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
void sum_mul_add_max_64x96_r128_8d938209(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  float tile0[2048] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i1 = block;
    for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
      const f32x8 v0 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16));
      *(f32x8 *)(tile0 + r0_tile0 * 16) = v0;
      const f32x8 v1 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + 8));
      *(f32x8 *)(tile0 + (r0_tile0 * 16 + 8)) = v1;
    }
    const f32x8 v20 = *(const f32x8 *)(slot3 + i1 * 16);
    const f32x8 v21 = *(const f32x8 *)(slot3 + (i1 * 16 + 8));
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
        const float v14 = slot1[i0 * 768 + r0];
        acc2 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc3 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v15 = slot1[i0 * 768 + r0 + 128];
        acc4 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc5 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v16 = slot1[i0 * 768 + r0 + 256];
        acc6 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc7 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v17 = slot1[i0 * 768 + r0 + 384];
        acc8 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc9 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v18 = slot1[i0 * 768 + r0 + 512];
        acc10 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc11 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        const float v19 = slot1[i0 * 768 + r0 + 640];
        acc12 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
        acc13 += (v19 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      }
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16)) = max_f32_x8(acc2 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 8)) = max_f32_x8(acc3 + v21, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 96)) = max_f32_x8(acc4 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 104)) = max_f32_x8(acc5 + v21, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 192)) = max_f32_x8(acc6 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 200)) = max_f32_x8(acc7 + v21, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 288)) = max_f32_x8(acc8 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 296)) = max_f32_x8(acc9 + v21, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 384)) = max_f32_x8(acc10 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 392)) = max_f32_x8(acc11 + v21, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 480)) = max_f32_x8(acc12 + v20, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i0 * 576 + i1 * 16 + 488)) = max_f32_x8(acc13 + v21, 0.0f - (f32x8){0});
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
      const float v30 = slot1[r0 + 7680];
      acc22 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc23 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v31 = slot1[r0 + 7808];
      acc24 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc25 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v32 = slot1[r0 + 7936];
      acc26 += (v32 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc27 += (v32 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
      const float v33 = slot1[r0 + 8064];
      acc28 += (v33 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
      acc29 += (v33 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
    }
    *(f32x8 *)(slot0 + (i1 * 16 + 5760)) = max_f32_x8(acc22 + v20, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 5768)) = max_f32_x8(acc23 + v21, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 5856)) = max_f32_x8(acc24 + v20, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 5864)) = max_f32_x8(acc25 + v21, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 5952)) = max_f32_x8(acc26 + v20, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 5960)) = max_f32_x8(acc27 + v21, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 6048)) = max_f32_x8(acc28 + v20, 0.0f - (f32x8){0});
    *(f32x8 *)(slot0 + (i1 * 16 + 6056)) = max_f32_x8(acc29 + v21, 0.0f - (f32x8){0});
  }
}
