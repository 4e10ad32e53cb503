// kernels/cuda/attention_hopper_backward.cu: gradients of attention on wgmma and TMA, in one kernel with five products
// of tiles (Shah et al. 2024, FlashAttention-3, its deterministic backward). A block owns keys and streams the queries
// of the group's heads. Its registers hold S = K Q^T, dP = V dO^T, dV += P dO and dK += dS Q; dQ += dS^T K goes to sums
// in f32 in memory, to which the blocks of a head add in the order of their keys. A second kernel scales and rounds dQ.
//
// One of the three warp groups of a block loads tiles and stores dQ; each of the others owns 64 keys.
//
// Turns. Each tile of queries of a head has a counter in memory. A block adds when the counter equals its number, then
// increments the counter; so the sums have one order, and two runs have equal bits. A block waits only for blocks of
// the same head with smaller keys. BlockOrder gives those smaller indices in the grid, and NVIDIA's GPUs begin blocks
// in the order of their indices (the scans of CUB rely on that as well). So the unfinished block with the smallest
// index never waits, and the grid ends with any number of resident blocks.
//
// Tiles are streamed from the last to the first. Under a causal mask all blocks of a head have the last tile and begin
// with it, each one addition behind the block before it. From the first to the last, block n would begin with tile n,
// which block 0 reaches after n others.
#include "tutti/kernels/cuda/attention_tiles.h"
#include "tutti/kernels/cuda/sizes.h"
#include "tutti/kernels/cuda/slab_tile.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

struct alignas(8) Pair {
    float of[2];
};

// Inputs of the gradients for the streamed queries: P = exp(scale S - lse), dS = P (dP - delta).
template <int kCount>
struct Queries {
    Pair lse[kCount / 2], delta[kCount / 2];  // lse in units of log2 e, 0 where the query sees no key
    Keys keys[kCount];
    bool all;  // whether every query sees every key that the block owns
};

template <int kD_>
struct HopperBackward {
    static constexpr int kD = kD_;
    static constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpGroup;
    static constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
    static_assert((kConsumers * kConsumerRegisters + kProducerRegisters) * kWarpGroup <= 65536);
    static constexpr int kKeys = 64 * kConsumers;
    // Registers: dK and dV have kD / 2 each, S and dP kQueries / 2 each, and half of that in bf16.
    static constexpr int kQueries = BackwardWorkspace::queries(kD);
    static constexpr int kStages = 2;    // the most that fits shared memory
    static constexpr int kReaders = 64;  // threads that load lse and delta
    static_assert(kQueries % kReaders == 0);
    using Own = SlabTile<kKeys, kD>;
    using Streamed = SlabTile<kQueries, kD>;
    using Scores = SlabTile<kKeys, kQueries>;
    // Two tiles of dS: a warp group writes the next one while the other may still multiply this one.
    struct Memory {
        std::byte k[Own::kBytes], v[Own::kBytes];
        std::byte q[kStages][Streamed::kBytes], dy[kStages][Streamed::kBytes];
        std::byte ds[2][Scores::kBytes];
        float4 dq[kConsumers][8][kWarpGroup];  // each thread's accumulators of 64 rows and 64 columns
        Queries<kQueries> queries[kStages];
        Mbarrier own_full, full[kStages], empty[kStages], dq_full, dq_empty;
    };
    static_assert(sizeof(Memory::dq) == BackwardWorkspace::kTile * sizeof(float));
    static constexpr size_t kBytes = sizeof(Memory) + 1023;
    // The part of a tile of dQ that a consumer computes: the next 64 queries, or the next 64 columns.
    static constexpr bool kByQueries = kD == 64;
};

struct BackwardMaps {
    CUtensorMap q, k, v, dy;
};

struct Block {
    int b, kv_head, keys;      // the first key
    int first_head, end_head;  // of the queries
    int first_tile, end_tile;  // of each of these heads
};

