// kernels/cuda/attention_backward.cu: gradients of attention on tensor cores, in O(T) memory and without atomics. Two
// launches of one kernel: dq owns queries and streams keys, dk and dv own keys and stream the queries of the group's
// heads. Each recomputes S and dP: seven products of tiles instead of five with atomic additions to dq, whose order
// changes from run to run.
//
// In both, S = own1 stream1^T and dP = own2 stream2^T have the own rows of a warp as rows, so that P and dS go from the
// accumulators into the next product without a pass through shared memory.
#include "tutti/kernels/cuda/attention_tiles.h"

namespace tutti::kernels::cuda {

namespace {

// Which gradients a launch sums. At 256 columns one of them fills the registers.
enum class Sums { dq, dk_and_dv, dk, dv };

template <int kD_, Sums kSums_>
struct BackwardSizes {
    static constexpr int kD = kD_;
    static constexpr Sums kSums = kSums_;
    static constexpr bool keys_own = kSums != Sums::dq;
    static constexpr bool with_first = kSums != Sums::dv;                               // dS stream1: dq, dk
    static constexpr bool with_second = kSums == Sums::dv || kSums == Sums::dk_and_dv;  // P stream2: dv
    static constexpr int kOwn = 16 * kTensorWarps;
    static constexpr int kStream = kD <= 64 ? 64 : 32;
    using Own = Tile<kOwn, kD>;
    using Streamed = Tile<kStream, kD>;
    static constexpr size_t kBytes = 2 * Own::kBytes + 4 * Streamed::kBytes;
};

// Per-query inputs of the gradients: P = exp(scale S - lse), dS = P (dP - delta).
struct Query {
    float lse, delta;  // lse in units of log2 e
    Keys keys;
};
template <int kCount>
struct Queries {
    Query at[2][kCount];  // of the two buffers
};

__device__ __forceinline__ Query query_of(const AttentionShape& s, const float* lse, const float* delta, int b, int h,
                                          int i) {
    if (i >= s.Tq) return {0, 0, {0, 0}};
    return {lse[s.lse_at(b, h, i)] * kLog2e, delta[(static_cast<int64_t>(b) * s.H + h) * s.Tq + i], s.visible(b, i)};
}

// Replaces S by P and dP by dS, both 0 where the key is hidden. `query_at(row half, column)` and `key_at(...)` give the
// query and the key.
template <class Sizes, class QueryAt, class KeyAt>
__device__ __forceinline__ void differentiate(RowSums<Sizes::kStream>& s, RowSums<Sizes::kStream>& dp,
                                              const AttentionShape& shape, QueryAt query_at, KeyAt key_at) {
    const float scale = shape.softmax_scale() * kLog2e;
    const int first_column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int n = 0; n < Sizes::kStream / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = first_column + 8 * n + i % 2, key = key_at(i / 2, column);
            const Query& query = query_at(i / 2, column);
            const bool seen = key >= query.keys.first && key < query.keys.end;
            const float score = shape.capped(s[n][i]);
            s[n][i] = seen ? fast_exp2(fmaf(score, scale, -query.lse)) : 0;
            dp[n][i] = s[n][i] * (dp[n][i] - query.delta) * shape.slope(score);
        }
}

template <class Sizes, class T>
__global__ void __launch_bounds__(kTensorThreads)
    backward_kernel(AttentionShape shape, BlockOrder order, Heads<const T> q, Heads<const T> dy, Heads<const T> k,
                    Heads<const T> v, const float* lse, const float* delta, Result first_gradient,
                    Result second_gradient) {
    constexpr int kD = Sizes::kD, kStream = Sizes::kStream, kOwn = Sizes::kOwn;
    constexpr bool keys_own = Sizes::keys_own;
    using Own = typename Sizes::Own;
    using Streamed = typename Sizes::Streamed;
    const Own own1{dynamic_shared()}, own2{own1.data + Own::kBytes};
    const auto stage = [&](int i) { return Streamed{own2.data + Own::kBytes + i * Streamed::kBytes}; };
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row_of_warp = static_cast<int>(threadIdx.x) / kWarp * 16;
    const auto [b, own_head, row_tile] = order.at(blockIdx.x);
    const int kv_head = keys_own ? own_head : own_head / shape.group(), first = row_tile * kOwn;
    const int own_end = keys_own ? shape.Tk : shape.Tq, stream_end = keys_own ? shape.Tq : shape.Tk;

    // Streamed tiles: of each head of the group in turn when keys own.
    const Keys seen =
        keys_own ? queries_of_keys(shape, b, first, first + kOwn) : span_of_queries(shape, b, first, first + kOwn).any;
    const int begin = seen.first / kStream * kStream;
    const int tiles_of_head = seen.first < seen.end ? (seen.end - begin + kStream - 1) / kStream : 0;
    const int tiles = tiles_of_head * (keys_own ? shape.group() : 1);
    const auto tile_at = [&](int t) { return begin + t % tiles_of_head * kStream; };
    const auto head_at = [&](int t) { return keys_own ? kv_head * shape.group() + t / tiles_of_head : own_head; };

    auto& streamed_queries = block_shared<Queries<keys_own ? kStream : 1>>();
    Query own_queries[2];  // of the lane's two rows
    if constexpr (!keys_own)
        for (int half = 0; half < 2; ++half)
            own_queries[half] = query_of(shape, lse, delta, b, own_head, first + row_of_warp + lane / 4 + 8 * half);

    const auto fetch = [&](int t, int buffer) {
        const int tile = tile_at(t), h = head_at(t);
        stage(2 * buffer).fetch(keys_own ? q : k, b, keys_own ? h : kv_head, tile, stream_end, shape.D);
        stage(2 * buffer + 1).fetch(keys_own ? dy : v, b, keys_own ? h : kv_head, tile, stream_end, shape.D);
        if constexpr (keys_own)
            if (threadIdx.x < kStream)
                streamed_queries.at[buffer][threadIdx.x] =
                    query_of(shape, lse, delta, b, h, tile + static_cast<int>(threadIdx.x));
    };
    if (tiles > 0) {
        own1.fetch(keys_own ? k : q, b, own_head, first, own_end, shape.D);
        own2.fetch(keys_own ? v : dy, b, own_head, first, own_end, shape.D);
        fetch(0, 0);
    }
    commit_copies();
    RowSums<kD> sums1[1] = {}, sums2[1] = {};
    for (int t = 0; t < tiles; ++t) {
        const int buffer = t % 2, tile = tile_at(t);
        wait_for_copies<0>();
        __syncthreads();  // this tile is here, and the other buffer has been used
        if (t + 1 < tiles) fetch(t + 1, buffer ^ 1);
        commit_copies();
        RowSums<kStream> s[1] = {}, dp[1] = {};
        multiply_transposed<T>(s, own1, row_of_warp, stage(2 * buffer));
        if constexpr (Sizes::with_first) multiply_transposed<T>(dp, own2, row_of_warp, stage(2 * buffer + 1));
        if constexpr (keys_own)
            differentiate<Sizes>(
                s[0], dp[0], shape,
                [&](int, int column) -> const Query& { return streamed_queries.at[buffer][column]; },
                [&](int half, int) { return first + row_of_warp + lane / 4 + 8 * half; });
        else
            differentiate<Sizes>(
                s[0], dp[0], shape, [&](int half, int) -> const Query& { return own_queries[half]; },
                [&](int, int column) { return tile + column; });
        if constexpr (Sizes::with_first) multiply<T, 1, kStream, kD>(sums1, dp, stage(2 * buffer));
        if constexpr (Sizes::with_second) multiply<T, 1, kStream, kD>(sums2, s, stage(2 * buffer + 1));
    }
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1, 1};
    if constexpr (Sizes::with_first)
        store_rows<kD>(sums1[0], scales, first_gradient, b, own_head, first + row_of_warp, own_end, shape.D);
    if constexpr (Sizes::with_second)
        store_rows<kD>(sums2[0], ones, second_gradient, b, own_head, first + row_of_warp, own_end, shape.D);
}

