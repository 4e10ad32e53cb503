#include "tests/cuda/emulation/fiber.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdint>
#include <mutex>

#include "tutti/base/error.h"

// The registers that the System V ABI lets a function expect unchanged; the floating-point modes are never changed
// here.
asm(R"(
.text
.globl tutti_switch_stack
.type tutti_switch_stack, @function
tutti_switch_stack:
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
.size tutti_switch_stack, . - tutti_switch_stack
)");

namespace tutti::emulation {

namespace {

constexpr size_t kStackBytes = 256 << 10, kPage = 4096;

// Stacks that no thread has. A test makes thousands of threads with streams, and to map a stack costs more than to run
// on it.
struct Spare {
    std::mutex mutex;
    std::vector<std::byte*> stacks;
};
Spare& spare() {
    static Spare* const all = new Spare;  // for threads that end after main()
    return *all;
}

}  // namespace

FiberStacks::~FiberStacks() {
    const std::lock_guard lock(spare().mutex);
    spare().stacks.insert(spare().stacks.end(), stacks_.begin(), stacks_.end());
}

void FiberStacks::grow(size_t count) {
    if (stacks_.size() >= count) return;
    const std::lock_guard lock(spare().mutex);
    while (stacks_.size() < count) {
        if (!spare().stacks.empty()) {
            stacks_.push_back(spare().stacks.back());
            spare().stacks.pop_back();
            continue;
        }
        void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        check(memory != MAP_FAILED, "the emulated GPU has no memory for the stacks of ", count, " threads");
        stacks_.push_back(static_cast<std::byte*>(memory));
        check(mprotect(memory, kPage, PROT_NONE) == 0, "the emulated GPU cannot protect the end of a stack");
    }
}

void* FiberStacks::prepare(size_t index, void (*entry)()) {
    grow(index + 1);
    ASAN_UNPOISON_MEMORY_REGION(stacks_[index] + kPage, kStackBytes - kPage);  // the last fiber here did not return
    auto* top = reinterpret_cast<void**>(stacks_[index] + kStackBytes);
    *--top = nullptr;  // where entry() would return to; also makes the stack 16-byte aligned at its call
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers
    return top;
}

}  // namespace tutti::emulation