// Sums of dQ and their turns, of tile m of head h of sequence b at (b H + h) tiles + m.
struct DqSums {
    float* sums;
    int32_t* turns;
    int tiles;
    __device__ __forceinline__ int64_t place(const AttentionShape& s, int b, int h, int tile) const {
        return (static_cast<int64_t>(b) * s.H + h) * tiles + tile;
    }
};

// Range of the blocks of keys of which a tile of queries sees any key. They add to the dQ of the tile in this order;
// block n streams the tile exactly if n is in the range.
template <class Sizes>
__device__ __forceinline__ Keys blocks_of_keys(const AttentionShape& s, int b, int tile) {
    const Keys any = span_of_queries(s, b, tile * Sizes::kQueries, (tile + 1) * Sizes::kQueries).any;
    return {any.first / Sizes::kKeys, (any.end + Sizes::kKeys - 1) / Sizes::kKeys};
}

// f(query head, tile) for the tiles that the block streams, in order. Heads are the faster index: if heads were
// streamed one by one, a block with fewer tiles would reach the second head early and wait there for the blocks before
// it.
template <class F>
__device__ __forceinline__ void for_each_tile(const Block& block, F f) {
    for (int tile = block.end_tile - 1; tile >= block.first_tile; --tile)
        for (int h = block.first_head; h < block.end_head; ++h) f(h, tile);
}

// Three warps load the inputs of the block, so that each needs few registers. One thread of the first warp loads tiles:
template <class Sizes>
__device__ __forceinline__ void load_tiles(typename Sizes::Memory& memory, const AttentionShape& shape,
                                           const BackwardMaps& maps, const Block& block) {
    using Own = typename Sizes::Own;
    using Streamed = typename Sizes::Streamed;
    arrive_expecting(memory.own_full, 2 * Own::kBytes);
    Own{memory.k}.fetch(maps.k, memory.own_full, block.b, block.kv_head, block.keys);
    Own{memory.v}.fetch(maps.v, memory.own_full, block.b, block.kv_head, block.keys);
    Turn<Sizes::kStages> turn;
    for_each_tile(block, [&](int h, int tile) {
        const int first = tile * Sizes::kQueries;
        Mbarrier& full = memory.full[turn.stage];
        wait(memory.empty[turn.stage], turn.parity ^ 1);
        // Queries after the last one are zeros and add nothing. Keys after the last one are masked: P of such a key may
        // be infinite.
        const Span span = span_of_queries(shape, block.b, first, first + Sizes::kQueries);
        memory.queries[turn.stage].all = span.all.first <= block.keys && span.all.end >= block.keys + Sizes::kKeys;
        arrive_expecting(full, 2 * Streamed::kBytes);
        Streamed{memory.q[turn.stage]}.fetch(maps.q, full, block.b, h, first);
        Streamed{memory.dy[turn.stage]}.fetch(maps.dy, full, block.b, h, first);
        turn.next();
    });
}

// The second and third warp load per-query values; `reader` is the thread's index among them.
template <class Sizes>
__device__ __forceinline__ void load_queries(typename Sizes::Memory& memory, const AttentionShape& shape,
                                             const Block& block, int reader, const float* lse, const float* delta) {
    Turn<Sizes::kStages> turn;
    for_each_tile(block, [&](int h, int tile) {
        wait(memory.empty[turn.stage], turn.parity ^ 1);
#pragma unroll 1
        for (int at = reader; at < Sizes::kQueries; at += Sizes::kReaders) {
            const int i = tile * Sizes::kQueries + at;
            auto& queries = memory.queries[turn.stage];
            queries.keys[at] = i < shape.Tq ? shape.visible(block.b, i) : Keys{0, 0};
            const float lse_of_i = i < shape.Tq ? lse[shape.lse_at(block.b, h, i)] : 0;
            queries.lse[at / 2].of[at % 2] = lse_of_i == -INFINITY ? 0 : lse_of_i * kLog2e;
            queries.delta[at / 2].of[at % 2] =
                i < shape.Tq ? delta[(static_cast<int64_t>(block.b) * shape.H + h) * shape.Tq + i] : 0;
        }
        arrive(memory.full[turn.stage]);
        turn.next();
    });
}

