typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 max_f32_x8(f32x8 a, f32x8 b) {
  const i32x8 m = (i32x8)(a > b | a != a);
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
void sum_mul_add_max_64x96_r128_35f46ce7(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  float tile0[12288] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    if (block < 3) {
      const long i0 = block;
      for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
        for (long i1s_tile0 = 0; i1s_tile0 < 6; ++i1s_tile0) {
          const f32x8 v0 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1s_tile0 * 16));
          *(f32x8 *)(tile0 + (i1s_tile0 * 2048 + r0_tile0 * 16)) = v0;
          const f32x8 v1 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1s_tile0 * 16 + 8));
          *(f32x8 *)(tile0 + (i1s_tile0 * 2048 + r0_tile0 * 16 + 8)) = v1;
        }
      }
      for (long i0s = 0; i0s < 3; ++i0s) {
        for (long i1s = 0; i1s < 6; ++i1s) {
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
          for (long r0_s = 0; r0_s < 4; ++r0_s) {
            f32x8 acc14 = 0.0f - (f32x8){0};
            f32x8 acc15 = 0.0f - (f32x8){0};
            f32x8 acc16 = 0.0f - (f32x8){0};
            f32x8 acc17 = 0.0f - (f32x8){0};
            f32x8 acc18 = 0.0f - (f32x8){0};
            f32x8 acc19 = 0.0f - (f32x8){0};
            f32x8 acc20 = 0.0f - (f32x8){0};
            f32x8 acc21 = 0.0f - (f32x8){0};
            f32x8 acc22 = 0.0f - (f32x8){0};
            f32x8 acc23 = 0.0f - (f32x8){0};
            f32x8 acc24 = 0.0f - (f32x8){0};
            f32x8 acc25 = 0.0f - (f32x8){0};
            for (long r0_i = 0; r0_i < 32; ++r0_i) {
              const float v26 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i];
              acc14 += (v26 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc15 += (v26 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
              const float v27 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i + 128];
              acc16 += (v27 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc17 += (v27 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
              const float v28 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i + 256];
              acc18 += (v28 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc19 += (v28 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
              const float v29 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i + 384];
              acc20 += (v29 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc21 += (v29 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
              const float v30 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i + 512];
              acc22 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc23 += (v30 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
              const float v31 = slot1[i0 * 2304 + i0s * 768 + r0_s * 32 + r0_i + 640];
              acc24 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16));
              acc25 += (v31 - (f32x8){0}) * *(const f32x8 *)(tile0 + (i1s * 2048 + r0_s * 512 + r0_i * 16 + 8));
            }
            acc2 += acc14;
            acc3 += acc15;
            acc4 += acc16;
            acc5 += acc17;
            acc6 += acc18;
            acc7 += acc19;
            acc8 += acc20;
            acc9 += acc21;
            acc10 += acc22;
            acc11 += acc23;
            acc12 += acc24;
            acc13 += acc25;
          }
          const f32x8 v32 = *(const f32x8 *)(slot3 + i1s * 16);
          const f32x8 v33 = *(const f32x8 *)(slot3 + (i1s * 16 + 8));
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16)) = max_f32_x8(acc2 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 8)) = max_f32_x8(acc3 + v33, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 96)) = max_f32_x8(acc4 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 104)) = max_f32_x8(acc5 + v33, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 192)) = max_f32_x8(acc6 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 200)) = max_f32_x8(acc7 + v33, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 288)) = max_f32_x8(acc8 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 296)) = max_f32_x8(acc9 + v33, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 384)) = max_f32_x8(acc10 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 392)) = max_f32_x8(acc11 + v33, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 480)) = max_f32_x8(acc12 + v32, 0.0f - (f32x8){0});
          *(f32x8 *)(slot0 + (i0 * 1728 + i0s * 576 + i1s * 16 + 488)) = max_f32_x8(acc13 + v33, 0.0f - (f32x8){0});
        }
      }
    } else if (block < 4) {
      for (long i1e1s = 0; i1e1s < 6; ++i1e1s) {
        f32x8 acc0_1 = 0.0f - (f32x8){0};
        f32x8 acc1_1 = 0.0f - (f32x8){0};
        f32x8 acc2_1 = 0.0f - (f32x8){0};
        f32x8 acc3_1 = 0.0f - (f32x8){0};
        f32x8 acc4_1 = 0.0f - (f32x8){0};
        f32x8 acc5_1 = 0.0f - (f32x8){0};
        f32x8 acc6_1 = 0.0f - (f32x8){0};
        f32x8 acc7_1 = 0.0f - (f32x8){0};
        f32x8 acc8_1 = 0.0f - (f32x8){0};
        f32x8 acc9_1 = 0.0f - (f32x8){0};
        f32x8 acc10_1 = 0.0f - (f32x8){0};
        f32x8 acc11_1 = 0.0f - (f32x8){0};
        for (long r0e1_s = 0; r0e1_s < 4; ++r0e1_s) {
          f32x8 acc12_1 = 0.0f - (f32x8){0};
          f32x8 acc13_1 = 0.0f - (f32x8){0};
          f32x8 acc14_1 = 0.0f - (f32x8){0};
          f32x8 acc15_1 = 0.0f - (f32x8){0};
          f32x8 acc16_1 = 0.0f - (f32x8){0};
          f32x8 acc17_1 = 0.0f - (f32x8){0};
          f32x8 acc18_1 = 0.0f - (f32x8){0};
          f32x8 acc19_1 = 0.0f - (f32x8){0};
          f32x8 acc20_1 = 0.0f - (f32x8){0};
          f32x8 acc21_1 = 0.0f - (f32x8){0};
          f32x8 acc22_1 = 0.0f - (f32x8){0};
          f32x8 acc23_1 = 0.0f - (f32x8){0};
          for (long r0e1_i = 0; r0e1_i < 32; ++r0e1_i) {
            const float v24_1 = slot1[r0e1_s * 32 + r0e1_i + 6912];
            const f32x8 v25_1 = *(const f32x8 *)(slot2 + (r0e1_s * 3072 + r0e1_i * 96 + i1e1s * 16));
            acc12_1 += (v24_1 - (f32x8){0}) * v25_1;
            const f32x8 v26_1 = *(const f32x8 *)(slot2 + (r0e1_s * 3072 + r0e1_i * 96 + i1e1s * 16 + 8));
            acc13_1 += (v24_1 - (f32x8){0}) * v26_1;
            const float v27_1 = slot1[r0e1_s * 32 + r0e1_i + 7040];
            acc14_1 += (v27_1 - (f32x8){0}) * v25_1;
            acc15_1 += (v27_1 - (f32x8){0}) * v26_1;
            const float v28_1 = slot1[r0e1_s * 32 + r0e1_i + 7168];
            acc16_1 += (v28_1 - (f32x8){0}) * v25_1;
            acc17_1 += (v28_1 - (f32x8){0}) * v26_1;
            const float v29_1 = slot1[r0e1_s * 32 + r0e1_i + 7296];
            acc18_1 += (v29_1 - (f32x8){0}) * v25_1;
            acc19_1 += (v29_1 - (f32x8){0}) * v26_1;
            const float v30_1 = slot1[r0e1_s * 32 + r0e1_i + 7424];
            acc20_1 += (v30_1 - (f32x8){0}) * v25_1;
            acc21_1 += (v30_1 - (f32x8){0}) * v26_1;
            const float v31_1 = slot1[r0e1_s * 32 + r0e1_i + 7552];
            acc22_1 += (v31_1 - (f32x8){0}) * v25_1;
            acc23_1 += (v31_1 - (f32x8){0}) * v26_1;
          }
          acc0_1 += acc12_1;
          acc1_1 += acc13_1;
          acc2_1 += acc14_1;
          acc3_1 += acc15_1;
          acc4_1 += acc16_1;
          acc5_1 += acc17_1;
          acc6_1 += acc18_1;
          acc7_1 += acc19_1;
          acc8_1 += acc20_1;
          acc9_1 += acc21_1;
          acc10_1 += acc22_1;
          acc11_1 += acc23_1;
        }
        const f32x8 v32_1 = *(const f32x8 *)(slot3 + i1e1s * 16);
        const f32x8 v33_1 = *(const f32x8 *)(slot3 + (i1e1s * 16 + 8));
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5184)) = max_f32_x8(acc0_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5192)) = max_f32_x8(acc1_1 + v33_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5280)) = max_f32_x8(acc2_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5288)) = max_f32_x8(acc3_1 + v33_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5376)) = max_f32_x8(acc4_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5384)) = max_f32_x8(acc5_1 + v33_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5472)) = max_f32_x8(acc6_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5480)) = max_f32_x8(acc7_1 + v33_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5568)) = max_f32_x8(acc8_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5576)) = max_f32_x8(acc9_1 + v33_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5664)) = max_f32_x8(acc10_1 + v32_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5672)) = max_f32_x8(acc11_1 + v33_1, 0.0f - (f32x8){0});
      }
      for (long i1e1s = 0; i1e1s < 6; ++i1e1s) {
        f32x8 acc34_1 = 0.0f - (f32x8){0};
        f32x8 acc35_1 = 0.0f - (f32x8){0};
        f32x8 acc36_1 = 0.0f - (f32x8){0};
        f32x8 acc37_1 = 0.0f - (f32x8){0};
        f32x8 acc38_1 = 0.0f - (f32x8){0};
        f32x8 acc39_1 = 0.0f - (f32x8){0};
        f32x8 acc40_1 = 0.0f - (f32x8){0};
        f32x8 acc41_1 = 0.0f - (f32x8){0};
        for (long r0e1_s = 0; r0e1_s < 4; ++r0e1_s) {
          f32x8 acc42_1 = 0.0f - (f32x8){0};
          f32x8 acc43_1 = 0.0f - (f32x8){0};
          f32x8 acc44_1 = 0.0f - (f32x8){0};
          f32x8 acc45_1 = 0.0f - (f32x8){0};
          f32x8 acc46_1 = 0.0f - (f32x8){0};
          f32x8 acc47_1 = 0.0f - (f32x8){0};
          f32x8 acc48_1 = 0.0f - (f32x8){0};
          f32x8 acc49_1 = 0.0f - (f32x8){0};
          for (long r0e1_i = 0; r0e1_i < 32; ++r0e1_i) {
            const float v50_1 = slot1[r0e1_s * 32 + r0e1_i + 7680];
            const f32x8 v51_1 = *(const f32x8 *)(slot2 + (r0e1_s * 3072 + r0e1_i * 96 + i1e1s * 16));
            acc42_1 += (v50_1 - (f32x8){0}) * v51_1;
            const f32x8 v52_1 = *(const f32x8 *)(slot2 + (r0e1_s * 3072 + r0e1_i * 96 + i1e1s * 16 + 8));
            acc43_1 += (v50_1 - (f32x8){0}) * v52_1;
            const float v53_1 = slot1[r0e1_s * 32 + r0e1_i + 7808];
            acc44_1 += (v53_1 - (f32x8){0}) * v51_1;
            acc45_1 += (v53_1 - (f32x8){0}) * v52_1;
            const float v54_1 = slot1[r0e1_s * 32 + r0e1_i + 7936];
            acc46_1 += (v54_1 - (f32x8){0}) * v51_1;
            acc47_1 += (v54_1 - (f32x8){0}) * v52_1;
            const float v55_1 = slot1[r0e1_s * 32 + r0e1_i + 8064];
            acc48_1 += (v55_1 - (f32x8){0}) * v51_1;
            acc49_1 += (v55_1 - (f32x8){0}) * v52_1;
          }
          acc34_1 += acc42_1;
          acc35_1 += acc43_1;
          acc36_1 += acc44_1;
          acc37_1 += acc45_1;
          acc38_1 += acc46_1;
          acc39_1 += acc47_1;
          acc40_1 += acc48_1;
          acc41_1 += acc49_1;
        }
        const f32x8 v56_1 = *(const f32x8 *)(slot3 + i1e1s * 16);
        const f32x8 v57_1 = *(const f32x8 *)(slot3 + (i1e1s * 16 + 8));
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5760)) = max_f32_x8(acc34_1 + v56_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5768)) = max_f32_x8(acc35_1 + v57_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5856)) = max_f32_x8(acc36_1 + v56_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5864)) = max_f32_x8(acc37_1 + v57_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5952)) = max_f32_x8(acc38_1 + v56_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 5960)) = max_f32_x8(acc39_1 + v57_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 6048)) = max_f32_x8(acc40_1 + v56_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i1e1s * 16 + 6056)) = max_f32_x8(acc41_1 + v57_1, 0.0f - (f32x8){0});
      }
    }
  }
}
