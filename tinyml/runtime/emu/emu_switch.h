// Switching between stacks: one function in assembly per processor, or the slow ucontext.
//
// emu_switch_stack saves what the C calling convention says a callee must keep, stores the stack
// pointer in *save, takes over `to` and returns there. prepare_stack builds, below `end`, the frame
// that the first switch to a new stack expects; it leads to emu_enter, which never returns.
// EMU_PORTABLE chooses ucontext on every processor.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

namespace emu {

constexpr size_t STACK_BYTES = 128 << 10;  // per thread; pages that are not touched cost nothing

extern "C" void emu_switch_stack(void **save, void *to) __attribute__((visibility("hidden")));
extern "C" void emu_enter() __attribute__((visibility("hidden"), used));

#if defined(__x86_64__) && !defined(EMU_PORTABLE)
asm(R"(
  .text
  .hidden emu_switch_stack
  .globl emu_switch_stack
  .type emu_switch_stack, @function
emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emu_switch_stack, .-emu_switch_stack
)");

inline void *prepare_stack(char *end) {
  void **top = reinterpret_cast<void **>(end);
  *--top = nullptr;  // the return address of emu_enter, which never returns; aligns its frame
  *--top = reinterpret_cast<void *>(emu_enter);
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  return top;
}
#elif defined(__aarch64__) && !defined(EMU_PORTABLE)
asm(R"(
  .text
  .hidden emu_switch_stack
  .globl emu_switch_stack
  .type emu_switch_stack, %function
emu_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size emu_switch_stack, .-emu_switch_stack
)");

inline void *prepare_stack(char *end) {
  void **top = reinterpret_cast<void **>(end) - 20;
  memset(top, 0, 160);
  top[11] = reinterpret_cast<void *>(emu_enter);  // x30, the address that `ret` goes to
  return top;
}
#else
// Slow but portable: the saved "stack pointer" is a ucontext_t kept at the end of the stack.
inline void *prepare_stack(char *end) {
  ucontext_t *context = reinterpret_cast<ucontext_t *>(end) - 1;
  getcontext(context);
  char *start = end - (STACK_BYTES / 2);
  context->uc_stack.ss_sp = start;
  context->uc_stack.ss_size = reinterpret_cast<char *>(context) - start;
  context->uc_link = nullptr;
  makecontext(context, emu_enter, 0);
  return context;
}

extern "C" void emu_switch_stack(void **save, void *to) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t *>(to));
}
#endif

}  // namespace emu
