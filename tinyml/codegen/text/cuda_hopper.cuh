// Inline PTX that only Hopper has: products of warpgroups, bulk copies of boxes, barriers in shared
// memory. emu_hopper.h has the twin of each; a change of a name or an argument here is one there.
// Meanings: PTX ISA, "Asynchronous warpgroup level matrix instructions", "mbarrier" and
// "cp.async.bulk.tensor". Needs sm_90a, and no header.

// A thread's sums of 192 columns are no power of two, which others are aligned by.
template <class T, int N> struct pack;
template <> struct __align__(16) pack<float, 96> { float at[96]; };

#ifndef __CUDA_EMU__

// ---- barriers in shared memory: a phase ends when all have arrived, and all bytes ----

__device__ __forceinline__ unsigned tinyml_shared_place(const void *shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// By one thread, before all others see the barrier; `arrivals` end a phase.
__device__ __forceinline__ void tinyml_mbarrier_init(unsigned long long *barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n\tfence.mbarrier_init.release.cluster;"
               :
               : "r"(tinyml_shared_place(barrier)), "r"(arrivals)
               : "memory");
}

__device__ __forceinline__ void tinyml_mbarrier_arrive(unsigned long long *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :
               : "r"(tinyml_shared_place(barrier))
               : "memory");
}

// Arrives, and the phase waits for so many bytes that copies bring.
__device__ __forceinline__ void tinyml_mbarrier_expect(unsigned long long *barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(tinyml_shared_place(barrier)), "r"(bytes)
               : "memory");
}

// Until the phase of this parity is over: 0 for the first, third, ... phase.
__device__ __forceinline__ void tinyml_mbarrier_wait(unsigned long long *barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "\t@!done bra again;\n\t}"
      :
      : "r"(tinyml_shared_place(barrier)), "r"(parity)
      : "memory");
}

// ---- registers of a thread, by all of a warpgroup: fewer, or as soon as there are more ----

template <int count>
__device__ __forceinline__ void tinyml_hand_over_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ __forceinline__ void tinyml_take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- bulk copies of boxes ----

struct __align__(64) tinyml_tensor_map {  // what cuTensorMapEncodeTiled writes
  unsigned long long opaque[16];
};

// The box that begins at (x, y, z), zeros where it is outside, in rows of 128 bytes whose pieces of
// 16 bytes are exchanged; floats arrive as tf32. By one thread; its bytes arrive at the barrier.
__device__ __forceinline__ void tinyml_copy_box(void *shared, const tinyml_tensor_map *map, int x,
                                                int y, int z, unsigned long long *barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];"
      :
      : "r"(tinyml_shared_place(shared)), "l"(map), "r"(tinyml_shared_place(barrier)), "r"(x),
        "r"(y), "r"(z)
      : "memory");
}

// Before the first copy by a map that the host has written to global memory.
__device__ __forceinline__ void tinyml_fence_map(const tinyml_tensor_map *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

// What this thread has put into shared memory is seen by products and by bulk copies to come.
__device__ __forceinline__ void tinyml_fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products of the four warps of a warpgroup ----

// Values in rows of 128 bytes, 16-byte pieces exchanged as tinyml_copy_box does, `further` bytes
// behind a place. Eight rows begin `stride` bytes after the eight before them; where the 64 halves
// of a row are those of as many lines of the matrix ("crosswise"), the next 64 lines begin `leading`
// bytes later.
__device__ __forceinline__ unsigned long long tinyml_matrix(const void *shared, int further,
                                                            int leading, int stride) {
  const unsigned begin = (tinyml_shared_place(shared) >> 4) + (further >> 4);  // less than 2^14
  return (unsigned long long)(1u << 30 | stride >> 4) << 32 | (begin + (leading >> 4 << 16));
}

// Before the first product of a group, and after registers of its sums were written.
__device__ __forceinline__ void tinyml_wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void tinyml_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int groups_left>
__device__ __forceinline__ void tinyml_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
}

