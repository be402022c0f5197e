// CUDA C for a host C++ compiler: g++ -x c++ -std=c++17 -include cuda_emu.h kernels.cu
//
// The same source text that nvcc compiles for a card becomes a shared object that runs on the CPU,
// thread by thread (emu_scheduler.h). What is here is what tinyml generates and a little more.
//
// Inline PTX cannot be emulated. It is allowed only in the helpers of codegen/text/cuda_fragments.cuh and
// codegen/text/cuda_hopper.cuh, whose twins are in emu_fragments.h:
//
//     tinyml_mma_m16n8k16_f16(float *d, const unsigned *a, const unsigned *b)
//     tinyml_mma_m16n8k16_bf16(float *d, const unsigned *a, const unsigned *b)
//     tinyml_mma_m16n8k8_tf32(float *d, const unsigned *a, const unsigned *b)
//     tinyml_tf32(float x)
//     tinyml_ldmatrix_x4(unsigned (&r)[4], const void *shared)
//     tinyml_ldmatrix_x4_trans(unsigned (&r)[4], const void *shared)
//     tinyml_cp_async16(void *shared, const void *global)
//     tinyml_cp_async16_or_zero(void *shared, const void *global, bool valid)
//     tinyml_cp_async16_begin(void *shared, const void *global, bool valid, int bytes)
//     tinyml_cp_async_few<4 or 8>(void *shared, const void *global), .._few_or_zero<4 or 8>
//     tinyml_cp_async_commit()
//     tinyml_cp_async_wait<N>()                 until at most N groups are under way
//     tinyml_named_barrier(int number, int threads)
//
// and in emu_hopper.h: tinyml_mbarrier_*, tinyml_copy_box, tinyml_fence_*, tinyml_matrix and
// tinyml_wgmma_*.
//
// A kernel K is made launchable by EMU_KERNEL(K, launcher, alignment of its dynamic shared memory)
// after its definition.
#pragma once
#define __CUDA_EMU__ 1

// C's own headers instead of libstdc++'s wrappers, which take longer to read than most kernels.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdint.h>
#include <string.h>

// NVRTC has neither header nor macro for these; a kernel must do without them.
#undef INFINITY
#undef NAN

#include "emu_scheduler.h"

// Not watched for races: gcc would inline it into what is, were it not said of both.
#define EMU_UNWATCHED inline __attribute__((no_sanitize_thread))
#define __global__
#define __device__ __attribute__((unused))
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
// A kernel's shared variables lie in a section of their own, which is poisoned before each block.
// compile.py redefines EMU_SECTION for each kernel: "emu_shared_" and the name of its launcher.
#define EMU_SECTION "emu_shared_of_helpers"
#define __shared__ static __attribute__((section(EMU_SECTION)))
// What compile.py makes of `extern __shared__ T name[];`: C++ has no word for it.
#define EMU_DYNAMIC_SHARED(T, name) T *name = reinterpret_cast<T *>(emu::dynamic_shared)

#define threadIdx (emu::current->index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)
#define warpSize 32

#include "emu_types.h"

// ------------------------------------------------------------------ barriers and warps
// The default argument `line` is the line of the caller.

inline void __syncthreads(int line = __builtin_LINE()) {
  emu::wait_at_barrier({"__syncthreads()", line}, 0, 0);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  char nothing = 0;
  emu::exchange(mask, &nothing, 1, {"__syncwarp()", line});
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emu::give_way(); }

