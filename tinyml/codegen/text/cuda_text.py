"""Pieces of CUDA C that kernels share."""

from __future__ import annotations

from pathlib import Path

from tinyml.codegen.text import c_text, vector_math, vector_math64, vector_parts
from tinyml.dtype import DType, float32, float64
from tinyml.ops import Op

HEADERS = {"float16": "#include <cuda_fp16.h>", "bfloat16": "#include <cuda_bf16.h>"}

PACK = """template <class T, int N> struct __align__(sizeof(T) * N) pack { T at[N]; };
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}"""

# a pair lies in one word, of which a float is the upper half: one instruction, not three
WIDENED_LANE = """template <int LANE, int N>
__device__ __forceinline__ float widened(const pack<__nv_bfloat16, N> &values) {
  unsigned word;
  memcpy(&word, &values.at[LANE & ~1], sizeof(word));
  return bits_as<float>(LANE & 1 ? word & 0xffff0000u : word << 16);
}"""

NEIGHBOURS = """template <int FIRST, int LANES, class T, int N>
__device__ __forceinline__ pack<T, LANES> neighbours(const pack<T, N> &values) {
  pack<T, LANES> some;
  memcpy(&some, &values.at[FIRST], sizeof(some));
  return some;
}"""

# in words: zeros of 16 bits are put beside what is loaded one by one
READ_IF = """template <class P> __device__ __forceinline__ P read_if(bool there, const P *place) {
  struct __align__(sizeof(P)) words { unsigned at[sizeof(P) / 4]; } read = {};
  if (there) read = *(const words *)place;
  return bits_as<P>(read);
}"""

# of values side by side some, where the row that they are of begins or ends among them
PUT_SOME = """template <class T, int N, class I>
__device__ __forceinline__ void put_some(T *place, const pack<T, N> &values, I first, I last) {
  if (first <= 0 && last >= N - 1) {
    *(pack<T, N> *)place = values;
    return;
  }
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (first <= n && n <= last) place[n] = values.at[n];
}"""

FRAGMENTS = Path(__file__).with_name("cuda_fragments.cuh").read_text()
HOPPER = Path(__file__).with_name("cuda_hopper.cuh").read_text()

FRAGMENT = """struct fragment { unsigned at[4]; };  // what a lane holds of a matrix
template <bool crosswise>
__device__ __forceinline__ fragment load_fragment(const void *row) {
  fragment held;
  if constexpr (crosswise) tinyml_ldmatrix_x4_trans(held.at, row);
  else tinyml_ldmatrix_x4(held.at, row);
  return held;
}"""

# floats in shared memory are rounded to what tensor cores take when they are loaded
FRAGMENT_TF32 = """__device__ __forceinline__ fragment load_fragment_tf32(const void *row) {
  fragment held = load_fragment<false>(row);
#pragma unroll
  for (int i = 0; i < 4; ++i) held.at[i] = tinyml_tf32(__uint_as_float(held.at[i]));
  return held;
}"""

# the left half of the columns, then the right one
PRODUCT = """__device__ __forceinline__ void add_product_KIND(
    pack<float, 8> &sums, const fragment &a, const fragment &b) {
  tinyml_mma_SHAPE(sums.at, a.at, b.at);
  tinyml_mma_SHAPE(sums.at + 4, a.at, b.at + 2);
}"""
# the same, half of the steps at a time
PRODUCT_BY_HALVES = """__device__ __forceinline__ void add_product_KIND(
    pack<float, 8> &sums, const fragment &a, const fragment &b) {
  tinyml_mma_SHAPE(sums.at, a.at, b.at);
  tinyml_mma_SHAPE(sums.at + 4, a.at, b.at + 2);
  tinyml_mma_SHAPE(sums.at, a.at + 2, b.at + 1);
  tinyml_mma_SHAPE(sums.at + 4, a.at + 2, b.at + 3);
}"""
SHAPES = {"float16": "m16n8k16_f16", "bfloat16": "m16n8k16_bf16", "float32": "m16n8k8_tf32"}
# what FRAGMENTS has for halves to come
ROUGH = frozenset((Op.EXP, Op.EXP2, Op.DIV, Op.TANH, Op.LOGISTIC))
HALF_SHAPES = {"float16": "m16n8k8_f16"}  # of cards before capability 8.0, which know no others
AMPERE = 80


