// spec/rules.h: the rules on a layout, each once, as a predicate on a run whose values are in their ranges. validate()
// puts a text to each. The planner asks them while its search fixes one axis after another, millions of times, so they
// build nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// Saturates: a product of legal values may have more than 63 bits.
constexpr int64_t product(std::initializer_list<int64_t> factors) {
    int64_t all = 1;
    for (const int64_t factor : factors)
        if (__builtin_mul_overflow(all, factor, &all)) return std::numeric_limits<int64_t>::max();
    return all;
}
constexpr bool divides(int64_t part, int64_t whole) { return part > 0 && whole % part == 0; }

// --- Data parallelism

// dp_replicate * dp_shard, with dp_shard = -1 resolved to the ranks that the other axes leave (0 when they do not
// divide the ranks).
constexpr int64_t data_parallel_ranks(const ParallelSpec& p, int ranks) {
    if (p.dp_shard >= 1) return product({p.dp_replicate, p.dp_shard});
    const int64_t others = product({p.dp_replicate, p.tp, p.cp, p.pp});
    return p.dp_shard == -1 && divides(others, ranks) ? p.dp_replicate * (ranks / others) : 0;
}
// dp_shard, resolved in the same way.
constexpr int64_t data_parallel_shards(const ParallelSpec& p, int ranks) {
    return data_parallel_ranks(p, ranks) / p.dp_replicate;
}
inline bool axes_fill_ranks(const ParallelSpec& p, int ranks) {
    return product({data_parallel_ranks(p, ranks), p.tp, p.cp, p.pp}) == ranks;
}
inline bool batch_divides(const RunSpec& run, int ranks) {
    const int64_t dp = data_parallel_ranks(run.parallel, ranks);
    return dp < 1 || divides(product({run.train.micro_batch, dp}), run.train.global_batch);
}
inline bool offloaded_weights_are_gathered(const RunSpec& run) { return !run.offload.params || run.parallel.zero == 3; }

// --- Tensor parallelism divides sizes; of key and value heads that are fewer than the ranks it makes copies

inline bool tp_fits_kv_heads(const RunSpec& run) {
    return run.model.kv_heads < 1 || divides(run.parallel.tp, run.model.kv_heads) ||
           divides(run.model.kv_heads, run.parallel.tp);
}
// A norm of all heads of a token: a rank normalises a part of the tokens, with the heads of all ranks.
inline bool width_norm_fits(const RunSpec& run) {
    const ParallelSpec& p = run.parallel;
    return !run.model.width_norm || p.tp == 1 ||
           (divides(p.tp, run.model.kv_heads) && divides(product({p.tp, p.cp}), run.train.seq_len));
}
// Heads of a scan are divided with the groups that share B and C, or each rank has all groups. The norm of a group
// whose heads are on several ranks is that of width_norm.
inline bool tp_fits_scan_groups(const RunSpec& run) {
    const int64_t tp = run.parallel.tp, groups = run.model.scan_groups;
    return groups < 1 || divides(tp, groups) || divides(groups, tp);
}
inline bool scan_norm_fits(const RunSpec& run) {
    const ParallelSpec& p = run.parallel;
    return run.model.scan_groups < 1 || run.model.scan_norm == "none" || divides(p.tp, run.model.scan_groups) ||
           divides(product({p.tp, p.cp}), run.train.seq_len);
}
inline int64_t conv_width(const ModelSpec& model) { return model.conv_layers.empty() ? 0 : model.width; }
inline bool tp_fits(const RunSpec& run) {
    const ModelSpec& m = run.model;
    const int64_t tp = run.parallel.tp;
    return divides(tp, m.heads) && divides(tp, m.ffn) && divides(tp, m.moe.shared_ffn) && divides(tp, conv_width(m)) &&
           divides(tp, m.delta_key_heads) && divides(tp, m.scan_heads) && tp_fits_kv_heads(run) &&
           width_norm_fits(run) && tp_fits_scan_groups(run) && scan_norm_fits(run);
}
inline bool sequence_parallel_fits(const RunSpec& run) {
    const ParallelSpec& p = run.parallel;
    return p.tp == 1 || !p.sequence_parallel || divides(product({p.tp, p.cp}), run.train.seq_len);
}

// --- Context parallelism: ranks that exchange keys have two chunks of a sequence each; those that exchange heads
// divide these chunks, and then the heads that tensor parallelism leaves them

