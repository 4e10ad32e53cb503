// tests/cuda/emulation/fiber.h: many stacks in one host thread, and the switch between them. A switch costs
// nanoseconds: it saves the registers that a call keeps, and nothing else. Called by block.cpp.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::emulation {

// Stacks of the calling host thread, each with a page behind its end that nobody may touch.
class FiberStacks {
  public:
    FiberStacks() = default;
    ~FiberStacks();
    FiberStacks(const FiberStacks&) = delete;
    FiberStacks& operator=(const FiberStacks&) = delete;

    // Stack `index`, ready for switch_stack: what runs there first is entry(), which must not return.
    void* prepare(size_t index, void (*entry)());

  private:
    void grow(size_t count);

    std::vector<std::byte*> stacks_;  // lowest address of each
};

}  // namespace tutti::emulation

// Goes on at `to`; *from is where somebody can go on here later.
extern "C" void tutti_switch_stack(void** from, void* to);
