// kernels/cuda/attention_hopper_forward.cu: attention on wgmma and TMA (Shah et al. 2024, FlashAttention-3): the first
// warp group of a block copies tiles of K and V into ring buffers, each of the others owns 64 queries. The softmax of
// one tile overlaps with products: of the previous tile in the same warp group, and of the other warp groups, which
// start their products in turn.
#include "tutti/kernels/cuda/attention_softmax.h"
#include "tutti/kernels/cuda/slab_tile.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

// Registers of a thread in use while S of one tile is computed and P of the tile before is multiplied: O kD / 2, S 64,
// P 32.
template <int kD_>
struct HopperForward {
    static constexpr int kD = kD_;
    static constexpr int kConsumers = kD <= 64 ? 3 : 2;
    static constexpr int kConsumerRegisters = kD <= 64 ? 160 : 240, kProducerRegisters = kD <= 64 ? 32 : 24;
    static_assert((kConsumers * kConsumerRegisters + kProducerRegisters) * kWarpGroup <= 65536);
    static constexpr int kThreads = (1 + kConsumers) * kWarpGroup;
    static constexpr int kRows = 64 * kConsumers, kKeys = 128, kStages = 2;
    using Own = SlabTile<kRows, kD>;
    using Streamed = SlabTile<kKeys, kD>;
    struct Memory {
        std::byte q[Own::kBytes], k[kStages][Streamed::kBytes], v[kStages][Streamed::kBytes];
        Mbarrier q_full, k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
    };
    static constexpr size_t kBytes = sizeof(Memory) + 1023;
};

struct ForwardMaps {
    CUtensorMap q, k, v;
};

template <class Sizes>
__device__ __forceinline__ void produce(typename Sizes::Memory& memory, const ForwardMaps& maps, int b, int h,
                                        int kv_head, int first, const Keys& keys) {
    arrive_expecting(memory.q_full, Sizes::Own::kBytes);
    typename Sizes::Own{memory.q}.fetch(maps.q, memory.q_full, b, h, first);
    Turn<Sizes::kStages> turn;
    for (int tile = keys.first; tile < keys.end; tile += Sizes::kKeys, turn.next()) {
        const int stage = turn.stage;
        wait(memory.k_empty[stage], turn.parity ^ 1);
        arrive_expecting(memory.k_full[stage], Sizes::Streamed::kBytes);
        typename Sizes::Streamed{memory.k[stage]}.fetch(maps.k, memory.k_full[stage], b, kv_head, tile);
        wait(memory.v_empty[stage], turn.parity ^ 1);
        arrive_expecting(memory.v_full[stage], Sizes::Streamed::kBytes);
        typename Sizes::Streamed{memory.v[stage]}.fetch(maps.v, memory.v_full[stage], b, kv_head, tile);
    }
}

