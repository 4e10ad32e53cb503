// kernels/cuda/attention_hopper_backward.cu: gradients of attention on wgmma and TMA, as attention_backward.cu makes
// them: dq owns queries and streams keys, dk and dv own keys and stream the queries of the group's heads, in a fixed
// order. The first warp group of a block copies tiles into a ring, each of the others owns 64 rows: while one makes P
// and dS, the other has its products.
#include "tutti/kernels/cuda/attention_tiles.h"
#include "tutti/kernels/cuda/slab_tile.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

// What the gradients need of a query: P = exp(scale S - lse), dS = P (dP - delta).
struct Query {
    float lse, delta;  // lse in units of log2 e, 0 where no key is seen
};

// Of the streamed ones, when keys own.
template <int kCount>
struct Queries {
    float lse[kCount], delta[kCount];
    Keys keys[kCount];
    bool all;  // whether every query sees every key that the block owns
};

template <int kD_, bool keys_own_>
struct HopperBackward {
    static constexpr int kD = kD_;
    static constexpr bool keys_own = keys_own_;
    static constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpGroup;
    static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
    static_assert((kConsumers * kConsumerRegisters + kProducerRegisters) * kWarpGroup <= 65536);
    static constexpr int kOwn = 64 * kConsumers;
    // Registers: a sum has kD / 2, dk and dv are two; S and dP have kStream / 2 each, and half of that in bf16.
    static constexpr int kStream = keys_own ? 64 : 128;
    static constexpr int kStages = keys_own ? 3 : 2;           // what shared memory has room for
    static constexpr int kProducers = keys_own ? kStream : 1;  // threads: each brings a query
    static_assert(kProducers <= kWarpGroup);
    using Own = SlabTile<kOwn, kD>;
    using Streamed = SlabTile<kStream, kD>;
    struct Memory {
        std::byte own1[Own::kBytes], own2[Own::kBytes];
        std::byte stream1[kStages][Streamed::kBytes], stream2[kStages][Streamed::kBytes];
        Queries<keys_own ? kStream : 1> queries[kStages];
        Mbarrier own_full, full[kStages], empty[kStages];
    };
    static constexpr size_t kBytes = sizeof(Memory) + 1023;
};

// q and k are the first of their pair, dy and v the second.
struct BackwardMaps {
    CUtensorMap own1, own2, stream1, stream2;
};

struct Block {
    int b, head, first;  // of the own rows; a head of keys when they own
    Keys seen;           // rows to stream, of each head
};

__device__ __forceinline__ Query query_of(const AttentionShape& s, const float* lse, const float* delta, int b, int h,
                                          int i) {
    if (i >= s.Tq) return {0, 0};
    const float of_row = lse[s.lse_at(b, h, i)];
    return {of_row == -INFINITY ? 0 : of_row * kLog2e, delta[(static_cast<int64_t>(b) * s.H + h) * s.Tq + i]};
}

template <class Sizes>
__device__ __forceinline__ void produce(typename Sizes::Memory& memory, const AttentionShape& shape,
                                        const BackwardMaps& maps, const Block& block, const float* lse,
                                        const float* delta) {
    constexpr int kStream = Sizes::kStream;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        arrive_expecting(memory.own_full, 2 * Sizes::Own::kBytes);
        typename Sizes::Own{memory.own1}.fetch(maps.own1, memory.own_full, block.b, block.head, block.first);
        typename Sizes::Own{memory.own2}.fetch(maps.own2, memory.own_full, block.b, block.head, block.first);
    }
    const int heads = Sizes::keys_own ? shape.group() : 1;
    Turn<Sizes::kStages> turn;
    for (int g = 0; g < heads; ++g) {
        const int head = Sizes::keys_own ? block.head * heads + g : block.head / shape.group();
        for (int tile = block.seen.first; tile < block.seen.end; tile += kStream, turn.next()) {
            const int stage = turn.stage;
            wait(memory.empty[stage], turn.parity ^ 1);
            if constexpr (Sizes::keys_own) {
                auto& queries = memory.queries[stage];
                const int i = tile + thread;
                const Query query = query_of(shape, lse, delta, block.b, head, i);
                queries.lse[thread] = query.lse;
                queries.delta[thread] = query.delta;
                queries.keys[thread] = i < shape.Tq ? shape.visible(block.b, i) : Keys{0, 0};
                if (thread == 0) {
                    // Queries and keys behind the last ones are zeros: nothing comes of them.
                    const Span span = span_of_queries(shape, block.b, tile, tile + kStream);
                    const int end = block.first + Sizes::kOwn;
                    queries.all = span.all.first <= block.first && span.all.end >= (end < shape.Tk ? end : shape.Tk);
                }
            }
            if (thread == 0) {
                arrive_expecting(memory.full[stage], 2 * Sizes::Streamed::kBytes);
                typename Sizes::Streamed{memory.stream1[stage]}.fetch(maps.stream1, memory.full[stage], block.b, head,
                                                                      tile);
                typename Sizes::Streamed{memory.stream2[stage]}.fetch(maps.stream2, memory.full[stage], block.b, head,
                                                                      tile);
            } else {
                arrive(memory.full[stage]);
            }
        }
    }
}

