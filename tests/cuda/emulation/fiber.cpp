#include "tests/cuda/emulation/fiber.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdint>
#include <mutex>

#include "tutti/base/error.h"

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
    // Tops at one place of their pages would share a few lines of the first-level cache.
    auto* top = reinterpret_cast<void**>(stacks_[index] + kStackBytes - index % 32 * 128);
    *--top = nullptr;  // where entry() would return to; also makes the stack 16-byte aligned at its call
    *--top = nullptr;  // rbp
    *--top = reinterpret_cast<void*>(entry);
    return top;
}

}  // namespace tutti::emulation
