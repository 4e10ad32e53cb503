#include "tests/cuda/emulation/block.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/fiber.h"
#include "tests/cuda/emulation/memory.h"
#include "tests/cuda/emulation/race.h"
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
    uint3 index = {};  // threadIdx
    State state = State::ready;
    Place place;                                   // where it waits
    const std::function<bool()>* until = nullptr;  // the condition that it waits for, when `waiting`
    std::vector<AsyncCopy> copies;
    int group = 0;      // of the next copy
    char tags[2] = {};  // of what comes before the copies, and of their arrival
};

// Slots of two meetings: a lane may reach the next one before the others have read its slot of this one.
struct Warp {
    unsigned arrived = 0;
    Place place;  // where the first lane met
    size_t meeting = 0;
    WarpSlots slots[2];
    char tags[2];
};

struct LateAction {
    std::function<void()> action;
    std::shared_ptr<char> tag;  // of what comes before
    Unit unit;
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
    Schedule next;  // of launches
    Order order = Order::forward;
    std::minstd_rand random;
    Kernel kernel{};
    bool running = false;
    Block* current = nullptr;                    // the block whose threads run
    std::vector<std::unique_ptr<Block>> blocks;  // resident on the GPU together, or reused
    char launch = 0;                             // tag of what comes before the kernel

