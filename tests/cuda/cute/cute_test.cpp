// The tiles of attention on Hopper and their matrix descriptors against CuTe's, the reading of PTX ISA by NVIDIA's
// CUTLASS: a mistake that our kernels and the emulation have in common shows here. No GPU runs.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/cute/cute_tile.h"
#include "tutti/base/dtype.h"
#include "tutti/device/cuda/launch.h"
#include "tutti/kernels/cuda/slab_tile.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels {
namespace {

template <int kRows_, int kD_>
struct Sizes {
    static constexpr int kRows = kRows_, kD = kD_;
    using Tile = cuda::SlabTile<kRows, kD>;
    using Cute = CuteTile<kRows, kD>;
    static constexpr Grid kGrid{.blocks = dim3(1), .threads = dim3(32), .shared_bytes = Tile::kBytes + 1023};
};

// Memory that kernels and the host see.
template <class T>
struct Pinned {
    explicit Pinned(size_t count) {
        void* memory = nullptr;
        check_cuda(cudaMallocHost(&memory, count * sizeof(T)), "cudaMallocHost");
        data = static_cast<T*>(memory);
    }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    T* data;
};

template <class S>
struct Descriptors {
    uint32_t address;
    uint64_t k_major[S::kRows / 64][S::kD / 16];
    uint64_t n_major[S::kRows / 16][S::kD / 64];
};

template <class S>
__global__ void describe(Descriptors<S>* to) {
    const typename S::Tile tile{cuda::slab_memory()};
    if (threadIdx.x > 0) return;
    to->address = cuda::shared_address(tile.data);
    for (int block = 0; block < S::kRows / 64; ++block)
        for (int k = 0; k < S::kD / 16; ++k) to->k_major[block][k] = tile.k_major(64 * block, k);
    for (int k = 0; k < S::kRows / 16; ++k)
        for (int slab = 0; slab < S::kD / 64; ++slab) to->n_major[k][slab] = tile.n_major(k, slab);
}

// The tile as it lies in shared memory, its element (row, column) being the number kD row + column: stored by a warp,
// or copied from memory.
template <class S>
__global__ void store(uint16_t* to) {
    const typename S::Tile tile{cuda::slab_memory()};
    const int lane = static_cast<int>(threadIdx.x);
    for (int row = 0; row < S::kRows; row += 16)
        for (int slab = 0; slab < S::kD / 64; ++slab) {
            cuda::FragmentA columns[4];
            for (int k = 0; k < 4; ++k)
                for (int r = 0; r < 4; ++r) {  // figure of .m64nNk16, A
                    const int at_row = row + lane / 4 + r % 2 * 8;
                    const int column = 64 * slab + 16 * k + 2 * (lane % 4) + r / 2 * 8;
                    const auto number = static_cast<uint32_t>(at_row * S::kD + column);
                    columns[k][r] = number | (number + 1) << 16;
                }
            tile.store(row, slab, columns);
        }
    __syncwarp();
    if (lane == 0) std::memcpy(to, tile.data, S::Tile::kBytes);
}
template <class S>
__global__ void fetch(uint16_t* to, const CUtensorMap map) {
    const typename S::Tile tile{cuda::slab_memory()};
    auto& barrier = block_shared<cuda::Mbarrier>();
    if (threadIdx.x > 0) return;
    cuda::init_barrier(barrier, 1);
    cuda::publish_barriers();
    cuda::arrive_expecting(barrier, S::Tile::kBytes);
    tile.fetch(map, barrier, 0, 0, 0);
    cuda::wait(barrier, 0);
    std::memcpy(to, tile.data, S::Tile::kBytes);
}

template <class S>
void expect_layout_of_cute(const uint16_t* tile) {
    for (int row = 0; row < S::kRows; ++row)
        for (int column = 0; column < S::kD; ++column)
            ASSERT_EQ(tile[S::Cute::offset(row, column) / 2], row * S::kD + column)
                << S::kRows << " x " << S::kD << " at " << row << ", " << column;
}

template <class S>
class Cute : public ::testing::Test {};
using AllSizes = ::testing::Types<Sizes<192, 64>, Sizes<128, 64>, Sizes<64, 128>, Sizes<128, 128>>;
TYPED_TEST_SUITE(Cute, AllSizes);

TYPED_TEST(Cute, DescribesOperandsAlike) {
    using S = TypeParam;
    constexpr int kSlabs = S::kD / 64;
    const Pinned<Descriptors<S>> ours(1);
    launch(describe<S>, S::kGrid, Stream{}, ours.data);
    const uint32_t address = ours.data->address;
    for (int block = 0; block < S::kRows / 64; ++block)
        for (int k = 0; k < S::kD / 16; ++k)
            EXPECT_EQ(ours.data->k_major[block][k], S::Cute::k_major(address, block, k)) << block << ", " << k;
    for (int k = 0; k < S::kRows / 16; ++k) {
        if (kSlabs > 1) {
            EXPECT_EQ(ours.data->n_major[k][0], S::Cute::n_major(address, k)) << k;
        }
        // Of one slab the leading offset, bits 16 to 29, is not used.
        constexpr uint64_t kUsed = ~(uint64_t{0x3fff} << 16);
        for (int slab = 0; slab < kSlabs; ++slab)
            EXPECT_EQ(ours.data->n_major[k][slab] & kUsed, S::Cute::n_major(address, k, slab) & kUsed)
                << k << " of slab " << slab;
    }
}

TYPED_TEST(Cute, LaysOutWhatWarpsStoreAlike) {
    using S = TypeParam;
    const Pinned<uint16_t> tile(S::kRows * S::kD);
    launch(store<S>, S::kGrid, Stream{}, tile.data);
    expect_layout_of_cute<S>(tile.data);
}

TYPED_TEST(Cute, LaysOutTensorCopiesAlike) {
    using S = TypeParam;
    constexpr size_t kBytes = S::Tile::kBytes;
    const Pinned<uint16_t> tile(kBytes / 2);
    std::vector<uint16_t> numbers(kBytes / 2);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i);
    void* from = nullptr;
    check_cuda(cudaMalloc(&from, kBytes), "cudaMalloc");
    check_cuda(cudaMemcpy(from, numbers.data(), kBytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    const View x(from, DType::bf16, {1, S::kRows, 1, S::kD});
    launch(fetch<S>, S::kGrid, Stream{}, tile.data, cuda::tensor_map(x, S::kRows));
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cudaFree(from);
    expect_layout_of_cute<S>(tile.data);
}

}  // namespace
}  // namespace tutti::kernels
