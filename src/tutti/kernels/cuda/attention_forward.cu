// kernels/cuda/attention_forward.cu: attention on tensor cores, the softmax taken as the keys come (Dao 2023,
// FlashAttention-2): a block owns a tile of queries of one head, each warp some rows of it, and streams tiles of K and
// V, the next one on its way while this one is used. S and P stay in registers.
#include "tutti/kernels/cuda/attention_tiles.h"

namespace tutti::kernels::cuda {

namespace {

// Of 32 rows per warp each fragment of K and V is used twice, which is what keeps shared memory from being the limit;
// at 256 columns the output of 16 rows fills the registers.
template <int kD_>
struct ForwardSizes {
    static constexpr int kD = kD_;
    static constexpr int kRowTiles = kD <= 128 ? 2 : 1;  // of 16 rows, of a warp
    static constexpr int kRows = 16 * kRowTiles * kTensorWarps;
    static constexpr int kKeys = kD <= 64 ? 64 : 32;
    using Own = Tile<kRows, kD>;
    using Streamed = Tile<kKeys, kD>;
    static constexpr size_t kBytes = Own::kBytes + 4 * Streamed::kBytes;
};

// Running maximum, in units of S, and sum of the softmax of the lane's two rows.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

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

// m' = max(m, max_j S_j);  P_j = exp(scale (S_j - m'));  sum' = sum exp(scale (m - m')) + sum_j P_j;  O *= the same.
// P replaces S. `scale` has log2 e in it.
template <int kKeys, int kD>
__device__ __forceinline__ void update(RowSums<kKeys>& s, float scale, Softmax& softmax, RowSums<kD>& o) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float largest = softmax.maximum[half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        largest = row_max(largest);
        // A row that has seen no key has maximum -infinity, and -infinity minus itself is no number.
        const float safe = fmaxf(largest, -1e37f), decay = fast_exp2((softmax.maximum[half] - safe) * scale);
        softmax.maximum[half] = largest;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                s[n][i] = fast_exp2((s[n][i] - safe) * scale);
                sum += s[n][i];
            }
        softmax.sum[half] = softmax.sum[half] * decay + sum;  // of this lane's columns; row_sum comes last
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
            o[n][2 * half] *= decay;
            o[n][2 * half + 1] *= decay;
        }
    }
}

template <class Sizes>
__global__ void __launch_bounds__(kTensorThreads)
    forward_kernel(AttentionShape shape, Heads<const bf16> q, Heads<const bf16> k, Heads<const bf16> v, Heads<bf16> o,
                   float* lse) {
    constexpr int kD = Sizes::kD, kKeys = Sizes::kKeys, kRowTiles = Sizes::kRowTiles;
    using Streamed = typename Sizes::Streamed;
    const typename Sizes::Own own{dynamic_shared()};
    const auto stage = [&](int i) { return Streamed{own.data + Sizes::Own::kBytes + i * Streamed::kBytes}; };
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y), kv_head = h / shape.group();
    // The last queries see most under a causal mask: they begin.
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Sizes::kRows;
    const int first_of_warp = warp * 16 * kRowTiles;
    const Span span = span_of_queries(shape, b, first, first + Sizes::kRows);
    const float scale = shape.scale * kLog2e;

    Keys visible[kRowTiles][2];
    Softmax softmax[kRowTiles];
    RowSums<kD> out[kRowTiles] = {};
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = first + first_of_warp + 16 * r + lane / 4 + 8 * half;
            visible[r][half] = i < shape.Tq ? shape.visible(b, i) : Keys{0, 0};
        }

    const auto fetch = [&](int tile, int buffer) {
        stage(2 * buffer).fetch(k, b, kv_head, tile, shape.Tk, shape.D);
        stage(2 * buffer + 1).fetch(v, b, kv_head, tile, shape.Tk, shape.D);
    };
    const int begin = span.any.first / kKeys * kKeys;
    if (begin < span.any.end) {
        own.fetch(q, b, h, first, shape.Tq, shape.D);
        fetch(begin, 0);
    }
    commit_copies();
    int buffer = 0;
    for (int tile = begin; tile < span.any.end; tile += kKeys, buffer ^= 1) {
        wait_for_copies<0>();
        __syncthreads();  // this tile is here, and the other buffer has been used
        if (tile + kKeys < span.any.end) fetch(tile + kKeys, buffer ^ 1);
        commit_copies();
        const bool all_visible = span.all.first <= tile && tile + kKeys <= span.all.end;
        RowSums<kKeys> s[kRowTiles] = {};
        multiply_transposed(s, own, first_of_warp, stage(2 * buffer));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
            if (!all_visible) hide<kKeys>(s[r], tile, visible[r]);
            update<kKeys, kD>(s[r], scale, softmax[r], out[r]);
        }
        multiply<kRowTiles, kKeys, kD>(out, s, stage(2 * buffer + 1));
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = row_sum(softmax[r].sum[half]);
            inverse[half] = sum == 0 ? 0 : 1 / sum;
            const int i = first + first_of_warp + 16 * r + lane / 4 + 8 * half;
            if (lane % 4 == 0 && i < shape.Tq)
                lse[shape.lse_at(b, h, i)] = sum == 0 ? -INFINITY : softmax[r].maximum[half] * shape.scale + logf(sum);
        }
        store_rows<kD>(out[r], inverse, o, b, h, first + first_of_warp + 16 * r, shape.Tq, shape.D);
    }
}

}  // namespace

void attention_forward_tensor(const Stream& stream, const AttentionForward& a) {
    const AttentionShape s(a);
    with_tile_width(s.D, [&](auto width) {
        using Sizes = ForwardSizes<width()>;
        launch(forward_kernel<Sizes>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(s.Tq, Sizes::kRows)), static_cast<unsigned>(s.H),
                               static_cast<unsigned>(s.B)),
                .threads = dim3(kTensorThreads),
                .shared_bytes = Sizes::kBytes},
               stream, s, Heads<const bf16>(a.q), Heads<const bf16>(a.k), Heads<const bf16>(a.v), Heads<bf16>(a.o),
               a.lse.as<float>());
    });
}

}  // namespace tutti::kernels::cuda