    Block& block(size_t i);
    size_t draw(size_t count) { return random() % count; }
    // body(i) for the `count` numbers from 0, in the order of the kernel's schedule.
    template <class Body>
    void in_turn(size_t count, Body&& body) {
        if (order != Order::random) {
            for (size_t i = 0; i < count; ++i) body(order == Order::forward ? i : count - 1 - i);
            return;
        }
        std::vector<size_t> all(count);
        std::iota(all.begin(), all.end(), size_t{0});
        std::shuffle(all.begin(), all.end(), random);
        for (const size_t i : all) body(i);
    }
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
        while (race::detects() && fibers_.size() < threads_.size()) fibers_.push_back(race::make_thread());
        static_bytes_ = 0;
        variables_.clear();
        for (Warp& warp : warps_) warp.arrived = 0;
        for (unsigned i = 0; i < threads_.size(); ++i)
            threads_[i] = {.stack = stacks_.prepare(i, entry),
                           .index = {i % threads.x, i / threads.x % threads.y, i / (threads.x * threads.y)}};
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
        for (bool progress = true; progress && !done() && !race::stops();) {
            progress = false;
            gpu().in_turn(warps_.size(), [&](size_t w) {
                progress |= run_warp(w);
                if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
                if (gpu().order == Order::random && gpu().draw(8) == 0) progress |= do_late_action();
            });
            ran |= progress;
            if (progress && gpu().order == Order::random && gpu().draw(4) == 0) break;  // another block's turn
        }
        return ran;
    }
    // Backwards: the last request is served first.
    bool do_late_action() {
        if (late_.empty()) return false;
        gpu().current = this;
        const size_t last = late_.size() - 1;
        const auto at = late_.begin() + static_cast<ptrdiff_t>(gpu().order == Order::forward    ? 0
                                                               : gpu().order == Order::backward ? last
                                                                                                : gpu().draw(last + 1));
        const LateAction late = std::move(*at);
        late_.erase(at);
        beside_threads(late.unit, late.tag.get(), late.action);
        return true;
    }
    // Runs `action` as a unit of the hardware, after what was released to `tag`. Several of a kind take turns, so that
    // one action is not ordered behind the next ones by being the same unit's.
    void beside_threads(Unit unit, const void* tag, const std::function<void()>& action) {
        if (!race::detects()) return action();
        while (units_.size() < kUnits * 4) units_.push_back(race::make_thread());
        const size_t which = static_cast<size_t>(unit) * kUnits + next_unit_++ % kUnits;
        struct Return {  // after an error of the action too
            Block& block;
            const race::Thread before;
            ~Return() { race::run_as(block.running_ = before); }
        } const back{*this, running_};
        race::run_as(running_ = units_[which]);
        race::acquire(tag);
        const race::Unseen unseen;
        action();
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
        const race::Unseen unseen;
        return std::memset(variables_.back().data, 0xFF, bytes);
    }

    void barrier(Place place) {
        if (at_barrier_ > 0 && (place.line() != barrier_.line() || place.file_name() != barrier_.file_name()))
            throw Error(
                concat("__syncthreads at ", text(place), " while other threads of the block wait at ", text(barrier_)));
        barrier_ = place;
        const char* const tag = &barrier_tags_[barriers_ % 2];
        race::release(tag, &place);
        if (++at_barrier_ == alive_)
            release_barrier();
        else
            wait(State::at_barrier, place);
        race::acquire(tag, &place);
    }

    const WarpSlots& meet(const void* data, size_t bytes, void (*combine)(WarpSlots&), unsigned mask, Place place) {
        if (mask != 0xffffffffu) throw Error(concat("a warp function for some lanes only, at ", text(place)));
        Warp& warp = warps_[current_ / warpSize];
        const size_t first = current_ / warpSize * warpSize, lane = current_ - first;
        if (warp.arrived == 0) warp.place = place;
        if (warp.place.line() != place.line())
            throw Error(concat("a warp function at ", text(place), " while other lanes wait at ", text(warp.place)));
        const race::Unseen unseen;
        WarpSlots& slots = warp.slots[warp.meeting % 2];
        if (bytes > 0) std::memcpy(&slots[lane], data, bytes);
        warp.arrived |= 1u << lane;
        const char* const tag = &warp.tags[warp.meeting % 2];
        const Place* const site = bytes == 0 ? &place : nullptr;  // values order the lanes that take them
        race::release(tag, site);
        if (warp.arrived != mask) {
            wait(State::at_warp, place);
            race::acquire(tag, site);
            return slots;
        }
        race::acquire(tag, site);
        if (combine != nullptr) combine(slots);
        race::release(tag, site);
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
        const race::Unseen unseen;
        Thread& thread = threads_[current_];
        thread.copies.push_back({to, from, thread.group});
        race::release(&thread.tags[0]);
        std::memset(to, 0xFF, kCopyBytes);
    }
    void commit_copies() { ++threads_[current_].group; }
    void wait_for_copies(int pending, Place place) {
        Thread& thread = threads_[current_];
        beside_threads(Unit::async_copies, &thread.tags[0], [&] {
            std::erase_if(thread.copies, [&](const AsyncCopy& copy) {
                if (copy.group >= thread.group - pending) return false;
                race::writes(copy.to, kCopyBytes);
                if (copy.from == nullptr) return std::memset(copy.to, 0, kCopyBytes) != nullptr;
                race::reads(copy.from, kCopyBytes);
                return std::memcpy(copy.to, copy.from, kCopyBytes) != nullptr;
            });
            race::release(&thread.tags[1], &place);
        });
        race::acquire(&thread.tags[1], &place);
    }

    void wait_until(const std::function<bool()>& ready, Place place) {
        if (ready()) return;
        threads_[current_].until = &ready;
        wait(State::waiting, place);
    }
    void do_late(Unit unit, std::function<void()> action) {
        const race::Unseen unseen;
        late_.push_back({std::move(action), std::make_shared<char>(), unit});
        race::release(late_.back().tag.get());
    }

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

    // The threads do not go on: what they did comes before the next block's.
    void abandon() {
        for (const auto* threads : {&fibers_, &units_})
            for (const race::Thread thread : *threads) {
                race::run_as(thread);
                race::forget_unseen();
                race::release(&end_);
            }
        race::run_as(nullptr);
        alive_ = 0;
    }

    size_t current() const { return current_; }
    const void* end_tag() const { return &end_; }
    std::shared_ptr<void>& extension() { return extension_; }

  private:
    static void entry();

    size_t dynamic_end() const { return aligned(dynamic_bytes_, 128); }

    // In a random schedule, to the next point where the lanes wait; else as far as the warp comes.
    bool run_warp(size_t w) {
        bool progress = false;
        for (bool ran = true; ran && !(progress && gpu().order == Order::random);) {
            ran = false;
            gpu().in_turn(warpSize, [&](size_t lane) {
                const size_t thread = w * warpSize + lane;
                if (thread >= threads_.size() || error_ || race::stops() || !can_go_on(threads_[thread])) return;
                run_thread(thread);
                ran = progress = true;
            });
        }
        return progress;
    }

    static bool can_go_on(Thread& thread) {
        if (thread.state == State::waiting && (*thread.until)()) thread.state = State::ready;
        return thread.state == State::ready;
    }

    void run_thread(size_t thread) {
        current_ = thread;
        threadIdx = threads_[thread].index;
        if (race::detects()) race::run_as(running_ = fibers_[thread]);
        switch_stack(&scheduler_, threads_[thread].stack);
    }
    void leave_thread() {
        race::run_as(running_ = nullptr);
        switch_stack(&threads_[current_].stack, scheduler_);
    }

    void wait(State state, Place place) {
        threads_[current_].state = state;
        threads_[current_].place = place;
        leave_thread();
    }

    void release_barrier() {
        at_barrier_ = 0;
        ++barriers_;
        for (Thread& thread : threads_)
            if (thread.state == State::at_barrier) thread.state = State::ready;
    }

    FiberStacks stacks_;
    void* scheduler_ = nullptr;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<std::byte> shared_;
    std::vector<SharedVariable> variables_;
    std::vector<LateAction> late_;
    std::shared_ptr<void> extension_;
    uint3 index_{};
    size_t dynamic_bytes_ = 0, static_bytes_ = 0;
    size_t current_ = 0, alive_ = 0, at_barrier_ = 0;
    Place barrier_;
    std::exception_ptr error_;  // of a fiber: the stack below it is the scheduler's
    const Kernel* kernel_ = nullptr;

    static constexpr size_t kUnits = 8;  // of each kind
    std::vector<race::Thread> fibers_, units_;
    race::Thread running_ = nullptr;
    size_t next_unit_ = 0, barriers_ = 0;
    char barrier_tags_[2] = {}, end_ = 0;  // end_: of the blocks so far
};

