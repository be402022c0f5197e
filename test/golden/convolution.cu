template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
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
extern "C" __global__ void __launch_bounds__(256) sum_mul_2x16x16x16_r72_c14f01ce(float *__restrict__ slot0, const float *__restrict__ slot1, const float *__restrict__ slot2) {
  extern __shared__ __align__(16) unsigned char tinyml_shared_16[];
  float *const tile1 = (float *)(tinyml_shared_16);
  float *const tile0 = (float *)(tinyml_shared_16 + 576);
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x / 16;
  const int i2 = (int)blockIdx.x % 16;
  const int i1t = ty / 16;
  const int i3t = ty % 16;
  float acc0 = 0.0f;
  #pragma unroll 1
  for (int r0_s = 0; r0_s < 4; ++r0_s) {
    float acc1 = 0.0f;
    #pragma unroll 1
    for (int r0_i = 0; r0_i < 2; ++r0_i) {
      const int n2 = ty / 3 % 3;
      const int n3 = ty % 3;
      const int n4 = ty / 9 % 16 * 72 + r0_s * 18 + r0_i * 9 + n2 * 3 + n3;
      const float v5 = ty <= 143 ? slot2[n4] : 0;
      if (ty <= 143) tile1[ty / 9 % 16 * 9 + ty / 3 % 3 * 3 + ty % 3] = v5;
      const int n6 = ty / 48 % 3;
      const int n7 = ty / 16 % 3;
      const int n8 = i0 * 2048 + r0_s * 512 + r0_i * 256 + i2 * 16 + n6 * 16 + ty % 16 + n7;
      const float v9 = (unsigned)(i2 + n6 - 1) <= 15 & (unsigned)(ty % 16 + n7 - 1) <= 15 & ty <= 143 ? slot1[n8 - 17] : 0;
      if (ty <= 143) tile0[ty / 48 % 3 * 60 + ty / 16 % 3 * 20 + ty % 16] = v9;
      __syncthreads();
      for (int r1 = 0; r1 < 3; ++r1) {
        for (int r2 = 0; r2 < 3; ++r2) {
          acc1 += tile0[r1 * 60 + r2 * 20 + i3t] * tile1[i1t * 9 + r1 * 3 + r2];
        }
      }
      __syncthreads();
    }
    acc0 += acc1;
  }
  slot0[i0 * 4096 + i1t * 256 + i2 * 16 + i3t] = acc0;
}
