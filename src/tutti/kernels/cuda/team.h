// kernels/cuda/team.h: threads that work on one row together, and reductions over them in a fixed order. A warp takes a
// short row, several warps to a block; a block takes a long row.
#pragma once

#include "tutti/kernels/cuda/element.h"

namespace tutti::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the same bits, since a + b = b + a.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}

template <class T, int kWarps>
struct Partials {
    T of_warp[kWarps];
};

inline constexpr int kTeamsOfWarps = 4;  // warps of a block, each with another row

// kWarps = 1: a warp per row. Otherwise a block of kWarps warps per row.
template <int kWarps>
struct Team {
    static constexpr int kThreads = kWarps * kWarp;
    static constexpr int kRowsOfBlock = kWarps == 1 ? kTeamsOfWarps : 1;
    static constexpr int kBlockThreads = kRowsOfBlock * kThreads;

    __device__ static int64_t row() {
        return static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + (kWarps == 1 ? threadIdx.x / kWarp : 0);
    }
    __device__ static int rank() { return static_cast<int>(threadIdx.x) % kThreads; }

    template <class T>
    __device__ static T sum(T x) {
        x = warp_sum(x);
        if constexpr (kWarps > 1) {
            auto& partials = block_shared<Partials<T, kWarps>>();
            __syncthreads();  // the partials of the sum before have been read
            if (threadIdx.x % kWarp == 0) partials.of_warp[threadIdx.x / kWarp] = x;
            __syncthreads();
            x = partials.of_warp[0];
            for (int w = 1; w < kWarps; ++w) x += partials.of_warp[w];
        }
        return x;
    }
    __device__ static float max(float x) {
        x = warp_max(x);
        if constexpr (kWarps > 1) {
            auto& partials = block_shared<Partials<float, kWarps>>();
            __syncthreads();
            if (threadIdx.x % kWarp == 0) partials.of_warp[threadIdx.x / kWarp] = x;
            __syncthreads();
            x = partials.of_warp[0];
            for (int w = 1; w < kWarps; ++w) x = fmaxf(x, partials.of_warp[w]);
        }
        return x;
    }
};

// f(c) for the thread's share of [0, columns), N columns at a time.
template <class Team, int N, class F>
__device__ __forceinline__ void for_columns(int64_t columns, F&& f) {
    for (int64_t c = Team::rank() * N; c < columns; c += Team::kThreads * N) f(c);
}

// s = x + residual, rounded as it is stored in `sum`; x itself without a residual.
template <int N, class T>
__device__ __forceinline__ void load_sum(const T* x, const T* residual, T* sum, int64_t at, float (&s)[N]) {
    load<N>(x + at, s);
    if (residual == nullptr) return;
    float other[N];
    load<N>(residual + at, other);
#pragma unroll
    for (int k = 0; k < N; ++k) s[k] = rounded(s[k] + other[k], x);
    store<N>(s, sum + at);
}
// Loads the addend of a gradient: zeros without `add`.
template <int N, class T>
__device__ __forceinline__ void load_or_zero(const T* add, int64_t at, float (&values)[N]) {
    if (add != nullptr) return load<N>(add + at, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = 0;
}

// Calls f(team, width): a warp per row up to kWarpColumns columns, a block otherwise; `wide` says whether all rows of T
// can be read 16 bytes at a time.
inline constexpr int64_t kWarpColumns = 1024;
template <class T, class F>
void with_team(int64_t columns, bool wide, F&& f) {
    const auto with_width = [&](auto team) {
        if (wide)
            f(team, std::integral_constant<int, kPack<T>>{});
        else
            f(team, std::integral_constant<int, 1>{});
    };
    if (columns <= kWarpColumns)
        with_width(Team<1>{});
    else
        with_width(Team<8>{});
}

template <class Team>
Grid grid_of_rows(int64_t rows) {
    return {.blocks = dim3(static_cast<unsigned>(ceil_div(rows, Team::kRowsOfBlock))),
            .threads = dim3(Team::kBlockThreads)};
}

// Whether rows of `columns` elements of T can be read in whole 16-byte words from each pointer.
template <class T, class... Pointers>
bool rows_aligned(int64_t columns, const Pointers*... rows) {
    return columns % kPack<T> == 0 && (is_aligned(rows) && ...);
}

}  // namespace tutti::kernels::cuda
