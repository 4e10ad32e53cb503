#include "tests/cuda/emulation/block.h"

#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/fiber.h"
#include "tests/cuda/emulation/memory.h"
#include "tutti/base/error.h"

namespace tutti::emulation {

namespace {

constexpr size_t kSharedBytes = 227 << 10, kStaticSharedBytes = 48 << 10;  // Hopper's
constexpr uint32_t kSharedBase = 1024 + 128;

std::string text(const Place& place) {
    const std::string_view file = place.file_name();
    return concat(file.substr(file.rfind('/') + 1), ":", place.line());
}

enum class State : uint8_t { ready, at_barrier, at_warp, waiting, done };

constexpr size_t kCopyBytes = 16;
struct AsyncCopy {
    void* to;
    const void* from;
    int group;
};

struct Thread {
    void* stack = nullptr;
    State state = State::ready;
    Place place;                                   // where it waits
    const std::function<bool()>* until = nullptr;  // the condition that it waits for, when `waiting`
    std::vector<AsyncCopy> copies;
    int group = 0;  // of the next copy
};

// Slots of two meetings: a lane may reach the next one before the others have read its slot of this one.
struct Warp {
    unsigned arrived = 0;
    Place place;  // where the first lane met
    size_t meeting = 0;
    WarpSlots slots[2];
};

struct SharedVariable {
    const void* tag;
    std::byte* data;
};

size_t aligned(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

struct Kernel {
    GridShape grid;
    void (*body)(const void*);
    const void* context;
};

class Block;
// State of the calling host thread.
struct Gpu {
    Order order = Order::forward;
    Kernel kernel{};
    bool running = false;
    Block* current = nullptr;                    // the block whose threads run
    std::vector<std::unique_ptr<Block>> blocks;  // resident on the GPU together, or reused

    Block& block(size_t i);
    size_t in_order(size_t i, size_t count) const { return order == Order::forward ? i : count - 1 - i; }
};
Gpu& gpu() {
    static thread_local Gpu the_gpu;
    return the_gpu;
}

// A block of the grid; reused for later blocks.
class Block {
  public:
    void begin(const Kernel& kernel, uint64_t index) {
        const dim3 blocks = kernel.grid.blocks, threads = kernel.grid.threads;
        kernel_ = &kernel;
        dynamic_bytes_ = kernel.grid.shared_bytes;
        check(dynamic_bytes_ <= most_shared_bytes(), "invalid argument: a block with ", dynamic_bytes_,
              " bytes of shared memory on a GPU that gives it ", most_shared_bytes());
        threads_.resize(size_t{threads.x} * threads.y * threads.z);
        warps_.resize((threads_.size() + warpSize - 1) / warpSize);
        shared_.resize(kSharedBytes + 128);
        index_ = {static_cast<unsigned>(index % blocks.x), static_cast<unsigned>(index / blocks.x % blocks.y),
                  static_cast<unsigned>(index / blocks.x / blocks.y)};
        std::memset(shared(), 0xFF, dynamic_end());
        static_bytes_ = 0;
        variables_.clear();
        for (Warp& warp : warps_) warp.arrived = 0;
        for (size_t i = 0; i < threads_.size(); ++i) threads_[i] = {.stack = stacks_.prepare(i, entry)};
        alive_ = threads_.size();
        at_barrier_ = 0;
        late_.clear();
        extension_.reset();
    }
    bool done() const { return alive_ == 0; }
    // Runs threads while any can proceed; returns whether any could.
    bool go_on() {
        gpu().current = this;
        blockIdx = index_;
        bool ran = false;
        for (bool progress = true; progress && !done();) {
            progress = false;
            for (size_t w = 0; w < warps_.size(); ++w) progress |= run_warp(gpu().in_order(w, warps_.size()));
            if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
            ran |= progress;
        }
        return ran;
    }
    // Backwards: the last request is served first.
    bool do_late_action() {
        if (late_.empty()) return false;
        gpu().current = this;
        const auto at = gpu().order == Order::forward ? late_.begin() : late_.end() - 1;
        const std::function<void()> action = std::move(*at);
        late_.erase(at);
        action();
        return true;
    }
    std::string stuck() const {
        for (const Thread& thread : threads_)
            if (thread.state == State::at_warp)
                return concat("a warp function at ", text(thread.place), " waits for lanes that never come");
        for (const Thread& thread : threads_)
            if (thread.state == State::waiting) return concat("a thread waits for ever at ", text(thread.place));
        return concat("__syncthreads at ", text(barrier_), " waits for threads that never come");
    }

    std::byte* shared() {
        auto address = reinterpret_cast<uintptr_t>(shared_.data());
        return shared_.data() + (aligned(address, 128) - address);
    }

    void* shared_variable(const void* tag, size_t bytes, size_t alignment) {
        for (const SharedVariable& v : variables_)
            if (v.tag == tag) return v.data;
        const size_t at = aligned(static_bytes_, alignment);
        static_bytes_ = at + bytes;
        check(static_bytes_ <= kStaticSharedBytes && dynamic_bytes_ + static_bytes_ <= most_shared_bytes(),
              "a block's shared variables need ", static_bytes_, " bytes besides ", dynamic_bytes_, " dynamic ones");
        variables_.push_back({tag, shared() + dynamic_end() + at});
        return std::memset(variables_.back().data, 0xFF, bytes);
    }

    void barrier(Place place) {
        if (at_barrier_ > 0 && (place.line() != barrier_.line() || place.file_name() != barrier_.file_name()))
            throw Error(
                concat("__syncthreads at ", text(place), " while other threads of the block wait at ", text(barrier_)));
        barrier_ = place;
        if (++at_barrier_ == alive_) return release_barrier();
        wait(State::at_barrier, place);
    }

    const WarpSlots& meet(const void* data, size_t bytes, void (*combine)(WarpSlots&), unsigned mask, Place place) {
        if (mask != 0xffffffffu) throw Error(concat("a warp function for some lanes only, at ", text(place)));
        Warp& warp = warps_[current_ / warpSize];
        const size_t first = current_ / warpSize * warpSize, lane = current_ - first;
        if (warp.arrived == 0) warp.place = place;
        if (warp.place.line() != place.line())
            throw Error(concat("a warp function at ", text(place), " while other lanes wait at ", text(warp.place)));
        WarpSlots& slots = warp.slots[warp.meeting % 2];
        if (bytes > 0) std::memcpy(&slots[lane], data, bytes);
        warp.arrived |= 1u << lane;
        if (warp.arrived != mask) {
            wait(State::at_warp, place);
            return slots;
        }
        if (combine != nullptr) combine(slots);
        warp.arrived = 0;
        ++warp.meeting;
        for (size_t i = first; i < first + warpSize; ++i)
            if (threads_[i].state == State::at_warp) threads_[i].state = State::ready;
        return slots;
    }

    void copy_async(void* to, const void* from) {
        check(to >= shared() && static_cast<std::byte*>(to) + kCopyBytes <= shared() + kSharedBytes &&
                  reinterpret_cast<uintptr_t>(to) % kCopyBytes == 0 &&
                  reinterpret_cast<uintptr_t>(from) % kCopyBytes == 0,
              "an asynchronous copy from or to a wrong address");
        Thread& thread = threads_[current_];
        thread.copies.push_back({to, from, thread.group});
        std::memset(to, 0xFF, kCopyBytes);
    }
    void commit_copies() { ++threads_[current_].group; }
    void wait_for_copies(int pending) {
        Thread& thread = threads_[current_];
        std::erase_if(thread.copies, [&](const AsyncCopy& copy) {
            if (copy.group >= thread.group - pending) return false;
            if (copy.from == nullptr)
                std::memset(copy.to, 0, kCopyBytes);
            else
                std::memcpy(copy.to, copy.from, kCopyBytes);
            return true;
        });
    }

    void wait_until(const std::function<bool()>& ready, Place place) {
        if (ready()) return;
        threads_[current_].until = &ready;
        wait(State::waiting, place);
    }
    void do_late(std::function<void()> action) { late_.push_back(std::move(action)); }

    uint32_t shared_address(const void* data) {
        const auto offset = static_cast<const std::byte*>(data) - shared();
        check(offset >= 0 && offset < static_cast<ptrdiff_t>(kSharedBytes), "a pointer to no shared memory");
        return kSharedBase + static_cast<uint32_t>(offset);
    }
    std::byte* shared_pointer(uint32_t address, size_t bytes) {
        check(address >= kSharedBase && address + bytes <= kSharedBase + dynamic_bytes_, "shared memory ends at ",
              kSharedBase + dynamic_bytes_, ", got the address ", address, " of ", bytes, " bytes");
        return shared() + (address - kSharedBase);
    }

    size_t current() const { return current_; }
    std::shared_ptr<void>& extension() { return extension_; }

  private:
    static void entry();

    size_t dynamic_end() const { return aligned(dynamic_bytes_, 128); }

    bool run_warp(size_t w) {
        bool progress = false;
        for (bool ran = true; ran;) {
            ran = false;
            for (size_t i = 0; i < warpSize; ++i) {
                const size_t thread = w * warpSize + gpu().in_order(i, warpSize);
                if (thread >= threads_.size() || error_ || !can_go_on(threads_[thread])) continue;
                run_thread(thread);
                ran = progress = true;
            }
        }
        return progress;
    }

    static bool can_go_on(Thread& thread) {
        if (thread.state == State::waiting && (*thread.until)()) thread.state = State::ready;
        return thread.state == State::ready;
    }

    void run_thread(size_t thread) {
        current_ = thread;
        const auto i = static_cast<unsigned>(thread);
        threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        tutti_switch_stack(&scheduler_, threads_[thread].stack);
    }

    void wait(State state, Place place) {
        threads_[current_].state = state;
        threads_[current_].place = place;
        tutti_switch_stack(&threads_[current_].stack, scheduler_);
    }

    void release_barrier() {
        at_barrier_ = 0;
        for (Thread& thread : threads_)
            if (thread.state == State::at_barrier) thread.state = State::ready;
    }

    FiberStacks stacks_;
    void* scheduler_ = nullptr;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<std::byte> shared_;
    std::vector<SharedVariable> variables_;
    std::vector<std::function<void()>> late_;
    std::shared_ptr<void> extension_;
    uint3 index_{};
    size_t dynamic_bytes_ = 0, static_bytes_ = 0;
    size_t current_ = 0, alive_ = 0, at_barrier_ = 0;
    Place barrier_;
    std::exception_ptr error_;  // of a fiber: the stack below it is the scheduler's
    const Kernel* kernel_ = nullptr;
};

Block& Gpu::block(size_t i) {
    while (blocks.size() <= i) blocks.push_back(std::make_unique<Block>());
    return *blocks[i];
}

Block& block() { return *gpu().current; }

// First and last frame of every fiber.
void Block::entry() {
    Block& b = block();
    try {
        b.kernel_->body(b.kernel_->context);
    } catch (...) {
        b.error_ = std::current_exception();
    }
    b.threads_[b.current_].state = State::done;
    if (--b.alive_ > 0 && b.at_barrier_ == b.alive_) b.release_barrier();
    tutti_switch_stack(&b.threads_[b.current_].stack, b.scheduler_);
    std::abort();  // a finished fiber is never resumed
}

void run_alone(Block& block) {
    while (!block.done())
        if (!block.go_on() && !block.do_late_action()) throw Error(block.stuck());
}

// Blocks begin in the order of their indices and run from the newest to the oldest.
void run_together(Gpu& gpu, uint64_t count) {
    std::vector<Block*> on_gpu, idle;
    for (size_t i = 0; i < kBlocksTogether; ++i) idle.push_back(&gpu.block(i));
    for (uint64_t next = 0; next < count || !on_gpu.empty();) {
        for (; next < count && !idle.empty(); ++next, idle.pop_back()) {
            on_gpu.push_back(idle.back());
            on_gpu.back()->begin(gpu.kernel, next);
        }
        bool progress = false;
        for (size_t i = on_gpu.size(); i > 0; --i) {
            Block* const block = on_gpu[i - 1];
            progress |= block->go_on();
            if (!block->done()) continue;
            idle.push_back(block);
            on_gpu.erase(on_gpu.begin() + static_cast<ptrdiff_t>(i) - 1);
        }
        for (size_t i = on_gpu.size(); i > 0 && !progress; --i) progress = on_gpu[i - 1]->do_late_action();
        if (!progress) throw Error(on_gpu.front()->stuck());
    }
}

}  // namespace

void set_order(Order order) { gpu().order = order; }
Order order() { return gpu().order; }

void run_grid(const GridShape& grid, void (*body)(const void*), const void* context) {
    const dim3 blocks = grid.blocks, threads = grid.threads;
    const uint64_t count = uint64_t{blocks.x} * blocks.y * blocks.z;
    const size_t threads_of_block = size_t{threads.x} * threads.y * threads.z;
    check(blocks.x >= 1 && blocks.y >= 1 && blocks.z >= 1 && blocks.x <= 0x7fffffffu && blocks.y <= 65535 &&
              blocks.z <= 65535,
          "a grid has 1 to 2147483647 x 65535 x 65535 blocks, got ", blocks.x, " x ", blocks.y, " x ", blocks.z);
    check(threads_of_block >= 1 && threads_of_block <= 1024 && threads.z <= 64, "a block has 1 to 1024 threads, got ",
          threads.x, " x ", threads.y, " x ", threads.z);
    check(grid.shared_bytes <= kSharedBytes, "a block has up to ", kSharedBytes, " bytes of shared memory, asked for ",
          grid.shared_bytes);
    Gpu& g = gpu();
    check(!g.running, "a kernel launches a kernel");
    g.kernel = {grid, body, context};
    gridDim = blocks;
    blockDim = threads;
    const DeviceAccess access;
    g.running = true;
    struct End {
        bool& running;
        ~End() { running = false; }
    } const end{g.running};
    if (grid.blocks_wait && g.order == Order::backward) return run_together(g, count);
    for (uint64_t i = 0; i < count; ++i) {
        Block& block = g.block(0);
        block.begin(g.kernel, grid.blocks_wait ? i : g.in_order(i, count));
        run_alone(block);
    }
}

void check_pointer(const void* data) {
    check(data == nullptr || in_device_block(data, 0) || in_pinned_block(data, 0),
          "a kernel gets a pointer to memory that is neither the device's nor pinned");
}

void* shared_variable(const void* tag, size_t bytes, size_t alignment) {
    return block().shared_variable(tag, bytes, alignment);
}
std::byte* dynamic_shared() { return block().shared(); }
void copy_async(void* to, const void* from) { block().copy_async(to, from); }
void commit_copies() { block().commit_copies(); }
void wait_for_copies(int pending) { block().wait_for_copies(pending); }
void block_barrier(Place place) { block().barrier(place); }
const WarpSlots& warp_meet(const void* data, size_t bytes, void (*combine)(WarpSlots&), unsigned mask, Place place) {
    return block().meet(data, bytes, combine, mask, place);
}
void wait_until(const std::function<bool()>& ready, Place place) { block().wait_until(ready, place); }
void do_late(std::function<void()> action) { block().do_late(std::move(action)); }
int thread_of_block() { return static_cast<int>(block().current()); }
std::shared_ptr<void>& block_extension() { return block().extension(); }
uint32_t shared_address(const void* shared) { return block().shared_address(shared); }
std::byte* shared_pointer(uint32_t address, size_t bytes) { return block().shared_pointer(address, bytes); }
int lane() { return static_cast<int>(block().current() % warpSize); }

}  // namespace tutti::emulation
