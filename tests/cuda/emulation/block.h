// tests/cuda/emulation/block.h: the device side of CUDA on the CPU. A block runs in one host thread; each of its
// threads is a fiber that runs until it must wait for others, so that barriers and warp functions work as on a GPU.
// CUDA keywords that g++ does not know become empty here.
//
// Detects errors that a GPU may hide: a barrier that some threads reach in another place of the source, a warp function
// that not all lanes reach, shared memory that is read before it is written (it begins as NaN), too many threads, too
// much shared memory, a pointer to host memory as an argument. Schedules run blocks, warps and lanes backwards, or in
// an order drawn by a seed, where a warp goes on without those before it and hardware operations act at any time: a
// kernel whose result depends on the order lacks a barrier.
//
// Blocks of a grid that wait for blocks with smaller indices (Grid::blocks_wait) begin in the order of their indices in
// every schedule. Forwards they run one at a time, so a block that waits for one with a larger index waits for ever.
// Otherwise kBlocksTogether are resident; backwards the newest of them runs as far as it can before any other, and
// asynchronous hardware operations run when no thread of all these blocks can proceed.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <type_traits>
#include <utility>

#include "tests/cuda/emulation/api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__ &

struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

// CUDA's names, in the global namespace as there.
inline constexpr int warpSize = 32;
// Indices of the running fiber. Thread-local variables, because kernels name them without any context.
constinit inline thread_local uint3 threadIdx{}, blockIdx{};
constinit inline thread_local dim3 blockDim{}, gridDim{};

namespace tutti::emulation {

using Place = std::source_location;

enum class Order { forward, backward, random };
struct Schedule {
    Order order = Order::forward;
    uint64_t seed = 0;  // of a random one
};
// Of the kernels that the calling host thread launches from now on; a random one draws another order for each.
void set_schedule(const Schedule& schedule);
inline void set_order(Order order) { set_schedule({order}); }
Schedule schedule_of_launch();  // of the thread's next kernel

inline constexpr size_t kBlocksTogether = 16;

struct GridShape {
    dim3 blocks, threads;
    size_t shared_bytes;
    bool blocks_wait;
    Schedule schedule;
};
// body() once in every thread of the grid. Throws Error for what the head of this file lists.
void run_grid(const GridShape& grid, void (*body)(const void*), const void* context);
template <class Body>
void run_grid(const GridShape& grid, const Body& body) {
    run_grid(
        grid, [](const void* context) { (*static_cast<const Body*>(context))(); }, &body);
}

void check_pointer(const void* data);
template <class T>
void check_argument(const T& argument) {
    if constexpr (std::is_pointer_v<T>) check_pointer(argument);
    if constexpr (requires { check_pointer(argument.data); }) check_pointer(argument.data);
    if constexpr (requires { argument.for_pointers(check_pointer); }) argument.for_pointers(check_pointer);
}

void* shared_variable(const void* tag, size_t bytes, size_t alignment);
std::byte* dynamic_shared();

void block_barrier(Place place);

// Building blocks of Hopper's instructions (hopper.h). The fiber continues once ready() is true.
void wait_until(const std::function<bool()>& ready, Place place);
// What works beside the threads. A detector of races must not see one kind's actions behind another's.
enum class Unit : uint8_t { async_copies, loads, stores, products };
// An asynchronous action of the hardware: runs as late as possible, when no thread of the block can proceed.
void do_late(Unit unit, std::function<void()> action);
// Such an action at once, after what was released to `tag` (race.h).
void beside_threads(Unit unit, const void* tag, const std::function<void()>& action);
int thread_of_block();
std::shared_ptr<void>& block_extension();  // hopper.cpp's state of the block; null when the block begins
// Addresses of the shared state space. The block's memory begins at one that is a multiple of 128 and of no more.
uint32_t shared_address(const void* shared);
std::byte* shared_pointer(uint32_t address, size_t bytes);

// A lane's input to a warp function, and its result.
using Slot = std::array<std::byte, 64>;
using WarpSlots = std::array<Slot, warpSize>;
// Waits until all 32 lanes have brought their slots; the last one calls combine (if any) on them.
const WarpSlots& warp_meet(const void* data, size_t bytes, void (*combine)(WarpSlots&), unsigned mask, Place place);
int lane();

// cp.async: 16 bytes arrive in shared memory when the thread waits for them and not before; until then NaN stands
// there. from == nullptr: zeros.
void copy_async(void* to, const void* from);
void commit_copies();                            // those since the last commit are one group
void wait_for_copies(int pending, Place place);  // all groups but the last `pending`

template <class T>
T warp_take(T value, int from, unsigned mask, Place place) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Slot));
    const WarpSlots& slots = warp_meet(&value, sizeof value, nullptr, mask, place);
    std::memcpy(&value, &slots[static_cast<size_t>(from)], sizeof value);
    return value;
}

}  // namespace tutti::emulation

inline void __syncthreads(tutti::emulation::Place place = tutti::emulation::Place::current()) {
    tutti::emulation::block_barrier(place);
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       tutti::emulation::Place place = tutti::emulation::Place::current()) {
    tutti::emulation::warp_meet(nullptr, 0, nullptr, mask, place);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int = warpSize,
              tutti::emulation::Place place = tutti::emulation::Place::current()) {
    return tutti::emulation::warp_take(value, from & 31, mask, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = warpSize,
                  tutti::emulation::Place place = tutti::emulation::Place::current()) {
    return tutti::emulation::warp_take(value, tutti::emulation::lane() ^ lanes, mask, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              tutti::emulation::Place place = tutti::emulation::Place::current()) {
    const bool mine = predicate != 0;
    const auto& slots = tutti::emulation::warp_meet(&mine, sizeof mine, nullptr, mask, place);
    unsigned votes = 0;
    for (size_t lane = 0; lane < slots.size(); ++lane) votes |= static_cast<unsigned>(slots[lane][0]) << lane;
    return votes;
}
// A fiber gives up its turn at barriers only. Kernels of two ranks never add to one word.
inline unsigned long long atomicAdd(unsigned long long* sum, unsigned long long value) {
    return __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}
inline int atomicMax(int* largest, int value) {
    int before = __atomic_load_n(largest, __ATOMIC_RELAXED);
    while (before < value &&
           !__atomic_compare_exchange_n(largest, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return before;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