// One thread of the fourth warp adds dQ to the sums in memory.
template <class Sizes>
__device__ __forceinline__ void add_dq(typename Sizes::Memory& memory, const AttentionShape& shape, const Block& block,
                                       const DqSums& dq) {
    uint32_t parity = 0;
    for_each_tile(block, [&](int h, int tile) {
        const int mine = block.keys / Sizes::kKeys - blocks_of_keys<Sizes>(shape, block.b, tile).first;
        const int64_t place = dq.place(shape, block.b, h, tile);
        wait(memory.dq_full, parity);
        if (mine > 0) wait_for_turn(dq.turns + place, mine);
        copy_out(dq.sums + place * BackwardWorkspace::kTile, memory.dq, sizeof memory.dq, mine > 0);
        wait_until_read();
        arrive(memory.dq_empty);
        wait_until_written();
        pass_turn(dq.turns + place, mine + 1);
        parity ^= 1;
    });
}

// S = K Q^T becomes P, 0 where the key is masked. `first_key`: the first of the lane's two rows, which are 8 apart.
template <class Sizes>
__device__ __forceinline__ void exponentiate(RowSums<Sizes::kQueries>& s, const Queries<Sizes::kQueries>& queries,
                                             int first_key, float scale) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
    if (!queries.all)
#pragma unroll
        for (int n = 0; n < Sizes::kQueries / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Keys keys = queries.keys[8 * n + 2 * lane + i % 2];
                const int key = first_key + i / 2 * 8;
                if (key < keys.first || key >= keys.end) s[n][i] = -INFINITY;
            }
#pragma unroll
    for (int n = 0; n < Sizes::kQueries / 8; ++n) {
        const Pair lse = queries.lse[4 * n + lane];
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = fast_exp2(fmaf(s[n][i], scale, -lse.of[i % 2]));
    }
}

// dP becomes dS, of 64 queries.
template <class Sizes>
__device__ __forceinline__ void differentiate(RowSums<Sizes::kQueries>& dp, const RowSums<Sizes::kQueries>& p,
                                              const Queries<Sizes::kQueries>& queries, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int n = first / 8; n < first / 8 + 8; ++n) {
        const Pair delta = queries.delta[4 * n + lane];
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[n][i] = p[n][i] * (dp[n][i] - delta.of[i % 2]);
    }
}

