// The emulator's threads: what cuda_emu.h (included by kernels) asks of emu_scheduler.cpp.
//
// A CUDA thread is a fiber (a stack of its own) on the calling OS thread. It runs until it has to
// wait for others, at a barrier or a warp collective, then hands over to the scheduler. Blocks run
// one after the other. A thread that never waits costs a function call and no switch of stacks.
#pragma once
#include <stddef.h>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emu {

constexpr int WARP = 32;
constexpr int PAYLOAD = 32;  // bytes that one lane can contribute to a warp collective

// Where a thread waits: which operation, on which line of the kernel's source.
struct Site {
  const char *what;
  int line;
};

enum class State { READY, AT_BARRIER, IN_COLLECTIVE, UNTIL, DONE };

struct Thread {
  dim3 index;
  int number;  // within the block, x fastest
  int lane;
  State state;
  Site site;          // where it waits
  int barrier;        // the number of the barrier it waits at
  void *stack_top;    // where to resume
  bool (*holds)(const void *what, int value);  // what it waits for, if it waits UNTIL that
  const void *what;
  int value;
};

// What a card keeps to itself of a tensor map: sizes in elements, strides in bytes.
struct BoxMap {
  unsigned long long mark, address, sizes[3], strides[2], box[2], itemsize;
};

constexpr unsigned long long BOX_MAP = 0xb0c5;  // its mark

// A box of global memory on its way to shared memory, whose bytes count at a barrier.
struct BoxCopy {
  unsigned char *shared;
  const void *map;
  int at[3];
  unsigned long long *barrier;
};

// A thread's share of a product of matrices in shared memory, which it adds to its sums.
struct Multiplication {
  float *sums;
  unsigned long long a, b;
  void (*now)(const Multiplication &made);
  void (*look)(const Multiplication &made);  // says what of shared memory is read
  float held[2][16];  // of a: two rows, if threads hold it
};

// What the lanes of one warp collective brought along: one row of bytes per lane.
using Contributions = char[WARP][PAYLOAD];

// One launch, as filled in by the host. `fault` is an answer: the address of an illegal access.
struct Launch {
  unsigned grid[3];
  unsigned block[3];
  size_t shared;
  const void *arguments;  // packed like a C struct, as the CUDA driver wants them
  int order;              // 0 threads run first to last, 1 last to first, 2 shuffled
  void *fault;
};

// A kernel's shared memory: its variables and those of the unit's helpers; behind both, at a multiple
// of `alignment`, what is dynamic.
struct Shared {
  unsigned char *variables;
  size_t nbytes, alignment;
  unsigned char *helpers;
  size_t of_helpers;
};

using Body = void (*)(const void *arguments);  // runs the kernel once, as the current thread

extern Thread *current;
extern dim3 block_index, block_size, grid_size;
extern unsigned char *const shared_memory;  // of a block: what addresses in it count from
extern unsigned char *dynamic_shared;

// Run a whole grid; null, or what went wrong (a text that lives until the next launch).
const char *run(Launch &launch, Body body, const Shared &shared);

// Stop the launch with a message; `format` may use the arguments as printf does.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Wait at barrier `number` for `threads` threads; 0 means all of the block.
void wait_at_barrier(Site site, int number, int threads);

// Let the other threads run, then go on.
void give_way();

// Exchange `bytes` bytes among the lanes of `mask`. The answer is valid until the thread's next
// wait. Every lane of the mask must call it, at the same site.
const Contributions &exchange(unsigned mask, const void *bytes, size_t nbytes, Site site);

// cp.async: a copy into shared memory that happens when it is waited for, not before.
void copy_later(void *shared, const void *global, int bytes, int there);  // zeros behind
void close_copy_group();
void finish_copies(int groups_left);

// Wait until holds(what, value), which other threads or copies bring about.
void wait_until(Site site, bool (*holds)(const void *, int), const void *what, int value);

// Bulk copies happen when nobody can go on without them; with threads last to first, at once.
void copy_box_later(const BoxCopy &copy, void (*bring)(const BoxCopy &));

// wgmma: products that are made when they are waited for, not before.
void begin_products();
void multiply_later(const Multiplication &made, int line);
void close_product_group();
void finish_products(int groups_left);
void check_finished(const float *sums, int line);

// A product reads 16 bytes.
void look_at(const void *piece);

// What this thread has put into shared memory may be read by products from now on.
void fence_async();

}  // namespace emu
