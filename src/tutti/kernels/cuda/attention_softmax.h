// kernels/cuda/attention_softmax.h: the online softmax of the attention kernels on tensor cores, in the registers of
// accumulators: lane l holds rows l/4 and l/4 + 8.
#pragma once

#include "tutti/kernels/cuda/attention_tiles.h"

namespace tutti::kernels::cuda {

// Over the four lanes that share a row.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// S = -infinity where key `tile` + column is hidden from the row.
template <int kKeys>
__device__ __forceinline__ void hide(RowSums<kKeys>& s, int tile, const Keys (&visible)[2]) {
    const int column = tile + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int j = column + 8 * n + i % 2;
            if (j < visible[i / 2].first || j >= visible[i / 2].end) s[n][i] = -INFINITY;
        }
}

// S = capped scores, where there is a cap.
template <int kKeys>
__device__ __forceinline__ void cap_scores(RowSums<kKeys>& s, const AttentionShape& shape) {
    if (shape.cap <= 0) return;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = shape.capped(s[n][i]);
}

// Running maximum, in units of S, and sum of the softmax of the lane's two rows.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // m' = max(m, max_j S_j);  P_j = exp(scale (S_j - m'));  decay = exp(scale (m - m'));  sum' = sum decay + sum_j
    // P_j. P replaces S; the caller multiplies sums taken with the old maximum by decay. `scale` includes the factor
    // log2 e.
    template <int kKeys>
    __device__ __forceinline__ void advance(RowSums<kKeys>& s, float scale, float (&decay)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float largest = maximum[half];
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            largest = row_max(largest);
            // A row that has seen no key has maximum -infinity, and -infinity minus itself is NaN.
            const float shift = fmaxf(largest, -1e37f) * scale;
            decay[half] = fast_exp2(fmaf(maximum[half], scale, -shift));
            maximum[half] = largest;
            float of_tile = 0;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    s[n][i] = fast_exp2(fmaf(s[n][i], scale, -shift));
                    of_tile += s[n][i];
                }
            sum[half] = sum[half] * decay[half] + of_tile;  // of this lane's columns; finish() adds the lanes
        }
    }

    // Rows `row` + l/4 and + 8 of head h, if below Tq: O = out / sum, and lse.
    template <int kD>
    __device__ __forceinline__ void finish(const AttentionShape& shape, const RowSums<kD>& out, const Result& o,
                                           float* lse, int b, int h, int row) const {
        const int lane = static_cast<int>(threadIdx.x) % kWarp;
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = row_sum(sum[half]);
            inverse[half] = total == 0 ? 0 : 1 / total;
            const int i = row + lane / 4 + 8 * half;
            if (lane % 4 == 0 && i < shape.Tq)
                lse[shape.lse_at(b, h, i)] =
                    total == 0 ? -INFINITY : maximum[half] * shape.softmax_scale() + logf(total);
        }
        store_rows<kD>(out, inverse, o, b, h, row, shape.Tq, shape.D);
    }
};

template <int kD>
__device__ __forceinline__ void rescale(RowSums<kD>& out, const float (&decay)[2]) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[n][i] *= decay[i / 2];
}

}  // namespace tutti::kernels::cuda