# a float as a bfloat16 holds it: the upper half of two that are rounded at once, beside a 0
ROUND = """__device__ __forceinline__ float rounded(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
  return __uint_as_float(bits);
#else
  return __bfloat162float(__float2bfloat16_rn(x));
#endif
}"""


# a place in panels: 16 bytes of a row stand where the row's number says
SWIZZLED = """template <int ROW> __device__ __forceinline__ int swizzled(int place) {
  return place ^ (place / ROW & 7) * (ROW / 8);
}"""


def product_of(dtype: DType, capability: int) -> str:
    """The helper that adds a lane's share of a product of matrices of `dtype`."""
    half = HALF_SHAPES.get(dtype.name) if capability < AMPERE else None
    text = PRODUCT_BY_HALVES if half else PRODUCT
    return text.replace("SHAPE", half or SHAPES[dtype.name]).replace("KIND", dtype.name)


COMBINE = """struct NAME {
  typedef TYPE type;
  static __device__ __forceinline__ TYPE of(TYPE a, TYPE b) { return VALUE; }
};"""

# N threads side by side along x, out of ALL in the block; every one gets the result. The order
# is fixed: butterflies inside each warp, then the warps from the first to the last. A mask may
# name no lane that is not there: the last warp has REST of them, if the block is no whole warps.
ACROSS = """template <class Op, int N, int ALL>
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
}"""

# What blocks have put into memory is read by the last of them, in the order of their parts.
COMES_LAST = """__device__ __forceinline__ bool comes_last(unsigned *came, unsigned blocks) {
  __shared__ bool last;
  __threadfence();  // what this block wrote is seen before its coming is
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(came, 1u) == blocks - 1;
    if (last) *came = 0;  // for the next launch
  }
  __syncthreads();
  __threadfence();
  return last;
}"""
# pieces lie beside those of other threads, so that neighbours write whole lines
TOGETHER = """template <int THREADS, class T, int LANES, int N>
__device__ __forceinline__ void put_aside(pack<T, LANES> *part, const pack<T, N> &values) {
#pragma unroll
  for (int p = 0; p < N / LANES; ++p) {
    pack<T, LANES> piece;
#pragma unroll
    for (int i = 0; i < LANES; ++i) piece.at[i] = values.at[p * LANES + i];
    part[p * THREADS] = piece;
  }
}
template <class Op, int PARTS, int THREADS, int N, class T, int LANES>
__device__ __forceinline__ void together(T *all, const pack<T, LANES> *part, int apart) {
  constexpr int ALL = N / LANES, AT_ONCE = ALL < 16 ? ALL : 16;  // pieces under way
#pragma unroll
  for (int begin = 0; begin < ALL; begin += AT_ONCE) {
    pack<T, LANES> piece[AT_ONCE], next[AT_ONCE];
#pragma unroll
    for (int p = 0; p < AT_ONCE; ++p)
      if (begin + p < ALL) piece[p] = part[(begin + p) * THREADS];
#pragma unroll(16 / AT_ONCE)
    for (int n = 1; n < PARTS; ++n) {
#pragma unroll
      for (int p = 0; p < AT_ONCE; ++p)
        if (begin + p < ALL) next[p] = part[n * apart + (begin + p) * THREADS];
#pragma unroll
      for (int i = 0; i < AT_ONCE * LANES; ++i)
        if (begin + i / LANES < ALL)
          piece[i / LANES].at[i % LANES] =
              Op::of(piece[i / LANES].at[i % LANES], next[i / LANES].at[i % LANES]);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE * LANES; ++i)
      if (begin + i / LANES < ALL) all[begin * LANES + i] = piece[i / LANES].at[i % LANES];
  }
}"""

# compare-and-swap on the 32 or 64 bits that hold the element; the plain sums have instructions
ATOMIC = """template <class Op, class T, class V>
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
}"""

LOOK = """template <class I> __device__ __forceinline__ I look(long long i, I size) {
  return (unsigned long long)i < (unsigned long long)size ? (I)i : 0;  // no foreign memory
}"""

