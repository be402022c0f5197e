// The emulator's threads, see emu_scheduler.h. Compiled once and linked into every unit.
#include "emu_scheduler.h"
#include "emu_switch.h"

#include <stdio.h>
#ifdef EMU_RACES
#include "emu_races.h"
#define EMU_WATCH(...) __VA_ARGS__
#else
#define EMU_WATCH(...)
#endif

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

Thread *current;
dim3 block_index, block_size, grid_size;
unsigned char *dynamic_shared;

namespace {

constexpr int MAX_THREADS = 1024;
constexpr int BARRIERS = 16;
constexpr size_t SHARED_LIMIT = 227 << 10;   // bytes per block, as on sm_90
constexpr size_t STATIC_LIMIT = 48 << 10;    // bytes of them in variables of fixed size
constexpr unsigned char POISON = 0xff;       // a NaN in every float format, -1 in every int

// ------------------------------------------------------------------ state of the launch

// One warp collective under way. Lanes arrive, the last one releases the others, and each leaves
// when it runs again; only then may the slot serve another collective.
struct Collective {
  unsigned mask, arrived, leaving;
  Contributions rows;
};

constexpr int COLLECTIVES = 8;  // of one warp at a time, one per mask and one being left

struct Barrier {
  int arrived, wanted;  // wanted: 0 is every thread of the block
};

// What std::vector would be: a unit takes twice as long to link with libstdc++ as without.
template <class T>
class List {
 public:
  const T *begin() const { return items_; }
  const T *end() const { return items_ + size_; }
  bool empty() const { return !size_; }
  void clear() { size_ = 0; }

  void push_back(const T &item) {
    if (size_ == room_) {
      room_ = room_ ? 2 * room_ : 8;
      items_ = static_cast<T *>(realloc(items_, room_ * sizeof(T)));
      if (!items_) abort();
    }
    items_[size_++] = item;
  }

  void drop_first(size_t count) {
    size_ -= count;
    memmove(items_, items_ + count, size_ * sizeof(T));
  }

 private:
  T *items_;  // lists are static, hence empty at first
  size_t size_, room_;
};

struct Copy {
  void *shared;
  const void *global;
  int bytes;
  int there;  // of these, the rest is zeros
  int group;
};

struct CopyQueue {
  List<Copy> pending;
  int open_group;
};

struct Product {
  Multiplication made;
  int group;
  unsigned phase;
};

struct ProductQueue {
  List<Product> pending;
  int open_group;
  bool begun;
};

struct BoxOnItsWay {
  BoxCopy copy;
  void (*bring)(const BoxCopy &);
};

Thread threads[MAX_THREADS];
Thread *order[MAX_THREADS];  // the order in which threads get their turn
CopyQueue copies[MAX_THREADS];
ProductQueue products[MAX_THREADS];
List<BoxOnItsWay> boxes;
bool boxes_at_once;
Collective collectives[MAX_THREADS / WARP][COLLECTIVES];
Barrier barriers[BARRIERS];
alignas(1024) unsigned char memory_of_block[SHARED_LIMIT];

char *stacks;                // MAX_THREADS stacks, each with a guard page below
bool guarded[MAX_THREADS];   // whether a stack's guard page is in place
void *scheduler_top;         // where the scheduler goes on

Body kernel;
const void *kernel_arguments;
int thread_count, started, running;
char message[1024];
sigjmp_buf escape;           // out of the kernel, with a message
volatile void *fault_address;

// ------------------------------------------------------------------ running threads

void back_to_scheduler() {
  emu_switch_stack(&current->stack_top, scheduler_top);
}

// The life of a stack: run threads that were not started yet. When one of them waits, it keeps the
// stack and the scheduler opens another; as long as none does, they follow without a switch.
extern "C" void emu_enter() {
  while (started < thread_count) {
    current = order[started++];
    kernel(kernel_arguments);
    current->state = State::DONE;
    running--;
  }
  back_to_scheduler();
  abort();  // nobody resumes a thread that is done
}

char *stack_end(int stack) {
  // Staggered: tops that are a power of two apart would all fall into one set of the cache.
  return stacks + STACK_BYTES * (stack + 1) - 128 - stack % 32 * 1088;
}

void guard_stack(int stack) {
  if (!guarded[stack]) mprotect(stacks + STACK_BYTES * stack, sysconf(_SC_PAGESIZE), PROT_NONE);
  guarded[stack] = true;
}

void start_threads() {
  for (int stack = 0; started < thread_count; stack++) {
    guard_stack(stack);
    emu_switch_stack(&scheduler_top, prepare_stack(stack_end(stack)));
  }
}

bool resume_ready_threads() {
  bool progress = false;
  for (int i = 0; i < thread_count; i++) {
    if (order[i]->state != State::READY) continue;
    current = order[i];
    emu_switch_stack(&scheduler_top, current->stack_top);
    progress = true;
  }
  return progress;
}

const char *shown(const Thread &thread) {
  static char text[2][64];
  static int turn;
  turn ^= 1;
  snprintf(text[turn], sizeof text[turn], "(%u,%u,%u)", thread.index.x, thread.index.y,
           thread.index.z);
  return text[turn];
}

#ifdef EMU_RACES
// Memory of the unit's own is what blocks set aside for the last one, which has counted them.
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], _end[];
Shared shared_now;

