template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
template <class T> __device__ __forceinline__ T max_of(T a, T b) { return a > b || a != a ? a : b; }
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
extern "C" __global__ void __launch_bounds__(256) sum_mul_add_max_64x96_r128_14d0c160(float *__restrict__ slot0, const float *__restrict__ slot1, const float *__restrict__ slot2, const float *__restrict__ slot3) {
  extern __shared__ __align__(16) unsigned char tinyml_shared[];
  float *const tile1 = (float *)(tinyml_shared);
  float *const tile0 = (float *)(tinyml_shared + 4096);
  const int ty = threadIdx.y;
  const int i1 = (int)blockIdx.x;
  const int i0t = ty / 16;
  const int i1t = ty % 16;
  float acc0 = 0.0f;
  float acc1 = 0.0f;
  float acc2 = 0.0f;
  float acc3 = 0.0f;
  float acc4 = 0.0f;
  float acc5 = 0.0f;
  float acc6 = 0.0f;
  float acc7 = 0.0f;
  float acc8 = 0.0f;
  float acc9 = 0.0f;
  float acc10 = 0.0f;
  float acc11 = 0.0f;
  float acc12 = 0.0f;
  float acc13 = 0.0f;
  float acc14 = 0.0f;
  float acc15 = 0.0f;
  for (int r0 = 0; r0 < 8; ++r0) {
    for (int c_tile1 = 0; c_tile1 < 4; ++c_tile1) {
      const float v16 = i1 * 4 + ty / 16 % 4 <= 5 ? slot2[r0 * 1536 + c_tile1 * 384 + ty / 64 * 96 + i1 * 64 + ty / 16 % 4 * 16 + ty % 16] : 0;
      tile1[c_tile1 * 256 + ty] = v16;
    }
    for (int c_tile0 = 0; c_tile0 < 4; ++c_tile0) {
      const float v17 = slot1[c_tile0 * 2048 + ty / 16 * 128 + r0 * 16 + ty % 16];
      tile0[ty % 16 * 64 + c_tile0 * 16 + ty / 16] = v17;
    }
    __syncthreads();
    for (int r0s = 0; r0s < 16; ++r0s) {
      acc0 += tile0[r0s * 64 + i0t] * tile1[r0s * 64 + i1t];
      acc1 += tile0[r0s * 64 + i0t] * tile1[r0s * 64 + i1t + 16];
      acc2 += tile0[r0s * 64 + i0t] * tile1[r0s * 64 + i1t + 32];
      acc3 += tile0[r0s * 64 + i0t] * tile1[r0s * 64 + i1t + 48];
      acc4 += tile0[r0s * 64 + i0t + 16] * tile1[r0s * 64 + i1t];
      acc5 += tile0[r0s * 64 + i0t + 16] * tile1[r0s * 64 + i1t + 16];
      acc6 += tile0[r0s * 64 + i0t + 16] * tile1[r0s * 64 + i1t + 32];
      acc7 += tile0[r0s * 64 + i0t + 16] * tile1[r0s * 64 + i1t + 48];
      acc8 += tile0[r0s * 64 + i0t + 32] * tile1[r0s * 64 + i1t];
      acc9 += tile0[r0s * 64 + i0t + 32] * tile1[r0s * 64 + i1t + 16];
      acc10 += tile0[r0s * 64 + i0t + 32] * tile1[r0s * 64 + i1t + 32];
      acc11 += tile0[r0s * 64 + i0t + 32] * tile1[r0s * 64 + i1t + 48];
      acc12 += tile0[r0s * 64 + i0t + 48] * tile1[r0s * 64 + i1t];
      acc13 += tile0[r0s * 64 + i0t + 48] * tile1[r0s * 64 + i1t + 16];
      acc14 += tile0[r0s * 64 + i0t + 48] * tile1[r0s * 64 + i1t + 32];
      acc15 += tile0[r0s * 64 + i0t + 48] * tile1[r0s * 64 + i1t + 48];
    }
    __syncthreads();
  }
  const float v18 = slot3[i1 * 64 + i1t];
  const float v19 = slot3[i1 * 64 + i1t + 16];
  const float v20 = i1 <= 0 ? slot3[i1 * 64 + i1t + 32] : 0;
  const float v21 = i1 <= 0 ? slot3[i1 * 64 + i1t + 48] : 0;
  slot0[i0t * 96 + i1 * 64 + i1t] = max_of<float>(acc0 + v18, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 16] = max_of<float>(acc1 + v19, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 32] = max_of<float>(acc2 + v20, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 48] = max_of<float>(acc3 + v21, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 1536] = max_of<float>(acc4 + v18, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 1552] = max_of<float>(acc5 + v19, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 1568] = max_of<float>(acc6 + v20, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 1584] = max_of<float>(acc7 + v21, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 3072] = max_of<float>(acc8 + v18, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 3088] = max_of<float>(acc9 + v19, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 3104] = max_of<float>(acc10 + v20, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 3120] = max_of<float>(acc11 + v21, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 4608] = max_of<float>(acc12 + v18, 0.0f);
  slot0[i0t * 96 + i1 * 64 + i1t + 4624] = max_of<float>(acc13 + v19, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 4640] = max_of<float>(acc14 + v20, 0.0f);
  if (i1 <= 0) slot0[i0t * 96 + i1 * 64 + i1t + 4656] = max_of<float>(acc15 + v21, 0.0f);
}
