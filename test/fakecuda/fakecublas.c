// A libcublas.so for machines without a card: what benchmarks/cublas.py calls, on host memory.
//
// Types and numbers are written down from cublas_api.h and library_types.h of CUDA 13. Whatever a
// caller may not ask is refused with the status that cuBLAS has for it.
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int cublasStatus_t;
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };             // cudaDataType_t
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };  // cublasComputeType_t
enum { OP_N = 0, OP_T = 1 };                            // cublasOperation_t
enum { GEMM_DEFAULT = -1 };                             // cublasGemmAlgo_t

static int context;
static void *stream;
int fake_handles, fake_products;  // how many there are, and how many there were
int fake_rounds;                  // whether float32 is rounded as tf32 is

cublasStatus_t cublasGetProperty(int property, int *value) {
  if (property < 0 || property > 2 || !value) return INVALID_VALUE;
  *value = 13 - 10 * (property == 1) - 11 * (property == 2);  // 13.3.2
  return SUCCESS;
}

cublasStatus_t cublasCreate_v2(void **handle) {
  if (!handle) return INVALID_VALUE;
  fake_handles++;
  *handle = &context;
  return SUCCESS;
}

cublasStatus_t cublasDestroy_v2(void *handle) {
  if (handle != &context || !fake_handles) return NOT_INITIALIZED;
  fake_handles--;
  return SUCCESS;
}

cublasStatus_t cublasSetStream_v2(void *handle, void *given) {
  if (handle != &context) return NOT_INITIALIZED;
  stream = given;
  return SUCCESS;
}

void *fake_stream(void) { return stream; }

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float element(const void *matrix, int type, long place) {
  if (type == R_32F) return ((const float *)matrix)[place];
  uint32_t half = ((const uint16_t *)matrix)[place];
  if (type == R_16BF) return from_bits(half << 16);
  uint32_t sign = (half & 0x8000) << 16, rest = half & 0x7fff;
  return rest < 0x400 ? 0 : from_bits(sign | ((rest << 13) + (112u << 23)));
}

static void put(void *matrix, int type, long place, float value) {
  uint32_t bits = to_bits(value);
  if (type == R_32F) {
    ((float *)matrix)[place] = value;
  } else if (type == R_16BF) {
    ((uint16_t *)matrix)[place] = (bits + 0x8000) >> 16;
  } else {
    uint32_t size = (bits + 0x1000) & 0x7fffffff, sign = bits >> 16 & 0x8000;
    ((uint16_t *)matrix)[place] = sign | (size < 113u << 23 ? 0 : (size - (112u << 23)) >> 13);
  }
}

// C = alpha A B + beta C, all of them by columns.
cublasStatus_t cublasGemmEx(void *handle, int of_a, int of_b, int m, int n, int k,
                            const void *alpha, const void *a, int type_a, int step_a,
                            const void *b, int type_b, int step_b, const void *beta, void *c,
                            int type_c, int step_c, int compute, int algorithm) {
  if (handle != &context || !fake_handles) return NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || !alpha || !beta || of_a != OP_N || of_b != OP_N) return INVALID_VALUE;
  if (step_a < m || step_b < k || step_c < m || algorithm != GEMM_DEFAULT) return INVALID_VALUE;
  int floats = type_a == R_32F, halves = type_a == R_16F || type_a == R_16BF;
  int known = compute == COMPUTE_32F || (floats && compute == COMPUTE_32F_FAST_TF32);
  if (!(floats || halves) || type_b != type_a || type_c != type_a || !known) return NOT_SUPPORTED;
  uint32_t kept = compute == COMPUTE_32F_FAST_TF32 || fake_rounds ? 0xffffe000 : 0xffffffff;
  float by = *(const float *)alpha, more = *(const float *)beta;
  for (long i = 0; i < m; i++) {
    for (long j = 0; j < n; j++) {
      float sum = 0;
      for (long l = 0; l < k; l++) {
        float left = element(a, type_a, i + l * step_a), right = element(b, type_b, l + j * step_b);
        sum += from_bits(to_bits(left) & kept) * from_bits(to_bits(right) & kept);
      }
      long place = i + j * step_c;
      put(c, type_c, place, by * sum + (more ? more * element(c, type_c, place) : 0));
    }
  }
  fake_products++;
  return SUCCESS;
}
