// Races: what two threads touch, one of which writes, with no barrier between. Only the scheduler
// includes this, with EMU_RACES.
//
// Units are compiled with -fsanitize=thread, whose calls come here, not to a library of its own. Each
// byte remembers who wrote it last and who has read it since, in which phase: barriers begin phases.
// A copy that is asynchronous writes from its begin on until it is waited for, and a product reads.
// What a thread has put into shared memory products see behind its fence, for which they ask at once.
// Atomics race with nobody, nor does what bulk copies bring: mbarriers are in order by themselves.
#pragma once
#include "emu_scheduler.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace emu {
namespace {

enum class Place { SHARED, GLOBAL, OWN };

Place place_of(uintptr_t address);  // memory of blocks, of slots, or of threads and the unit

constexpr uintptr_t PAGE = 4096;
constexpr size_t PAGES = 1 << 16;  // that can be watched
constexpr uint32_t SEVERAL = ~0u;

struct Access {
  uint32_t block, phase;  // both from 1
  uint32_t thread, fences;  // and how many of those it had made
};

struct Seen {
  Access written, read;
};

struct SeenPage {
  uintptr_t number;
  Seen *bytes;
};

SeenPage pages[PAGES];
uint32_t block_now, phase_now, fences[1024];
uint32_t read_since;  // the phase that a product was begun in, while it is made

void forget_accesses() {
  for (SeenPage &page : pages) {
    free(page.bytes);
    page.bytes = nullptr;
  }
  block_now = phase_now = 0;
}

Seen *seen_of(uintptr_t page) {
  size_t place = page * 0x9e3779b97f4a7c15ull >> 48;
  for (size_t n = 0; n < PAGES; n++, place = (place + 1) % PAGES) {
    SeenPage &found = pages[place];
    if (found.bytes && found.number != page) continue;
    if (!found.bytes) found = {page, static_cast<Seen *>(calloc(PAGE, sizeof(Seen)))};
    if (!found.bytes) break;
    return found.bytes;
  }
  fail("no memory to watch for races");
}

// Whether this thread has to wait for an access of others, and nothing has made it.
bool races_with(const Access &other, bool shared, uint32_t since) {
  if (!other.block || (shared && other.block != block_now)) return false;
  if (other.block != block_now) return true;
  return other.phase >= since && other.thread != uint32_t(current->number);
}

[[noreturn]] void report_race(const char *does, const char *did, const Access &other, bool shared) {
  char who[64];
  if (other.block == SEVERAL || other.block != block_now) {
    snprintf(who, sizeof who, "another block");
  } else if (other.thread == SEVERAL) {
    snprintf(who, sizeof who, "others");
  } else {
    snprintf(who, sizeof who, "thread (%u,%u)", other.thread % block_size.x,
             other.thread / block_size.x);
  }
  fail("race: in block (%u,%u,%u) thread (%u,%u,%u) %s %s memory that %s %s, with no barrier between",
       block_index.x, block_index.y, block_index.z, current->index.x, current->index.y,
       current->index.z, does, shared ? "shared" : "global", who, did);
}

void touch(const void *start, size_t size, bool writes, bool by_product = false) {
  uintptr_t first = reinterpret_cast<uintptr_t>(start);
  Place place = place_of(first);
  if (place == Place::OWN || !current) return;
  bool shared = place == Place::SHARED;
  uint32_t number = current->number;
  Access own = {block_now, phase_now, number, fences[number]};
  for (uintptr_t at = first; at < first + size; at++) {
    Seen &seen = seen_of(at / PAGE)[at % PAGE];
    if (races_with(seen.written, shared, read_since ? read_since : phase_now)) {
      report_race(writes ? "writes" : "reads", "has written", seen.written, shared);
    }
    const Access &put = seen.written;
    if (by_product && put.block == block_now && put.fences == fences[put.thread]) {
      fail("wgmma reads what thread (%u,%u) has put there, and no fence is behind",
           put.thread % block_size.x, put.thread / block_size.x);
    }
    if (writes) {
      if (races_with(seen.read, shared, phase_now)) {
        report_race("writes", "has read", seen.read, shared);
      }
      seen.written = own;
    } else {
      Access before = seen.read;
      seen.read = own;
      if (before.block == block_now && before.phase == phase_now && before.thread != own.thread) {
        seen.read.thread = SEVERAL;
      }
      if (!shared && before.block && before.block != block_now) seen.read.block = SEVERAL;
    }
  }
}

}  // namespace
}  // namespace emu

#define EMU_TOUCHES(size)                                                                      \
  void __tsan_read##size(void *place) { emu::touch(place, size, false); }                      \
  void __tsan_write##size(void *place) { emu::touch(place, size, true); }                      \
  void __tsan_unaligned_read##size(void *place) { emu::touch(place, size, false); }            \
  void __tsan_unaligned_write##size(void *place) { emu::touch(place, size, true); }
extern "C" {
EMU_TOUCHES(1)
EMU_TOUCHES(2)
EMU_TOUCHES(4)
EMU_TOUCHES(8)
EMU_TOUCHES(16)
void __tsan_read_range(void *place, size_t size) { emu::touch(place, size, false); }
void __tsan_write_range(void *place, size_t size) { emu::touch(place, size, true); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
#undef EMU_TOUCHES
