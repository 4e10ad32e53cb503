#include "tutti/plan/memory.h"

#include <algorithm>

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/exact_sum.h"
#include "tutti/plan/ghost_shards.h"
#include "tutti/spec/recompute.h"
#include "tutti/spec/validate.h"

namespace tutti::plan {
namespace {

void check_countable(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    check<UsageError>(p.tp == 1 && p.cp == 1 && p.pp == 1 && p.ep == 1,
                      "the memory plan counts data parallelism only; set tp, cp, pp and ep of [parallel] to 1");
    check<UsageError>(run.precision.fp8 == "none", "the memory plan counts no fp8; set precision.fp8 = \"none\"");
    check<UsageError>(run.train.micro_batch > 0 && run.train.seq_len > 0,
                      "the memory plan needs train.micro_batch and train.seq_len of at least 1, got ",
                      run.train.micro_batch, " and ", run.train.seq_len);
}

int64_t compute_bytes(const std::string& compute) {
    const auto arithmetic = arithmetic_from(compute);
    check<UsageError>(arithmetic.has_value(), "precision.compute must be f32, tf32 or bf16, got \"", compute, "\"");
    return size_of(storage_of(*arithmetic));
}

int64_t shards_of(const spec::RunSpec& run, int ranks) {
    if (run.parallel.zero == 0) return 1;
    return std::max<int64_t>(1, spec::data_parallel_shards(run.parallel, ranks));
}

// What stays from step to step: no gradients (GhostShards). ZeRO-1 cuts the optimizer's state, 3 the weights too. Flat
// buffers are padded to whole blocks; moments, which have a tensor for each piece of a parameter, are not.
MemoryByPurpose state_of_rank(const spec::RunSpec& run, const ShardedModel& model) {
    const int64_t zero = run.parallel.zero;
    MemoryByPurpose state;
    for (const mesh::FlatLayout& flat : model.layouts) {
        const int64_t moments = zero >= 1 ? std::min(flat.shard_size, flat.values) : flat.values;
        const int64_t of_shard = zero >= 1 ? flat.shard_size : flat.padded;
        const auto one = state_bytes(1, run.precision.compute, run.optimizer.name);
        const auto none = state_bytes(1, "f32", run.optimizer.name);  // moments only
        state[Purpose::weights] += one[Purpose::weights] * (zero >= 3 ? flat.shard_size : flat.padded);
        state[Purpose::optimizer] +=
            none[Purpose::optimizer] * moments + (one[Purpose::optimizer] - none[Purpose::optimizer]) * of_shard;
    }
    return state;
}

// Cosines and sines of every position of the run, f32: 2 (T, D/2).
int64_t rope_table_bytes(const spec::ModelSpec& model, int64_t seq_len) {
    return model.family == spec::Family::llama ? 2 * seq_len * (model.head_dim / 2) * 4 : 0;
}

// nn::Batch without the mlp's features: tokens, targets and positions i32, row indices i64, each (B, T).
int64_t batch_bytes(const LocalSizes& s, bool documents) { return s.rows() * (4 + 4 + 4 + 8 + (documents ? 4 : 0)); }

// The mlp's features, or its targets: made in f32 and rounded to the compute type.
Ghost noise(Ledger& ledger, const LocalSizes& s) {
    const Ghost x(ledger, s.rows() * s.width * 4, Purpose::data);
    return s.element == 4 ? x : Ghost(ledger, s.rows() * s.width * s.element, Purpose::data);
}

}  // namespace

MemoryByPurpose state_bytes(int64_t values, const std::string& compute, const std::string& optimizer) {
    check<UsageError>(optimizer == "adamw" || optimizer == "sgd", "optimizer.name must be adamw or sgd, got \"",
                      optimizer, "\"");
    constexpr int64_t kF32 = 4;
    const int64_t element = compute_bytes(compute);
    const int64_t moments = optimizer == "adamw" ? 2 : 1;  // m and v; the momentum
    const int64_t masters = element == kF32 ? 0 : 1;       // in f32 the weights are their own masters
    MemoryByPurpose bytes;
    bytes[Purpose::weights] = values * element;
    bytes[Purpose::gradients] = values * kF32;
    bytes[Purpose::optimizer] = values * kF32 * (moments + masters);
    return bytes;
}

MemoryPlan predict_memory(const spec::RunSpec& run, const Workspaces& workspaces, int ranks) {
    check_countable(run);
    const spec::TrainSpec& train = run.train;
    const int64_t microbatches =
        train.global_batch / (train.micro_batch * std::max<int64_t>(1, spec::data_parallel_ranks(run.parallel, ranks)));
    LocalSizes sizes =
        local_sizes(run.model, train.micro_batch, train.seq_len, compute_bytes(run.precision.compute), workspaces);
    sizes.keeps_packed = spec::keeps_packed_weights(run, microbatches);

    Ledger ledger;
    ledger.enter("setting up");
    const ShardedModel model = sharded_model(run.model, shards_of(run, ranks));
    const MemoryByPurpose state = state_of_rank(run, model);
    for (const Purpose purpose : {Purpose::weights, Purpose::optimizer}) {
        ledger.add(state[purpose], purpose);
        const bool away =
            purpose == Purpose::optimizer ? run.offload.optimizer : purpose == Purpose::weights && run.offload.params;
        if (away) ledger.send_away(state[purpose], purpose);
    }
    ledger.restart_peaks();
    ledger.add(workspaces.stream, Purpose::workspace);
    ledger.add(rope_table_bytes(run.model, train.seq_len), Purpose::workspace);
    ledger.add(ExactSum::kWords * size_of(DType::i64), Purpose::workspace);  // of the losses

    if (sizes.keeps_packed) ledger.add(packed_weights_bytes(sizes), Purpose::workspace);

    // train_step: each microbatch starts from the same holdings.
    const bool has_features = run.model.family == spec::Family::mlp, documents = run.data.documents == "respected";
    const Ghost features = has_features ? noise(ledger, sizes) : Ghost{};
    const Ghost rest =
        has_features ? noise(ledger, sizes) : Ghost(ledger, batch_bytes(sizes, documents), Purpose::data);
    if (train.cuda_graphs)  // the recording has its inputs in a place of their own
        ledger.add(has_features ? 2 * sizes.rows() * sizes.width * sizes.element : batch_bytes(sizes, documents),
                   Purpose::data);
    {
        const spec::Recompute recompute = spec::recompute_of(run.recompute.policy, sizes.layers);
        using Before = GhostShards::Before;  // of the last microbatch, which needs most
        const bool whole = run.parallel.accumulate == "full" || run.parallel.zero < 2;
        const Before before = train.cuda_graphs   ? Before::gradients  // they stay from step to step
                              : microbatches <= 1 ? Before::nothing
                              : whole             ? Before::gradients
                                                  : Before::shards;
        const int64_t workers = run.parallel.strategy == "parameter_server" ? ranks - 1 : 0;
        GhostShards shards(ledger, model, run.parallel.zero, sizes.element, before, workers);
        GhostTape tape(ledger, {&shards, run.offload.activations, recompute.selective});
        const GhostVar loss = forward(tape, sizes, features, recompute.segment);
        tape.backward(loss);
        shards.finish_gradients();
    }
    check(ledger.current()[Purpose::activations] == 0, "the planned step leaves ",
          ledger.current()[Purpose::activations], " bytes of activations: the plan itself is wrong");
    return {ledger.at_peak(), ledger.peaks(), ledger.peak_place(), ledger.away_peak()};
}

}  // namespace tutti::plan
