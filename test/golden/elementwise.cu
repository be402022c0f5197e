template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
// mul_add_64x100
//   v0 = slot1 * slot2                    : 64x100 float32
//   v1 = v0 + 1                           : 64x100 float32
// slot0 = v1
extern "C" __global__ void __launch_bounds__(256, 2) mul_add_64x100_697c31f0(float *__restrict__ slot0, const float *__restrict__ slot1, const float *__restrict__ slot2) {
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x;
  const int i0t = ty;
  const pack<float, 4> v0 = i0 * 256 + i0t <= 1599 ? *(const pack<float, 4> *)(slot1 + (i0 * 1024 + i0t * 4)) : pack<float, 4>{};
  const pack<float, 4> v1 = i0 * 256 + i0t <= 1599 ? *(const pack<float, 4> *)(slot2 + (i0 * 1024 + i0t * 4)) : pack<float, 4>{};
  if (i0 * 256 + i0t <= 1599) *(pack<float, 4> *)(slot0 + (i0 * 1024 + i0t * 4)) = pack<float, 4>{v0.at[0] * v1.at[0] + 1.0f, v0.at[1] * v1.at[1] + 1.0f, v0.at[2] * v1.at[2] + 1.0f, v0.at[3] * v1.at[3] + 1.0f};
}