Block& Gpu::block(size_t i) {
    while (blocks.size() <= i) blocks.push_back(std::make_unique<Block>());
    return *blocks[i];
}

Block& block() { return *gpu().current; }

// First and last frame of every fiber.
void Block::entry() {
    Block& b = block();
    race::acquire(&gpu().launch);
    race::acquire(&b.end_);
    try {
        b.kernel_->body(b.kernel_->context);
    } catch (...) {
        b.error_ = std::current_exception();
    }
    b.threads_[b.current_].state = State::done;
    race::release(&b.end_);
    if (--b.alive_ > 0 && b.at_barrier_ == b.alive_) b.release_barrier();
    b.leave_thread();
    std::abort();  // a finished fiber is never resumed
}

void run_alone(Block& block) {
    while (!block.done() && !race::stops())
        if (!block.go_on() && !race::stops() && !block.do_late_action()) throw Error(block.stuck());
}

// Blocks begin in the order of their indices and run from the newest to the oldest, or in turns that are drawn.
void run_together(Gpu& gpu, uint64_t count) {
    std::vector<Block*> on_gpu, idle;
    // A detector of races takes time for each thread that ever was.
    for (size_t i = 0; i < (race::detects() ? 3 : kBlocksTogether); ++i) idle.push_back(&gpu.block(i));
    for (uint64_t next = 0; (next < count || !on_gpu.empty()) && !race::stops();) {
        for (; next < count && !idle.empty(); ++next, idle.pop_back()) {
            on_gpu.push_back(idle.back());
            on_gpu.back()->begin(gpu.kernel, next);
        }
        bool progress = false;
        std::vector<Block*> turns(on_gpu.rbegin(), on_gpu.rend());
        if (gpu.order == Order::random) std::shuffle(turns.begin(), turns.end(), gpu.random);
        for (Block* const block : turns) {
            progress |= block->go_on();
            if (!block->done()) continue;
            idle.push_back(block);
            std::erase(on_gpu, block);
        }
        for (size_t i = on_gpu.size(); i > 0 && !progress; --i) progress = on_gpu[i - 1]->do_late_action();
        if (!progress && !race::stops()) throw Error(on_gpu.front()->stuck());
    }
}

}  // namespace

void set_schedule(const Schedule& schedule) { gpu().next = schedule; }
Schedule schedule_of_launch() {
    Schedule& next = gpu().next;
    if (next.order == Order::random) ++next.seed;
    return next;
}

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
    g.order = grid.schedule.order;
    g.random.seed(static_cast<unsigned>(grid.schedule.seed * 2654435761u + 1));
    gridDim = blocks;
    blockDim = threads;
    const DeviceAccess access;
    g.running = true;
    struct End {
        Gpu& gpu;
        ~End() {
            for (const auto& block : gpu.blocks) {
                if (race::stops() || !block->done()) block->abandon();  // or an error ends the kernel
                race::acquire(block->end_tag());
            }
            gpu.running = false;
        }
    } const end{g};
    race::release(&g.launch);
    const race::Unseen unseen;
    if (grid.blocks_wait && g.order != Order::forward) return run_together(g, count);
    g.in_turn(count, [&, begun = size_t{0}](size_t index) mutable {
        if (race::stops()) return;
        Block& block = g.block(race::detects() ? begun++ % 2 : 0);  // else all blocks of a grid would be ordered
        block.begin(g.kernel, index);
        run_alone(block);
    });
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
void wait_for_copies(int pending, Place place) { block().wait_for_copies(pending, place); }
void block_barrier(Place place) { block().barrier(place); }
const WarpSlots& warp_meet(const void* data, size_t bytes, void (*combine)(WarpSlots&), unsigned mask, Place place) {
    return block().meet(data, bytes, combine, mask, place);
}
void wait_until(const std::function<bool()>& ready, Place place) { block().wait_until(ready, place); }
void do_late(Unit unit, std::function<void()> action) { block().do_late(unit, std::move(action)); }
void beside_threads(Unit unit, const void* tag, const std::function<void()>& action) {
    block().beside_threads(unit, tag, action);
}
int thread_of_block() { return static_cast<int>(block().current()); }
std::shared_ptr<void>& block_extension() { return block().extension(); }
uint32_t shared_address(const void* shared) { return block().shared_address(shared); }
std::byte* shared_pointer(uint32_t address, size_t bytes) { return block().shared_pointer(address, bytes); }
int lane() { return static_cast<int>(block().current() % warpSize); }

}  // namespace tutti::emulation
