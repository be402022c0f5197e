typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
// mul_add_64x100
//   v0 = slot1 * slot2                    : 64x100 float32
//   v1 = v0 + 1                           : 64x100 float32
// slot0 = v1
void mul_add_64x100_8000c5be(void *const *buffers, long start, long end) {
  float *restrict slot0 = buffers[0];
  const float *restrict slot1 = buffers[1];
  const float *restrict slot2 = buffers[2];
  for (long block = start; block < end; ++block) {
    const long i0 = block;
    const f32x8 v0 = *(const f32x8 *)(slot1 + i0 * 8);
    const f32x8 v1 = *(const f32x8 *)(slot2 + i0 * 8);
    *(f32x8 *)(slot0 + i0 * 8) = v0 * v1 + (1.0f - (f32x8){0});
  }
}
