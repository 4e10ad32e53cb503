// kernels/cuda/column_sums.h: sums over the rows of a matrix, in an order that depends on its shape only: no atomics.
// Used by the gradients of biases and of norm weights.
#pragma once

#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

// A block takes a strip of columns through all rows: four threads across, one 16-byte word each, so that a row of the
// strip is 64 bytes. Narrower strips would waste memory's sectors, wider ones leave multiprocessors idle: C = 4096 in
// bf16 is 128 blocks.
inline constexpr int kStripThreads = 4, kSumThreads = 512;
inline constexpr int kRowsAtOnce = kSumThreads / kStripThreads, kSumWarps = kSumThreads / kWarp;

template <int kSums, int N>
struct StripPartials {
    float of_warp[kSumWarps][kStripThreads][kSums][N];
};

// The sum s of column c belongs to sums[s][c * step].
struct SumTargets {
    float* sums[2];
    int64_t step = 1;
};

// terms(n, c, out) gives the terms of row n and of columns c, ..., c + N - 1, of each of kSums sums.
template <int kSums, int N, class Terms>
__global__ void __launch_bounds__(kSumThreads)
    column_sums_kernel(int64_t rows, int64_t columns, Terms terms, SumTargets targets) {
    auto& partials = block_shared<StripPartials<kSums, N>>();
    const int across = static_cast<int>(threadIdx.x) % kStripThreads;
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * kStripThreads + across) * N;
    float sums[kSums][N] = {};
    if (c < columns) {
#pragma unroll 4
        for (int64_t n = threadIdx.x / kStripThreads; n < rows; n += kRowsAtOnce) {
            float terms_of_row[kSums][N];
            terms(n, c, terms_of_row);
#pragma unroll
            for (int s = 0; s < kSums; ++s)
#pragma unroll
                for (int k = 0; k < N; ++k) sums[s][k] += terms_of_row[s][k];
        }
    }
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (int k = 0; k < N; ++k) {
            float x = sums[s][k];
#pragma unroll
            for (int step = kStripThreads; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
            if (threadIdx.x % kWarp < kStripThreads) partials.of_warp[warp][across][s][k] = x;
        }
    __syncthreads();
    if (threadIdx.x >= kStripThreads || c >= columns) return;
    for (int s = 0; s < kSums; ++s)
        for (int k = 0; k < N; ++k) {
            float total = partials.of_warp[0][across][s][k];
            for (int w = 1; w < kSumWarps; ++w) total += partials.of_warp[w][across][s][k];
            targets.sums[s][(c + k) * targets.step] += total;
        }
}

template <int kSums, int N, class Terms>
void column_sums(const Stream& stream, int64_t rows, int64_t columns, const Terms& terms, SumTargets targets) {
    if (rows == 0 || columns == 0) return;
    launch(column_sums_kernel<kSums, N, Terms>,
           {.blocks = dim3(static_cast<unsigned>(ceil_div(columns, kStripThreads * N))), .threads = dim3(kSumThreads)},
           stream, rows, columns, terms, targets);
}

}  // namespace tutti::kernels::cuda
