// published/traits.h: how the programs of other systems differ from one that launches fused kernels back to back and
// hides its communication: a handful of counts and flags a system, with their source. No formula asks for the name of a
// system.
#pragma once

#include <initializer_list>
#include <string>

#include "tutti/simulate/machine_prices.h"

namespace tutti::published {

struct Traits {
    std::string name;
    simulate::Attention attention = simulate::Attention::newest;
    double launches = 30;          // kernels of a layer and pass; a backward has twice as many
    double expert_launches = 180;  // more, of a layer with experts
    bool graphs = false;           // launches are recorded: the host is no limit
    double pass_factor = 1;        // bytes of norms, residuals and activation functions over those of fused kernels
    bool eager = false;            // each operation of these, and of an unfused softmax, is a pass through memory
    double logit_bytes = 24;       // moved for a logit, forward and backward
    double gradient_bytes = 4;     // of a value, reduced over ranks
    bool gathers_codes = false;    // ZeRO-1 and 2: weights of 8-bit products are gathered as codes of a byte
    double optimizer_bytes = 30;   // that the update of a value reads and writes
    double accumulate_bytes = 0;   // that adding a value's gradient to a sum moves, a microbatch; 0: in the product
    bool launches_block = false;   // the host waits for each kernel before it launches the next
    bool sequence_parallel = true;
    bool dropout = false;
    // Communication beside compute.
    bool overlaps_tp = true, overlaps_dp = true, overlaps_hops = true;
    bool blocking_hops = false;    // a stage's sends and receives one after another, in its order of work
    bool whole_gradients = false;  // of a stage's input, sent by each rank of tp, and not a share by each
    bool gathers_context = false;  // keys and values of cp by a gather before attention, not around a ring beside it
    bool prefetches = true;        // ZeRO-3: the next layer's weights beside this one's compute
    bool gathers_once = false;     // ZeRO-3 with a pipeline: once a step, not once a microbatch
    double gathers_a_layer = 1;    // ZeRO-3: collectives that gather a layer's weights
    double keeps_values = 0;       // ZeRO-3: weights of at most so many values stay from a layer's recomputation on;
                                   // those of a larger one are gathered for it and for its backward; 0: of any layer
    double hidden_dispatch = 0;    // share of the exchange of experts that runs beside compute
    bool one_copy = false;         // of a token to a rank, and across the network to a domain, whose experts it takes
    bool next_experts = false;     // a token takes experts that follow one another: a gate of benchmarks
    double bucket_bytes = 0;       // of gradients; 0: of bucket_values; < 0: one bucket
    double bucket_values = 0;      // of gradients and of weights; 0: 40 M, or 1 M a rank where that is more
    bool scatters_as_all_reduce = false;        // a reduce-scatter of unequal parts of many tensors
    double collective_latencies = 1, hops = 1;  // in units of Physics
    double tp_stall = 0;                        // seconds a message and further rank of tp, in pipelines over nodes
    // Recomputation that is done whatever the row says: "", "full", "op-level".
    const char* recompute = "";

    // --- Memory of a rank ---
    double held_activations = 1;        // factor of what a layer saves by its products
    double held_logit_bytes = 8;        // of a logit
    double reserved_bytes = 1e9;        // libraries, communicators, fragmentation
    bool weights_are_masters = false;   // f32, sharded; their 16-bit copies live as long as a layer's pass
    double bucket_copy_bytes = 0;       // of a gradient, where there are several ranks
    double gate_bytes = 6;              // of the inner size of a gated layer: gate, up and their product
    bool new_gathers = false;           // inputs gathered over tp are new tensors, not one buffer
    bool checkpoints_products = false;  // selective recompute keeps the input, every second product, attention
    bool host_runs_ahead = false;       // gathered inputs are held where the host runs ahead of the device
    bool embeds_whole = false;          // the output of the embedding is held before it is scattered over tp
    // Stages of a pipeline are cut by cost (nanotron's build_model()), and near the limit of its memory the allocator
    // returns blocks to the device and takes them again.
    bool stages_by_cost = false, allocator_retries = false;
};

// The traits of the software that a row names. `software`, `model`, `attention`, `recompute`: fields of the row, in
// lower case; `family`: the row's; `newest_device`: of Blackwell's generation.
struct Named {
    std::string software, model, attention, recompute, family;
    bool experts = false, blackwell = false, volta = false, tp = false, bf16 = false;
};
Traits traits_of(const Named& named);

bool has(const std::string& text, std::initializer_list<const char*> words);  // one of them

}  // namespace tutti::published
