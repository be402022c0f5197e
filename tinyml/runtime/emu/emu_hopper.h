// The twins of codegen/text/cuda_hopper.cuh: barriers in shared memory, bulk copies of boxes, products of
// warpgroups, no PTX. A change of a name or an argument here is a change there.
#pragma once

struct alignas(64) tinyml_tensor_map {
  unsigned long long opaque[16];
};

namespace emu {

// ------------------------------------------------------------------ barriers in shared memory
// In the 64 bits that a card's barrier takes, too. Poison is no barrier: nobody has begun it.

struct Phase {
  short arrivals, missing;
  int bytes : 31;
  unsigned parity : 1;
};

EMU_UNWATCHED Phase &phase_of(unsigned long long *barrier, const char *what, int line) {
  static_assert(sizeof(Phase) == sizeof *barrier, "a barrier has 64 bits");
  Phase &phase = reinterpret_cast<Phase &>(*barrier);
  if (phase.arrivals <= 0) fail("%s at line %d: nobody has begun this barrier", what, line);
  return phase;
}

EMU_UNWATCHED void end_phase_if_due(Phase &phase) {
  if (phase.missing || phase.bytes) return;
  phase.missing = phase.arrivals;
  phase.parity ^= 1;
}

EMU_UNWATCHED void arrive(unsigned long long *barrier, int bytes, const char *what, int line) {
  Phase &phase = phase_of(barrier, what, line);
  phase.bytes += bytes;
  if (!phase.missing--) fail("%s at line %d: more arrivals than the barrier takes", what, line);
  end_phase_if_due(phase);
}

EMU_UNWATCHED bool phase_is_over(const void *barrier, int parity) {
  return int(static_cast<const Phase *>(barrier)->parity) != parity;
}

// ------------------------------------------------------------------ bulk copies
// Pieces of 16 bytes are exchanged within eight rows of 128 bytes, by the row's number.
inline size_t swizzled(size_t place) { return place ^ (place >> 7 & 7) << 4; }

EMU_UNWATCHED void bring_box(const BoxCopy &copy) {
  const BoxMap &map = *static_cast<const BoxMap *>(copy.map);
  size_t lines = map.box[1], width = map.box[0], place = copy.shared - shared_memory;
  for (size_t line = 0; line < lines; line++) {
    for (size_t n = 0; n < width; n++, place += map.itemsize) {
      long at[3] = {copy.at[0] + long(n), copy.at[1] + long(line), copy.at[2]};
      bool inside = true;
      for (int i = 0; i < 3; i++) inside &= at[i] >= 0 && at[i] < long(map.sizes[i]);
      size_t offset = at[0] * map.itemsize + at[1] * map.strides[0] + at[2] * map.strides[1];
      unsigned char *target = shared_memory + swizzled(place);
      if (inside && map.itemsize == 4) {
        unsigned bits = tinyml_tf32(*reinterpret_cast<const float *>(map.address + offset));
        memcpy(target, &bits, sizeof bits);
      } else if (inside) {
        memcpy(target, reinterpret_cast<const char *>(map.address + offset), map.itemsize);
      } else {
        memset(target, 0, map.itemsize);
      }
    }
  }
  Phase &phase = reinterpret_cast<Phase &>(*copy.barrier);
  phase.bytes -= int(lines * width * map.itemsize);
  end_phase_if_due(phase);
}

// ------------------------------------------------------------------ products of warpgroups

// What counts of an element.
template <class T>
float element_of(T element) {
  return float(element);
}
inline float element_of(float element) {
  return bits_as<float>(bits_as<unsigned>(element) & 0xffffe000u);
}

// Element (line, k) of a matrix that a descriptor tells of.
template <class T>
const T *place_in_matrix(unsigned long long matrix, bool crosswise, int line, int k) {
  size_t start = (matrix & 0x3fff) << 4;
  size_t leading = (matrix >> 16 & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4;
  size_t offset = crosswise ? line / 64 * leading + k / 8 * stride + k % 8 * 128 + line % 64 * 2
                            : line / 8 * stride + line % 8 * 128 + k * sizeof(T);
  return reinterpret_cast<const T *>(shared_memory + swizzled(start + offset));
}

template <class T>
EMU_UNWATCHED float matrix_element(unsigned long long matrix, bool crosswise, int line, int k) {
  return element_of(*place_in_matrix<T>(matrix, crosswise, line, k));
}

// The pieces of so many lines, along which halves lie if they are crosswise.
template <class T>
void look_at_matrix(unsigned long long matrix, bool crosswise, int lines) {
  constexpr int piece = 16 / sizeof(T), depth = 32 / sizeof(T);
  for (int line = 0; line < lines; line += crosswise ? piece : 1) {
    for (int k = 0; k < depth; k += crosswise ? 1 : piece) {
      look_at(place_in_matrix<T>(matrix, crosswise, line, k));
    }
  }
}

template <class T, int columns, bool b_crosswise>
void look_at_second(const Multiplication &made) {
  look_at_matrix<T>(made.b, b_crosswise, columns);
}

template <class T, int columns, bool a_crosswise, bool b_crosswise>
void look_at_both(const Multiplication &made) {
  look_at_matrix<T>(made.a, a_crosswise, 64);
  look_at_second<T, columns, b_crosswise>(made);
}

// By rows of a that the thread holds.
template <class T, int columns, bool b_crosswise>
void multiply_held(const Multiplication &made) {
  constexpr int depth = 32 / sizeof(T);
  for (int i = 0; i < columns / 4; i++) {
    int column = i / 2 * 8 + current->lane % 4 * 2 + i % 2;
    float upper = 0, lower = 0;
    for (int k = 0; k < depth; k++) {
      float b = matrix_element<T>(made.b, b_crosswise, column, k);
      upper += made.held[0][k] * b;
      lower += made.held[1][k] * b;
    }
    made.sums[i / 2 * 4 + i % 2] += upper;
    made.sums[i / 2 * 4 + 2 + i % 2] += lower;
  }
}

template <class T, int columns, bool a_crosswise, bool b_crosswise>
void multiply_now(const Multiplication &made) {
  int warp = current->number / WARP % 4, first = warp * 16 + current->lane / 4;
  constexpr int depth = 32 / sizeof(T);
  Multiplication held = made;
  for (int k = 0; k < depth; k++) {
    for (int h = 0; h < 2; h++) {
      held.held[h][k] = matrix_element<T>(made.a, a_crosswise, first + 8 * h, k);
    }
  }
  multiply_held<T, columns, b_crosswise>(held);
}

// What the threads of a warp hold of a, when a product is begun: two rows for each.
template <class T>
void hold_rows(Multiplication &made, const unsigned (&a)[4], int line) {
  Fragments mine = {{a[0], a[1], a[2], a[3]}, {}};
  const Contributions &rows = exchange(0xffffffffu, &mine, sizeof mine, {"wgmma", line});
  for (int h = 0; h < 2; h++) {
    for (int k = 0; k < 16; k++) made.held[h][k] = a_element<T>(rows, current->lane / 4 + 8 * h, k);
  }
}

inline void check_matrix(unsigned long long matrix, int line) {
  if (matrix >> 62 != 1) fail("wgmma at line %d: rows must be those of a swizzle of 128", line);
}

}  // namespace emu

EMU_UNWATCHED void tinyml_mbarrier_init(unsigned long long *barrier, int arrivals) {
  emu::Phase phase = {short(arrivals), short(arrivals), 0, 0};
  memcpy(barrier, &phase, sizeof phase);
}

inline void tinyml_mbarrier_arrive(unsigned long long *barrier, int line = __builtin_LINE()) {
  emu::arrive(barrier, 0, "mbarrier.arrive", line);
}

inline void tinyml_mbarrier_expect(unsigned long long *barrier, int bytes,
                                   int line = __builtin_LINE()) {
  emu::arrive(barrier, bytes, "mbarrier.arrive.expect_tx", line);
}

inline void tinyml_mbarrier_wait(unsigned long long *barrier, int parity,
                                 int line = __builtin_LINE()) {
  emu::phase_of(barrier, "mbarrier.try_wait", line);
  emu::wait_until({"mbarrier.try_wait", line}, emu::phase_is_over, barrier, parity);
}

inline void tinyml_copy_box(void *shared, const tinyml_tensor_map *map, int x, int y, int z,
                            unsigned long long *barrier, int line = __builtin_LINE()) {
  emu::phase_of(barrier, "cp.async.bulk.tensor", line);
  const emu::BoxMap &known = *reinterpret_cast<const emu::BoxMap *>(map);
  if (reinterpret_cast<uintptr_t>(map) % 64 || known.mark != emu::BOX_MAP) {
    emu::fail("cp.async.bulk.tensor at line %d: this is no tensor map", line);
  }
  if (reinterpret_cast<uintptr_t>(shared) % 1024 || known.box[0] * known.itemsize != 128) {
    emu::fail("cp.async.bulk.tensor at line %d: rows of 128 bytes go to multiples of 1024", line);
  }
  emu::BoxCopy copy = {static_cast<unsigned char *>(shared), map, {x, y, z}, barrier};
  emu::copy_box_later(copy, emu::bring_box);
}

inline void tinyml_fence_map(const tinyml_tensor_map *) {}

template <int count>
inline void tinyml_hand_over_registers() {}

template <int count>
inline void tinyml_take_registers() {}

inline void tinyml_fence_async() { emu::fence_async(); }

inline unsigned long long tinyml_matrix(const void *shared, int further, int leading, int stride,
                                        int line = __builtin_LINE()) {
  size_t place = static_cast<const unsigned char *>(shared) + further - emu::shared_memory;
  if ((place | leading | stride) % 16) {
    emu::fail("wgmma at line %d: a matrix lies at multiples of 16 bytes", line);
  }
  return (place >> 4 & 0x3fff) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

inline void tinyml_wgmma_begin() { emu::begin_products(); }
inline void tinyml_wgmma_commit() { emu::close_product_group(); }

// By all lanes of a warp: when one goes on, its whole warp's products are made.
template <int groups_left>
inline void tinyml_wgmma_wait(int line = __builtin_LINE()) {
  emu::finish_products(groups_left);
  char nothing = 0;
  emu::exchange(0xffffffffu, &nothing, 1, {"wgmma.wait_group", line});
}

template <int count>
inline void tinyml_wgmma_hold(float (&)[count]) {}

template <int count>
inline void tinyml_wgmma_made(float (&sums)[count], int line = __builtin_LINE()) {
  emu::check_finished(sums, line);
}

#define EMU_WGMMA(N, NAME, T)                                                                \
  template <int a_crosswise, int b_crosswise>                                                \
  inline void tinyml_wgmma_m64n##N##NAME(float (&d)[N / 2], unsigned long long a,            \
                                         unsigned long long b, int line = __builtin_LINE()) { \
    emu::check_matrix(a & b, line);                                                          \
    emu::multiply_later({d, a, b, emu::multiply_now<T, N, a_crosswise, b_crosswise>,         \
                         emu::look_at_both<T, N, a_crosswise, b_crosswise>, {}}, line);      \
  }
#define EMU_WGMMA_HELD(N, NAME, T)                                                           \
  template <int b_crosswise>                                                                 \
  inline void tinyml_wgmma_m64n##N##NAME(float (&d)[N / 2], const unsigned (&a)[4],          \
                                         unsigned long long b, int line = __builtin_LINE()) { \
    emu::check_matrix(b, line);                                                              \
    emu::Multiplication made = {d, 0, b, emu::multiply_held<T, N, b_crosswise>,              \
                                emu::look_at_second<T, N, b_crosswise>, {}};                 \
    emu::hold_rows<T>(made, a, line);                                                        \
    emu::multiply_later(made, line);                                                         \
  }
#define EMU_WGMMAS_HELD(NAME, T)                             \
  EMU_WGMMA_HELD(64, NAME, T) EMU_WGMMA_HELD(128, NAME, T)   \
  EMU_WGMMA_HELD(192, NAME, T) EMU_WGMMA_HELD(256, NAME, T)
EMU_WGMMAS_HELD(k16_f16, __half)
EMU_WGMMAS_HELD(k16_bf16, __nv_bfloat16)
#undef EMU_WGMMAS_HELD
#undef EMU_WGMMA_HELD
#define EMU_WGMMAS(NAME, T)                             \
  EMU_WGMMA(32, NAME, T)                                \
  EMU_WGMMA(64, NAME, T) EMU_WGMMA(128, NAME, T)        \
  EMU_WGMMA(192, NAME, T) EMU_WGMMA(256, NAME, T)
EMU_WGMMAS(k16_f16, __half)
EMU_WGMMAS(k16_bf16, __nv_bfloat16)
EMU_WGMMAS(k8_tf32, float)
#undef EMU_WGMMAS
#undef EMU_WGMMA
