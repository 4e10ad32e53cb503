// tests/cuda/emulation/fiber.h: many stacks in one host thread, and the switch between them. A switch costs
// nanoseconds: it saves the callee-saved registers and nothing else.
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

}  // namespace tutti::emulation

// Continues at `to`; *from gets the place at which this stack can be resumed.
extern "C" void tutti_switch_stack(void** from, void* to);
