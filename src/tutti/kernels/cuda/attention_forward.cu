// kernels/cuda/attention_forward.cu: attention on tensor cores with an online softmax (Dao 2023, FlashAttention-2): a
// block owns a tile of queries of one head, each warp some rows of the tile, and streams tiles of K and V, fetching the
// next tile while it uses the current one. S and P stay in registers.
#include "tutti/kernels/cuda/attention_softmax.h"

namespace tutti::kernels::cuda {

namespace {

// With 32 rows per warp, each fragment of K and V is used twice; otherwise shared memory would be the limit. At 256
// columns the output of 16 rows fills the registers.
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

template <class Sizes, class T>
__global__ void __launch_bounds__(kTensorThreads)
    forward_kernel(AttentionShape shape, BlockOrder order, Heads<const T> q, Heads<const T> k, Heads<const T> v,
                   Result o, float* lse) {
    constexpr int kD = Sizes::kD, kKeys = Sizes::kKeys, kRowTiles = Sizes::kRowTiles;
    using Streamed = typename Sizes::Streamed;
    const typename Sizes::Own own{dynamic_shared()};
    const auto stage = [&](int i) { return Streamed{own.data + Sizes::Own::kBytes + i * Streamed::kBytes}; };
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const auto [b, h, row_tile] = order.at(blockIdx.x);
    const int kv_head = h / shape.group(), first = row_tile * Sizes::kRows;
    const int first_of_warp = warp * 16 * kRowTiles;
    const Span span = span_of_queries(shape, b, first, first + Sizes::kRows);
    const float scale = shape.softmax_scale() * kLog2e;

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
        multiply_transposed<T>(s, own, first_of_warp, stage(2 * buffer));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
            cap_scores<kKeys>(s[r], shape);
            if (!all_visible) hide<kKeys>(s[r], tile, visible[r]);
            float decay[2];
            softmax[r].template advance<kKeys>(s[r], scale, decay);
            rescale<kD>(out[r], decay);
        }
        multiply<T, kRowTiles, kKeys, kD>(out, s, stage(2 * buffer + 1));
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
        softmax[r].template finish<kD>(shape, out[r], o, lse, b, h, first + first_of_warp + 16 * r);
}

}  // namespace

void attention_forward_tensor(const Stream& stream, const AttentionForward& a) {
    const AttentionShape s(a);
    with_tile_width(s.D, [&](auto width) {
        using Sizes = ForwardSizes<width()>;
        const BlockOrder order = order_of_queries(s, Sizes::kRows);
        with_half(a.q.dtype, [&]<class T>(T) {
            launch(forward_kernel<Sizes, T>,
                   {.blocks = dim3(order.blocks()), .threads = dim3(kTensorThreads), .shared_bytes = Sizes::kBytes},
                   stream, s, order, Heads<const T>(a.q), Heads<const T>(a.k), Heads<const T>(a.v), Result(a.o),
                   a.lse.as<float>());
        });
    });
}

}  // namespace tutti::kernels::cuda
