// kernels/cuda/gemm_plain.cu: the matrix product in all its forms, in tiles of shared memory and f32 multiply-adds:
// without tensor cores, so f32 factors keep their precision. For tests, and where chosen by name.
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/epilogue.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kTile = 64, kDepth = 16, kSide = 16;  // of c; of K; threads along one side
constexpr int kEach = kTile / kSide, kThreads = kSide * kSide;

struct Tiles {
    float a[kDepth][kTile + 4], b[kDepth][kTile + 4];  // + 4: other banks for the next row
};

// op(a) (M, K) and op(b) (K, N) as addresses: element (i, k) of a tile's side i lies at i * side + k * depth.
struct Operand {
    int64_t size, side, depth;
};
struct GemmShape {
    Operand a, b;
    int64_t K, c_row;
    bool accumulate, bias_is_f32, tf32;
};

// To the nearest number with 10 bits of fraction, ties away from zero (cvt.rna.tf32).
__device__ float tf32_value(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return fabsf(x) < INFINITY ? std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu) : x;
}

// A (kTile, kDepth) piece of an operand, zeros outside; neighbouring threads read neighbouring addresses.
template <class T>
__device__ void load_tile(const T* x, const Operand& s, int64_t first, int64_t k_first, int64_t K, bool tf32,
                          float (&tile)[kDepth][kTile + 4]) {
    for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth; at += kThreads) {
        const int i = s.side == 1 ? at % kTile : at / kDepth, k = s.side == 1 ? at / kTile : at % kDepth;
        const int64_t row = first + i, column = k_first + k;
        const float value = row < s.size && column < K ? load_one(x + row * s.side + column * s.depth) : 0;
        tile[k][i] = tf32 ? tf32_value(value) : value;
    }
}

template <class T, class C>
__global__ void __launch_bounds__(kThreads) gemm_kernel(GemmShape s, const T* a, const T* b, const void* bias, C* c) {
    Tiles& tiles = block_shared<Tiles>();
    const int64_t first_m = static_cast<int64_t>(blockIdx.x) * kTile;
    const int64_t first_n = static_cast<int64_t>(blockIdx.y) * kTile;
    const int row = static_cast<int>(threadIdx.x) / kSide, column = static_cast<int>(threadIdx.x) % kSide;
    float sums[kEach][kEach] = {};
    for (int64_t k_first = 0; k_first < s.K; k_first += kDepth) {
        __syncthreads();  // the tiles before have been used
        load_tile(a, s.a, first_m, k_first, s.K, s.tf32, tiles.a);
        load_tile(b, s.b, first_n, k_first, s.K, s.tf32, tiles.b);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDepth; ++k)
#pragma unroll
            for (int i = 0; i < kEach; ++i)
#pragma unroll
                for (int j = 0; j < kEach; ++j)
                    sums[i][j] += tiles.a[k][row + i * kSide] * tiles.b[k][column + j * kSide];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const int64_t m = first_m + row + i * kSide, n = first_n + column + j * kSide;
            if (m >= s.a.size || n >= s.b.size) continue;
            float total = sums[i][j];
            if (bias != nullptr)
                total += s.bias_is_f32 ? static_cast<const float*>(bias)[n] : load_one(static_cast<const T*>(bias) + n);
            C* const to = c + m * s.c_row + n;
            if (s.accumulate) total += load_one(to);
            store_one(total, to);
        }
}

template <bool kTf32>
void multiply(const Stream& stream, const Gemm& g) {
    const int64_t M = g.c.shape[0], N = g.c.shape[1], K = g.transpose_a ? g.a.shape[0] : g.a.shape[1];
    if (M * N == 0) return;
    const int64_t a_row = g.a.stride(0), b_row = g.b.stride(0);
    const GemmShape shape{.a = {M, g.transpose_a ? 1 : a_row, g.transpose_a ? a_row : 1},
                          .b = {N, g.transpose_b ? b_row : 1, g.transpose_b ? 1 : b_row},
                          .K = K,
                          .c_row = g.c.stride(0),
                          .accumulate = g.accumulate,
                          .bias_is_f32 = g.bias.dtype == DType::f32,
                          .tf32 = kTf32 && g.a.dtype == DType::f32};
    const Grid grid{
        .blocks = dim3(static_cast<unsigned>(ceil_div(M, kTile)), static_cast<unsigned>(ceil_div(N, kTile))),
        .threads = dim3(kThreads)};
    with_type(g.a.dtype, [&]<class T>(T) {
        if (g.c.dtype == DType::f32)
            launch(gemm_kernel<T, float>, grid, stream, shape, g.a.as<const T>(), g.b.as<const T>(),
                   static_cast<const void*>(g.bias.data), g.c.as<float>());
        else
            launch(gemm_kernel<T, T>, grid, stream, shape, g.a.as<const T>(), g.b.as<const T>(),
                   static_cast<const void*>(g.bias.data), g.c.as<T>());
    });
}

template <bool kTf32>
void gemm_plain(const Stream& stream, const Gemm& g) {
    multiply<kTf32>(stream, without_epilogue(g));
    apply_epilogue(cuda_table(), stream, g);
}

}  // namespace

void fill_gemm_plain(KernelTable& table, bool tf32) {
    table.gemm = tf32 ? gemm_plain<true> : gemm_plain<false>;
    table.gemm_workspace = [](const Stream&, const Gemm&) -> int64_t { return 0; };
    table.gemm_implementation = [](const Stream&, const Gemm&) { return "own"; };
    table.gemm_implementations = [] { return "own"; };
    table.gemm_of_codes = [](const Stream&, const Gemm&) { return false; };
}

}  // namespace tutti::kernels::cuda
