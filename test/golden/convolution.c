typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 masked_float32x8(const float *p, long at, long size, i32x8 m) {
  if (__builtin_expect(at >= 0 && at < size - 7, 1)) {
    const f32x8 all = *(const f32x8 *)(p + at);
    return (f32x8)((i32x8)all & m);
  }
  f32x8 r = {0};
  for (int i = 0; i < 8; ++i) if (m[i]) r[i] = p[at + i * 1];
  return r;
}
// sum_mul_2x16x16x16_r72
//   v0 = pad(slot1, 0+0, 0+0, 1+1, 1+1 with 0) : 2x8x18x18 float32
//   v1 = reshape(v0)                      : 2x8x18x18x1x1 float32
//   v2 = expand(v1)                       : 2x8x18x18x3x3 float32
//   v3 = skew(v2, (2, 4, 1, 16))          : 2x8x16x18x3x3 float32
//   v4 = skew(v3, (3, 5, 1, 16))          : 2x8x16x16x3x3 float32
//   v5 = reshape(v4)                      : 2x1x8x16x16x3x3 float32
//   v6 = expand(v5)                       : 2x16x8x16x16x3x3 float32
//   v7 = reshape(slot2)                   : 1x16x8x1x1x3x3 float32
//   v8 = expand(v7)                       : 2x16x8x16x16x3x3 float32
//   v9 = v6 * v8                          : 2x16x8x16x16x3x3 float32
//  v10 = sum(v9) over axes 2, 5, 6        : 2x16x1x16x16x1x1 float32
//  v11 = reshape(v10)                     : 2x16x16x16 float32
// slot0 = v11
void sum_mul_2x16x16x16_r72_454f070c(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  float tile0[1536] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i0 = block / 8;
    const long i2 = block % 8;
    for (long r0_tile0 = 0; r0_tile0 < 8; ++r0_tile0) {
      for (long r1w_tile0 = 0; r1w_tile0 < 4; ++r1w_tile0) {
        const f32x8 v0 = masked_float32x8(slot1, i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 17, 4096, ((((i32x8){0, 1, 2, 3, 4, 5, 6, 7}) >= 1)) & (-(int)(i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16) - (i32x8){0}));
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48)) = v0;
        const f32x8 v1 = i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 16)) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48 + 8)) = v1;
        const f32x8 v2 = i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 15)) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48 + 16)) = v2;
        const f32x8 v3 = i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 9)) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48 + 24)) = v3;
        const f32x8 v4 = i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 8)) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48 + 32)) = v4;
        const f32x8 v5 = masked_float32x8(slot1, i0 * 2048 + r0_tile0 * 256 + i2 * 32 + r1w_tile0 * 16 - 7, 4096, ((((i32x8){0, 1, 2, 3, 4, 5, 6, 7}) <= 6)) & (-(int)(i2 * 2 + r1w_tile0 >= 1 && i2 * 2 + r1w_tile0 <= 16) - (i32x8){0}));
        *(f32x8 *)(tile0 + (r0_tile0 * 192 + r1w_tile0 * 48 + 40)) = v5;
      }
    }
    for (long i1 = 0; i1 < 2; ++i1) {
      for (long i2s = 0; i2s < 2; ++i2s) {
        f32x8 acc6 = 0.0f - (f32x8){0};
        f32x8 acc7 = 0.0f - (f32x8){0};
        f32x8 acc8 = 0.0f - (f32x8){0};
        f32x8 acc9 = 0.0f - (f32x8){0};
        f32x8 acc10 = 0.0f - (f32x8){0};
        f32x8 acc11 = 0.0f - (f32x8){0};
        f32x8 acc12 = 0.0f - (f32x8){0};
        f32x8 acc13 = 0.0f - (f32x8){0};
        f32x8 acc14 = 0.0f - (f32x8){0};
        f32x8 acc15 = 0.0f - (f32x8){0};
        f32x8 acc16 = 0.0f - (f32x8){0};
        f32x8 acc17 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 8; ++r0) {
          for (long r1 = 0; r1 < 3; ++r1) {
            for (long r2 = 0; r2 < 3; ++r2) {
              const float v18 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2];
              acc6 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v18 - (f32x8){0});
              acc7 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v18 - (f32x8){0});
              const float v19 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 72];
              acc8 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v19 - (f32x8){0});
              acc9 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v19 - (f32x8){0});
              const float v20 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 144];
              acc10 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v20 - (f32x8){0});
              acc11 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v20 - (f32x8){0});
              const float v21 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 216];
              acc12 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v21 - (f32x8){0});
              acc13 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v21 - (f32x8){0});
              const float v22 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 288];
              acc14 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v22 - (f32x8){0});
              acc15 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v22 - (f32x8){0});
              const float v23 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 360];
              acc16 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v23 - (f32x8){0});
              acc17 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v23 - (f32x8){0});
            }
          }
        }
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16)) = acc6;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 8)) = acc7;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 256)) = acc8;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 264)) = acc9;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 512)) = acc10;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 520)) = acc11;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 768)) = acc12;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 776)) = acc13;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 1024)) = acc14;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 1032)) = acc15;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 1280)) = acc16;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 32 + i2s * 16 + 1288)) = acc17;
      }
    }
    for (long i2s = 0; i2s < 2; ++i2s) {
      f32x8 acc24 = 0.0f - (f32x8){0};
      f32x8 acc25 = 0.0f - (f32x8){0};
      f32x8 acc26 = 0.0f - (f32x8){0};
      f32x8 acc27 = 0.0f - (f32x8){0};
      f32x8 acc28 = 0.0f - (f32x8){0};
      f32x8 acc29 = 0.0f - (f32x8){0};
      f32x8 acc30 = 0.0f - (f32x8){0};
      f32x8 acc31 = 0.0f - (f32x8){0};
      for (long r0 = 0; r0 < 8; ++r0) {
        for (long r1 = 0; r1 < 3; ++r1) {
          for (long r2 = 0; r2 < 3; ++r2) {
            const float v32 = slot2[r0 * 9 + r1 * 3 + r2 + 864];
            acc24 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v32 - (f32x8){0});
            acc25 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v32 - (f32x8){0});
            const float v33 = slot2[r0 * 9 + r1 * 3 + r2 + 936];
            acc26 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v33 - (f32x8){0});
            acc27 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v33 - (f32x8){0});
            const float v34 = slot2[r0 * 9 + r1 * 3 + r2 + 1008];
            acc28 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v34 - (f32x8){0});
            acc29 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v34 - (f32x8){0});
            const float v35 = slot2[r0 * 9 + r1 * 3 + r2 + 1080];
            acc30 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8)) * (v35 - (f32x8){0});
            acc31 += *(const f32x8 *)(tile0 + (r0 * 192 + i2s * 48 + r1 * 48 + r2 * 8 + 24)) * (v35 - (f32x8){0});
          }
        }
      }
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3072)) = acc24;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3080)) = acc25;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3328)) = acc26;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3336)) = acc27;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3584)) = acc28;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3592)) = acc29;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3840)) = acc30;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 32 + i2s * 16 + 3848)) = acc31;
    }
  }
}
