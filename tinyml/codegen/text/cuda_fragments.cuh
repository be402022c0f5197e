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
