// Every table, of any instruction set and of GPUs, gives on this machine the sizes of its kernels' workspaces, which
// plans for other machines need. The kernels use the same plans (gemm_plan.h, attention_plan.h) and are run in
// workspaces of these sizes, between guards, by the cases and by cpu_test.cpp.
#include <gtest/gtest.h>

#include <string>

#include "tutti/base/error.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/gemm_plan.h"
#include "tutti/kernels/cuda/cuda_table.h"

namespace tutti::kernels {
namespace {

constexpr Isa kIsas[] = {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

// c (M, N) = op(a) (M, K) op(b) (K, N), of shapes alone.
Gemm product(DType type, int64_t M, int64_t N, int64_t K, bool transpose_a = false, bool transpose_b = false) {
    return {.a = View(nullptr, type, transpose_a ? Shape{K, M} : Shape{M, K}),
            .b = View(nullptr, type, transpose_b ? Shape{N, K} : Shape{K, N}),
            .c = View(nullptr, type, {M, N}),
            .transpose_a = transpose_a,
            .transpose_b = transpose_b};
}

// By hand, for 1000 x 700 x 900 with one thread, from the constants that gemm_plan.h derives from the caches.
//
// Floats: 900 words go at once, and their sums from registers to c: 704 x 900 words of b, 48 to begin at cache lines.
// 1100 go in two parts, whose sums wait in blocks. 16 lanes: panels of 64, 704 columns in two parts of 384, rows in
// eleven of 96. 8 lanes: panels of 16, columns in three parts of 240, rows in 21 of 48. a is in place.
// Pairs: 450 words; tiles need whole units of 16, so 464 words, panels of 32, rows of 256, columns of 512: 704 in two
// parts of 352, rows in four of 256. Two products of 240 words, whole units of at most 256, make the 464. a is no
// multiple of 32 words and is converted: 256 x (240 + 16) words.
TEST(sizes, of_a_product_by_hand) {
    const Stream stream{.threads = 1};
    const Gemm f32 = product(DType::f32, 1000, 700, 900), bf16 = product(DType::bf16, 1000, 700, 900);
    const Gemm deep = product(DType::f32, 1000, 700, 1100);
    for (const Isa isa : kIsas) EXPECT_EQ(own_gemm(isa).workspace(stream, f32), 704 * 900 + 48);
    EXPECT_EQ(own_gemm(Isa::avx512).workspace(stream, deep), 704 * 1100 + 96 * 384 + 48);
    EXPECT_EQ(own_gemm(Isa::avx2).workspace(stream, deep), 704 * 1100 + 48 * 240 + 48);
    EXPECT_EQ(own_gemm(Isa::amx).workspace(stream, bf16), 704 * 464 + 256 * (240 + 16) + 256 * 352 + 48);
    EXPECT_EQ(own_gemm(Isa::amx).packed_b(stream, bf16), 704 * 464);
    EXPECT_EQ(own_gemm(Isa::avx512_bf16).packed_b(stream, bf16), 704 * 450);
    EXPECT_EQ(own_gemm(Isa::avx512).packed_b(stream, bf16), 704 * 900);

    // One block of rows, and columns in four parts of 192 for four tasks a thread. A task packs 550 words of its
    // columns at a time, half of 1100.
    EXPECT_EQ(own_gemm(Isa::avx512).workspace(stream, product(DType::f32, 90, 700, 1100)), 192 * 550 + 90 * 192 + 48);

    // A cached packed b is not part of the workspace; few rows and empty products need none.
    Gemm kept = bf16;
    float value = 0;
    kept.packed_b = View(&value, DType::f32, {1});
    EXPECT_EQ(own_gemm(Isa::amx).workspace(stream, kept), 256 * (240 + 16) + 256 * 352 + 48);
    for (const Isa isa : kIsas) {
        EXPECT_EQ(own_gemm(isa).workspace(stream, product(DType::bf16, kFewRowsOfC, 700, 900, false, true)), 0);
        EXPECT_EQ(own_gemm(isa).workspace(stream, product(DType::bf16, 0, 700, 900)), 0);
    }
}

// Workspaces for a head dim of 80 with two threads, in floats. Forward, per thread: K, V and memory to transpose in
// (128 keys), Q^T and O^T of 8 blocks of 64 rows, P^T (128, 64) and a chunk of S^T (32, 64). Backward:
// attention_backward.cpp, with 300 keys in three tiles; 6 heads are fewer than 4 for each thread, but go into two
// evenly: no splits, and sums of dK and dV per thread.
TEST(sizes, of_attention_by_hand) {
    const Stream stream{.threads = 2};
    const Shape q{3, 500, 8, 80}, k{3, 300, 2, 80};
    const int64_t forward = 3 * 128 * 80 + 8 * 2 * 64 * 80 + 128 * 64 + 32 * 64;
    const int64_t staged = (64 + 128) * 80, of_rows = 4 * 5 * 64 * 80, tiles = 3 * 128 * 64 + 2 * 32 * 64;
    const int64_t backward = 3 * 384 * 80 + staged + of_rows + tiles + 2 * 384 * 80;
    for (const Isa isa : kIsas) {
        EXPECT_EQ(cpu_table(isa).attention_workspace(stream, q, k, false), 2 * forward);
        EXPECT_EQ(cpu_table(isa).attention_workspace(stream, q, k, true), 2 * backward);
    }
}

// Every size entry of every table, on any machine.
TEST(sizes, of_all_tables_on_this_machine) {
    const Stream stream{.threads = 3};
    for (const Isa isa : kIsas) {
        const KernelTable& table = cpu_table(isa);
        SCOPED_TRACE(table.name);
        for (const DType type : {DType::f32, DType::bf16, DType::f16})
            for (const bool transpose_a : {false, true})
                for (const bool transpose_b : {false, true}) {
                    const Gemm g = product(type, 2000, 3000, 1000, transpose_a, transpose_b);
                    const bool own = std::string(table.gemm_implementation(stream, g)) == "own";
                    EXPECT_EQ(table.gemm_workspace(stream, g), own ? own_gemm(isa).workspace(stream, g) : 0);
                    EXPECT_EQ(table.gemm_packed_b(stream, g), own ? own_gemm(isa).packed_b(stream, g) : 0);
                }
        EXPECT_GT(table.attention_workspace(stream, {2, 64, 4, 32}, {2, 64, 4, 32}, true), 0);
    }
}

// No GPU, no driver and no library of NVIDIA's is asked: the test runs in processes that have none.
TEST(sizes, of_the_cuda_table_without_a_gpu) {
    const Stream stream;
    for (const KernelTable* table : {&cuda_table(), &cuda_tf32_table()}) {
        EXPECT_EQ(table->attention_workspace(stream, {2, 64, 4, 32}, {2, 64, 4, 32}, false), 0);
        const auto backward = [&](const Shape& q) { return table->attention_workspace(stream, q, q, true); };
        // D_i, 2 x 4 counters in a line of 32, as many tiles of 8192 sums: 64 queries are half of a tile.
        EXPECT_EQ(backward({2, 64, 4, 32}), 2 * 64 * 4 + 32 + 8 * 8192);
        // At 128 columns a tile has 64 queries: four for 200. 1000 values of D_i end in a line of 32.
        EXPECT_EQ(backward({1, 200, 5, 128}), 1024 + 32 + 5 * 4 * 8192);
        EXPECT_EQ(backward({2, 64, 4, 36}), 2 * 64 * 4);  // head dims that the kernel of Hopper does not take
        EXPECT_EQ(backward({2, 64, 4, 256}), 2 * 64 * 4);
        EXPECT_EQ(backward({2, 0, 4, 64}), 0);
        EXPECT_EQ(table->gemm_workspace(stream, product(DType::bf16, 2000, 3000, 1000)), 0);
        EXPECT_NE(table->gemm_implementation(stream, product(DType::bf16, 2000, 3000, 1000)), std::string());
    }
}

}  // namespace
}  // namespace tutti::kernels
