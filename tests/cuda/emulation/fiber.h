// tests/cuda/emulation/fiber.h: many stacks in one host thread, and the switch between them. A switch costs
// nanoseconds: it saves the registers that its caller needs, and nothing else.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::emulation {

// Stacks of the calling host thread, each with an inaccessible guard page after its end.
class FiberStacks {
  public:
    FiberStacks() = default;
    ~FiberStacks();
    FiberStacks(const FiberStacks&) = delete;
    FiberStacks& operator=(const FiberStacks&) = delete;

    // Stack `index`, ready for switch_stack: runs entry() first, which must not return.
    void* prepare(size_t index, void (*entry)());

  private:
    void grow(size_t count);

    std::vector<std::byte*> stacks_;  // lowest address of each
};

// Continues at `to`; *from gets the place at which this stack can be resumed. A jump in line: a return from a function
// to another stack than it was called on is never predicted. The floating-point modes are never changed here, and the
// 128 bytes below the stack pointer may be the caller's.
inline void switch_stack(void** from, void* to) {
    asm volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%[from])\n\t"
        "movq %[to], %%rsp\n\t"
        "popq %%rax\n\t"
        "popq %%rbp\n\t"
        "jmpq *%%rax\n"
        "1:\n\t"
        "leaq 128(%%rsp), %%rsp"
        : [from] "+D"(from), [to] "+S"(to)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
          "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
          "memory", "cc");
}

}  // namespace tutti::emulation