[[noreturn]] inline void __trap(int line = __builtin_LINE()) {
  emu::fail("__trap() at line %d by block (%u,%u,%u) thread (%u,%u,%u)", line, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

namespace emu {

// The value of lane `source`, or this lane's own where `source` lies outside its segment.
template <class T>
T shuffle(unsigned mask, T value, int source, bool inside, Site site) {
  static_assert(sizeof(T) <= PAYLOAD, "too large to shuffle");
  const Contributions &rows = exchange(mask, &value, sizeof value, site);
  if (!inside) return value;
  if (!(mask >> source & 1)) {
    fail("%s at line %d reads lane %d, which its mask %#x lacks", site.what, site.line, source,
         mask);
  }
  memcpy(&value, rows[source], sizeof value);
  return value;
}

inline unsigned ballot(unsigned mask, bool vote, Site site) {
  char mine = vote;
  const Contributions &rows = exchange(mask, &mine, 1, site);
  unsigned votes = 0;
  for (int lane = 0; lane < WARP; lane++) {
    if (mask >> lane & 1) votes |= unsigned(rows[lane][0]) << lane;
  }
  return votes;
}

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
  int first = emu::current->lane & ~(width - 1);
  return emu::shuffle(mask, value, first + (source & (width - 1)), true, {"__shfl_sync()", line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  int line = __builtin_LINE()) {
  int lane = emu::current->lane, source = lane ^ lanes;
  bool inside = source < (lane & ~(width - 1)) + width;
  return emu::shuffle(mask, value, source, inside, {"__shfl_xor_sync()", line});
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                   int line = __builtin_LINE()) {
  int lane = emu::current->lane, source = lane + int(lanes);
  bool inside = source < (lane & ~(width - 1)) + width;
  return emu::shuffle(mask, value, source, inside, {"__shfl_down_sync()", line});
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                 int line = __builtin_LINE()) {
  int lane = emu::current->lane, source = lane - int(lanes);
  bool inside = source >= (lane & ~(width - 1));
  return emu::shuffle(mask, value, source, inside, {"__shfl_up_sync()", line});
}

inline unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return emu::ballot(mask, vote, {"__ballot_sync()", line});
}

inline int __any_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return emu::ballot(mask, vote, {"__any_sync()", line}) != 0;
}

inline int __all_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return emu::ballot(mask, vote, {"__all_sync()", line}) == mask;
}

// ------------------------------------------------------------------ atomics
// Only one thread runs at a time, so that plain code is atomic. Which types exist is CUDA's rule.

namespace emu {

template <class T>
EMU_UNWATCHED T replace(T *place, T value) {
  T old = *place;
  *place = value;
  return old;
}

}  // namespace emu

#define EMU_ATOMIC_ADD(T) \
  EMU_UNWATCHED T atomicAdd(T *place, T value) { return emu::replace<T>(place, *place + value); }
EMU_ATOMIC_ADD(int)
EMU_ATOMIC_ADD(unsigned)
EMU_ATOMIC_ADD(unsigned long long)
EMU_ATOMIC_ADD(float)
EMU_ATOMIC_ADD(double)
EMU_ATOMIC_ADD(__half)
EMU_ATOMIC_ADD(__nv_bfloat16)
#undef EMU_ATOMIC_ADD

#define EMU_ATOMICS(T)                                                                             \
  EMU_UNWATCHED T atomicExch(T *place, T value) { return emu::replace(place, value); }             \
  EMU_UNWATCHED T atomicMax(T *place, T value) { return emu::replace(place, max(*place, value)); } \
  EMU_UNWATCHED T atomicMin(T *place, T value) { return emu::replace(place, min(*place, value)); } \
  EMU_UNWATCHED T atomicAnd(T *place, T value) { return emu::replace(place, *place & value); }     \
  EMU_UNWATCHED T atomicOr(T *place, T value) { return emu::replace(place, *place | value); }      \
  EMU_UNWATCHED T atomicXor(T *place, T value) { return emu::replace(place, *place ^ value); }     \
  EMU_UNWATCHED T atomicCAS(T *place, T expected, T value) {                                       \
    return emu::replace(place, *place == expected ? value : *place);                               \
  }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
#undef EMU_ATOMICS

EMU_UNWATCHED int atomicSub(int *place, int value) { return emu::replace(place, *place - value); }
EMU_UNWATCHED unsigned atomicSub(unsigned *place, unsigned value) {
  return emu::replace(place, *place - value);
}
EMU_UNWATCHED float atomicExch(float *place, float value) { return emu::replace(place, value); }
EMU_UNWATCHED unsigned short atomicCAS(unsigned short *place, unsigned short expected,
                                       unsigned short value) {
  unsigned short next = *place == expected ? value : *place;
  return emu::replace(place, next);
}

#include "emu_fragments.h"
#include "emu_hopper.h"

// ------------------------------------------------------------------ launching

// The linker defines __start_ and __stop_ of a section, if there is one: hence weak.
#define EMU_HIDDEN __attribute__((weak, visibility("hidden")))
extern "C" EMU_HIDDEN unsigned char __start_emu_shared_of_helpers[];
extern "C" EMU_HIDDEN unsigned char __stop_emu_shared_of_helpers[];

namespace emu {

// Reads arguments out of a packed buffer, each at the next multiple of its alignment.
class Unpack {
 public:
  explicit Unpack(const void *packed) : packed_(static_cast<const char *>(packed)) {}

  template <class T>
  T next() {
    offset_ = (offset_ + alignof(T) - 1) / alignof(T) * alignof(T);
    T value;
    memcpy(&value, packed_ + offset_, sizeof value);
    offset_ += sizeof value;
    return value;
  }

 private:
  const char *packed_;
  size_t offset_ = 0;
};

template <auto kernel, class... Arguments>
void run_thread(const void *packed) {
  struct Call {
    Call(Arguments... arguments) { kernel(arguments...); }
  };
  Unpack unpack(packed);
  Call{unpack.next<Arguments>()...};  // braces: evaluated from left to right
}

template <auto kernel, class... Arguments>
const char *launch(Launch &launch, void (*)(Arguments...), Shared shared) {
  shared.helpers = __start_emu_shared_of_helpers;
  shared.of_helpers = __stop_emu_shared_of_helpers - shared.helpers;
  return run(launch, run_thread<kernel, Arguments...>, shared);
}

}  // namespace emu

#define EMU_KERNEL(kernel, launcher, alignment)                                              \
  extern "C" {                                                                               \
  extern EMU_HIDDEN unsigned char __start_emu_shared_##launcher[];                           \
  extern EMU_HIDDEN unsigned char __stop_emu_shared_##launcher[];                            \
  __attribute__((visibility("default"))) const char *launcher(emu::Launch *launch) {         \
    unsigned char *start = __start_emu_shared_##launcher;                                    \
    size_t nbytes = __stop_emu_shared_##launcher - start;                                    \
    return emu::launch<kernel>(*launch, kernel, {start, nbytes, alignment, nullptr, 0});           \
  }                                                                                          \
  }
