template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
template <class I> __device__ __forceinline__ I look(long long i, I size) {
  return (unsigned long long)i < (unsigned long long)size ? (I)i : 0;  // no foreign memory
}
struct combine_add_float32 {
  typedef float type;
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
template <class Op, class T, class V>
__device__ __forceinline__ void atomic(T *place, V value) {
  typedef unsigned long long u64;
  if constexpr (sizeof(T) == 8) {
    u64 *word = (u64 *)place, old = *word, seen;
    do {
      seen = old;
      old = atomicCAS(word, seen, bits_as<u64>((T)Op::of(bits_as<T>(seen), value)));
    } while (old != seen);
  } else if constexpr (sizeof(T) == 4) {
    unsigned *word = (unsigned *)place, old = *word, seen;
    do {
      seen = old;
      old = atomicCAS(word, seen, bits_as<unsigned>((T)Op::of(bits_as<T>(seen), value)));
    } while (old != seen);
  } else {
    const u64 address = (u64)place;
    unsigned *word = (unsigned *)(address & ~(u64)3), old = *word, seen;
    const int shift = (int)(address & 3) * 8;
    const unsigned mask = (sizeof(T) == 2 ? 0xffffu : 0xffu) << shift;
    do {
      seen = old;
      T now;
      const unsigned bits = (seen & mask) >> shift;
      memcpy(&now, &bits, sizeof(T));
      const T next = (T)Op::of((typename Op::type)now, value);
      unsigned put = 0;
      memcpy(&put, &next, sizeof(T));
      old = atomicCAS(word, seen, (seen & ~mask) | (put << shift));
    } while (old != seen);
  }
}
// copy_50x16
// slot0 = slot1
extern "C" __global__ void __launch_bounds__(128, 1) copy_50x16_dbea6289(float *__restrict__ slot0, const float *__restrict__ slot1) {
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x;
  const int i0t = ty;
  const pack<float, 4> v0 = i0 * 128 + i0t <= 199 ? *(const pack<float, 4> *)(slot1 + (i0 * 512 + i0t * 4)) : pack<float, 4>{};
  if (i0 * 128 + i0t <= 199) *(pack<float, 4> *)(slot0 + (i0 * 512 + i0t * 4)) = pack<float, 4>{v0.at[0], v0.at[1], v0.at[2], v0.at[3]};
}

// scatter_32x16
//   v0 = reshape(slot2)                   : 32x1 int32
//   v1 = expand(v0)                       : 32x16 int32
// slot0[v1 on axis 0] += slot1
extern "C" __global__ void __launch_bounds__(32, 8) scatter_32x16_1f2dbe2f(float *__restrict__ slot0, const float *__restrict__ slot1, const int *__restrict__ slot2) {
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x;
  const int i1t = ty;
  const float v0 = i1t <= 15 ? slot1[i0 * 16 + i1t] : 0;
  const int v1 = slot2[i0];
  if (i1t <= 15) atomic<combine_add_float32>(&slot0[look<int>(v1, 50) * 16 + i1t], v0);
}