// Sums are where the program says: nothing that reads or writes them moves past this.
template <int count>
__device__ __forceinline__ void tinyml_wgmma_hold(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The same where all products have been waited for.
template <int count>
__device__ __forceinline__ void tinyml_wgmma_made(float (&sums)[count]) {
  tinyml_wgmma_hold(sums);
}

// d (64 x N) += a (64 x K) @ b (K x N), sums in float32, done when they are waited for. Thread t has
// of each 16 x 8 sums of its warp those that a lane has of mma.m16n8k16. K is 16; 8 for floats,
// whose upper 19 bits count, and which are never crosswise.
#define TINYML_REGISTERS_0 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TINYML_REGISTERS_1 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TINYML_REGISTERS_2 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TINYML_REGISTERS_3 \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TINYML_REGISTERS_HALF \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TINYML_SUMS_4(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
#define TINYML_SUMS_16(d) \
  TINYML_SUMS_4(d), TINYML_SUMS_4(d + 4), TINYML_SUMS_4(d + 8), TINYML_SUMS_4(d + 12)
#define TINYML_SUMS_32(d) TINYML_SUMS_16(d), TINYML_SUMS_16(d + 16)
#define TINYML_SUMS_64(d) TINYML_SUMS_32(d), TINYML_SUMS_32(d + 32)
#define TINYML_SUMS_96(d) TINYML_SUMS_64(d), TINYML_SUMS_32(d + 64)
#define TINYML_SUMS_128(d) TINYML_SUMS_64(d), TINYML_SUMS_64(d + 64)
#define TINYML_WGMMA(N, K, NAME, TYPE, COUNT, REGISTERS, OPERANDS)                               \
  template <int a_crosswise, int b_crosswise>                                                    \
  __device__ __forceinline__ void tinyml_wgmma_m64n##N##k##K##_##NAME(                           \
      float (&d)[COUNT], unsigned long long a, unsigned long long b) {                           \
    static_assert(K == 16 || !(a_crosswise | b_crosswise), "only halves can be crosswise");      \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.eq.u32 add, 0, 0;\n\t"                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " "         \
                 "{" REGISTERS "}, " OPERANDS ";\n\t}"                                           \
                 : TINYML_SUMS_##COUNT(d)                                                        \
                 : "l"(a), "l"(b), "n"(a_crosswise), "n"(b_crosswise));                          \
  }
// The same of halves that the threads hold, as lanes of mma.m16n8k16 hold a.
#define TINYML_WGMMA_HELD(N, NAME, TYPE, COUNT, REGISTERS, OPERANDS)                             \
  template <int b_crosswise>                                                                     \
  __device__ __forceinline__ void tinyml_wgmma_m64n##N##k16_##NAME(                              \
      float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b) {                         \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.eq.u32 add, 0, 0;\n\t"                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " "             \
                 "{" REGISTERS "}, " OPERANDS ";\n\t}"                                           \
                 : TINYML_SUMS_##COUNT(d)                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(b_crosswise));        \
  }
#define TINYML_WGMMAS_HELD(NAME, TYPE)                                                           \
  TINYML_WGMMA_HELD(64, NAME, TYPE, 32, TINYML_REGISTERS_0,                                      \
                    "{%32, %33, %34, %35}, %36, add, 1, 1, %37")                                 \
  TINYML_WGMMA_HELD(128, NAME, TYPE, 64, TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1,             \
                    "{%64, %65, %66, %67}, %68, add, 1, 1, %69")                                 \
  TINYML_WGMMA_HELD(192, NAME, TYPE, 96,                                                         \
                    TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1 ", " TINYML_REGISTERS_2,          \
                    "{%96, %97, %98, %99}, %100, add, 1, 1, %101")                               \
  TINYML_WGMMA_HELD(256, NAME, TYPE, 128,                                                        \
                    TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1 ", " TINYML_REGISTERS_2           \
                    ", " TINYML_REGISTERS_3,                                                     \
                    "{%128, %129, %130, %131}, %132, add, 1, 1, %133")
TINYML_WGMMAS_HELD(f16, "f16")
TINYML_WGMMAS_HELD(bf16, "bf16")
#define TINYML_WGMMAS(K, NAME, TYPE, FLAGS_32, FLAGS_64, FLAGS_128, FLAGS_192, FLAGS_256)        \
  TINYML_WGMMA(32, K, NAME, TYPE, 16, TINYML_REGISTERS_HALF, "%16, %17, add, 1, 1" FLAGS_32)     \
  TINYML_WGMMA(64, K, NAME, TYPE, 32, TINYML_REGISTERS_0, "%32, %33, add, 1, 1" FLAGS_64)        \
  TINYML_WGMMA(128, K, NAME, TYPE, 64, TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1,               \
               "%64, %65, add, 1, 1" FLAGS_128)                                                  \
  TINYML_WGMMA(192, K, NAME, TYPE, 96,                                                           \
               TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1 ", " TINYML_REGISTERS_2,               \
               "%96, %97, add, 1, 1" FLAGS_192)                                                  \
  TINYML_WGMMA(256, K, NAME, TYPE, 128,                                                          \
               TINYML_REGISTERS_0 ", " TINYML_REGISTERS_1 ", " TINYML_REGISTERS_2                \
               ", " TINYML_REGISTERS_3,                                                          \
               "%128, %129, add, 1, 1" FLAGS_256)
TINYML_WGMMAS(16, f16, "f16", ", %18, %19", ", %34, %35", ", %66, %67", ", %98, %99", ", %130, %131")
TINYML_WGMMAS(16, bf16, "bf16", ", %18, %19", ", %34, %35", ", %66, %67", ", %98, %99", ", %130, %131")
TINYML_WGMMAS(8, tf32, "tf32", "", "", "", "", "")

#endif
