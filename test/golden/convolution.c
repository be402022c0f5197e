typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline f32x8 masked_float32x8(const float *p, long at, long size, i32x8 m) {
  if (__builtin_expect(at >= 0 && at < size - 7, 1)) {
    f32x8 all = *(const f32x8 *)(p + at);
    return (f32x8)((i32x8)all & m);
  }
  if (at <= -8 || at >= size) return (f32x8){0};
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  return (f32x8)__builtin_ia32_loadups256_mask((void *)(p + at), (float __attribute__((vector_size(32)))){0}, __builtin_ia32_cvtd2mask256(m));
#elif defined(__AVX__)
  return (f32x8)__builtin_ia32_maskloadps256((void *)(p + at), __builtin_convertvector(m, int __attribute__((vector_size(32)))));
#endif
  f32x8 r = {0};
#if defined(__AVX__) && !defined(__AVX512F__)
  __asm__("" : "+x"(m));
#endif
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
void sum_mul_2x16x16x16_r72_624dda62(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  float tile0[3840] __attribute__((aligned(64)));
  for (long block = start; block < end; ++block) {
    const long i0 = block / 2;
    const long i2 = block % 2;
    for (long r0_tile0 = 0; r0_tile0 < 8; ++r0_tile0) {
      for (long r1w_tile0 = 0; r1w_tile0 < 10; ++r1w_tile0) {
        const f32x8 v0 = masked_float32x8(slot1, i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16 - 17, 4096, ((i32x8){0, 1, 2, 3, 4, 5, 6, 7} >= 1) & (-(int)(i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16) - (i32x8){0}));
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48)) = v0;
        const f32x8 v1 = i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16) - 16) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48) + 8) = v1;
        const f32x8 v2 = i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16) - 15) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48) + 16) = v2;
        const f32x8 v3 = i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16) - 9) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48) + 24) = v3;
        const f32x8 v4 = i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16 ? (f32x8)*(const f32x8 *)(slot1 + (i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16) - 8) : (f32x8){0};
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48) + 32) = v4;
        const f32x8 v5 = masked_float32x8(slot1, i0 * 2048 + r0_tile0 * 256 + i2 * 128 + r1w_tile0 * 16 - 7, 4096, ((i32x8){0, 1, 2, 3, 4, 5, 6, 7} <= 6) & (-(int)(i2 * 8 + r1w_tile0 >= 1 && i2 * 8 + r1w_tile0 <= 16) - (i32x8){0}));
        *(f32x8 *)(tile0 + (r0_tile0 * 480 + r1w_tile0 * 48) + 40) = v5;
      }
    }
    for (long i1 = 0; i1 < 2; ++i1) {
      for (long i2s = 0; i2s < 8; ++i2s) {
        f32x8 acc6_0 = 0.0f - (f32x8){0};
        f32x8 acc7_0 = 0.0f - (f32x8){0};
        f32x8 acc6_1 = 0.0f - (f32x8){0};
        f32x8 acc7_1 = 0.0f - (f32x8){0};
        f32x8 acc6_2 = 0.0f - (f32x8){0};
        f32x8 acc7_2 = 0.0f - (f32x8){0};
        f32x8 acc6_3 = 0.0f - (f32x8){0};
        f32x8 acc7_3 = 0.0f - (f32x8){0};
        f32x8 acc6_4 = 0.0f - (f32x8){0};
        f32x8 acc7_4 = 0.0f - (f32x8){0};
        f32x8 acc6_5 = 0.0f - (f32x8){0};
        f32x8 acc7_5 = 0.0f - (f32x8){0};
        for (long r0 = 0; r0 < 8; ++r0) {
          for (long r1 = 0; r1 < 3; ++r1) {
            for (long r2 = 0; r2 < 3; ++r2) {
              const float v8_0 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 0 * 72];
              acc6_0 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_0 - (f32x8){0});
              acc7_0 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_0 - (f32x8){0});
              const float v8_1 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 1 * 72];
              acc6_1 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_1 - (f32x8){0});
              acc7_1 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_1 - (f32x8){0});
              const float v8_2 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 2 * 72];
              acc6_2 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_2 - (f32x8){0});
              acc7_2 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_2 - (f32x8){0});
              const float v8_3 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 3 * 72];
              acc6_3 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_3 - (f32x8){0});
              acc7_3 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_3 - (f32x8){0});
              const float v8_4 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 4 * 72];
              acc6_4 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_4 - (f32x8){0});
              acc7_4 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_4 - (f32x8){0});
              const float v8_5 = slot2[i1 * 432 + r0 * 9 + r1 * 3 + r2 + 5 * 72];
              acc6_5 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v8_5 - (f32x8){0});
              acc7_5 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v8_5 - (f32x8){0});
            }
          }
        }
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 0 * 256) = acc6_0;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 0 * 256 + 8) = acc7_0;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 1 * 256) = acc6_1;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 1 * 256 + 8) = acc7_1;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 2 * 256) = acc6_2;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 2 * 256 + 8) = acc7_2;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 3 * 256) = acc6_3;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 3 * 256 + 8) = acc7_3;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 4 * 256) = acc6_4;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 4 * 256 + 8) = acc7_4;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 5 * 256) = acc6_5;
        *(f32x8 *)(slot0 + (i0 * 4096 + i1 * 1536 + i2 * 128 + i2s * 16) + 5 * 256 + 8) = acc7_5;
      }
    }
    for (long i2s = 0; i2s < 8; ++i2s) {
      f32x8 acc9_0 = 0.0f - (f32x8){0};
      f32x8 acc10_0 = 0.0f - (f32x8){0};
      f32x8 acc9_1 = 0.0f - (f32x8){0};
      f32x8 acc10_1 = 0.0f - (f32x8){0};
      f32x8 acc9_2 = 0.0f - (f32x8){0};
      f32x8 acc10_2 = 0.0f - (f32x8){0};
      f32x8 acc9_3 = 0.0f - (f32x8){0};
      f32x8 acc10_3 = 0.0f - (f32x8){0};
      for (long r0 = 0; r0 < 8; ++r0) {
        for (long r1 = 0; r1 < 3; ++r1) {
          for (long r2 = 0; r2 < 3; ++r2) {
            const float v11_0 = slot2[r0 * 9 + r1 * 3 + r2 + 0 * 72 + 864];
            acc9_0 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v11_0 - (f32x8){0});
            acc10_0 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v11_0 - (f32x8){0});
            const float v11_1 = slot2[r0 * 9 + r1 * 3 + r2 + 1 * 72 + 864];
            acc9_1 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v11_1 - (f32x8){0});
            acc10_1 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v11_1 - (f32x8){0});
            const float v11_2 = slot2[r0 * 9 + r1 * 3 + r2 + 2 * 72 + 864];
            acc9_2 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v11_2 - (f32x8){0});
            acc10_2 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v11_2 - (f32x8){0});
            const float v11_3 = slot2[r0 * 9 + r1 * 3 + r2 + 3 * 72 + 864];
            acc9_3 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8)) * (v11_3 - (f32x8){0});
            acc10_3 += *(const f32x8 *)(tile0 + (r0 * 480 + i2s * 48 + r1 * 48 + r2 * 8) + 24) * (v11_3 - (f32x8){0});
          }
        }
      }
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 0 * 256 + 3072) = acc9_0;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 0 * 256 + 3080) = acc10_0;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 1 * 256 + 3072) = acc9_1;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 1 * 256 + 3080) = acc10_1;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 2 * 256 + 3072) = acc9_2;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 2 * 256 + 3080) = acc10_2;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 3 * 256 + 3072) = acc9_3;
      *(f32x8 *)(slot0 + (i0 * 4096 + i2 * 128 + i2s * 16) + 3 * 256 + 3080) = acc10_3;
    }
  }
}