// Ranks of cp that exchange heads for tokens: cp_ulysses, with 0 resolved. cp / ulysses_ranks() ranks exchange keys.
inline int64_t ulysses_ranks(const ParallelSpec& p) {
    if (p.cp_ulysses > 0) return p.cp_ulysses;
    return p.cp_method == "ulysses" ? p.cp : 1;
}
inline bool ulysses_fits_method(const ParallelSpec& p) { return p.cp_method != "ulysses" || ulysses_ranks(p) == p.cp; }
inline bool ulysses_divides_cp(const ParallelSpec& p) { return divides(ulysses_ranks(p), p.cp); }
// What a sequence has a multiple of.
inline int64_t sequence_unit(const ParallelSpec& p) {
    const int64_t rings = std::max<int64_t>(p.cp / ulysses_ranks(p), 1);
    return rings == 1 ? p.cp : std::lcm(2 * rings, p.cp);
}
inline bool cp_divides_sequence(const RunSpec& run) { return divides(sequence_unit(run.parallel), run.train.seq_len); }
inline bool cp_leaves_tokens_of_convolution(const RunSpec& run) {
    return run.parallel.cp == 1 || run.model.conv_kernel == 0 ||
           run.train.seq_len / sequence_unit(run.parallel) >= run.model.conv_kernel - 1;
}
inline bool ulysses_divides_heads(const RunSpec& run) {
    return divides(ulysses_ranks(run.parallel), run.model.heads / run.parallel.tp);
}
inline int64_t kv_heads_of_rank(const RunSpec& run) {
    return std::max<int64_t>(run.model.kv_heads / run.parallel.tp, 1);
}
inline bool ulysses_fits_kv_heads(const RunSpec& run) {
    const int64_t kv_heads = kv_heads_of_rank(run), ulysses = ulysses_ranks(run.parallel);
    return divides(ulysses, kv_heads) || divides(kv_heads, ulysses);
}
inline bool cp_fits(const RunSpec& run) {
    return ulysses_fits_method(run.parallel) && ulysses_divides_cp(run.parallel) && cp_divides_sequence(run) &&
           cp_leaves_tokens_of_convolution(run) && ulysses_divides_heads(run) && ulysses_fits_kv_heads(run);
}

// --- Experts are laid out over the ranks of tp, cp and dp_shard together

inline bool ep_has_experts(const RunSpec& run) {
    return run.model.moe.experts > 0 || (run.parallel.ep == 1 && run.parallel.etp == 1);
}
inline bool ep_divides_ranks(const ParallelSpec& p, int ranks) {
    const int64_t shards = data_parallel_shards(p, ranks);
    return shards < 1 || divides(product({p.ep, p.etp}), product({p.tp, p.cp, shards}));
}
inline bool ep_fits(const RunSpec& run, int ranks) {
    return ep_has_experts(run) && divides(run.parallel.ep, run.model.moe.experts) &&
           divides(run.parallel.etp, run.model.moe.ffn) && ep_divides_ranks(run.parallel, ranks);
}

// --- Pipelines

// With empty ends the first and the last stage may have no layer.
constexpr bool stages_have_layers(int64_t layers, int64_t stages, bool empty_ends) {
    return stages <= layers + (empty_ends ? 2 : 0);
}
inline bool stages_have_layers(const RunSpec& run) {
    const ParallelSpec& p = run.parallel;
    return p.pp == 1 ||
           stages_have_layers(run.model.layers, product({p.pp, p.virtual_stages}), !p.stage_layers.empty());
}
// A loss over the microbatches of a step so far needs them in their order.
inline bool aux_loss_fits_schedule(const RunSpec& run) {
    const ParallelSpec& p = run.parallel;
    return run.model.moe.aux_loss != "global" || p.pp == 1 || p.schedule == "1f1b" || p.schedule == "gpipe";
}

// All of them.
inline bool keeps_rules(const RunSpec& run, int ranks) {
    return axes_fill_ranks(run.parallel, ranks) && batch_divides(run, ranks) && offloaded_weights_are_gathered(run) &&
           tp_fits(run) && sequence_parallel_fits(run) && cp_fits(run) && ep_fits(run, ranks) &&
           stages_have_layers(run) && aux_loss_fits_schedule(run);
}

// How many copies of what a rank saves lie in the memory of hosts: one number for the checks before a run, the
// rehearsal and the plan. For each rank of a host (checkpoint.memory_every): two slots of its own, two of a rank of
// another host, and the state from which one is written while training goes on (checkpoint.async).
constexpr int copies_in_memory(const RunSpec& run, bool on_several_hosts) {
    if (run.checkpoint.memory_every == 0) return 0;
    return (on_several_hosts ? 4 : 2) + (run.checkpoint.async ? 1 : 0);
}

}  // namespace tutti::spec
