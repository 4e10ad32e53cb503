// kernels/cuda/column_sums.h: sums over the rows of a matrix, in an order that depends on its shape only, without
// atomics: gradients of biases, norm weights and taps. In two stages: blocks sum slices of the rows into the stream's
// workspace, then a second kernel adds the slices in order.
#pragma once

#include <algorithm>

#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

// A block takes a strip of columns through a slice of the rows: four threads across, one 16-byte word each, so that a
// row of the strip is 64 bytes. Narrower strips would waste parts of memory sectors. Strips alone would leave
// multiprocessors idle: C = 768 in bf16 has 24 strips.
inline constexpr int kStripThreads = 4, kSumThreads = 512;
inline constexpr int kRowsAtOnce = kSumThreads / kStripThreads, kSumWarps = kSumThreads / kWarp;
inline constexpr int64_t kMultiprocessors = 132;  // of an H100; an order of sums must not depend on the GPU
// Four blocks for each multiprocessor; a slice has rows for at least four passes of a block.
inline constexpr int64_t kSumBlocks = 4 * kMultiprocessors, kSliceRows = 4 * kRowsAtOnce;

template <int kSums, int N>
struct StripPartials {
    float of_warp[kSumWarps][kStripThreads][kSums][N];
};

// Destinations: the sum of column c is added to element c * step.
struct SumTargets {
    float *first, *second = nullptr;
    int64_t step = 1;
    __device__ float& at(int64_t sum, int64_t c) const { return (sum == 0 ? first : second)[c * step]; }
};

// Partial sums of slices: partials[slice][s][column], f32.
struct Slices {
    float* partials;  // null: one slice, whose sums go to the targets
    int64_t rows;     // of a slice; the last one may have fewer
};

// terms(n, c, out) gives the terms of row n and of columns c, ..., c + N - 1, of each of kSums sums. Blocks (strip,
// slice).
template <int kSums, int N, class Terms>
__global__ void __launch_bounds__(kSumThreads)
    column_sums_kernel(int64_t rows, int64_t columns, Slices slices, Terms terms, SumTargets targets) {
    auto& partials = block_shared<StripPartials<kSums, N>>();
    const int across = static_cast<int>(threadIdx.x) % kStripThreads;
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * kStripThreads + across) * N;
    const int64_t begin = blockIdx.y * slices.rows, end = begin + slices.rows < rows ? begin + slices.rows : rows;
    float sums[kSums][N] = {};
    if (c < columns) {
#pragma unroll 4
        for (int64_t n = begin + threadIdx.x / kStripThreads; n < end; n += kRowsAtOnce) {
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
            if (slices.partials != nullptr)
                slices.partials[(static_cast<int64_t>(blockIdx.y) * kSums + s) * columns + c + k] = total;
            else
                targets.at(s, c + k) += total;
        }
}

inline constexpr int kSliceThreads = 128;

// A thread adds the slices of one column of one sum; blockIdx.y is the sum.
template <int kSums>
__global__ void __launch_bounds__(kSliceThreads)
    slice_sums_kernel(int64_t columns, int64_t slices, const float* partials, SumTargets targets) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * kSliceThreads + threadIdx.x, s = blockIdx.y;
    if (c >= columns) return;
    float total = 0;
#pragma unroll 4
    for (int64_t slice = 0; slice < slices; ++slice) total += partials[(slice * kSums + s) * columns + c];
    targets.at(s, c) += total;
}

// Uses one slice where the stream has no workspace for more.
template <int kSums, int N, class Terms>
void column_sums(const Stream& stream, int64_t rows, int64_t columns, const Terms& terms, SumTargets targets) {
    if (rows == 0 || columns == 0) return;
    const int64_t strips = ceil_div(columns, kStripThreads * N);
    const int64_t fit = stream.workspace_bytes / (kSums * columns * static_cast<int64_t>(sizeof(float)));
    const int64_t wanted = std::min({ceil_div(kSumBlocks, strips), ceil_div(rows, kSliceRows), fit});
    const int64_t rows_of_slice = wanted > 1 ? ceil_div(rows, wanted) : rows, slices = ceil_div(rows, rows_of_slice);
    auto* const partials = slices > 1 ? static_cast<float*>(stream.workspace) : nullptr;
    launch(column_sums_kernel<kSums, N, Terms>,
           {.blocks = dim3(static_cast<unsigned>(strips), static_cast<unsigned>(slices)), .threads = dim3(kSumThreads)},
           stream, rows, columns, Slices{partials, rows_of_slice}, terms, targets);
    if (slices > 1)
        launch(slice_sums_kernel<kSums>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(columns, kSliceThreads)), kSums),
                .threads = dim3(kSliceThreads)},
               stream, columns, slices, static_cast<const float*>(partials), targets);
}

}  // namespace tutti::kernels::cuda
