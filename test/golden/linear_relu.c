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
void sum_mul_add_max_64x96_r128_0d703e31(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  const float *restrict slot3 = buffers[3];
  for (long block = start; block < end; ++block) {
    if (block < 12) {
      const long i0 = block / 6;
      const long i1 = block % 6;
      const f32x8 v5 = *(const f32x8 *)(slot3 + i1 * 16);
      const f32x8 v6 = *(const f32x8 *)(slot3 + i1 * 16 + 8);
      for (long i0s = 0; i0s < 5; ++i0s) {
        f32x8 acc0_0 = 0.0f - (f32x8){0};
        f32x8 acc1_0 = 0.0f - (f32x8){0};
        f32x8 acc0_1 = 0.0f - (f32x8){0};
        f32x8 acc1_1 = 0.0f - (f32x8){0};
        f32x8 acc0_2 = 0.0f - (f32x8){0};
        f32x8 acc1_2 = 0.0f - (f32x8){0};
        f32x8 acc0_3 = 0.0f - (f32x8){0};
        f32x8 acc1_3 = 0.0f - (f32x8){0};
        f32x8 acc0_4 = 0.0f - (f32x8){0};
        f32x8 acc1_4 = 0.0f - (f32x8){0};
        f32x8 acc0_5 = 0.0f - (f32x8){0};
        f32x8 acc1_5 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 128; ++r0) {
          const f32x8 v3 = *(const f32x8 *)(slot2 + (r0 * 96 + i1 * 16));
          const f32x8 v4 = *(const f32x8 *)(slot2 + (r0 * 96 + i1 * 16) + 8);
          const float v2_0 = slot1[i0 * 3840 + i0s * 768 + r0 + 0 * 128];
          acc0_0 += (v2_0 - (f32x8){0}) * v3;
          acc1_0 += (v2_0 - (f32x8){0}) * v4;
          const float v2_1 = slot1[i0 * 3840 + i0s * 768 + r0 + 1 * 128];
          acc0_1 += (v2_1 - (f32x8){0}) * v3;
          acc1_1 += (v2_1 - (f32x8){0}) * v4;
          const float v2_2 = slot1[i0 * 3840 + i0s * 768 + r0 + 2 * 128];
          acc0_2 += (v2_2 - (f32x8){0}) * v3;
          acc1_2 += (v2_2 - (f32x8){0}) * v4;
          const float v2_3 = slot1[i0 * 3840 + i0s * 768 + r0 + 3 * 128];
          acc0_3 += (v2_3 - (f32x8){0}) * v3;
          acc1_3 += (v2_3 - (f32x8){0}) * v4;
          const float v2_4 = slot1[i0 * 3840 + i0s * 768 + r0 + 4 * 128];
          acc0_4 += (v2_4 - (f32x8){0}) * v3;
          acc1_4 += (v2_4 - (f32x8){0}) * v4;
          const float v2_5 = slot1[i0 * 3840 + i0s * 768 + r0 + 5 * 128];
          acc0_5 += (v2_5 - (f32x8){0}) * v3;
          acc1_5 += (v2_5 - (f32x8){0}) * v4;
        }
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 0 * 96) = max_f32_x8(acc0_0 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 0 * 96 + 8) = max_f32_x8(acc1_0 + v6, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 1 * 96) = max_f32_x8(acc0_1 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 1 * 96 + 8) = max_f32_x8(acc1_1 + v6, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 2 * 96) = max_f32_x8(acc0_2 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 2 * 96 + 8) = max_f32_x8(acc1_2 + v6, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 3 * 96) = max_f32_x8(acc0_3 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 3 * 96 + 8) = max_f32_x8(acc1_3 + v6, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 4 * 96) = max_f32_x8(acc0_4 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 4 * 96 + 8) = max_f32_x8(acc1_4 + v6, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 5 * 96) = max_f32_x8(acc0_5 + v5, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + (i0 * 2880 + i0s * 576 + i1 * 16) + 5 * 96 + 8) = max_f32_x8(acc1_5 + v6, 0.0f - (f32x8){0});
      }
    } else if (block < 13) {
      for (long i1e1s = 0; i1e1s < 6; ++i1e1s) {
        f32x8 acc0_1_0 = 0.0f - (f32x8){0};
        f32x8 acc1_1_0 = 0.0f - (f32x8){0};
        f32x8 acc0_1_1 = 0.0f - (f32x8){0};
        f32x8 acc1_1_1 = 0.0f - (f32x8){0};
        f32x8 acc0_1_2 = 0.0f - (f32x8){0};
        f32x8 acc1_1_2 = 0.0f - (f32x8){0};
        f32x8 acc0_1_3 = 0.0f - (f32x8){0};
        f32x8 acc1_1_3 = 0.0f - (f32x8){0};
        for (long r0e1 = 0; r0e1 < 128; ++r0e1) {
          const f32x8 v3_1 = *(const f32x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16));
          const f32x8 v4_1 = *(const f32x8 *)(slot2 + (r0e1 * 96 + i1e1s * 16) + 8);
          const float v2_1_0 = slot1[r0e1 + 0 * 128 + 7680];
          acc0_1_0 += (v2_1_0 - (f32x8){0}) * v3_1;
          acc1_1_0 += (v2_1_0 - (f32x8){0}) * v4_1;
          const float v2_1_1 = slot1[r0e1 + 1 * 128 + 7680];
          acc0_1_1 += (v2_1_1 - (f32x8){0}) * v3_1;
          acc1_1_1 += (v2_1_1 - (f32x8){0}) * v4_1;
          const float v2_1_2 = slot1[r0e1 + 2 * 128 + 7680];
          acc0_1_2 += (v2_1_2 - (f32x8){0}) * v3_1;
          acc1_1_2 += (v2_1_2 - (f32x8){0}) * v4_1;
          const float v2_1_3 = slot1[r0e1 + 3 * 128 + 7680];
          acc0_1_3 += (v2_1_3 - (f32x8){0}) * v3_1;
          acc1_1_3 += (v2_1_3 - (f32x8){0}) * v4_1;
        }
        const f32x8 v5_1 = *(const f32x8 *)(slot3 + i1e1s * 16);
        const f32x8 v6_1 = *(const f32x8 *)(slot3 + i1e1s * 16 + 8);
        *(f32x8 *)(slot0 + i1e1s * 16 + 0 * 96 + 5760) = max_f32_x8(acc0_1_0 + v5_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 0 * 96 + 5768) = max_f32_x8(acc1_1_0 + v6_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 1 * 96 + 5760) = max_f32_x8(acc0_1_1 + v5_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 1 * 96 + 5768) = max_f32_x8(acc1_1_1 + v6_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 2 * 96 + 5760) = max_f32_x8(acc0_1_2 + v5_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 2 * 96 + 5768) = max_f32_x8(acc1_1_2 + v6_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 3 * 96 + 5760) = max_f32_x8(acc0_1_3 + v5_1, 0.0f - (f32x8){0});
        *(f32x8 *)(slot0 + i1e1s * 16 + 3 * 96 + 5768) = max_f32_x8(acc1_1_3 + v6_1, 0.0f - (f32x8){0});
      }
    }
  }
}
