template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
__device__ __forceinline__ float max_float32(float a, float b) {
  const float m = a > b ? a : b;  // without a branch, which could not be predicted
  return a != a ? a : m;
}
struct combine_max_float32 {
  typedef float type;
  static __device__ __forceinline__ float of(float a, float b) { return max_float32(a, b); }
};
template <class Op, int N, int ALL>
__device__ __forceinline__ typename Op::type across(typename Op::type value) {
  constexpr int IN_WARP = N < 32 ? N : 32;
#pragma unroll
  for (int step = IN_WARP / 2; step > 0; step /= 2)
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (N > 32) {
    constexpr int WARPS = N > 32 ? N / 32 : 1;
    __shared__ typename Op::type part[ALL < 32 ? 1 : ALL / 32];
    const int warp = (threadIdx.y * N + threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) part[warp] = value;
    __syncthreads();
    const int first = warp - warp % WARPS;
    value = part[first];
    for (int other = 1; other < WARPS; ++other) value = Op::of(value, part[first + other]);
    __syncthreads();
  }
  return value;
}
struct combine_add_float32 {
  typedef float type;
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
// max_sum_neg_add_64x256_r256
//   v0 = max(slot1) over axis 1           : 64x1 float32
//   v1 = neg(v0)                          : 64x1 float32
//   v2 = expand(v1)                       : 64x256 float32
//   v3 = slot1 + v2                       : 64x256 float32
//   v4 = exp(v3)                          : 64x256 float32
//   v5 = sum(v4) over axis 1              : 64x1 float32
//   v6 = expand(v5)                       : 64x256 float32
//   v7 = v4 / v6                          : 64x256 float32
// slot0 = v7
extern "C" __global__ void __launch_bounds__(128) max_sum_neg_add_64x256_r256_7e672eef(float *__restrict__ slot0, const float *__restrict__ slot1) {
  const int tx = threadIdx.x;
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x;
  const int i0t = ty;
  float acc0 = -__int_as_float(0x7f800000);
  for (int r0 = 0; r0 < 8; ++r0) {
    const float v1 = slot1[i0 * 1024 + i0t * 256 + r0 * 32 + tx];
    acc0 = max_float32(acc0, v1);
  }
  acc0 = across<combine_max_float32, 32, 128>((float)acc0);
  float acc2 = 0.0f;
  const float v4 = -acc0;
  for (int r0 = 0; r0 < 8; ++r0) {
    const float v3 = slot1[i0 * 1024 + i0t * 256 + r0 * 32 + tx];
    const float v5 = expf(v3 + v4);
    acc2 += v5;
  }
  acc2 = across<combine_add_float32, 32, 128>((float)acc2);
  for (int j0 = 0; j0 < 8; ++j0) {
    const float v6 = slot1[i0 * 1024 + i0t * 256 + j0 * 32 + tx];
    const float v7 = expf(v6 + v4);
    slot0[i0 * 1024 + i0t * 256 + j0 * 32 + tx] = v7 / acc2;
  }
}
