#include "tests/cuda/emulation/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::emulation {

namespace {

constexpr size_t kAlignment = 512;  // as cudaMalloc's, so that no kernel learns to need more
// Huge pages: opening and closing the memory costs time per page, and with small pages most of a test's time.
constexpr size_t kPage = size_t{2} << 20;

// A new block begins with as many bytes of NaN. More have only workspaces, of which every device has one of 32 MiB.
constexpr size_t kPoisoned = size_t{4} << 20;

// Blocks by address; first fit. A global, because all ranks of the process share the emulated machine, as they share a
// GPU.
struct Memory {
    std::mutex mutex;
    std::byte* base = nullptr;
    size_t reached = 0;  // bytes from base that were ever allocated
    std::map<std::byte*, size_t> device, pinned;
    size_t in_use = 0;
    int accesses = 0, ranges = 0;  // under way, to all memory and to a part
    bool left_open = false;        // more than the range that ends next

    Memory() {
        const size_t size = kDeviceBytes + kPage;
        void* range = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        check(range != MAP_FAILED, "the emulated GPU cannot reserve ", size, " bytes of addresses");
        base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(range) + kPage - 1) / kPage * kPage);
        madvise(base, kDeviceBytes, MADV_HUGEPAGE);  // advice: refusal changes nothing
    }
    void protect(bool open) const {
        if (reached > 0)
            check(mprotect(base, reached, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
                  "the emulated GPU cannot change the protection of ", reached, " bytes");
    }
    void protect(const void* data, size_t bytes, bool open) const {
        // Whole huge pages: to split one costs more than all copies of a test.
        const auto first = reinterpret_cast<uintptr_t>(data) / kPage * kPage;
        const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + kPage - 1) / kPage * kPage;
        check(mprotect(reinterpret_cast<void*>(first), end - first, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
              "the emulated GPU cannot change the protection of ", bytes, " bytes");
    }
    // When an access ends: closes what it had open, null: all, unless others go on.
    void close(const void* data, size_t bytes) {
        if (accesses > 0 || ranges > 0) {
            left_open = true;
        } else {
            if (data == nullptr || left_open)
                protect(false);
            else
                protect(data, bytes, false);
            left_open = false;
        }
    }
    void reach(size_t bytes) {
        if (bytes <= reached) return;
        const size_t before = std::exchange(reached, (bytes + kPage - 1) / kPage * kPage);
        if (accesses > 0) protect(base + before, reached - before, true);
    }
};

Memory& memory() {
    static Memory the_memory;
    return the_memory;
}

bool inside(const std::map<std::byte*, size_t>& blocks, const void* data, size_t bytes) {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(data));
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    return static_cast<size_t>(at - begin) + bytes <= size;
}

}  // namespace

void* take_device(size_t bytes) {
    Memory& m = memory();
    const size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    void* data = nullptr;
    {
        std::lock_guard lock(m.mutex);
        std::byte* at = m.base;
        for (const auto& [begin, taken] : m.device) {
            if (static_cast<size_t>(begin - at) >= size) break;
            at = begin + (taken + kAlignment - 1) / kAlignment * kAlignment;
        }
        if (static_cast<size_t>(m.base + kDeviceBytes - at) < size) return nullptr;
        m.device[at] = bytes;
        m.in_use += bytes;
        m.reach(static_cast<size_t>(at - m.base) + size);
        data = at;
    }
    const DeviceAccess access(data, bytes);
    std::memset(data, 0xFF, std::min(bytes, kPoisoned));
    return data;
}

bool give_device(void* data) {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    const auto found = m.device.find(static_cast<std::byte*>(data));
    if (found == m.device.end()) return false;
    m.in_use -= found->second;
    m.device.erase(found);
    return true;
}

size_t device_bytes_in_use() {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    return m.in_use;
}

void* take_pinned(size_t bytes) {
    Memory& m = memory();
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
    if (data == nullptr) return nullptr;
    std::lock_guard lock(m.mutex);
    m.pinned[data] = bytes;
    return data;
}

bool give_pinned(void* data) {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    if (m.pinned.erase(static_cast<std::byte*>(data)) == 0) return false;
    std::free(data);
    return true;
}

bool in_device(const void* data) {
    const auto* at = static_cast<const std::byte*>(data);
    return at >= memory().base && at < memory().base + kDeviceBytes;
}

bool in_device_block(const void* data, size_t bytes) {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    return inside(m.device, data, bytes);
}

bool in_pinned_block(const void* data, size_t bytes) {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    return inside(m.pinned, data, bytes);
}

DeviceAccess::DeviceAccess() : of_(Of::all) {
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    if (m.accesses++ == 0) m.protect(true);
}

DeviceAccess::DeviceAccess(const void* data, size_t bytes) {
    if (!in_device(data) || bytes == 0) return;
    of_ = Of::range;
    data_ = data;
    bytes_ = bytes;
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    ++m.ranges;
    if (m.accesses == 0) m.protect(data, bytes, true);
}

DeviceAccess::~DeviceAccess() {
    if (of_ == Of::nothing) return;
    Memory& m = memory();
    std::lock_guard lock(m.mutex);
    --(of_ == Of::all ? m.accesses : m.ranges);
    m.close(data_, bytes_);
}

}  // namespace tutti::emulation