// f(S, row half, column) for each element of the lane's two rows, columns counted from the lane's first.
template <int kColumns, class F>
__device__ __forceinline__ void for_each(RowSums<kColumns>& s, F f) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) f(s[n][i], i / 2, 8 * n + i % 2);
}

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 1)
    hopper_backward_kernel(AttentionShape shape, BlockOrder order, const __grid_constant__ BackwardMaps maps,
                           const float* lse, const float* delta, Result first_gradient, Result second_gradient) {
    if constexpr (kHasHopper) {
        constexpr int kD = Sizes::kD, kStream = Sizes::kStream, kOwn = Sizes::kOwn;
        constexpr bool keys_own = Sizes::keys_own;
        using Streamed = typename Sizes::Streamed;
        auto& memory = *reinterpret_cast<typename Sizes::Memory*>(slab_memory());
        const int thread = static_cast<int>(threadIdx.x), warp_group = __shfl_sync(0xffffffffu, thread / kWarpGroup, 0);
        const auto [b, own_head, row_tile] = order.at(blockIdx.x);
        Block block{b, own_head, row_tile * kOwn, {}};
        Keys all{0, 0};
        if constexpr (keys_own) {
            block.seen = queries_of_keys(shape, block.b, block.first, block.first + kOwn);
        } else {
            const Span span = span_of_queries(shape, block.b, block.first, block.first + kOwn);
            block.seen = span.any;
            all = span.all;
        }
        if (thread == 0) {
            init_barrier(memory.own_full, 1);
            for (int i = 0; i < Sizes::kStages; ++i) {
                init_barrier(memory.full[i], Sizes::kProducers);
                init_barrier(memory.empty[i], Sizes::kConsumers * 4);  // each warp arrives once
            }
            publish_barriers();
        }
        __syncthreads();
        if (warp_group == 0) {
            give_registers<Sizes::kProducerRegisters>();
            if (thread < Sizes::kProducers && block.seen.first < block.seen.end)
                produce<Sizes>(memory, shape, maps, block, lse, delta);
            return;
        }
        take_registers<Sizes::kConsumerRegisters>();

        const int own_row = 64 * (warp_group - 1), lane = thread % kWarp, first_column = 2 * (lane % 4);
        const int row = block.first + own_row + thread % kWarpGroup / kWarp * 16 + lane / 4;  // and 8 below
        const float scale = shape.scale * kLog2e;
        Query own_queries[2];
        Keys own_keys[2];
        if constexpr (!keys_own)
            for (int half = 0; half < 2; ++half) {
                const int i = row + 8 * half;
                own_queries[half] = query_of(shape, lse, delta, block.b, block.head, i);
                own_keys[half] = i < shape.Tq ? shape.visible(block.b, i) : Keys{0, 0};
            }
        const typename Sizes::Own own1{memory.own1}, own2{memory.own2};
        RowSums<kD> sums1 = {}, sums2 = {};
        RowSums<kStream> s, dp;
        FragmentA p[kStream / 16], ds[kStream / 16];
        const int heads = keys_own ? shape.group() : 1;
        if (block.seen.first < block.seen.end) wait(memory.own_full, 0);
        Turn<Sizes::kStages> turn;
        for (int g = 0; g < heads; ++g)
            for (int tile = block.seen.first; tile < block.seen.end; tile += kStream, turn.next()) {
                const Streamed stream1{memory.stream1[turn.stage]}, stream2{memory.stream2[turn.stage]};
                const auto& queries = memory.queries[turn.stage];
                const auto lse_at = [&](int half, int column) {
                    return keys_own ? queries.lse[keys_own ? first_column + column : 0] : own_queries[half].lse;
                };
                const auto delta_at = [&](int half, int column) {
                    return keys_own ? queries.delta[keys_own ? first_column + column : 0] : own_queries[half].delta;
                };
                wait(memory.full[turn.stage], turn.parity);
                start_transposed(s, own1, own_row, stream1);
                start_transposed(dp, own2, own_row, stream2);
                wait_for_products<1>(s);
                const bool all_seen = keys_own ? queries.all : all.first <= tile && tile + kStream <= all.end;
                if (!all_seen)
                    for_each<kStream>(s, [&](float& score, int half, int column) {
                        const Keys& keys =
                            keys_own ? queries.keys[keys_own ? first_column + column : 0] : own_keys[half];
                        const int key = keys_own ? row + 8 * half : tile + first_column + column;
                        if (key < keys.first || key >= keys.end) score = -INFINITY;
                    });
                for_each<kStream>(s, [&](float& score, int half, int column) {
                    score = fast_exp2(fmaf(score, scale, -lse_at(half, column)));
                });
                if constexpr (keys_own) round_to(p, s);
                wait_for_products<0>(dp);
                if constexpr (keys_own) start_product(sums2, p, stream2);
                for_each<kStream>(s, [&](float& probability, int half, int column) {
                    float& of_dp = dp[column / 8][2 * half + column % 8];
                    of_dp = probability * (of_dp - delta_at(half, column));
                });
                round_to(ds, dp);
                start_product(sums1, ds, stream1);
                wait_for_products<0>(sums1);
                if constexpr (keys_own) wait_for_products<0>(sums2);
                if (lane == 0) arrive(memory.empty[turn.stage]);
            }
        const int end = keys_own ? shape.Tk : shape.Tq;
        const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1, 1};
        store_rows<kD>(sums1, scales, first_gradient, block.b, block.head, row - lane / 4, end, shape.D);
        if constexpr (keys_own)
            store_rows<kD>(sums2, ones, second_gradient, block.b, block.head, row - lane / 4, end, shape.D);
    }
}

