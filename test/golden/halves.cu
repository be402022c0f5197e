template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
#include <cuda_bf16.h>
// Inline PTX: tensor-core fragments, asynchronous copies, quick numbers, exchanges, in named helpers.
// emu_fragments.h has the twin of each; a change of a name or an argument here is a change there.
// Meanings: PTX ISA, "Matrix multiply-accumulate operation using mma instruction" and "cp.async".
// Needs no header, and sm_80 or later; ldmatrix and m16n8k8 of halves, sm_75.
#ifndef __CUDA_EMU__

// d (16 x 8) += a (16 x 16) @ b (16 x 8), by all 32 lanes of a warp, sums in float32.
__device__ __forceinline__ void tinyml_mma_m16n8k16_f16(float *d, const unsigned *a,
                                                        const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void tinyml_mma_m16n8k16_bf16(float *d, const unsigned *a,
                                                         const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d (16 x 8) += a (16 x 8) @ b (8 x 8), halves: the first half of the steps of m16n8k16.
__device__ __forceinline__ void tinyml_mma_m16n8k8_f16(float *d, const unsigned *a,
                                                       const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// d (16 x 8) += a (16 x 8) @ b (8 x 8): float32 bits, of which the upper 19 count.
__device__ __forceinline__ void tinyml_mma_m16n8k8_tf32(float *d, const unsigned *a,
                                                        const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A float as tf32: rounded to the upper 19 bits, halves away from zero.
__device__ __forceinline__ unsigned tinyml_tf32(float x) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

__device__ __forceinline__ unsigned tinyml_shared_address(const void *shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Four 8x8 matrices of 16-bit values: lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void tinyml_ldmatrix_x4(unsigned (&r)[4], const void *shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(tinyml_shared_address(shared))
               : "memory");
}

__device__ __forceinline__ void tinyml_ldmatrix_x4_trans(unsigned (&r)[4], const void *shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(tinyml_shared_address(shared))
               : "memory");
}

// 16 bytes from global to shared memory, past the registers and (cg) past the L1 cache.
__device__ __forceinline__ void tinyml_cp_async16(void *shared, const void *global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(tinyml_shared_address(shared)), "l"(global)
               : "memory");
}

// The same where `valid`, else 16 zero bytes: nothing is read then.
__device__ __forceinline__ void tinyml_cp_async16_or_zero(void *shared, const void *global,
                                                          bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(tinyml_shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

// The first `bytes` of them at most, and zeros: what is behind is not read. Rows may have 2^31.
template <class I>
__device__ __forceinline__ void tinyml_cp_async16_begin(void *shared, const void *global,
                                                        bool valid, I bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(tinyml_shared_address(shared)), "l"(global),
                 "r"(valid ? (int)max((I)0, min(bytes, (I)16)) : 0)
               : "memory");
}

// 4 or 8 bytes, through the L1 cache; zeros where not `valid`.
template <int bytes>
__device__ __forceinline__ void tinyml_cp_async_few(void *shared, const void *global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
               :
               : "r"(tinyml_shared_address(shared)), "l"(global), "n"(bytes)
               : "memory");
}

template <int bytes>
__device__ __forceinline__ void tinyml_cp_async_few_or_zero(void *shared, const void *global,
                                                            bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(tinyml_shared_address(shared)), "l"(global), "n"(bytes),
                 "r"(valid ? bytes : 0)
               : "memory");
}

// Ends a group of copies; wait<N> returns when at most N groups of this thread are under way.
__device__ __forceinline__ void tinyml_cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int groups_left>
__device__ __forceinline__ void tinyml_cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

// A barrier (1 to 15; 0 is __syncthreads) among `threads` threads of the block, whole warps.
__device__ __forceinline__ void tinyml_named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- numbers: a few units in the last place off, what is subnormal is 0 ----

__device__ __forceinline__ float tinyml_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

__device__ __forceinline__ float tinyml_reciprocal(float x) {
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}

#endif

// What is good enough for a number that ends as a half, in two to four instructions.
__device__ __forceinline__ float rough_exp(float x) { return tinyml_exp2(x * 1.44269504f); }
__device__ __forceinline__ float rough_exp_of_sum(float a, float b, float times = 1.0f) {
  return tinyml_exp2(fmaf(a, times * 1.44269504f, b * 1.44269504f));  // of a * times + b
}
__device__ __forceinline__ float rough_exp2(float x) { return tinyml_exp2(x); }
__device__ __forceinline__ float rough_div(float a, float b) { return a * tinyml_reciprocal(b); }
__device__ __forceinline__ float rough_logistic(float a, float b, float c) {
  return a * tinyml_reciprocal(fmaf(rough_exp(b), c + 1.0f, 1.0f));  // inf * 0 would be NaN
}
__device__ __forceinline__ float rough_tanh(float x) {
  const float square = x * x, near = x - x * square * (0.33333333f - square * 0.13333333f);
  const float far = 1.0f - 2.0f * tinyml_reciprocal(1.0f + rough_exp(2.0f * x));
  return fabsf(x) < 0.1f ? near : far;  // a difference of equals has no digits
}

// Lanes side by side, as many as a pack has words, exchange those: lane n gets word n of each. All
// lanes of a warp come here. By value: what is loaded for it would be loaded byte by byte.
template <class P> __device__ __forceinline__ P tinyml_exchanged(P values, int lane) {
  constexpr int words = sizeof(P) / 4;
  struct __align__(sizeof(P)) { unsigned at[words]; } held;
  memcpy(&held, &values, sizeof(P));
#pragma unroll
  for (int step = 1; step < words; step *= 2) {
    const bool odd = lane & step;
#pragma unroll
    for (int n = 0; n < words; ++n) {
      if (n & step) continue;
      unsigned &low = held.at[n], &high = held.at[n + step];
      const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? low : high, step);
      low = odd ? other : low;
      high = odd ? high : other;
    }
  }
  P piece;
  memcpy(&piece, &held, sizeof(P));
  return piece;
}