// The main loop of a consumer warp group.
template <class Sizes>
__device__ __forceinline__ void consume(typename Sizes::Memory& memory, const AttentionShape& shape, const Block& block,
                                        const Result& dk, const Result& dv) {
    constexpr int kD = Sizes::kD, kQueries = Sizes::kQueries;
    using Streamed = typename Sizes::Streamed;
    using Scores = typename Sizes::Scores;
    const int thread = static_cast<int>(threadIdx.x) % kWarpGroup, lane = thread % kWarp;
    const int consumer = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpGroup, 0) - 1;
    const int row_of_warp = 64 * consumer + thread / kWarp * 16;
    const float scale = shape.scale * kLog2e;
    const typename Sizes::Own k{memory.k}, v{memory.v};
    RowSums<kD> sums_of_k = {}, sums_of_v = {};
    RowSums<kQueries> s, dp;
    constexpr int kParts = kQueries / 64;
    FragmentA p[kParts][4], ds[kParts][4];
    if (block.first_tile < block.end_tile) wait(memory.own_full, 0);
    Turn<Sizes::kStages> turn;
    Turn<2> turn_of_ds;
    uint32_t dq_parity = 1;
    for_each_tile(block, [&](int, int) {
        const Streamed q{memory.q[turn.stage]}, dy{memory.dy[turn.stage]};
        const Scores scores{memory.ds[turn_of_ds.stage]};
        const auto& queries = memory.queries[turn.stage];
        wait(memory.full[turn.stage], turn.parity);
        start_transposed(s, k, 64 * consumer, q);
        start_transposed(dp, v, 64 * consumer, dy);
        wait_for_products<1>(s);
        exponentiate<Sizes>(s, queries, block.keys + row_of_warp + lane / 4, scale);
        // By 64 queries: P of all queries in both types does not fit the registers.
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            round_to(p[part], s, 64 * part);
            if (part == 0) wait_for_products<0>(dp);
            start_product(sums_of_v, p[part], dy, 64 * part);
            differentiate<Sizes>(dp, s, queries, 64 * part);
            round_to(ds[part], dp, 64 * part);
            scores.store(row_of_warp, part, ds[part]);
        }
        publish_shared();
        named_barrier_sync(1, Sizes::kConsumers * kWarpGroup);  // dS of all keys of the block is complete
        RowSums<64> dq;
        start_product_of_columns(dq, scores, Sizes::kByQueries ? consumer : 0, k, Sizes::kByQueries ? 0 : consumer);
#pragma unroll
        for (int part = 0; part < kParts; ++part) start_product(sums_of_k, ds[part], q, 64 * part);
        wait_for_products<kParts>(dq);
        wait(memory.dq_empty, dq_parity);
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store_word(memory.dq[consumer][n][thread], {dq[n][0], dq[n][1], dq[n][2], dq[n][3]});
        publish_shared();
        __syncwarp();
        if (lane == 0) arrive(memory.dq_full);
        wait_for_products<0>(sums_of_k);
        pin(sums_of_v);
        if (lane == 0) arrive(memory.empty[turn.stage]);
        turn.next();
        turn_of_ds.next();
        dq_parity ^= 1;
    });
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1, 1};
    const int row = block.keys + row_of_warp;
    store_rows<kD>(sums_of_k, scales, dk, block.b, block.kv_head, row, shape.Tk, shape.D);
    store_rows<kD>(sums_of_v, ones, dv, block.b, block.kv_head, row, shape.Tk, shape.D);
}

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 1)
    hopper_backward_kernel(AttentionShape shape, BlockOrder order, const BackwardMaps __grid_constant__ maps,
                           const float* lse, const float* delta, DqSums dq, Result dk, Result dv) {
    if constexpr (kHasHopper) {
        auto& memory = *reinterpret_cast<typename Sizes::Memory*>(slab_memory());
        const int thread = static_cast<int>(threadIdx.x), warp_group = __shfl_sync(0xffffffffu, thread / kWarpGroup, 0);
        const auto [b, kv_head, block_of_keys] = order.at(blockIdx.x);
        const int keys = block_of_keys * Sizes::kKeys;
        const Keys seen = queries_of_keys(shape, b, keys, keys + Sizes::kKeys);
        const int end = (seen.end + Sizes::kQueries - 1) / Sizes::kQueries;
        const int group = shape.group(), first_head = kv_head * group;
        const Block block{b,
                          kv_head,
                          keys,
                          first_head,
                          first_head + group,
                          seen.first < shape.Tq ? seen.first / Sizes::kQueries : end,
                          end};
        if (thread == 0) {
            init_barrier(memory.own_full, 1);
            for (int i = 0; i < Sizes::kStages; ++i) {
                init_barrier(memory.full[i], 1 + Sizes::kReaders);
                init_barrier(memory.empty[i], Sizes::kConsumers * 4);  // each warp arrives once
            }
            init_barrier(memory.dq_full, Sizes::kConsumers * 4);
            init_barrier(memory.dq_empty, 1);
            publish_barriers();
        }
        __syncthreads();
        if (warp_group == 0) {
            give_registers<Sizes::kProducerRegisters>();
            if (block.first_tile >= block.end_tile) return;
            const int warp = __shfl_sync(0xffffffffu, thread / kWarp, 0);
            if (warp == 0) {
                if (thread == 0) load_tiles<Sizes>(memory, shape, maps, block);
            } else if (warp < 3) {
                load_queries<Sizes>(memory, shape, block, thread - kWarp, lse, delta);
            } else if (thread == 3 * kWarp) {
                add_dq<Sizes>(memory, shape, block, dq);
            }
            return;
        }
        take_registers<Sizes::kConsumerRegisters>();
        consume<Sizes>(memory, shape, block, dk, dv);
    }
}