bool is_within(uintptr_t address, const void *start, size_t size) {
  return address - reinterpret_cast<uintptr_t>(start) < size;
}

Place place_of(uintptr_t address) {
  const Shared &own = shared_now;
  bool shared = is_within(address, memory_of_block, SHARED_LIMIT) ||
                is_within(address, own.variables, own.nbytes) ||
                is_within(address, own.helpers, own.of_helpers);
  if (shared) return Place::SHARED;
  bool of_thread = is_within(address, stacks, STACK_BYTES * MAX_THREADS);
  return of_thread || is_within(address, __ehdr_start, _end - __ehdr_start) ? Place::OWN
                                                                             : Place::GLOBAL;
}
#endif

// ------------------------------------------------------------------ barriers

void check_same_site(int number) {
  const Thread *first = nullptr;
  for (int i = 0; i < thread_count; i++) {
    const Thread &thread = threads[i];
    if (thread.state != State::AT_BARRIER || thread.barrier != number) continue;
    if (!first) first = &thread;
    if (thread.site.line != first->site.line) {
      fail("divergent barrier: in block (%u,%u,%u) thread %s waits at line %d and thread %s at"
           " line %d", block_index.x, block_index.y, block_index.z, shown(*first),
           first->site.line, shown(thread), thread.site.line);
    }
  }
}

const Thread *first_in(State state) {
  for (int i = 0; i < thread_count; i++) {
    if (threads[i].state == state) return &threads[i];
  }
  return nullptr;
}

bool release(int number) {
  Barrier &barrier = barriers[number];
  int wanted = barrier.wanted ? barrier.wanted : running;
  if (!barrier.arrived || barrier.arrived != wanted) return false;
  if (!barrier.wanted) {
    check_same_site(number);
    if (running < thread_count) {
      const Thread *waiting = first_in(State::AT_BARRIER);
      fail("early exit: in block (%u,%u,%u) thread %s returned before the barrier at line %d"
           " that thread %s waits at", block_index.x, block_index.y, block_index.z,
           shown(*first_in(State::DONE)), waiting->site.line, shown(*waiting));
    }
  }
  barrier.arrived = 0;
  EMU_WATCH(phase_now++;)
  for (int i = 0; i < thread_count; i++) {
    Thread &thread = threads[i];
    if (thread.state == State::AT_BARRIER && thread.barrier == number) thread.state = State::READY;
  }
  return true;
}

bool release_full_barriers() {
  bool progress = false;
  for (int number = 0; number < BARRIERS; number++) progress |= release(number);
  return progress;
}

bool release_who_waited() {
  bool progress = false;
  for (int i = 0; i < thread_count; i++) {
    Thread &thread = threads[i];
    if (thread.state != State::UNTIL || !thread.holds(thread.what, thread.value)) continue;
    thread.state = State::READY;
    progress = true;
  }
  return progress;
}

bool bring_one_box() {
  if (boxes.empty()) return false;
  BoxOnItsWay first = *boxes.begin();
  boxes.drop_first(1);
  first.bring(first.copy);
  return true;
}

[[noreturn]] void report_deadlock() {
  const Thread *waiting = first_in(State::IN_COLLECTIVE);
  if (!waiting) waiting = first_in(State::UNTIL);
  if (!waiting) waiting = first_in(State::AT_BARRIER);
  const Thread *gone = first_in(State::DONE);
  fail("dead-lock: in block (%u,%u,%u) thread %s waits in %s at line %d for threads that never"
       " come%s%s", block_index.x, block_index.y, block_index.z, shown(*waiting),
       waiting->site.what, waiting->site.line, gone ? "; already returned: thread " : "",
       gone ? shown(*gone) : "");
}

