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
void sum_mul_add_max_64x96_r128_36bfcf7a(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  float tile0[2048] __attribute__((aligned(64)));
  float tile1[2048] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    if (block < 6) {
      const long i1 = block;
      for (long r0_tile0 = 0; r0_tile0 < 128; ++r0_tile0) {
        for (long i1u_tile0 = 0; i1u_tile0 < 2; ++i1u_tile0) {
          const f32x8 v0 = *(const f32x8 *)(slot2 + (r0_tile0 * 96 + i1 * 16 + i1u_tile0 * 8));
          *(f32x8 *)(tile0 + (r0_tile0 * 16 + i1u_tile0 * 8)) = v0;
        }
      }
      const f32x8 v19 = *(const f32x8 *)(slot3 + i1 * 16);
      const f32x8 v20 = *(const f32x8 *)(slot3 + (i1 * 16 + 8));
      for (long i0s = 0; i0s < 6; ++i0s) {
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
        f32x8 acc12 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 128; ++r0) {
          const float v13 = slot1[i0s * 768 + r0];
          acc1 += (v13 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc2 += (v13 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v14 = slot1[i0s * 768 + r0 + 128];
          acc3 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc4 += (v14 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v15 = slot1[i0s * 768 + r0 + 256];
          acc5 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc6 += (v15 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v16 = slot1[i0s * 768 + r0 + 384];
          acc7 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc8 += (v16 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v17 = slot1[i0s * 768 + r0 + 512];
          acc9 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc10 += (v17 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
          const float v18 = slot1[i0s * 768 + r0 + 640];
          acc11 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + r0 * 16);
          acc12 += (v18 - (f32x8){0}) * *(const f32x8 *)(tile0 + (r0 * 16 + 8));
        }
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16)) = max_f32_x8(acc1 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 8)) = max_f32_x8(acc2 + v20, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 96)) = max_f32_x8(acc3 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 104)) = max_f32_x8(acc4 + v20, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 192)) = max_f32_x8(acc5 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 200)) = max_f32_x8(acc6 + v20, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 288)) = max_f32_x8(acc7 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 296)) = max_f32_x8(acc8 + v20, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 384)) = max_f32_x8(acc9 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 392)) = max_f32_x8(acc10 + v20, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 480)) = max_f32_x8(acc11 + v19, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0s * 576 + i1 * 16 + 488)) = max_f32_x8(acc12 + v20, 0.0f - (f32x8){0});
      }
    } else if (block < 12) {
      const long i1e1 = (block - 6);
      for (long r0e1_tile1 = 0; r0e1_tile1 < 128; ++r0e1_tile1) {
        for (long i1e1u_tile1 = 0; i1e1u_tile1 < 2; ++i1e1u_tile1) {
          const f32x8 v0_1 = *(const f32x8 *)(slot2 + (r0e1_tile1 * 96 + i1e1 * 16 + i1e1u_tile1 * 8));
          *(f32x8 *)(tile1 + (r0e1_tile1 * 16 + i1e1u_tile1 * 8)) = v0_1;
        }
      }
      const f32x8 v19_1 = *(const f32x8 *)(slot3 + i1e1 * 16);
      const f32x8 v20_1 = *(const f32x8 *)(slot3 + (i1e1 * 16 + 8));
      for (long i0e1s = 0; i0e1s < 3; ++i0e1s) {
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
        f32x8 acc12_1 = 0.0f - (f32x8){0};
        for (long r0e1 = 0; r0e1 < 128; ++r0e1) {
          const float v13_1 = slot1[i0e1s * 768 + r0e1 + 4608];
          acc1_1 += (v13_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc2_1 += (v13_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
          const float v14_1 = slot1[i0e1s * 768 + r0e1 + 4736];
          acc3_1 += (v14_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc4_1 += (v14_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
          const float v15_1 = slot1[i0e1s * 768 + r0e1 + 4864];
          acc5_1 += (v15_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc6_1 += (v15_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
          const float v16_1 = slot1[i0e1s * 768 + r0e1 + 4992];
          acc7_1 += (v16_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc8_1 += (v16_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
          const float v17_1 = slot1[i0e1s * 768 + r0e1 + 5120];
          acc9_1 += (v17_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc10_1 += (v17_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
          const float v18_1 = slot1[i0e1s * 768 + r0e1 + 5248];
          acc11_1 += (v18_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + r0e1 * 16);
          acc12_1 += (v18_1 - (f32x8){0}) * *(const f32x8 *)(tile1 + (r0e1 * 16 + 8));
        }
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3456)) = max_f32_x8(acc1_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3464)) = max_f32_x8(acc2_1 + v20_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3552)) = max_f32_x8(acc3_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3560)) = max_f32_x8(acc4_1 + v20_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3648)) = max_f32_x8(acc5_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3656)) = max_f32_x8(acc6_1 + v20_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3744)) = max_f32_x8(acc7_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3752)) = max_f32_x8(acc8_1 + v20_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3840)) = max_f32_x8(acc9_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3848)) = max_f32_x8(acc10_1 + v20_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3936)) = max_f32_x8(acc11_1 + v19_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0e1s * 576 + i1e1 * 16 + 3944)) = max_f32_x8(acc12_1 + v20_1, 0.0f - (f32x8){0});
      }
    } else if (block < 18) {
      const long i1e1e2 = (block - 12);
      f32x8 acc0_2 = 0.0f - (f32x8){0};
      f32x8 acc1_2 = 0.0f - (f32x8){0};
      f32x8 acc2_2 = 0.0f - (f32x8){0};
      f32x8 acc3_2 = 0.0f - (f32x8){0};
      f32x8 acc4_2 = 0.0f - (f32x8){0};
      f32x8 acc5_2 = 0.0f - (f32x8){0};
      f32x8 acc6_2 = 0.0f - (f32x8){0};
      f32x8 acc7_2 = 0.0f - (f32x8){0};
      f32x8 acc8_2 = 0.0f - (f32x8){0};
      f32x8 acc9_2 = 0.0f - (f32x8){0};
      f32x8 acc10_2 = 0.0f - (f32x8){0};
      f32x8 acc11_2 = 0.0f - (f32x8){0};
      for (long r0e1e2 = 0; r0e1e2 < 128; ++r0e1e2) {
        const float v12_2 = slot1[r0e1e2 + 6912];
        const f32x8 v13_2 = *(const f32x8 *)(slot2 + (r0e1e2 * 96 + i1e1e2 * 16));
        acc0_2 += (v12_2 - (f32x8){0}) * v13_2;
        const f32x8 v14_2 = *(const f32x8 *)(slot2 + (r0e1e2 * 96 + i1e1e2 * 16 + 8));
        acc1_2 += (v12_2 - (f32x8){0}) * v14_2;
        const float v15_2 = slot1[r0e1e2 + 7040];
        acc2_2 += (v15_2 - (f32x8){0}) * v13_2;
        acc3_2 += (v15_2 - (f32x8){0}) * v14_2;
        const float v16_2 = slot1[r0e1e2 + 7168];
        acc4_2 += (v16_2 - (f32x8){0}) * v13_2;
        acc5_2 += (v16_2 - (f32x8){0}) * v14_2;
        const float v17_2 = slot1[r0e1e2 + 7296];
        acc6_2 += (v17_2 - (f32x8){0}) * v13_2;
        acc7_2 += (v17_2 - (f32x8){0}) * v14_2;
        const float v18_2 = slot1[r0e1e2 + 7424];
        acc8_2 += (v18_2 - (f32x8){0}) * v13_2;
        acc9_2 += (v18_2 - (f32x8){0}) * v14_2;
        const float v19_2 = slot1[r0e1e2 + 7552];
        acc10_2 += (v19_2 - (f32x8){0}) * v13_2;
        acc11_2 += (v19_2 - (f32x8){0}) * v14_2;
      }
      const f32x8 v20_2 = *(const f32x8 *)(slot3 + i1e1e2 * 16);
      const f32x8 v21_2 = *(const f32x8 *)(slot3 + (i1e1e2 * 16 + 8));
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5184)) = max_f32_x8(acc0_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5192)) = max_f32_x8(acc1_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5280)) = max_f32_x8(acc2_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5288)) = max_f32_x8(acc3_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5376)) = max_f32_x8(acc4_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5384)) = max_f32_x8(acc5_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5472)) = max_f32_x8(acc6_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5480)) = max_f32_x8(acc7_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5568)) = max_f32_x8(acc8_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5576)) = max_f32_x8(acc9_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5664)) = max_f32_x8(acc10_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5672)) = max_f32_x8(acc11_2 + v21_2, 0.0f - (f32x8){0});
      f32x8 acc22_2 = 0.0f - (f32x8){0};
      f32x8 acc23_2 = 0.0f - (f32x8){0};
      f32x8 acc24_2 = 0.0f - (f32x8){0};
      f32x8 acc25_2 = 0.0f - (f32x8){0};
      f32x8 acc26_2 = 0.0f - (f32x8){0};
      f32x8 acc27_2 = 0.0f - (f32x8){0};
      f32x8 acc28_2 = 0.0f - (f32x8){0};
      f32x8 acc29_2 = 0.0f - (f32x8){0};
      for (long r0e1e2 = 0; r0e1e2 < 128; ++r0e1e2) {
        const float v30_2 = slot1[r0e1e2 + 7680];
        const f32x8 v31_2 = *(const f32x8 *)(slot2 + (r0e1e2 * 96 + i1e1e2 * 16));
        acc22_2 += (v30_2 - (f32x8){0}) * v31_2;
        const f32x8 v32_2 = *(const f32x8 *)(slot2 + (r0e1e2 * 96 + i1e1e2 * 16 + 8));
        acc23_2 += (v30_2 - (f32x8){0}) * v32_2;
        const float v33_2 = slot1[r0e1e2 + 7808];
        acc24_2 += (v33_2 - (f32x8){0}) * v31_2;
        acc25_2 += (v33_2 - (f32x8){0}) * v32_2;
        const float v34_2 = slot1[r0e1e2 + 7936];
        acc26_2 += (v34_2 - (f32x8){0}) * v31_2;
        acc27_2 += (v34_2 - (f32x8){0}) * v32_2;
        const float v35_2 = slot1[r0e1e2 + 8064];
        acc28_2 += (v35_2 - (f32x8){0}) * v31_2;
        acc29_2 += (v35_2 - (f32x8){0}) * v32_2;
      }
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5760)) = max_f32_x8(acc22_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5768)) = max_f32_x8(acc23_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5856)) = max_f32_x8(acc24_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5864)) = max_f32_x8(acc25_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5952)) = max_f32_x8(acc26_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 5960)) = max_f32_x8(acc27_2 + v21_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 6048)) = max_f32_x8(acc28_2 + v20_2, 0.0f - (f32x8){0});
      *(f32x8 *)(slot0 + (i1e1e2 * 16 + 6056)) = max_f32_x8(acc29_2 + v21_2, 0.0f - (f32x8){0});
    }
  }
}
