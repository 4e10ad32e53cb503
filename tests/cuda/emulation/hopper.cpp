#include "tests/cuda/emulation/hopper.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "tests/cuda/emulation/memory.h"
#include "tests/cuda/emulation/race.h"
#include "tutti/base/dtype.h"
#include "tutti/base/error.h"

namespace {

// The contents of a tensor map; the hardware's layout of the 128 bytes is not documented.
struct Map {
    const std::byte* address;
    uint64_t dims[5], strides[5];  // in elements; in bytes, the first one the element's size
    uint32_t box[5];
    uint32_t rank, chunks;  // 16-byte chunks of the span that is swizzled: 1, 2, 4, 8
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

constexpr uint64_t kElement = 2;  // bf16
constexpr size_t kWord = 16;      // bytes of shared memory that stay together in every layout

}  // namespace

// The conditions are those of the function's documentation in cuda.h.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 4 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || address == nullptr ||
        reinterpret_cast<uintptr_t>(address) % 16 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    Map made{static_cast<const std::byte*>(address), {}, {kElement}, {}, rank, 1u << static_cast<int>(swizzle)};
    for (cuuint32_t i = 0; i < rank; ++i) {
        if (dims[i] == 0 || dims[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 || element_strides[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        made.dims[i] = dims[i];
        made.box[i] = box[i];
    }
    for (cuuint32_t i = 0; i + 1 < rank; ++i) {
        if (strides[i] == 0 || strides[i] % 16 != 0 || strides[i] >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
        made.strides[i + 1] = strides[i];
    }
    const uint64_t row = box[0] * kElement;
    if (row % 16 != 0 || (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && row > 16u * made.chunks))
        return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}

namespace tutti::emulation {

namespace {

// The state of an mbarrier in its 64 bits. Memory that was never written is all ones.
struct Barrier {
    uint64_t pending : 20, arrivals : 20, bytes : 23,
        phase : 1;  // bytes: modulo 2^23, as bytes may arrive before they are expected
};
Barrier load(const uint64_t* barrier) {
    check(*barrier != ~uint64_t{0}, "an mbarrier was used before its init");
    return std::bit_cast<Barrier>(*barrier);
}
void store(uint64_t* barrier, Barrier state) {
    if (state.pending == 0 && state.bytes == 0) {
        state.pending = state.arrivals;
        state.phase = state.phase ^ 1;
    }
    *barrier = std::bit_cast<uint64_t>(state);
}

// Phases of an mbarrier are told apart by the address of the tag.
const char* tag_of(const uint64_t* barrier, uint64_t phase) {
    return reinterpret_cast<const char*>(barrier) + phase % 2;
}

// 16-byte chunks change places by the three address bits from 7 on: CuTe's Swizzle<log2 chunks, 4, 3>, the figures of
// 9.7.15.5.1.2.
uint32_t swizzled(uint32_t address, uint32_t chunks) { return address ^ (address >> 7 & (chunks - 1)) << 4; }

struct Operand {
    uint64_t descriptor;
    int rows;
    bool transposed;
    std::vector<uint16_t> elements;
};

// Sums with products in flight.
struct Pending {
    float* sums[kWarpGroup];
    int columns = 0;
    std::vector<float> values;  // (64, columns)
    std::vector<Operand> operands;
    char tag = 0;  // of what the products read and write
    int group = 0;
    std::bitset<kWarpGroup> taken;  // by which threads
};

struct WarpGroup {
    WarpGroupProduct asked[kWarpGroup];
    int arrived = 0;
    uint64_t meeting = 0;
    char tags[2] = {};  // of meetings
    Place place;
    int groups[kWarpGroup] = {};    // that each thread has committed
    int wanted = 0, completed = 0;  // groups that a thread waits for, and completed groups
    std::list<Pending> pending;
};

struct NamedBarrier {
    int arrived = 0, threads = 0;
    uint64_t phase = 0;
    char tags[2] = {};  // of phases
};

// Copies from shared to global memory that a thread has started.
struct CopiesOut {
    int started = 0, read = 0, written = 0;
};

struct BlockState {
    NamedBarrier named[16];
    std::map<int, WarpGroup> warp_groups;
    std::map<int, CopiesOut> copies_out;   // by thread
    std::map<uint32_t, int> unpublished;   // words of 16 bytes in shared memory: the thread that stored them
    std::map<const uint64_t*, int> fresh;  // mbarriers that copies cannot see yet: the thread that initialised them
};

BlockState& state() {
    std::shared_ptr<void>& extension = block_extension();
    if (!extension) extension = std::make_shared<BlockState>();
    return *static_cast<BlockState*>(extension.get());
}

// Code of 9.0a runs on no other GPU.
void check_hopper() {
    check(capability() == 90, "an instruction of compute capability 9.0a on a GPU of ", capability() / 10, ".",
          capability() % 10);
}

// Products and copies see a thread's stores only after the thread's fence.
void check_published(uint32_t address) {
    const auto& unpublished = state().unpublished;
    if (unpublished.empty()) return;
    const auto word = unpublished.find(address / 16);
    check(word == unpublished.end(), "a product or a copy reads shared memory that a thread stored without ",
          "publish_shared()");
}
void mark_unpublished(const void* word) {
    check(shared_address(word) % 16 == 0, "words of 16 bytes are stored at multiples of 16");
    state().unpublished[shared_address(word) / 16] = thread_of_block();
}

// An operand's elements: (rows, 16), rows along M or N. `reads`: the product reads them now.
std::vector<uint16_t> read_operand(uint64_t descriptor, int rows, bool transposed, bool reads) {
    const auto field = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; };
    const uint32_t start = field(0), leading = field(16), stride = field(32);
    check((descriptor >> 49 & 7) == 0, "a matrix descriptor with a base offset: its tile must begin at 1024 bytes");
    constexpr uint32_t kChunks[] = {1, 8, 4, 2};  // by swizzle mode
    const uint32_t chunks = kChunks[descriptor >> 62];
    const auto place_of = [&](uint32_t r, uint32_t k) {  // 9.7.15.5.1.2.1.3, canonical layouts
        if (transposed && chunks == 1) return r % 8 * 2 + r / 8 * stride + k % 8 * 16 + k / 8 * leading;
        if (transposed)
            return r % (8 * chunks) * 2 + r / (8 * chunks) * leading + k % 8 * (16 * chunks) + k / 8 * stride;
        if (chunks == 1) return r % 8 * 16 + r / 8 * stride + k % 8 * 2 + k / 8 * leading;
        return r % 8 * (16 * chunks) + r / 8 * stride + k * 2;
    };
    // Words of 8 elements stay together, along the rows or along k.
    constexpr uint32_t kOfWord = kWord / kElement;
    const auto all = static_cast<uint32_t>(rows);
    std::vector<uint16_t> elements(size_t{all} * 16);
    for (uint32_t r = 0; r < all; r += transposed ? kOfWord : 1)
        for (uint32_t k = 0; k < 16; k += transposed ? 1 : kOfWord) {
            const uint32_t address = swizzled(start + place_of(r, k), chunks);
            check_published(address);
            const std::byte* const place = shared_pointer(address, kWord);
            if (reads) race::reads(place, kWord);
            uint16_t word[kOfWord];
            std::memcpy(word, place, sizeof word);
            uint16_t* const to = &elements[r * 16 + k];
            for (uint32_t i = 0; i < kOfWord; ++i) to[i * (transposed ? 16 : 1)] = word[i];
        }
    return elements;
}

// Lane l of warp w holds rows 16 w + l/4 and + 8; register i of a sum is row half i/2 % 2, column 8 (i/4) + 2 (l%4) +
// i%2: figure of .m64nNk16, D.
struct Position {
    int row, column;
};
Position position_of_sum(int thread, int i) {
    return {thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, i / 4 * 8 + thread % 4 * 2 + i % 2};
}

void multiply(WarpGroup& group, Place place) {
    const WarpGroupProduct& first = group.asked[0];
    for (const WarpGroupProduct& other : group.asked)
        check(other.columns == first.columns && other.accumulate == first.accumulate &&
                  (other.a == nullptr) == (first.a == nullptr) && other.b_descriptor == first.b_descriptor &&
                  (first.a != nullptr || other.a_descriptor == first.a_descriptor),
              "threads of a warp group ask for different products");
    check(first.columns % 8 == 0 && first.columns >= 8 && first.columns <= 256, "wgmma makes 8 to 256 columns, got ",
          first.columns);
    auto entry = std::find_if(group.pending.begin(), group.pending.end(),
                              [&](const Pending& p) { return p.sums[0] == first.sums; });
    if (entry == group.pending.end()) {
        entry = group.pending.insert(group.pending.end(), Pending{});
        entry->columns = first.columns;
        entry->values.resize(static_cast<size_t>(64 * first.columns));
        for (int t = 0; t < kWarpGroup; ++t) {
            float* const sums = group.asked[t].sums;
            entry->sums[t] = sums;
            for (int i = 0; i < first.columns / 2; ++i) {
                const auto [row, column] = position_of_sum(t, i);
                entry->values[static_cast<size_t>(row * first.columns + column)] = sums[i];
                sums[i] = std::numeric_limits<float>::quiet_NaN();
            }
            race::writes(sums, static_cast<size_t>(first.columns / 2) * sizeof *sums);  // until they are waited for
        }
    }
    if (!first.accumulate) std::fill(entry->values.begin(), entry->values.end(), 0.0f);
    entry->group = group.groups[0];

    float a[64][16], b[16][256];
    if (first.a != nullptr) {
        for (int t = 0; t < kWarpGroup; ++t) {  // figure of .m64nNk16, A: register r is row half r%2, column half r/2
            race::reads(group.asked[t].a, 4 * sizeof *group.asked[t].a);
            for (int r = 0; r < 4; ++r)
                for (int half = 0; half < 2; ++half)
                    a[t / 32 * 16 + t % 32 / 4 + r % 2 * 8][t % 4 * 2 + r / 2 * 8 + half] =
                        bf16_value(static_cast<uint16_t>(group.asked[t].a[r] >> (16 * half)));
        }
    } else {
        Operand left{first.a_descriptor, 64, first.a_transposed,
                     read_operand(first.a_descriptor, 64, first.a_transposed, true)};
        for (size_t i = 0; i < left.elements.size(); ++i) a[i / 16][i % 16] = bf16_value(left.elements[i]);
        entry->operands.push_back(std::move(left));
    }
    Operand right{first.b_descriptor, first.columns, first.b_transposed,
                  read_operand(first.b_descriptor, first.columns, first.b_transposed, true)};
    for (size_t i = 0; i < right.elements.size(); ++i) b[i % 16][i / 16] = bf16_value(right.elements[i]);
    entry->operands.push_back(std::move(right));
    race::release(&entry->tag);
    for (int row = 0; row < 64; ++row) {
        float product[256] = {};
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < first.columns; ++column) product[column] += a[row][k] * b[k][column];
        for (int column = 0; column < first.columns; ++column)
            entry->values[static_cast<size_t>(row * first.columns + column)] += product[column];
    }
    group.place = place;
}

}  // namespace

void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    const race::Unseen unseen;
    check_hopper();
    check(shared_address(barrier) % 8 == 0 && arrivals >= 1 && arrivals < 1u << 20,
          "an mbarrier expects 1 to 2^20 - 1 arrivals, got ", arrivals);
    race::writes(barrier, sizeof *barrier);
    *barrier = std::bit_cast<uint64_t>(Barrier{arrivals, arrivals, 0, 0});
    state().fresh[barrier] = thread_of_block();
}
void publish_barriers(Place place) {
    const race::Unseen unseen;
    if (race::is_forgotten(place)) return;
    std::erase_if(state().fresh, [thread = thread_of_block()](const auto& b) { return b.second == thread; });
}
void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes, Place place) {
    race::reads(barrier, sizeof *barrier);  // after its init; arrivals need no order
    Barrier state = load(barrier);
    check(state.pending > 0, "an mbarrier got more arrivals than it expects");
    // An arrival that expects bytes publishes no stores: the copies order their own.
    race::release(tag_of(barrier, state.phase), expected_bytes == 0 ? &place : nullptr);
    state.bytes = (state.bytes + expected_bytes) & 0x7fffff;
    state.pending = state.pending - 1;
    store(barrier, state);
}
void barrier_wait(uint64_t* barrier, uint32_t parity, Place place) {
    race::reads(barrier, sizeof *barrier);
    wait_until([=] { return load(barrier).phase != parity; }, place);
    race::acquire(tag_of(barrier, parity), &place);
}

void named_barrier_arrive(int id, int threads, Place place) {
    const race::Unseen unseen;
    check(id > 0 && id < 16 && threads % 32 == 0, "a named barrier has a number from 1 to 15 and whole warps, got ", id,
          " and ", threads, " threads");
    NamedBarrier& barrier = state().named[id];
    check(barrier.arrived == 0 || barrier.threads == threads, "barrier ", id, " is asked for ", threads, " and for ",
          barrier.threads, " threads");
    race::release(&barrier.tags[barrier.phase % 2], &place);
    barrier.threads = threads;
    if (++barrier.arrived < threads) return;
    barrier.arrived = 0;
    ++barrier.phase;
}
void named_barrier_sync(int id, int threads, Place place) {
    const race::Unseen unseen;
    NamedBarrier& barrier = state().named[id];
    const uint64_t phase = barrier.phase;
    named_barrier_arrive(id, threads, place);
    wait_until([&barrier, phase] { return barrier.phase != phase; }, place);
    race::acquire(&barrier.tags[phase % 2], &place);
}

void load_box(void* shared, const CUtensorMap* map, uint64_t* barrier, const int (&coordinates)[4]) {
    const race::Unseen unseen;
    Map m;
    std::memcpy(&m, map, sizeof m);
    const uint32_t to = shared_address(shared);
    check(to % 128 == 0, "a tensor copy needs 128-byte aligned shared memory, got ", to);
    check(!state().fresh.contains(barrier), "a copy reports to an mbarrier that was initialised without ",
          "publish_barriers()");
    const uint32_t rows = m.box[1] * m.box[2] * m.box[3], row_bytes = m.box[0] * static_cast<uint32_t>(kElement);
    std::memset(shared_pointer(to, size_t{rows} * row_bytes), 0xFF, size_t{rows} * row_bytes);
    int64_t from[4];
    std::copy(std::begin(coordinates), std::end(coordinates), from);
    do_late(Unit::loads, [=] {
        for (uint32_t row = 0; row < rows; ++row)
            for (uint32_t column = 0; column < m.box[0]; ++column) {
                const int64_t at[4] = {from[0] + column, from[1] + row % m.box[1], from[2] + row / m.box[1] % m.box[2],
                                       from[3] + row / m.box[1] / m.box[2]};
                uint16_t element = 0;
                const std::byte* source = m.address;
                bool exists = true;
                for (int i = 0; i < 4; ++i) {
                    exists = exists && at[i] >= 0 && at[i] < static_cast<int64_t>(m.dims[i]);
                    source += at[i] * static_cast<int64_t>(m.strides[i]);
                }
                if (exists) std::memcpy(&element, source, sizeof element);
                const uint32_t offset = row * row_bytes + column * static_cast<uint32_t>(kElement);
                std::byte* const place = shared_pointer(swizzled(to + offset, m.chunks), sizeof element);
                if (column % 8 == 0) {
                    if (exists) race::reads(source, kWord);  // rows are multiples of 16 bytes apart
                    race::writes(place, kWord);
                }
                std::memcpy(place, &element, sizeof element);
            }
        Barrier state = load(barrier);
        race::release(tag_of(barrier, state.phase));
        state.bytes = (state.bytes - rows * row_bytes) & 0x7fffff;
        store(barrier, state);
    });
}

// PTX ISA, stmatrix: the rows of matrix i lie at the addresses of lanes 8 i to 8 i + 7; lane l has the two elements at
// row l/4, column 2 (l%4) of each.
void store_matrices(void* row, const uint32_t (&registers)[4], Place place) {
    const race::Unseen unseen;
    struct Lane {
        void* row;
        uint32_t registers[4];
    } mine{row, {registers[0], registers[1], registers[2], registers[3]}};
    const WarpSlots& slots = warp_meet(&mine, sizeof mine, nullptr, 0xffffffffu, place);
    check_hopper();
    const int own = lane();
    mark_unpublished(row);
    for (int l = 0; l < warpSize; ++l) {  // the row at this lane's address
        if (l / 4 != own % 8) continue;
        Lane of_lane;
        std::memcpy(&of_lane, &slots[static_cast<size_t>(l)], sizeof of_lane);
        race::writes(static_cast<std::byte*>(row) + l % 4 * 4, 4);
        std::memcpy(static_cast<std::byte*>(row) + l % 4 * 4, &of_lane.registers[own / 8], 4);
    }
}
void store_word(float4& to, const float4& word) {
    const race::Unseen unseen;
    mark_unpublished(&to);
    race::writes(&to, sizeof to);
    to = word;
}
void publish_shared(Place place) {
    const race::Unseen unseen;
    if (race::is_forgotten(place)) return;
    std::erase_if(state().unpublished,
                  [thread = thread_of_block()](const auto& word) { return word.second == thread; });
}

void copy_out(float* to, const void* shared, uint32_t bytes, bool add) {
    const race::Unseen unseen;
    check_hopper();
    const uint32_t from = shared_address(shared);
    check(from % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 16 == 0,
          "a copy from shared memory needs addresses and a size that are multiples of 16 bytes");
    check(in_device_block(to, bytes) || in_pinned_block(to, bytes), "a copy of ", bytes,
          " bytes from shared memory ends outside of its array");
    const auto copies = &state().copies_out[thread_of_block()];
    ++copies->started;
    do_late(Unit::stores, [=] {
        std::vector<float> values(bytes / sizeof(float));
        for (uint32_t at = 0; at < bytes; at += 16) check_published(from + at);
        race::reads(shared_pointer(from, bytes), bytes);
        std::memcpy(values.data(), shared_pointer(from, bytes), bytes);
        race::release(&copies->read);
        ++copies->read;
        do_late(Unit::stores, [=, values = std::move(values)] {
            race::writes(to, bytes);
            for (size_t i = 0; i < values.size(); ++i) to[i] = add ? to[i] + values[i] : values[i];
            race::release(&copies->written);
            ++copies->written;
        });
    });
}
void wait_until_read(Place place) {
    const race::Unseen unseen;
    const auto copies = &state().copies_out[thread_of_block()];
    wait_until([=] { return copies->read == copies->started; }, place);
    race::acquire(&copies->read, &place);
}
void wait_until_written(Place place) {
    const race::Unseen unseen;
    const auto copies = &state().copies_out[thread_of_block()];
    wait_until([=] { return copies->written == copies->started; }, place);
    race::acquire(&copies->written, &place);
}

void check_of_device(const void* data) {
    check(in_device(data), "a tensor copy or a bulk copy of memory that is not of cudaMalloc");
}
void check_of_device(const CUtensorMap& map) {
    Map m;
    std::memcpy(&m, &map, sizeof m);
    check_of_device(m.address);
}

void wait_for_turn(const int32_t* turns, int mine, Place place) {
    wait_until([=] { return *turns == mine; }, place);
    race::acquire(turns, &place);
}
void pass_turn(int32_t* turns, int next, Place place) {
    race::release(turns, &place);
    *turns = next;
}

void warp_group_multiply(const WarpGroupProduct& product, Place place) {
    const race::Unseen unseen;
    WarpGroup& group = state().warp_groups[thread_of_block() / kWarpGroup];
    check_hopper();
    if (group.arrived == 0) group.place = place;
    check(group.place.line() == place.line(), "a warp group asks for a product at lines ", place.line(), " and ",
          group.place.line());
    group.asked[thread_of_block() % kWarpGroup] = product;
    const char* const tag = &group.tags[group.meeting % 2];
    race::release(tag);
    if (++group.arrived < kWarpGroup) {
        const uint64_t meeting = group.meeting;
        wait_until([&group, meeting] { return group.meeting != meeting; }, place);
        return;
    }
    beside_threads(Unit::products, tag, [&] { multiply(group, place); });
    group.arrived = 0;
    ++group.meeting;
}

void commit_products() {
    const race::Unseen unseen;
    ++state().warp_groups[thread_of_block() / kWarpGroup].groups[thread_of_block() % kWarpGroup];
}

void wait_for_products(int pending, Place place) {
    const race::Unseen unseen;
    const int thread = thread_of_block() % kWarpGroup;
    WarpGroup& group = state().warp_groups[thread_of_block() / kWarpGroup];
    const int wanted = group.groups[thread] - pending;
    if (wanted > group.wanted) {
        group.wanted = wanted;
        do_late(Unit::products, [&group, wanted] { group.completed = wanted; });
    }
    wait_until([&group, wanted] { return group.completed >= wanted; }, place);
    const auto take = [&](Pending& p) {
        if (p.taken[static_cast<size_t>(thread)] || p.group >= wanted) return false;
        if (thread % 32 == 0)
            for (const Operand& operand : p.operands)
                check(operand.elements == read_operand(operand.descriptor, operand.rows, operand.transposed, false),
                      "shared memory changed under a product that was not waited for");
        race::acquire(&p.tag, &place);
        for (int i = 0; i < p.columns / 2; ++i) {
            const auto [row, column] = position_of_sum(thread, i);
            p.sums[thread][i] = p.values[static_cast<size_t>(row * p.columns + column)];
        }
        return p.taken.set(static_cast<size_t>(thread)).all();
    };
    group.pending.remove_if(take);
}

}  // namespace tutti::emulation