// The consumer warp groups start their products in turn, round robin.
template <int kConsumers>
struct Order {
    int mine;
    __device__ __forceinline__ void wait_for_turn() const { named_barrier_sync(1 + mine, 2 * kWarpGroup); }
    __device__ __forceinline__ void pass_on() const {
        named_barrier_arrive(1 + (mine + 1) % kConsumers, 2 * kWarpGroup);
    }
};

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 1)
    hopper_forward_kernel(AttentionShape shape, BlockOrder blocks, const ForwardMaps __grid_constant__ maps, Result o,
                          float* lse) {
    if constexpr (kHasHopper) {
        constexpr int kD = Sizes::kD, kKeys = Sizes::kKeys, kStages = Sizes::kStages;
        using Streamed = typename Sizes::Streamed;
        auto& memory = *reinterpret_cast<typename Sizes::Memory*>(slab_memory());
        const int thread = static_cast<int>(threadIdx.x), warp_group = __shfl_sync(0xffffffffu, thread / kWarpGroup, 0);
        const auto [b, h, row_tile] = blocks.at(blockIdx.x);
        const int kv_head = h / shape.group(), first = row_tile * Sizes::kRows;
        const Span span = span_of_queries(shape, b, first, first + Sizes::kRows);
        if (thread == 0) {
            init_barrier(memory.q_full, 1);
            for (int i = 0; i < kStages; ++i) {
                init_barrier(memory.k_full[i], 1);
                init_barrier(memory.v_full[i], 1);
                init_barrier(memory.k_empty[i], Sizes::kConsumers * 4);  // each warp arrives once
                init_barrier(memory.v_empty[i], Sizes::kConsumers * 4);
            }
            publish_barriers();
        }
        __syncthreads();
        if (warp_group == 0) {
            give_registers<Sizes::kProducerRegisters>();
            if (thread == 0 && span.any.first < span.any.end)
                produce<Sizes>(memory, maps, b, h, kv_head, first, span.any);
            return;
        }
        take_registers<Sizes::kConsumerRegisters>();

        const int consumer = warp_group - 1, lane = thread % kWarp;
        const int row = first + 64 * consumer + thread % kWarpGroup / kWarp * 16;  // of the warp
        const float scale = shape.scale * kLog2e;
        Keys visible[2];
        for (int half = 0; half < 2; ++half) {
            const int i = row + lane / 4 + 8 * half;
            visible[half] = i < shape.Tq ? shape.visible(b, i) : Keys{0, 0};
        }
        const typename Sizes::Own q{memory.q};
        const auto release = [&](Mbarrier& empty) {
            if (lane == 0) arrive(empty);
        };
        const Order<Sizes::kConsumers> order{consumer};
        if (consumer == Sizes::kConsumers - 1) order.pass_on();  // the first one begins

        Softmax softmax;
        RowSums<kD> out = {};
        RowSums<kKeys> s;
        FragmentA p[kKeys / 16];
        float decay[2];
        Turn<kStages> k_turn, v_turn;
        const auto start_scores = [&] { start_transposed(s, q, 64 * consumer, Streamed{memory.k[k_turn.stage]}); };
        const auto start_output = [&] {
            wait(memory.v_full[v_turn.stage], v_turn.parity);
            start_product(out, p, Streamed{memory.v[v_turn.stage]});
        };
        const auto take_scores = [&](int tile) {
            release(memory.k_empty[k_turn.stage]);
            k_turn.next();
            if (tile < span.all.first || tile + kKeys > span.all.end) hide<kKeys>(s, tile, visible);
            softmax.advance<kKeys>(s, scale, decay);
        };
        if (span.any.first < span.any.end) {
            wait(memory.q_full, 0);
            wait(memory.k_full[0], 0);
            start_scores();
            wait_for_products<0>(s);
            take_scores(span.any.first);
            // P V of a tile is waited for in the next iteration: ptxas 13.0 would move a wait at the end of this one
            // before the softmax, with which the product must overlap.
            for (int tile = span.any.first + kKeys;; tile += kKeys) {
                wait_for_products<0>(out);
                if (tile > span.any.first + kKeys) {
                    release(memory.v_empty[v_turn.stage]);
                    v_turn.next();
                }
                rescale<kD>(out, decay);
                round_to(p, s);
                if (tile >= span.any.end) break;
                wait(memory.k_full[k_turn.stage], k_turn.parity);
                order.wait_for_turn();
                start_scores();
                start_output();
                order.pass_on();
                wait_for_products<1>(s);
                take_scores(tile);
                pin(s);
            }
            start_output();
            wait_for_products<0>(out);
        }
        softmax.finish<kD>(shape, out, o, lse, b, h, row);
    }
}

}  // namespace

void attention_forward_hopper(const Stream& stream, const AttentionForward& a) {
    const AttentionShape s(a);
    const auto run = [&](auto width) {
        using Sizes = HopperForward<width()>;
        const ForwardMaps maps{tensor_map(a.q, Sizes::kRows), tensor_map(a.k, Sizes::kKeys),
                               tensor_map(a.v, Sizes::kKeys)};
        const BlockOrder order = order_of_queries(s, Sizes::kRows);
        launch(hopper_forward_kernel<Sizes>,
               {.blocks = dim3(order.blocks()), .threads = dim3(Sizes::kThreads), .shared_bytes = Sizes::kBytes},
               stream, s, order, maps, Result(a.o), a.lse.as<float>());
    };
    if (s.D <= 64)
        run(std::integral_constant<int, 64>{});
    else
        run(std::integral_constant<int, 128>{});
}

}  // namespace tutti::kernels::cuda