template <int kD, bool keys_own>
void run(const Stream& stream, const AttentionBackward& a) {
    using Sizes = HopperBackward<kD, keys_own>;
    const AttentionShape s(a);
    const BlockOrder order = keys_own ? order_of_keys(s, Sizes::kOwn) : order_of_queries(s, Sizes::kOwn);
    const BackwardMaps maps{
        tensor_map(keys_own ? a.k : a.q, Sizes::kOwn), tensor_map(keys_own ? a.v : a.dy, Sizes::kOwn),
        tensor_map(keys_own ? a.q : a.k, Sizes::kStream), tensor_map(keys_own ? a.dy : a.v, Sizes::kStream)};
    launch(hopper_backward_kernel<Sizes>,
           {.blocks = dim3(order.blocks()), .threads = dim3(Sizes::kThreads), .shared_bytes = Sizes::kBytes}, stream, s,
           order, maps, a.lse.as<const float>(), a.workspace.as<const float>(),
           Result(keys_own ? a.dk : a.dq, a.accumulate), Result(a.dv, a.accumulate));
}

}  // namespace

void attention_backward_hopper(const Stream& stream, const AttentionBackward& a) {
    if (a.q.shape[3] <= 64) {
        run<64, false>(stream, a);
        run<64, true>(stream, a);
    } else {
        run<128, false>(stream, a);
        run<128, true>(stream, a);
    }
}

}  // namespace tutti::kernels::cuda
