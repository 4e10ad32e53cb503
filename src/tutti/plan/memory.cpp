#include "tutti/plan/memory.h"

#include <algorithm>

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/spec/recompute.h"
#include "tutti/spec/validate.h"

namespace tutti::plan {
namespace {

void check_countable(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    check<UsageError>(p.tp == 1 && p.cp == 1 && p.pp == 1 && p.ep == 1,
                      "the memory plan counts data parallelism only; set tp, cp, pp and ep of [parallel] to 1");
    check<UsageError>(!run.offload.optimizer && !run.offload.params && !run.offload.activations,
                      "the memory plan counts no [offload]; set its keys to false");
    check<UsageError>(run.precision.fp8 == "none", "the memory plan counts no fp8; set precision.fp8 = \"none\"");
    check<UsageError>(run.train.micro_batch > 0 && run.train.seq_len > 0,
                      "the memory plan needs train.micro_batch and train.seq_len of at least 1, got ",
                      run.train.micro_batch, " and ", run.train.seq_len);
}

int64_t compute_bytes(const std::string& compute) {
    check<UsageError>(compute == "f32" || compute == "bf16", "precision.compute must be f32 or bf16, got \"", compute,
                      "\"");
    return size_of(*dtype_from(compute));
}

int64_t shards_of(const spec::RunSpec& run, int ranks) {
    if (run.parallel.zero == 0) return 1;
    return std::max<int64_t>(1, spec::data_parallel_shards(run.parallel, ranks));
}

// ZeRO-1 cuts the optimizer's state, 2 the gradients too, 3 the weights too. Without the padding to whole blocks.
MemoryByPurpose state_of_rank(const spec::RunSpec& run, int ranks) {
    MemoryByPurpose state = state_bytes(spec::parameter_count(run.model), run.precision.compute, run.optimizer.name);
    const int64_t shards = shards_of(run, ranks);
    if (run.parallel.zero >= 1) state[Purpose::optimizer] /= shards;
    if (run.parallel.zero >= 2) state[Purpose::gradients] /= shards;
    if (run.parallel.zero >= 3) state[Purpose::weights] /= shards;
    return state;
}

// Two units at once, of the largest: ZeRO-2 holds the gradients of one while those of another are reduced; ZeRO-3 holds
// the weights of one while those of the next are gathered. A bound: small models are not at their peak then.
int64_t unit_buffer_bytes(const spec::RunSpec& run, int ranks) {
    if (run.parallel.zero < 2 || spec::data_parallel_ranks(run.parallel, ranks) == 1) return 0;
    const spec::ModelSpec& m = run.model;
    spec::ModelSpec without = m;
    without.layers = 1;
    const int64_t one = spec::parameter_count(without);
    without.layers = 2;
    const int64_t block = spec::parameter_count(without) - one;
    const int64_t largest = std::max(block, m.vocab * m.width);
    const int64_t weights = run.parallel.zero == 3 ? compute_bytes(run.precision.compute) : 0;
    return 2 * largest * (4 + weights);
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
    const int64_t masters = compute == "f32" ? 0 : 1;      // in f32 the weights are their own masters
    MemoryByPurpose bytes;
    bytes[Purpose::weights] = values * element;
    bytes[Purpose::gradients] = values * kF32;
    bytes[Purpose::optimizer] = values * kF32 * (moments + masters);
    return bytes;
}

MemoryPlan predict_memory(const spec::RunSpec& run, const AttentionWorkspace& attention, int ranks) {
    check_countable(run);
    const spec::TrainSpec& train = run.train;
    const LocalSizes sizes =
        local_sizes(run.model, train.micro_batch, train.seq_len, compute_bytes(run.precision.compute), attention);

    Ledger ledger;
    ledger.enter("setting up");
    const MemoryByPurpose state = state_of_rank(run, ranks);
    ledger.add(unit_buffer_bytes(run, ranks), Purpose::communication);
    for (const Purpose purpose : {Purpose::weights, Purpose::gradients, Purpose::optimizer})
        ledger.add(state[purpose], purpose);
    ledger.add(rope_table_bytes(run.model, train.seq_len), Purpose::workspace);

    // train_step: each microbatch starts from the same holdings.
    const bool has_features = run.model.family == spec::Family::mlp, documents = run.data.documents == "respected";
    const Ghost features = has_features ? noise(ledger, sizes) : Ghost{};
    const Ghost rest =
        has_features ? noise(ledger, sizes) : Ghost(ledger, batch_bytes(sizes, documents), Purpose::data);
    {
        GhostTape tape(ledger);
        const GhostVar loss =
            forward(tape, sizes, features, spec::recompute_segment(run.recompute.policy, sizes.layers));
        tape.backward(loss);
    }
    check(ledger.current()[Purpose::activations] == 0, "the planned step leaves ",
          ledger.current()[Purpose::activations], " bytes of activations: the plan itself is wrong");
    return {ledger.at_peak(), ledger.peaks(), ledger.peak_place()};
}

}  // namespace tutti::plan