// dQ = scale times the sums of 64 rows, the accumulators of a warp group.
template <class Sizes>
__global__ void __launch_bounds__(kWarpGroup) hopper_dq_kernel(AttentionShape shape, DqSums from, Result dq) {
    constexpr int kD = Sizes::kD, kParts = Sizes::kQueries / 64;
    const int part = static_cast<int>(blockIdx.x) % kParts, index = static_cast<int>(blockIdx.x) / kParts;
    const int tile = index % from.tiles, h = index / from.tiles % shape.H, b = index / from.tiles / shape.H;
    const int thread = static_cast<int>(threadIdx.x);
    const Keys blocks = blocks_of_keys<Sizes>(shape, b, tile);
    RowSums<kD> sums = {};
    if (blocks.first < blocks.end) {  // else no block of keys has added to the sums
        const auto* const words =
            reinterpret_cast<const float4*>(from.sums + from.place(shape, b, h, tile) * BackwardWorkspace::kTile);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
            const float4 word = words[(8 * part + n) * kWarpGroup + thread];
            sums[n][0] = word.x, sums[n][1] = word.y, sums[n][2] = word.z, sums[n][3] = word.w;
        }
    }
    const float scales[2] = {shape.scale, shape.scale};
    store_rows<kD>(sums, scales, dq, b, h, tile * Sizes::kQueries + 64 * part + thread / kWarp * 16, shape.Tq, shape.D);
}

template <int kD>
void run(const Stream& stream, const AttentionBackward& a) {
    using Sizes = HopperBackward<kD>;
    const AttentionShape s(a);
    const BackwardWorkspace space(a.q.shape);
    float* const workspace = a.workspace.as<float>();
    const DqSums dq{workspace + space.dq, reinterpret_cast<int32_t*>(workspace + space.turns),
                    static_cast<int>(ceil_div(s.Tq, Sizes::kQueries))};
    const BlockOrder order = order_of_keys(s, Sizes::kKeys);
    const BackwardMaps maps{tensor_map(a.q, Sizes::kQueries), tensor_map(a.k, Sizes::kKeys),
                            tensor_map(a.v, Sizes::kKeys), tensor_map(a.dy, Sizes::kQueries)};
    check_cuda(
        cudaMemsetAsync(dq.turns, 0, static_cast<size_t>(space.dq - space.turns) * sizeof(int32_t), native(stream)),
        "cudaMemsetAsync of the turns of attention's gradient");
    launch(hopper_backward_kernel<Sizes>,
           {.blocks = dim3(order.blocks()),
            .threads = dim3(Sizes::kThreads),
            .shared_bytes = Sizes::kBytes,
            .blocks_wait = true},
           stream, s, order, maps, a.lse.as<const float>(), static_cast<const float*>(workspace), dq,
           Result(a.dk, a.accumulate), Result(a.dv, a.accumulate));
    const int64_t parts = int64_t{s.B} * s.H * dq.tiles * (Sizes::kQueries / 64);
    launch(hopper_dq_kernel<Sizes>, {.blocks = dim3(static_cast<unsigned>(parts)), .threads = dim3(kWarpGroup)}, stream,
           s, dq, Result(a.dq, a.accumulate));
}

}  // namespace

void attention_backward_hopper(const Stream& stream, const AttentionBackward& a) {
    if (a.q.shape[3] <= 64)
        run<64>(stream, a);
    else
        run<128>(stream, a);
}

}  // namespace tutti::kernels::cuda
