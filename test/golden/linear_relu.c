typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
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
void sum_mul_add_max_64x96_r128_1230c82c(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  for (long block = start; block < end; ++block) {
    if (block < 10) {
      const long i0 = block / 2;
      const long i1 = block % 2;
      for (long i0s = 0; i0s < 2; ++i0s) {
        for (long i1s = 0; i1s < 3; ++i1s) {
          f32x8 acc0 = 0.0f - (f32x8){0};
          f32x8 acc1 = 0.0f - (f32x8){0};
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
          for (long r0 = 0; r0 < 128; ++r0) {
            const float v12 = slot1[i0 * 1536 + i0s * 768 + r0];
            const f32x8 v13 = *(const f32x8 *)(slot2 + (r0 * 96 + i1 * 48 + i1s * 16));
            acc0 += (v12 - (f32x8){0}) * v13;
            const f32x8 v14 = *(const f32x8 *)(slot2 + (r0 * 96 + i1 * 48 + i1s * 16 + 8));
            acc1 += (v12 - (f32x8){0}) * v14;
            const float v15 = slot1[i0 * 1536 + i0s * 768 + r0 + 128];
            acc2 += (v15 - (f32x8){0}) * v13;
            acc3 += (v15 - (f32x8){0}) * v14;
            const float v16 = slot1[i0 * 1536 + i0s * 768 + r0 + 256];
            acc4 += (v16 - (f32x8){0}) * v13;
            acc5 += (v16 - (f32x8){0}) * v14;
            const float v17 = slot1[i0 * 1536 + i0s * 768 + r0 + 384];
            acc6 += (v17 - (f32x8){0}) * v13;
            acc7 += (v17 - (f32x8){0}) * v14;
            const float v18 = slot1[i0 * 1536 + i0s * 768 + r0 + 512];
            acc8 += (v18 - (f32x8){0}) * v13;
            acc9 += (v18 - (f32x8){0}) * v14;
            const float v19 = slot1[i0 * 1536 + i0s * 768 + r0 + 640];
            acc10 += (v19 - (f32x8){0}) * v13;
            acc11 += (v19 - (f32x8){0}) * v14;
          }
          const f32x8 v20 = *(const f32x8 *)(slot3 + (i1 * 48 + i1s * 16));
          const f32x8 v21 = *(const f32x8 *)(slot3 + (i1 * 48 + i1s * 16 + 8));
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16)) = max_f32_x8(acc0 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 8)) = max_f32_x8(acc1 + v21, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 96)) = max_f32_x8(acc2 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 104)) = max_f32_x8(acc3 + v21, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 192)) = max_f32_x8(acc4 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 200)) = max_f32_x8(acc5 + v21, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 288)) = max_f32_x8(acc6 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 296)) = max_f32_x8(acc7 + v21, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 384)) = max_f32_x8(acc8 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 392)) = max_f32_x8(acc9 + v21, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 480)) = max_f32_x8(acc10 + v20, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1152 + i0s * 576 + i1 * 48 + i1s * 16 + 488)) = max_f32_x8(acc11 + v21, 0.0f - (f32x8){0});
        }
      }
    } else if (block < 11) {
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
          const float v8_1 = slot1[r0e1 + 7680];
          const f32x8 v9_1 = *(const f32x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16));
          acc0_1 += (v8_1 - (f32x8){0}) * v9_1;
          const f32x8 v10_1 = *(const f32x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16 + 8));
          acc1_1 += (v8_1 - (f32x8){0}) * v10_1;
          const float v11_1 = slot1[r0e1 + 7808];
          acc2_1 += (v11_1 - (f32x8){0}) * v9_1;
          acc3_1 += (v11_1 - (f32x8){0}) * v10_1;
          const float v12_1 = slot1[r0e1 + 7936];
          acc4_1 += (v12_1 - (f32x8){0}) * v9_1;
          acc5_1 += (v12_1 - (f32x8){0}) * v10_1;
          const float v13_1 = slot1[r0e1 + 8064];
          acc6_1 += (v13_1 - (f32x8){0}) * v9_1;
          acc7_1 += (v13_1 - (f32x8){0}) * v10_1;
        }
        const f32x8 v14_1 = *(const f32x8 *)(slot3 + i1e1s * 16);
        const f32x8 v15_1 = *(const f32x8 *)(slot3 + (i1e1s * 16 + 8));
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5760)) = max_f32_x8(acc0_1 + v14_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5768)) = max_f32_x8(acc1_1 + v15_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5856)) = max_f32_x8(acc2_1 + v14_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5864)) = max_f32_x8(acc3_1 + v15_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5952)) = max_f32_x8(acc4_1 + v14_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5960)) = max_f32_x8(acc5_1 + v15_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 6048)) = max_f32_x8(acc6_1 + v14_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 6056)) = max_f32_x8(acc7_1 + v15_1, 0.0f - (f32x8){0});
      }
    }
  }
}
