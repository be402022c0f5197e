// The twins of codegen/text/cuda_fragments.cuh: tensor-core fragments and asynchronous copies, no PTX.
// A change of a name or an argument here is a change there.
#pragma once

// ------------------------------------------------------------------ matrix fragments
// d (16 x 8) += a (16 x k) @ b (k x 8). Lane l keeps of d the rows l/4 and l/4 + 8 and the columns
// 2 (l%4) and 2 (l%4) + 1; PTX ISA, "Matrix fragments for mma.m16n8k16".

namespace emu {

struct Fragments {
  unsigned a[4], b[2];
};

inline Fragments fragments_of(const Contributions &rows, int lane) {
  Fragments registers;
  memcpy(&registers, rows[lane], sizeof registers);
  return registers;
}

// One of the two 16-bit floats in a register.
template <class T>
float unpacked(unsigned pair, int which) {
  return float(bits_as<T>(uint16_t(pair >> 16 * which)));
}

// Element (row, k) of a, where two 16-bit values share a register.
template <class T>
float a_element(const Contributions &rows, int row, int k) {
  Fragments owner = fragments_of(rows, row % 8 * 4 + k % 8 / 2);
  return unpacked<T>(owner.a[(row >= 8) + 2 * (k >= 8)], k % 2);
}

template <class T>
float b_element(const Contributions &rows, int k, int column) {
  Fragments owner = fragments_of(rows, column * 4 + k % 8 / 2);
  return unpacked<T>(owner.b[k >= 8], k % 2);
}

// tf32: a register holds one value, and the tensor core looks at its upper 19 bits only.
inline float tf32(unsigned bits) { return bits_as<float>(bits & 0xffffe000u); }

inline float a_element_tf32(const Contributions &rows, int row, int k) {
  Fragments owner = fragments_of(rows, row % 8 * 4 + k % 4);
  return tf32(owner.a[(row >= 8) + 2 * (k >= 4)]);
}

inline float b_element_tf32(const Contributions &rows, int k, int column) {
  Fragments owner = fragments_of(rows, column * 4 + k % 4);
  return tf32(owner.b[k >= 4]);
}

template <class A, class B>
void multiply(float *d, const unsigned *a, const unsigned *b, int depth, A a_at, B b_at,
              Site site) {
  Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Contributions &rows = exchange(0xffffffffu, &mine, sizeof mine, site);
  for (int i = 0; i < 4; i++) {
    int row = current->lane / 4 + 8 * (i / 2), column = current->lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < depth; k++) sum += a_at(rows, row, k) * b_at(rows, k, column);
    d[i] += sum;
  }
}

// Lane l brings the address of row l%8 of the 8x8 matrix l/8; lane l gets of each matrix m the two
// 16-bit values (row l/4, columns 2 (l%4) + {0, 1}), or with `transposed` the mirrored ones.
inline void load_matrices(unsigned (&r)[4], const void *shared, bool transposed, Site site) {
  if (reinterpret_cast<uintptr_t>(shared) % 16) {
    fail("%s at line %d: a row's address is not a multiple of 16", site.what, site.line);
  }
  const Contributions &rows = exchange(0xffffffffu, &shared, sizeof shared, site);
  int lane = current->lane;
  for (int matrix = 0; matrix < 4; matrix++) {
    uint16_t pair[2];
    for (int i = 0; i < 2; i++) {
      int row = transposed ? lane % 4 * 2 + i : lane / 4;
      int column = transposed ? lane / 4 : lane % 4 * 2 + i;
      const uint16_t *start;
      memcpy(&start, rows[matrix * 8 + row], sizeof start);
      pair[i] = start[column];
    }
    memcpy(&r[matrix], pair, sizeof pair);
  }
}

}  // namespace emu

inline void tinyml_mma_m16n8k16_f16(float *d, const unsigned *a, const unsigned *b,
                                    int line = __builtin_LINE()) {
  emu::multiply(d, a, b, 16, emu::a_element<__half>, emu::b_element<__half>,
                {"mma.m16n8k16.f16", line});
}

inline void tinyml_mma_m16n8k16_bf16(float *d, const unsigned *a, const unsigned *b,
                                     int line = __builtin_LINE()) {
  emu::multiply(d, a, b, 16, emu::a_element<__nv_bfloat16>, emu::b_element<__nv_bfloat16>,
                {"mma.m16n8k16.bf16", line});
}

inline void tinyml_mma_m16n8k8_f16(float *d, const unsigned *a, const unsigned *b,
                                   int line = __builtin_LINE()) {
  const unsigned lower_a[] = {a[0], a[1], 0, 0}, lower_b[] = {b[0], 0};
  emu::multiply(d, lower_a, lower_b, 8, emu::a_element<__half>, emu::b_element<__half>,
                {"mma.m16n8k8.f16", line});
}

inline void tinyml_mma_m16n8k8_tf32(float *d, const unsigned *a, const unsigned *b,
                                    int line = __builtin_LINE()) {
  emu::multiply(d, a, b, 8, emu::a_element_tf32, emu::b_element_tf32,
                {"mma.m16n8k8.tf32", line});
}

inline unsigned tinyml_tf32(float x) {
  unsigned bits = emu::bits_as<unsigned>(x);
  return x != x ? bits : (bits + 0x1000u) & 0xffffe000u;
}

inline void tinyml_ldmatrix_x4(unsigned (&r)[4], const void *shared,
                               int line = __builtin_LINE()) {
  emu::load_matrices(r, shared, false, {"ldmatrix.x4", line});
}

inline void tinyml_ldmatrix_x4_trans(unsigned (&r)[4], const void *shared,
                                     int line = __builtin_LINE()) {
  emu::load_matrices(r, shared, true, {"ldmatrix.x4.trans", line});
}

// ------------------------------------------------------------------ asynchronous copies
// Nothing arrives before it is waited for, so that a missing wait shows as poison.

inline void tinyml_cp_async16(void *shared, const void *global) {
  emu::copy_later(shared, global, 16, 16);
}

inline void tinyml_cp_async16_or_zero(void *shared, const void *global, bool valid) {
  emu::copy_later(shared, global, 16, valid ? 16 : 0);
}

template <class I>
inline void tinyml_cp_async16_begin(void *shared, const void *global, bool valid, I bytes) {
  emu::copy_later(shared, global, 16, !valid || bytes < 0 ? 0 : bytes < 16 ? bytes : 16);
}

template <int bytes>
inline void tinyml_cp_async_few(void *shared, const void *global) {
  static_assert(bytes == 4 || bytes == 8, "16 bytes go past the L1 cache");
  emu::copy_later(shared, global, bytes, bytes);
}

template <int bytes>
inline void tinyml_cp_async_few_or_zero(void *shared, const void *global, bool valid) {
  static_assert(bytes == 4 || bytes == 8, "16 bytes go past the L1 cache");
  emu::copy_later(shared, global, bytes, valid ? bytes : 0);
}

inline void tinyml_cp_async_commit() { emu::close_copy_group(); }

template <int groups_left>
inline void tinyml_cp_async_wait() {
  emu::finish_copies(groups_left);
}

inline void tinyml_named_barrier(int number, int threads, int line = __builtin_LINE()) {
  emu::wait_at_barrier({"named barrier", line}, number, threads);
}

// ------------------------------------------------------------------ numbers that end as halves

inline float tinyml_exp2(float x) { return exp2f(x); }

inline float tinyml_reciprocal(float x) { return 1.0f / x; }
