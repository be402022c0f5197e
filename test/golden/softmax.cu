template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
__device__ __forceinline__ float max_float32(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float found;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;
#else
  const float m = a > b ? a : b;  // without a branch, which could not be predicted
  return a != a ? a : m;
#endif
}
struct combine_max_float32 {
  typedef float type;
  static __device__ __forceinline__ float of(float a, float b) { return max_float32(a, b); }
};
template <class Op, int N, int ALL>
__device__ __forceinline__ typename Op::type across(typename Op::type value) {
  constexpr int IN_WARP = N < 32 ? N : 32, REST = ALL % 32;
  const int warp = (threadIdx.y * N + threadIdx.x) / 32;
  const unsigned lanes = REST && warp == ALL / 32 ? (1u << REST) - 1 : 0xffffffffu;
#pragma unroll
  for (int step = IN_WARP / 2; step > 0; step /= 2)
    value = Op::of(value, __shfl_xor_sync(lanes, value, step));
  if (N > 32) {
    constexpr int WARPS = N > 32 ? N / 32 : 1;
    __shared__ typename Op::type part[ALL < 32 ? 1 : ALL / 32];
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
extern "C" __global__ void __launch_bounds__(128, 4) max_sum_neg_add_64x256_r256_ec1e47c9(float *__restrict__ slot0, const float *__restrict__ slot1) {
  const int tx = threadIdx.x;
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x;
  const int i0t = ty;
  float acc0 = -__int_as_float(0x7f800000);
  float acc1 = -__int_as_float(0x7f800000);
  float acc2 = -__int_as_float(0x7f800000);
  float acc3 = -__int_as_float(0x7f800000);
  float acc4 = -__int_as_float(0x7f800000);
  float acc5 = -__int_as_float(0x7f800000);
  float acc6 = -__int_as_float(0x7f800000);
  float acc7 = -__int_as_float(0x7f800000);
  const pack<float, 4> v8 = *(const pack<float, 4> *)(slot1 + (i0 * 1024 + i0t * 256 + tx * 4));
  acc0 = max_float32(v8.at[0], acc0);
  acc1 = max_float32(v8.at[1], acc1);
  acc2 = max_float32(v8.at[2], acc2);
  acc3 = max_float32(v8.at[3], acc3);
  const pack<float, 4> v9 = *(const pack<float, 4> *)(slot1 + (i0 * 1024 + i0t * 256 + tx * 4 + 128));
  acc4 = max_float32(v9.at[0], acc4);
  acc5 = max_float32(v9.at[1], acc5);
  acc6 = max_float32(v9.at[2], acc6);
  acc7 = max_float32(v9.at[3], acc7);
  acc0 = max_float32(acc4, acc0);
  acc1 = max_float32(acc5, acc1);
  acc2 = max_float32(acc6, acc2);
  acc3 = max_float32(acc7, acc3);
  acc0 = max_float32(acc2, acc0);
  acc1 = max_float32(acc3, acc1);
  acc0 = max_float32(acc1, acc0);
  acc0 = across<combine_max_float32, 32, 128>((float)acc0);
  float acc10 = 0.0f;
  float acc11 = 0.0f;
  float acc12 = 0.0f;
  float acc13 = 0.0f;
  float acc14 = 0.0f;
  float acc15 = 0.0f;
  float acc16 = 0.0f;
  float acc17 = 0.0f;
  const float v18 = expf(v8.at[0] - acc0);
  acc10 += v18;
  const float v19 = expf(v8.at[1] - acc0);
  acc11 += v19;
  const float v20 = expf(v8.at[2] - acc0);
  acc12 += v20;
  const float v21 = expf(v8.at[3] - acc0);
  acc13 += v21;
  const float v22 = expf(v9.at[0] - acc0);
  acc14 += v22;
  const float v23 = expf(v9.at[1] - acc0);
  acc15 += v23;
  const float v24 = expf(v9.at[2] - acc0);
  acc16 += v24;
  const float v25 = expf(v9.at[3] - acc0);
  acc17 += v25;
  acc10 += acc14;
  acc11 += acc15;
  acc12 += acc16;
  acc13 += acc17;
  acc10 += acc12;
  acc11 += acc13;
  acc10 += acc11;
  acc10 = across<combine_add_float32, 32, 128>((float)acc10);
  *(pack<float, 4> *)(slot0 + (i0 * 1024 + i0t * 256 + tx * 4)) = pack<float, 4>{v18 / acc10, v19 / acc10, v20 / acc10, v21 / acc10};
  *(pack<float, 4> *)(slot0 + (i0 * 1024 + i0t * 256 + tx * 4 + 128)) = pack<float, 4>{v22 / acc10, v23 / acc10, v24 / acc10, v25 / acc10};
}
