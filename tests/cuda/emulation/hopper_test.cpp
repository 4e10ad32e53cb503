// The emulated Hopper instructions against products by definition, over layouts written out as in the figures of PTX
// ISA, not as the emulation computes them.
#include "tests/cuda/emulation/hopper.h"

#include <gtest/gtest.h>

#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/device/cuda/launch.h"

namespace tutti {
namespace {

using emulation::Place;

constexpr int kColumns = 128;

// Operands of 64 or 128 rows and 16 columns with small whole numbers, so that every sum is exact.
float value_of(int operand, int row, int k) { return static_cast<float>((row * 7 + k * 3 + operand * 5) % 13 - 6); }
float product_of(int row, int column) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += value_of(0, row, k) * value_of(1, column, k);
    return sum;
}
void put(uint32_t address, int operand, int row, int k) {
    const uint16_t bits = bf16_bits(value_of(operand, row, k));
    std::memcpy(emulation::shared_pointer(address, 2), &bits, 2);
}
uint64_t descriptor(uint32_t start, uint32_t leading, uint32_t stride, uint64_t swizzle) {
    return start >> 4 | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 | swizzle << 62;
}

// The first multiple of 1024 in the block's memory.
uint32_t tile_address() { return (emulation::shared_address(emulation::dynamic_shared()) + 1023) / 1024 * 1024; }

// The address of an operand's element, and the operand's descriptor.
struct Layout {
    bool transposed;
    uint32_t (*at)(uint32_t row, uint32_t k);
    uint64_t (*describe)(uint32_t start);
};

// Figures 156 to 163. 128B, K-major: a row has 128 bytes, of which 32 are these columns, from byte 32 on; the 16-byte
// words of row r are exchanged by r % 8. Eight rows are followed by the next eight.
uint32_t k_major_128(uint32_t row, uint32_t k) { return row * 128 + ((2 + k / 8) ^ (row % 8)) * 16 + k % 8 * 2; }
// 128B, MN-major: a line has 64 rows of one column, words exchanged by the column; lines of 16 columns, and then the
// next 64 rows.
uint32_t mn_major_128(uint32_t row, uint32_t k) {
    return row / 64 * 2048 + k * 128 + ((row % 64 / 8) ^ (k % 8)) * 16 + row % 8 * 2;
}
// 64B, K-major: a row has 64 bytes; two rows share 128 bytes, and words are exchanged by the pair.
uint32_t k_major_64(uint32_t row, uint32_t k) { return row * 64 + ((k / 8) ^ (row / 2 % 4)) * 16 + k % 8 * 2; }
// 32B, MN-major: a line has 16 rows of one column; four lines share 128 bytes. Eight lines, the next 16 rows.
uint32_t mn_major_32(uint32_t row, uint32_t k) {
    return k / 8 * 2048 + row / 16 * 256 + k % 8 * 32 + ((row % 16 / 8) ^ (k % 8 / 4)) * 16 + row % 8 * 2;
}
// No swizzle: 8 x 8 matrices of 128 bytes, first along rows, then along columns.
uint32_t k_major_plain(uint32_t row, uint32_t k) { return k / 8 * 2048 + row / 8 * 128 + row % 8 * 16 + k % 8 * 2; }
uint32_t mn_major_plain(uint32_t row, uint32_t k) { return k / 8 * 2048 + row / 8 * 128 + k % 8 * 16 + row % 8 * 2; }

constexpr Layout kLayouts[] = {
    {false, k_major_128, [](uint32_t start) { return descriptor(start + 32, 16, 1024, 1); }},
    {true, mn_major_128, [](uint32_t start) { return descriptor(start, 2048, 1024, 1); }},
    {false, k_major_64, [](uint32_t start) { return descriptor(start, 16, 512, 2); }},
    {true, mn_major_32, [](uint32_t start) { return descriptor(start, 256, 2048, 3); }},
    {false, k_major_plain, [](uint32_t start) { return descriptor(start, 2048, 128, 0); }},
    {true, mn_major_plain, [](uint32_t start) { return descriptor(start, 2048, 128, 0); }},
};

enum class Fault { none, no_wait, changed };

// result (64, kColumns) = 1 + a b, by thread and register. layout_a < 0: from registers.
__global__ void multiply(float* result, int layout_a, int layout_b, Fault fault) {
    const uint32_t start = tile_address(), b_start = start + 16384;
    const Layout& b = kLayouts[layout_b];
    if (threadIdx.x == 0) {
        for (int k = 0; k < 16; ++k) {
            for (int row = 0; row < 64 && layout_a >= 0; ++row)
                put(start + kLayouts[layout_a].at(static_cast<uint32_t>(row), static_cast<uint32_t>(k)), 0, row, k);
            for (int column = 0; column < kColumns; ++column)
                put(b_start + b.at(static_cast<uint32_t>(column), static_cast<uint32_t>(k)), 1, column, k);
        }
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * 16 + thread % 32 / 4, k = 2 * (thread % 4);
    uint32_t registers[4];  // PTX ISA, .m64nNk16, fragment A
    for (int r = 0; r < 4; ++r) {
        const int at_row = row + r % 2 * 8, at_k = k + r / 2 * 8;
        registers[r] = bf16_bits(value_of(0, at_row, at_k)) |
                       static_cast<uint32_t>(bf16_bits(value_of(0, at_row, at_k + 1))) << 16;
    }
    float sums[kColumns / 2];
    for (float& sum : sums) sum = 1;
    emulation::warp_group_multiply(
        {sums, kColumns, layout_a < 0 ? registers : nullptr, layout_a < 0 ? 0 : kLayouts[layout_a].describe(start),
         b.describe(b_start), layout_a >= 0 && kLayouts[layout_a].transposed, b.transposed, true},
        Place::current());
    emulation::commit_products();
    if (fault == Fault::changed) put(b_start + b.at(5, 5), 1, 6, 5);
    if (fault != Fault::no_wait) emulation::wait_for_products(0, Place::current());
    for (int i = 0; i < kColumns / 2; ++i) {
        const int at = (row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + thread % 4 * 2 + i % 2;
        result[at] = sums[i];
    }
}

struct DeviceFloats {
    explicit DeviceFloats(size_t count) {
        void* memory = nullptr;
        check_cuda(cudaMallocHost(&memory, count * sizeof(float)), "cudaMallocHost");
        data = static_cast<float*>(memory);
    }
    ~DeviceFloats() { cudaFreeHost(data); }
    DeviceFloats(const DeviceFloats&) = delete;
    DeviceFloats& operator=(const DeviceFloats&) = delete;
    float* data;
};

const Grid kGrid{.blocks = dim3(1), .threads = dim3(128), .shared_bytes = 64 << 10};

TEST(Hopper, ProductsReadEveryLayoutOfTheirOperands) {
    const DeviceFloats result(64 * kColumns);
    for (int a = -1; a < static_cast<int>(std::size(kLayouts)); ++a)
        for (int b = 0; b < static_cast<int>(std::size(kLayouts)); ++b) {
            launch(multiply, kGrid, Stream{}, result.data, a, b, Fault::none);
            for (int row = 0; row < 64; ++row)
                for (int column = 0; column < kColumns; ++column)
                    ASSERT_EQ(result.data[row * kColumns + column], 1 + product_of(row, column))
                        << "layouts " << a << ", " << b << " at " << row << ", " << column;
        }
}

TEST(Hopper, AProductArrivesAtTheWait) {
    const DeviceFloats result(64 * kColumns);
    launch(multiply, kGrid, Stream{}, result.data, 0, 1, Fault::no_wait);
    for (int i = 0; i < 64 * kColumns; ++i) ASSERT_TRUE(std::isnan(result.data[i]));
    try {
        launch(multiply, kGrid, Stream{}, result.data, 0, 1, Fault::changed);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("changed under a product"), std::string::npos) << error.what();
    }
}

// A tensor (2, 3, 5, 72) of 16-bit numbers, whose rows, heads and batch entries are apart.
constexpr int kB = 2, kH = 3, kT = 5, kD = 72, kRow = 80, kHead = 400, kBatch = 1208;
uint16_t number_at(int b, int h, int t, int d) { return static_cast<uint16_t>(1 + d + 100 * t + 1000 * h + 5000 * b); }

CUresult encode(CUtensorMap* map, uint16_t* data, cuuint64_t row_bytes, cuuint32_t box_columns) {
    const cuuint64_t dims[] = {kD, kT, kH, kB}, strides[] = {row_bytes, kHead * 2, kBatch * 2};
    const cuuint32_t box[] = {box_columns, 8, 1, 1}, one[] = {1, 1, 1, 1};
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, dims, strides, box, one,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

struct Copied {
    uint64_t barrier;
    bool early;
};

// Both slabs of rows [first, first + 8) of head 2, batch entry 1, as they lie in shared memory.
__global__ void copy(const CUtensorMap map, uint16_t* to, int first, int missing_bytes, bool publishes) {
    auto& copied = block_shared<Copied>();
    std::byte* const slabs = emulation::shared_pointer(tile_address(), 2048);
    if (threadIdx.x == 0) {
        emulation::barrier_init(&copied.barrier, 1);
        if (publishes) emulation::publish_barriers(Place::current());
        emulation::barrier_arrive(&copied.barrier, static_cast<uint32_t>(2048 + missing_bytes), Place::current());
        emulation::load_box(slabs, &map, &copied.barrier, {0, first, 2, 1});
        emulation::load_box(slabs + 1024, &map, &copied.barrier, {64, first, 2, 1});
        copied.early = *reinterpret_cast<uint16_t*>(slabs) == 0xFFFF;
    }
    __syncthreads();
    emulation::barrier_wait(&copied.barrier, 0, Place::current());
    std::memcpy(to + 32 * threadIdx.x, slabs + 64 * threadIdx.x, 64);
    to[1024] = copied.early;
}

TEST(Hopper, ATensorCopySwizzlesRowsAndFillsWithZeros) {
    const DeviceFloats from(kB * kBatch), to(1000);
    auto* const data = reinterpret_cast<uint16_t*>(from.data);
    std::fill_n(data, 2 * kB * kBatch, uint16_t{0xEEEE});  // between the elements
    for (int b = 0; b < kB; ++b)
        for (int h = 0; h < kH; ++h)
            for (int t = 0; t < kT; ++t)
                for (int d = 0; d < kD; ++d) data[b * kBatch + h * kHead + t * kRow + d] = number_at(b, h, t, d);
    alignas(64) CUtensorMap map;
    ASSERT_EQ(encode(&map, data, kRow * 2, 64), CUDA_SUCCESS);
    auto* const result = reinterpret_cast<uint16_t*>(to.data);
    for (const int first : {0, 3, -2}) {
        launch(copy, {.blocks = dim3(1), .threads = dim3(32), .shared_bytes = 4096}, Stream{}, map, result, first, 0,
               true);
        EXPECT_EQ(result[1024], 1) << "what was not waited for is not there";
        for (int slab = 0; slab < 2; ++slab)
            for (int row = 0; row < 8; ++row)
                for (int column = 0; column < 64; ++column) {
                    const int t = first + row, d = 64 * slab + column;
                    const bool exists = t >= 0 && t < kT && d < kD;
                    ASSERT_EQ(result[slab * 512 + row * 64 + ((column / 8) ^ row) * 8 + column % 8],
                              exists ? number_at(1, 2, t, d) : 0)
                        << "first " << first << " slab " << slab << " row " << row << " column " << column;
                }
    }
    const auto error_of = [&](int missing_bytes, bool publishes) {
        try {
            launch(copy, {.blocks = dim3(1), .threads = dim3(32), .shared_bytes = 4096}, Stream{}, map, result, 0,
                   missing_bytes, publishes);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_NE(error_of(16, true).find("waits for ever"), std::string::npos);
    EXPECT_NE(error_of(0, false).find("without publish_barriers"), std::string::npos);
    EXPECT_EQ(error_of(0, true), "");
    emulation::set_capability(8, 9);
    EXPECT_NE(error_of(0, true).find("9.0"), std::string::npos);
    emulation::set_capability(9, 0);
}

TEST(Hopper, ATensorMapHasTheDriversLimits) {
    const DeviceFloats from(kB * kBatch);
    auto* const data = reinterpret_cast<uint16_t*>(from.data);
    alignas(64) CUtensorMap map;
    EXPECT_EQ(encode(&map, data, kRow * 2, 64), CUDA_SUCCESS);
    EXPECT_EQ(encode(&map, data + 1, kRow * 2, 64), CUDA_ERROR_INVALID_VALUE);  // address
    EXPECT_EQ(encode(&map, data, kRow * 2 + 2, 64), CUDA_ERROR_INVALID_VALUE);  // stride
    EXPECT_EQ(encode(&map, data, cuuint64_t{1} << 40, 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(encode(&map, data, kRow * 2, 72), CUDA_ERROR_INVALID_VALUE);  // wider than the swizzle
    EXPECT_EQ(encode(&map, data, kRow * 2, 0), CUDA_ERROR_INVALID_VALUE);
}

// Each of four warps in turn, twice round, by named barriers between neighbours.
__global__ void in_turn(float* order, float* next) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp == 3) emulation::named_barrier_arrive(1, 64, Place::current());
    for (int round = 0; round < 2; ++round) {
        emulation::named_barrier_sync(1 + warp, 64, Place::current());
        if (threadIdx.x % 32 == 0) order[static_cast<int>((*next)++)] = static_cast<float>(warp);
        __syncwarp();
        emulation::named_barrier_arrive(1 + (warp + 1) % 4, 64, Place::current());
    }
}

TEST(Hopper, NamedBarriersTakeTurns) {
    const DeviceFloats order(8), next(1);
    for (const auto direction : {emulation::Order::forward, emulation::Order::backward}) {
        *next.data = 0;
        emulation::set_order(direction);
        launch(in_turn, kGrid, Stream{}, order.data, next.data);
        emulation::set_order(emulation::Order::forward);
        for (int i = 0; i < 8; ++i) EXPECT_EQ(order.data[i], static_cast<float>(i % 4));
    }
}

enum class Omitted { nothing, publish, wait_until_read, wait_until_written };

// Stores four matrices whose element (row, column) of matrix i is 64 i + 8 row + column, as halves of words, and copies
// them to `to`, twice: the second time added as f32. Returns what shared memory held by the halves.
__global__ void store_and_copy(float* to, float* halves, Omitted omitted) {
    std::byte* const shared = emulation::shared_pointer(tile_address(), 1024);
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t registers[4];
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t first = 64 * i + 2 * static_cast<uint32_t>(lane);
        registers[i] = first | (first + 1) << 16;
    }
    emulation::store_matrices(shared + 16 * lane, registers, Place::current());
    __syncwarp();
    for (int i = lane; i < 256; i += 32) halves[i] = reinterpret_cast<const uint16_t*>(shared)[i];
    emulation::store_word(*reinterpret_cast<float4*>(shared + 512 + 16 * lane), {1, 2, 3, static_cast<float>(lane)});
    if (omitted != Omitted::publish) emulation::publish_shared(Place::current());
    __syncwarp();
    if (lane != 0) return;
    emulation::copy_out(to, shared + 512, 512, false);
    if (omitted != Omitted::wait_until_read) emulation::wait_until_read(Place::current());
    std::memset(shared + 512, 0, 4);  // the copy has read it
    if (omitted != Omitted::wait_until_written) emulation::wait_until_written(Place::current());
    to[1] += 10;
    emulation::copy_out(to, shared + 512, 512, true);
    emulation::wait_until_written(Place::current());
}

TEST(Hopper, MatricesAreStoredByRowsAndCopiesOutAreLate) {
    const DeviceFloats to(128), halves(256);
    const Grid grid{.blocks = dim3(1), .threads = dim3(32), .shared_bytes = 4096};
    launch(store_and_copy, grid, Stream{}, to.data, halves.data, Omitted::nothing);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(halves.data[i], static_cast<float>(i));
    EXPECT_EQ(to.data[0], 1);  // the second copy had 0 there
    EXPECT_EQ(to.data[1], 14);
    EXPECT_EQ(to.data[4 * 31 + 3], 62);
    launch(store_and_copy, grid, Stream{}, to.data, halves.data, Omitted::wait_until_read);
    EXPECT_EQ(to.data[0], 0);
    launch(store_and_copy, grid, Stream{}, to.data, halves.data, Omitted::wait_until_written);
    EXPECT_EQ(to.data[1], 4);  // the 10 was overwritten
    try {
        launch(store_and_copy, grid, Stream{}, to.data, halves.data, Omitted::publish);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("without publish_shared"), std::string::npos) << error.what();
    }
}

__global__ void uses_fresh_barrier() {
    emulation::barrier_arrive(reinterpret_cast<uint64_t*>(dynamic_shared()), 0, Place::current());
}
TEST(Hopper, ABarrierWantsToBeInitialised) { EXPECT_THROW(launch(uses_fresh_barrier, kGrid, Stream{}), Error); }

}  // namespace
}  // namespace tutti