struct fragment { unsigned at[4]; };  // what a lane holds of a matrix
template <bool crosswise>
__device__ __forceinline__ fragment load_fragment(const void *row) {
  fragment held;
  if constexpr (crosswise) tinyml_ldmatrix_x4_trans(held.at, row);
  else tinyml_ldmatrix_x4(held.at, row);
  return held;
}
__device__ __forceinline__ void add_product_bfloat16(
    pack<float, 8> &sums, const fragment &a, const fragment &b) {
  tinyml_mma_m16n8k16_bf16(sums.at, a.at, b.at);
  tinyml_mma_m16n8k16_bf16(sums.at + 4, a.at, b.at + 2);
}
template <class P> __device__ __forceinline__ P read_if(bool there, const P *place) {
  struct __align__(sizeof(P)) words { unsigned at[sizeof(P) / 4]; } read = {};
  if (there) read = *(const words *)place;
  return bits_as<P>(read);
}
template <int FIRST, int LANES, class T, int N>
__device__ __forceinline__ pack<T, LANES> neighbours(const pack<T, N> &values) {
  pack<T, LANES> some;
  memcpy(&some, &values.at[FIRST], sizeof(some));
  return some;
}
__device__ __forceinline__ float rounded(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
  return __uint_as_float(bits);
#else
  return __bfloat162float(__float2bfloat16_rn(x));
#endif
}
template <int LANE, int N>
__device__ __forceinline__ float widened(const pack<__nv_bfloat16, N> &values) {
  unsigned word;
  memcpy(&word, &values.at[LANE & ~1], sizeof(word));
  return bits_as<float>(LANE & 1 ? word & 0xffff0000u : word << 16);
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
// sum_mul_add_max_64x96_r128
//   v0 = cast(slot1, float32)             : 64x128 float32
//   v1 = reshape(v0)                      : 64x128x1 float32
//   v2 = expand(v1)                       : 64x128x96 float32
//   v3 = cast(slot2, float32)             : 128x96 float32
//   v4 = reshape(v3)                      : 1x128x96 float32
//   v5 = expand(v4)                       : 64x128x96 float32
//   v6 = v2 * v5                          : 64x128x96 float32
//   v7 = sum(v6) over axis 1              : 64x1x96 float32
//   v8 = reshape(v7)                      : 64x96 float32
//   v9 = cast(v8, bfloat16)               : 64x96 bfloat16
//  v10 = reshape(slot3)                   : 1x96 bfloat16
//  v11 = expand(v10)                      : 64x96 bfloat16
//  v12 = v9 + v11                         : 64x96 bfloat16
//  v13 = max(v12, 0)                      : 64x96 bfloat16
// slot0 = v13
extern "C" __global__ void __launch_bounds__(128, 1) sum_mul_add_max_64x96_r128_6ae4c7e6(__nv_bfloat16 *__restrict__ slot0, const __nv_bfloat16 *__restrict__ slot1, const __nv_bfloat16 *__restrict__ slot2, const __nv_bfloat16 *__restrict__ slot3) {
  extern __shared__ __align__(16) unsigned char tinyml_shared_16[];
  __nv_bfloat16 *const tile1 = (__nv_bfloat16 *)(tinyml_shared_16);
  __nv_bfloat16 *const tile0 = (__nv_bfloat16 *)(tinyml_shared_16 + 13776);
  const int ty = threadIdx.y;
  const int i0 = (int)blockIdx.x / 2;
  const int i1 = (int)blockIdx.x % 2;
  const int i0t = ty / 64;
  const int i1t = ty / 32 % 2;
  const int i0q = ty / 4 % 8;
  const int i1q = ty % 4;
  pack<float, 8> acc0 = {};
  pack<float, 8> acc1 = {};
  for (int c_tile1 = 0; c_tile1 < 2; ++c_tile1) {
    const int n2 = c_tile1 * 1536 + ty / 8 * 96 + i1 * 64 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8;
    tinyml_cp_async16_or_zero(tile1 + (c_tile1 * 1152 + ty / 8 * 72 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8), slot2 + n2, i1 * 8 + ty / 4 % 2 * 4 + ty / 2 % 2 * 2 + ty % 2 <= 11);
  }
  const int n3 = i0 * 4096 + ty / 4 * 128 + ty / 2 % 2 * 16 + ty % 2 * 8;
  tinyml_cp_async16(tile0 + (ty / 4 * 40 + ty / 2 % 2 * 16 + ty % 2 * 8), slot1 + n3);
  tinyml_cp_async_commit();
  for (int c_tile1 = 0; c_tile1 < 2; ++c_tile1) {
    const int n4 = c_tile1 * 1536 + ty / 8 * 96 + i1 * 64 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8;
    tinyml_cp_async16_or_zero(tile1 + (c_tile1 * 1152 + ty / 8 * 72 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8 + 2296), slot2 + (n4 + 3072), i1 * 8 + ty / 4 % 2 * 4 + ty / 2 % 2 * 2 + ty % 2 <= 11);
  }
  const int n5 = i0 * 4096 + ty / 4 * 128 + ty / 2 % 2 * 16 + ty % 2 * 8;
  tinyml_cp_async16(tile0 + (ty / 4 * 40 + ty / 2 % 2 * 16 + ty % 2 * 8 + 1272), slot1 + (n5 + 32));
  tinyml_cp_async_commit();
  #pragma unroll 1
  for (int r0 = 0; r0 < 4; ++r0) {
    tinyml_cp_async_wait<1>();
    __syncthreads();
    for (int c_tile1 = 0; c_tile1 < 2; ++c_tile1) {
      const int n6 = r0 * 3072 + c_tile1 * 1536 + ty / 8 * 96 + i1 * 64 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8;
      if (r0 <= 1) tinyml_cp_async16_or_zero(tile1 + ((r0 + 2) % 3 * 2296 + c_tile1 * 1152 + ty / 8 * 72 + ty / 4 % 2 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8), slot2 + (n6 + 6144), i1 * 8 + ty / 4 % 2 * 4 + ty / 2 % 2 * 2 + ty % 2 <= 11);
    }
    const int n7 = i0 * 4096 + ty / 4 * 128 + r0 * 32 + ty / 2 % 2 * 16 + ty % 2 * 8;
    if (r0 <= 1) tinyml_cp_async16(tile0 + ((r0 + 2) % 3 * 1272 + ty / 4 * 40 + ty / 2 % 2 * 16 + ty % 2 * 8), slot1 + (n7 + 64));
    tinyml_cp_async_commit();
    for (int r0s = 0; r0s < 2; ++r0s) {
      const fragment v8 = load_fragment<false>(tile0 + (r0 % 3 * 1272 + i0t * 640 + i0q / 2 % 2 * 320 + i0q % 2 * 160 + i1q * 40 + r0s * 16 + i0q / 4 * 8));
      const fragment v9 = load_fragment<true>(tile1 + (r0 % 3 * 2296 + r0s * 1152 + i0q / 2 % 2 * 576 + i0q % 2 * 288 + i1q * 72 + i1t * 32 + i0q / 4 * 8));
      add_product_bfloat16(acc0, v8, v9);
      const fragment v10 = load_fragment<true>(tile1 + (r0 % 3 * 2296 + r0s * 1152 + i0q / 2 % 2 * 576 + i0q % 2 * 288 + i1q * 72 + i1t * 32 + i0q / 4 * 8 + 16));
      add_product_bfloat16(acc1, v8, v10);
    }
  }
  const pack<__nv_bfloat16, 8> piece0 = tinyml_exchanged(read_if(i1 * 8 + i1t * 4 + i1q <= 11, (const pack<__nv_bfloat16, 8> *)(slot3 + (i1 * 64 + i1t * 32 + i1q * 8))), i1q);
  const pack<__nv_bfloat16, 2> v11 = neighbours<0, 2>(piece0);
  const pack<__nv_bfloat16, 2> v12 = neighbours<2, 2>(piece0);
  const pack<__nv_bfloat16, 2> v13 = neighbours<4, 2>(piece0);
  const pack<__nv_bfloat16, 2> v14 = neighbours<6, 2>(piece0);
  const pack<__nv_bfloat16, 8> piece1 = tinyml_exchanged(pack<__nv_bfloat16, 8>{__float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[0]) + widened<0>(v11)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[1]) + widened<1>(v11)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[4]) + widened<0>(v12)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[5]) + widened<1>(v12)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[0]) + widened<0>(v13)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[1]) + widened<1>(v13)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[4]) + widened<0>(v14)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[5]) + widened<1>(v14)), 0.0f))}, i1q);
  if (i1 * 8 + i1t * 4 + i1q <= 11) *(pack<__nv_bfloat16, 8> *)(slot0 + (i0 * 3072 + i0t * 1536 + i0q * 96 + i1 * 64 + i1t * 32 + i1q * 8)) = pack<__nv_bfloat16, 8>{piece1.at[0], piece1.at[1], piece1.at[2], piece1.at[3], piece1.at[4], piece1.at[5], piece1.at[6], piece1.at[7]};
  const pack<__nv_bfloat16, 8> piece2 = tinyml_exchanged(pack<__nv_bfloat16, 8>{__float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[2]) + widened<0>(v11)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[3]) + widened<1>(v11)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[6]) + widened<0>(v12)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc0.at[7]) + widened<1>(v12)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[2]) + widened<0>(v13)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[3]) + widened<1>(v13)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[6]) + widened<0>(v14)), 0.0f)), __float2bfloat16_rn(max_float32(rounded(rounded(acc1.at[7]) + widened<1>(v14)), 0.0f))}, i1q);
  if (i1 * 8 + i1t * 4 + i1q <= 11) *(pack<__nv_bfloat16, 8> *)(slot0 + (i0 * 3072 + i0t * 1536 + i0q * 96 + i1 * 64 + i1t * 32 + i1q * 8 + 768)) = pack<__nv_bfloat16, 8>{piece2.at[0], piece2.at[1], piece2.at[2], piece2.at[3], piece2.at[4], piece2.at[5], piece2.at[6], piece2.at[7]};
}