# for what int64 cannot hold stands the least number, as elsewhere; a card takes the nearest one
WHOLE = """template <class F> __device__ __forceinline__ long long whole(F x) {
  const F most = (F)9223372036854775808.0;
  return x >= -most && x < most ? (long long)x : -9223372036854775807 - 1;
}"""

REQUIRE = """template <class T>
__device__ __forceinline__ T require(T value, bool holds, long long code, long long *fault) {
  typedef unsigned long long u64;
  if (!holds && atomicCAS((u64 *)fault, (u64)0, (u64)code) == 0) fault[1] = (long long)value;
  return value;
}"""


# floats in one instruction, where there is one that NaN goes through (a compiler finds four)
EXTREMES = {Op.MAX: "max", Op.MIN: "min"}
EXTREME = """#if __CUDA_ARCH__ >= 800
  float found;
  asm("OP.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;"""


def function(op: Op, dtype: DType, kind: str, name: str) -> str:
    """C's function for an op that has no operator."""
    names = {"TYPE": kind, "NAME": name, "BITS": str(dtype.bitsize)}
    names["SUFFIX"] = "f" if dtype is float32 else ""
    text = c_text.function(op, "f" if dtype.is_float else dtype.kind, names)
    if op in EXTREMES and dtype is float32:
        begin = EXTREME.replace("OP", EXTREMES[op])
        text = text.replace("{\n", f"{{\n{begin}\n#else\n", 1).replace("\n}", "\n#endif\n}")
    return text.replace("static inline", "__device__ __forceinline__").replace("__builtin_", "")


# what C's functions on lanes call, of one lane
_PICK = "static inline F32 pick_F32(bool m, F32 a, F32 b) { return m ? a : b; }"
_FMA = "static inline F32 fma_F32(F32 a, F32 b, F32 c) { return fmaf(a, b, c); }"
_CLAMP = """static inline F32 clamp_F32(F32 x, F32 low, F32 high) {
  return x < low ? low : x > high ? high : x;
}"""
# A quotient of what is no small divisor takes no branch, where that of IEEE arithmetic has one for
# divisors whose reciprocal is none: gelu after a product took nine times as long as the product.
# The reciprocal of the card's table is put right by what it leaves; 0, inf and NaN leave nothing.
_QUOTIENT = """static inline F32 quotient_F32(F32 a, F32 b) {  // 1 <= b < 2**126
#ifdef __CUDA_EMU__
  const F32 part = 1.0f / b;
#else
  F32 part;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(b));
#endif
  const F32 most = a * part, rest = fmaf(-b, most, a);
  return fabsf(rest) > 0.0f ? fmaf(rest, part, most) : most;
}"""
_DIVIDED = (
    "a * down / (rest * up + 1.0f + s * up)",
    "quotient_F32(a * down, rest * up + 1.0f + s * up)",
)
_OF_FLOATS = {
    Op.LOGISTIC: (_CLAMP, _QUOTIENT, vector_math.LOGISTIC.replace(*_DIVIDED)),
    Op.NDTR: (_PICK, _CLAMP, _FMA, vector_parts.ABS, vector_parts.SCALE, vector_math.NDTR),
}
_OF_DOUBLES = {
    Op.LOGISTIC: (_CLAMP.replace("F32", "F64"), vector_math64.LOGISTIC),
    Op.NDTR: (function(Op.NDTR, float64, "F64", "ndtr_F64"),),
}
ON_LANES = _OF_FLOATS.keys()  # ops that are the functions of C's lanes, NAME_float and NAME_double


def lane_functions(op: Op, dtype: DType) -> list[str]:
    """A function of one float32 or float64, after those that it calls."""
    names = ("32", "float", "int") if dtype is float32 else ("64", "double", "long long")
    width, real, integer = names
    changes = {
        f"(F{width})(": f"bits_as<{real}>(",
        f"(I{width})(": f"bits_as<{integer}>(",
        f"F{width}": real,
        f"I{width}": integer,
        "static inline": "__device__ __forceinline__",
    }
    texts = list((_OF_FLOATS if dtype is float32 else _OF_DOUBLES)[op])
    for old, new in changes.items():
        texts = [text.replace(old, new) for text in texts]
    return texts