// ------------------------------------------------------------------ blocks

void reset_thread(int number) {
  Thread &thread = threads[number];
  thread.number = number;
  thread.lane = number % WARP;
  thread.index = dim3(number % block_size.x, number / block_size.x % block_size.y,
                      number / (block_size.x * block_size.y));
  thread.state = State::READY;
  copies[number].pending.clear();
  copies[number].open_group = 0;
  products[number].pending.clear();
  products[number].open_group = 0;
  products[number].begun = false;
}

void run_block() {
  memset(barriers, 0, sizeof barriers);
  for (int warp = 0; warp < (thread_count + WARP - 1) / WARP; warp++) {
    for (Collective &slot : collectives[warp]) slot.arrived = slot.leaving = 0;
  }
  for (int i = 0; i < thread_count; i++) reset_thread(i);
  started = 0;
  boxes.clear();
  running = thread_count;
  start_threads();
  while (running) {
    bool progress = resume_ready_threads();
    progress |= release_full_barriers();
    progress |= release_who_waited();
    if (running && !progress && !bring_one_box()) report_deadlock();
  }
  if (!boxes.empty()) {
    fail("block (%u,%u,%u) is done before a bulk copy has arrived", block_index.x, block_index.y,
         block_index.z);
  }
}

void set_thread_order(int kind, uint64_t block) {
  for (int i = 0; i < thread_count; i++) {
    order[i] = &threads[kind == 1 ? thread_count - 1 - i : i];
  }
  if (kind != 2) return;
  uint32_t random = 12345 + uint32_t(block) * 2654435761u;
  for (int i = thread_count - 1; i > 0; i--) {
    random = random * 1664525u + 1013904223u;
    int other = (random >> 8) % (i + 1);
    Thread *kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
}

// The n-th block to run. Multiplying by a prime that does not divide `blocks` shuffles them.
uint64_t nth_block(uint64_t n, uint64_t blocks, int kind) {
  constexpr uint64_t PRIME = 1000003;
  if (kind == 0) return n;
  if (kind == 1 || blocks % PRIME == 0) return blocks - 1 - n;
  return (n * PRIME + blocks / 2) % blocks;
}

void run_grid(const Launch &launch, const Shared &shared) {
  uint64_t plane = uint64_t(grid_size.x) * grid_size.y;
  uint64_t blocks = plane * grid_size.z;
  set_thread_order(launch.order, 0);
  boxes_at_once = launch.order == 1;
  EMU_WATCH(forget_accesses(); shared_now = shared;)
  for (uint64_t n = 0; n < blocks; n++) {
    EMU_WATCH(block_now++; phase_now++;)
    uint64_t block = nth_block(n, blocks, launch.order);
    block_index = dim3(block % grid_size.x, block % plane / grid_size.x, block / plane);
    if (launch.order == 2) set_thread_order(launch.order, block);
    // Whoever reads what no thread wrote in this block shall notice.
    memset(dynamic_shared, POISON, launch.shared);
    if (shared.nbytes) memset(shared.variables, POISON, shared.nbytes);
    run_block();
  }
}

size_t up_to(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

void check_launch(const Launch &launch, const Shared &shared) {
  uint64_t count = uint64_t(launch.block[0]) * launch.block[1] * launch.block[2];
  if (count < 1 || count > MAX_THREADS) {
    fail("a block of %llu threads; it must be 1 to 1024", (unsigned long long)count);
  }
  if (shared.nbytes > STATIC_LIMIT) {
    fail("%zu bytes of shared variables; beyond %zu the memory must be dynamic", shared.nbytes,
         STATIC_LIMIT);
  }
  size_t all = launch.shared + up_to(shared.nbytes, shared.alignment);
  if (all > SHARED_LIMIT) fail("%zu bytes of shared memory; a block has %zu", all, SHARED_LIMIT);
}

// Behind all helpers' variables, if there is room: which a kernel uses only a card's compiler knows.
size_t place_of_dynamic(size_t nbytes, const Shared &shared) {
  size_t place = up_to(shared.nbytes + shared.of_helpers, shared.alignment);
  return place + nbytes > SHARED_LIMIT ? up_to(shared.nbytes, shared.alignment) : place;
}

// ------------------------------------------------------------------ faults

void on_signal(int, siginfo_t *info, void *) {
  // SIGILL and SIGTRAP are the traps that -fsanitize=alignment,bounds puts into kernels.
  bool wild = info->si_signo == SIGSEGV || info->si_signo == SIGBUS;
  const char *what = info->si_signo == SIGFPE ? "integer division by zero"
                     : wild ? "illegal memory access"
                            : "misaligned access, or index outside a fixed-size array,";
  // An address beyond the 48 bits that processors have is not told (null): call it the last byte.
  void *nowhere = reinterpret_cast<void *>(UINTPTR_MAX);
  fault_address = !wild ? nullptr : info->si_addr ? info->si_addr : nowhere;
  snprintf(message, sizeof message, "%s by block (%u,%u,%u) thread %s", what, block_index.x,
           block_index.y, block_index.z, current ? shown(*current) : "(?)");
  siglongjmp(escape, 1);
}

// Turns faults inside the kernel into messages for as long as it lives.
class FaultHandler {
 public:
  FaultHandler() {
    static char *alternative;
    if (!alternative) alternative = static_cast<char *>(malloc(STACK_BYTES));
    stack_t stack = {};
    stack.ss_sp = alternative;  // the faulting stack may be the one that overflowed
    stack.ss_size = STACK_BYTES;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < COUNT; i++) sigaction(SIGNALS[i], &action, &old_actions_[i]);
  }
  ~FaultHandler() {
    for (int i = 0; i < COUNT; i++) sigaction(SIGNALS[i], &old_actions_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  static constexpr int COUNT = 5;
  static constexpr int SIGNALS[COUNT] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
  stack_t old_stack_;
  struct sigaction old_actions_[COUNT];
};

void reserve_stacks() {
  if (stacks) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(nullptr, STACK_BYTES * MAX_THREADS, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) fail("no address space for the threads' stacks");
  stacks = static_cast<char *>(memory);
}

// Each guard page is a mapping more, of which a process has some 65,000 and each unit its own
// stacks: none stays behind a launch.
struct Stacks {
  ~Stacks() {
    if (stacks) munmap(stacks, STACK_BYTES * MAX_THREADS);
    stacks = nullptr;
    memset(guarded, 0, sizeof guarded);
  }
};

}  // namespace

// ------------------------------------------------------------------ what kernels and hosts call

unsigned char *const shared_memory = memory_of_block;

const char *run(Launch &launch, Body body, const Shared &shared) {
  FaultHandler handler;
  Stacks of_this_launch;
  fault_address = nullptr;
  if (sigsetjmp(escape, 1)) {
    launch.fault = const_cast<void *>(fault_address);
    return message;
  }
  current = nullptr;
  check_launch(launch, shared);
  reserve_stacks();
  grid_size = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
  block_size = dim3(launch.block[0], launch.block[1], launch.block[2]);
  thread_count = block_size.x * block_size.y * block_size.z;
  dynamic_shared = shared_memory + place_of_dynamic(launch.shared, shared);
  kernel = body;
  kernel_arguments = launch.arguments;
  run_grid(launch, shared);
  return nullptr;
}

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  siglongjmp(escape, 1);
}

void wait_at_barrier(Site site, int number, int count) {
  if (number < 0 || number >= BARRIERS) fail("barrier %d; there are 0 to 15", number);
  current->state = State::AT_BARRIER;
  current->site = site;
  current->barrier = number;
  barriers[number].arrived++;
  barriers[number].wanted = count;
  back_to_scheduler();
}

void give_way() {
  back_to_scheduler();  // the state stays READY
}

static Collective &collective_for(unsigned mask, unsigned own_bit, Site site) {
  Collective *slots = collectives[current->number / WARP];
  Collective *unused = nullptr;
  for (int i = 0; i < COLLECTIVES; i++) {
    bool idle = !slots[i].arrived && !slots[i].leaving;
    if (slots[i].arrived && slots[i].mask == mask && !(slots[i].arrived & own_bit)) {
      return slots[i];
    }
    if (idle && !unused) unused = &slots[i];
  }
  if (!unused) fail("%s at line %d: too many different lane masks at once", site.what, site.line);
  unused->mask = mask;
  return *unused;
}

// The last lane is in: everybody in the mask goes on.
static void complete(Collective &slot, Site site) {
  Thread *warp = threads + current->number / WARP * WARP;
  for (int lane = 0; lane < WARP; lane++) {
    if (!(slot.mask >> lane & 1) || lane == current->lane) continue;
    if (warp[lane].site.line != site.line || warp[lane].site.what != site.what) {
      fail("divergent warp: in block (%u,%u,%u) thread %s is in %s at line %d and thread %s in"
           " %s at line %d", block_index.x, block_index.y, block_index.z, shown(*current),
           site.what, site.line, shown(warp[lane]), warp[lane].site.what, warp[lane].site.line);
    }
    warp[lane].state = State::READY;
  }
  slot.leaving = slot.mask;
  slot.arrived = 0;
}

const Contributions &exchange(unsigned mask, const void *bytes, size_t nbytes, Site site) {
  unsigned own_bit = 1u << current->lane;
  if (!(mask & own_bit)) {
    fail("%s at line %d: thread %s calls it with mask %#x, which lacks its own lane", site.what,
         site.line, shown(*current), mask);
  }
  Collective &slot = collective_for(mask, own_bit, site);
  memcpy(slot.rows[current->lane], bytes, nbytes);
  slot.arrived |= own_bit;
  if (slot.arrived == mask) {
    complete(slot, site);
  } else {
    current->state = State::IN_COLLECTIVE;
    current->site = site;
    back_to_scheduler();
  }
  slot.leaving &= ~own_bit;
  return slot.rows;
}

void copy_later(void *shared, const void *global, int bytes, int there) {
  bool aligned = reinterpret_cast<uintptr_t>(shared) % bytes == 0 &&
                 (!there || reinterpret_cast<uintptr_t>(global) % bytes == 0);
  if (!aligned) {
    fail("misaligned cp.async by block (%u,%u,%u) thread %s: both addresses must be multiples"
         " of %d", block_index.x, block_index.y, block_index.z, shown(*current), bytes);
  }
  EMU_WATCH(touch(shared, bytes, true); touch(global, there, false);)
  CopyQueue &queue = copies[current->number];
  queue.pending.push_back({shared, global, bytes, there, queue.open_group});
}

void close_copy_group() {
  copies[current->number].open_group++;
}

void finish_copies(int groups_left) {
  CopyQueue &queue = copies[current->number];
  size_t done = 0;
  for (const Copy &copy : queue.pending) {
    if (copy.group >= queue.open_group - groups_left) break;
    EMU_WATCH(touch(copy.shared, copy.bytes, true);)
    memcpy(copy.shared, copy.global, copy.there);
    memset(static_cast<char *>(copy.shared) + copy.there, 0, copy.bytes - copy.there);
    done++;
  }
  queue.pending.drop_first(done);
}

void fence_async() { EMU_WATCH(fences[current->number]++;) }

void look_at(const void *piece) { EMU_WATCH(touch(piece, 16, false, true);) }

void wait_until(Site site, bool (*holds)(const void *, int), const void *what, int value) {
  if (holds(what, value)) return;
  current->state = State::UNTIL;
  current->site = site;
  current->holds = holds;
  current->what = what;
  current->value = value;
  back_to_scheduler();
}

void copy_box_later(const BoxCopy &copy, void (*bring)(const BoxCopy &)) {
  if (boxes_at_once) {
    bring(copy);
  } else {
    boxes.push_back({copy, bring});
  }
}

void begin_products() {
  products[current->number].begun = true;
}

void multiply_later(const Multiplication &made, int line) {
  ProductQueue &queue = products[current->number];
  if (!queue.begun) fail("wgmma at line %d: nothing has begun its products", line);
  unsigned phase = 0;
  EMU_WATCH(phase = phase_now; if (!current->lane) made.look(made);)
  queue.pending.push_back({made, queue.open_group, phase});
}

void close_product_group() {
  products[current->number].open_group++;
}

void finish_products(int groups_left) {
  ProductQueue &queue = products[current->number];
  size_t done = 0;
  for (const Product &product : queue.pending) {
    if (product.group >= queue.open_group - groups_left) break;
    EMU_WATCH(read_since = product.phase; if (!current->lane) product.made.look(product.made);)
    EMU_WATCH(read_since = 0;)
    product.made.now(product.made);
    done++;
  }
  queue.pending.drop_first(done);
  queue.begun = false;
}

void check_finished(const float *sums, int line) {
  for (const Product &product : products[current->number].pending) {
    if (product.made.sums == sums) {
      fail("sums are used at line %d before wgmma has made them", line);
    }
  }
}

}  // namespace emu