template <int kD, Sums sums>
void run(const Stream& stream, const AttentionBackward& a) {
    using Sizes = BackwardSizes<kD, sums>;
    const AttentionShape s(a);
    const int rows = Sizes::keys_own ? s.Tk : s.Tq, heads = Sizes::keys_own ? s.Hkv : s.H;
    if (rows == 0 || heads == 0 || s.B == 0) return;
    const BlockOrder order = Sizes::keys_own ? order_of_keys(s, Sizes::kOwn) : order_of_queries(s, Sizes::kOwn);
    with_half(a.q.dtype, [&]<class T>(T) {
        launch(backward_kernel<Sizes, T>,
               {.blocks = dim3(order.blocks()), .threads = dim3(kTensorThreads), .shared_bytes = Sizes::kBytes}, stream,
               s, order, Heads<const T>(a.q), Heads<const T>(a.dy), Heads<const T>(a.k), Heads<const T>(a.v),
               a.lse.as<const float>(), a.workspace.as<const float>(),
               Result(Sizes::keys_own ? a.dk : a.dq, a.accumulate), Result(a.dv, a.accumulate));
    });
}

}  // namespace

void attention_backward_tensor(const Stream& stream, const AttentionBackward& a) {
    with_tile_width(static_cast<int>(a.q.shape[3]), [&](auto width) {
        run<width(), Sums::dq>(stream, a);
        if constexpr (width() <= 128) {
            run<width(), Sums::dk_and_dv>(stream, a);
        } else {
            run<width(), Sums::dk>(stream, a);
            run<width(), Sums::dv>(stream, a);
        }
    });
}

}  // namespace tutti::kernels::cuda
