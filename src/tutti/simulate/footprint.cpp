// simulate/footprint.cpp: weights, gradients, optimizer state and activations of the first and the last stage.
#include "tutti/simulate/footprint.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti::simulate {
namespace {

// What a software stack allocates beside what the formulas count, found on its published runs.
struct Allocation {
    double activations;  // factor of what a layer saves
    double logit_bytes;  // of a logit
    double reserved;     // bytes
};

Allocation allocation_of(const Job& job) {
    switch (job.stack) {
        // Logits in 16 bits, in f32, and their softmax, which becomes the gradient.
        case Stack::nanotron: return {1.0, 10, 0.25e9};
        // PyTorch's cross entropy: logits in 16 bits and, in f32, themselves or their gradient, the logarithm of their
        // softmax and its gradient. A compiled loss, usual since 2025, keeps the 16-bit ones and their gradient.
        case Stack::eager: return {1.15, 14, 2.5e9};
        case Stack::compiled: return {1.0, job.year < 2025.2 ? 14.0 : 4.0, 2.0e9};
        case Stack::xla: return {0.9, 8, 1.5e9};
        // Rehearsals: a layer saves what the formula says; logits come in chunks. Reserved: a CUDA context, workspaces.
        case Stack::tutti: return {1.0, 0, 1.0e9};
        case Stack::megatron: break;
    }
    return {1.0, 8, 1.0e9};
}

constexpr double kLossChunk = 1 << 30;  // bytes of logits that this system makes at a time on a GPU

double microbatches_in_flight(const Job& job) {
    const double p = job.pp, v = job.virtual_stages, m = job.microbatches();
    if (job.pp == 1) return 1;
    if (job.schedule == "gpipe" || job.schedule == "afab") return m;
    double most = p;
    if (job.schedule == "zb-h2") most = 2 * p - 1;
    if (job.schedule == "v-half") most = p / 2 + 1;
    if (job.schedule == "v-min") most = p / 3 + 1;
    if (job.stack == Stack::tutti && job.schedule == "dualpipe-v") return std::min(m, p + 0.5);
    if (job.virtual_stages > 1 && !job.schedule.starts_with("zb-v") && !job.schedule.starts_with("v-"))
        most = p * (1 + (p - 1) / (p * v));
    return std::min(m, most);
}

// nanotron allocates buffers for gathered inputs on one stream and uses them on another, so that memory that the host
// has freed is taken again only when the device has come so far. Where a layer takes the device longer than the host,
// the host runs ahead, and the gathered inputs of all layers in flight are held. Found in the sweep of 8 to 512 H100
// (decision 25): beyond a forward of 1.4 ms at 450 TFLOP/s, once a pipeline is full; with 256 ranks and more, and in
// groups of more than two nodes, most layouts do not show it.
bool host_runs_ahead(const Job& job) {
    if (job.pp == 1) return true;
    const Sizes& m = job.model;
    const double flops =
        2 * job.micro_batch * job.seq / job.cp * (m.attention_parameters() + m.mlp_parameters()) / job.tp;
    return flops > 6.3e11 && job.microbatches() > job.pp && job.ranks < 256 && job.tp <= 16;
}

// Layers at the first and at the last position of a pipeline.
struct Ends {
    double first, last;
};

Ends layers_of_nanotron(const Job& job) {
    const std::vector<NanotronStage> stages = nanotron_stages(job.model, job.pp);
    const auto head = std::find_if(stages.begin(), stages.end(), [](const NanotronStage& s) { return s.head; });
    return {double(stages.front().layers), double(head->layers)};
}

// As this system lays them out: stages of equal cost, of which the head takes a part of the last one; or, with two
// layers fewer than stages, none on the first and the last.
Ends layers_of_ends(const Job& job) {
    const Sizes& m = job.model;
    const double v = job.virtual_stages, stages = job.pp * v;
    const bool folded = job.schedule == "zb-v" || job.schedule == "dualpipe-v" || job.schedule.starts_with("v-");
    if (m.layers + 2 == stages) return {v, std::max(1.0, v - 1)};  // the second position has one of every stage
    const double layer = (m.active_parameters() - m.vocab * m.hidden) / m.layers + job.seq * m.heads * m.head_dim / 2;
    const double head = m.vocab * m.hidden / layer, mean = (m.layers + head) / stages;
    const double on_last = std::clamp(std::floor(mean - head + 0.5), 1.0, std::ceil(m.layers / stages));
    const double others = (m.layers - on_last) / (stages - 1);  // mean: which of them have one more is not known here
    if (folded) return {2 * others, others + on_last};          // the second position has two of the others
    return {v * others, (v - 1) * others + on_last};
}

}  // namespace

Footprint footprint(const Job& job) {
    const Sizes& m = job.model;
    const Allocation extra = allocation_of(job);
    const double t = job.tp, sp = job.sequence_parallel ? t : 1, p = job.pp;
    const double replicas = double(job.dp()) * job.cp / job.dp_replicate;
    const double value = job.wide() ? 4 : 2, tokens = job.micro_batch * job.seq / job.cp;
    const double rows = tokens * value / 2;  // of values of 2 bytes, which the formulas count
    const double mixtures = m.mixtures();
    const double expert_replicas = std::max(1.0, double(job.ranks) / (p * job.ep * job.etp * job.dp_replicate));
    const double embedding = m.vocab * m.hidden / t;

    // Bytes that a layer saves for its backward, of one microbatch.
    const double routed = m.top_k * (job.token_drop ? 1 : std::max(1.0, job.imbalance));  // to the fullest rank
    const double shared = job.mixture() ? routed * m.expert_ffn / sp * t + m.shared_ffn : m.ffn;
    const double inner = mixtures > 0 ? (mixtures * shared + (m.layers - mixtures) * m.ffn) / m.layers : m.ffn;
    const bool nanotron = job.stack == Stack::nanotron;
    const bool pytorch = job.stack == Stack::eager || job.stack == Stack::compiled;
    // Gate, up and their product; nanotron's SiLU is no part of a fused kernel and saves its output too.
    const double gates = m.mlp_matrices == 3 ? (nanotron ? 8 : 6) : 4;
    double saved = rows * (8 * m.hidden / sp + (4 * m.heads + 4 * m.kv_heads) * m.head_dim / t + gates * inner / t);
    if (mixtures > 0) saved += rows / sp * 4 * routed * m.hidden * job.etp * mixtures / m.layers;
    if (job.attention == Attention::unfused) saved += 5 * rows * job.seq * m.heads / t;
    saved *= extra.activations;
    if (nanotron && job.tp > 1 && host_runs_ahead(job)) saved += 2 * rows * m.hidden;
    const double gathers = job.stack == Stack::tutti && job.sequence_parallel ? 1 - 1 / t : 0;
    saved += gathers * 2 * 2 * rows * m.hidden;  // the inputs of attention and MLP stay gathered
    if (job.exchanging() > 1) saved += 2 * rows * m.heads * m.head_dim / t;  // before and after the exchange
    const double input = 2 * rows * m.hidden / sp;
    double kept = saved;
    if (job.recompute == Recompute::full) kept = input;
    if (job.recompute == Recompute::selective) {
        if (job.attention == Attention::unfused) kept -= 5 * extra.activations * rows * job.seq * m.heads / t;
        // PyTorch's selective checkpoints keep the input, every second product (query, value, gate, down) and
        // attention.
        else if (pytorch)
            kept = 2 * extra.activations * rows *
                   (2 * m.hidden / sp + ((2 * m.heads + m.kv_heads) * m.head_dim + inner) / t);
        // Outputs of activation functions, and of norms unless they stay gathered.
        if (job.stack == Stack::tutti) kept = saved - rows * (2 * inner / t + (gathers > 0 ? 0 : 4 * m.hidden));
    }
    // A schedule that puts off the weight gradients keeps for them, of two fifths of its microbatches, the gradients of
    // all products' outputs; and what was recomputed for the backward.
    const bool splits = job.schedule.starts_with("zb-") || job.schedule.starts_with("v-");
    if (job.stack == Stack::tutti && job.pp > 1 && splits) {
        kept =
            saved + 0.8 * rows *
                        ((m.heads + 2 * m.kv_heads) * m.head_dim / t + (m.mlp_matrices - 1) * inner / t + 2 * m.hidden);
    }
    // Of the layer that runs backward. PyTorch's tensor parallelism gathers the inputs of attention and MLP, and the
    // gradients of their outputs, each into a tensor of its own; Megatron keeps one buffer for all.
    double working = 0;
    if (pytorch && job.sequence_parallel && job.tp > 1) working = 4 * 2 * rows * m.hidden;
    if (job.stack == Stack::tutti) working = rows * (2 * (m.mlp_matrices - 1) * inner / t + 2 * m.hidden);
    if (job.stack == Stack::tutti && job.etp > 1)
        working = std::max(working, rows / sp * 4 * routed * m.hidden * job.etp);

    Ends ends = {std::ceil(m.layers / p), std::ceil(m.layers / p)};
    if (job.pp > 1 && nanotron) ends = layers_of_nanotron(job);
    if (job.pp > 1 && job.stack == Stack::tutti) ends = layers_of_ends(job);
    Footprint most;
    for (int stage = 0; stage < job.pp; stage += std::max(1, job.pp - 1)) {
        const bool first = stage == 0, last = stage == job.pp - 1;
        const double layers = first ? ends.first : ends.last;
        const double held = job.pp > 1 && last ? 1 : microbatches_in_flight(job);
        const double dense_layer = (m.attention_parameters() + (1 - mixtures / m.layers) * m.mlp_parameters() +
                                    mixtures / m.layers * m.mlp_matrices * m.hidden * m.shared_ffn) /
                                   t;
        const double dense = layers * dense_layer + embedding * (job.pp == 1 && !m.tied ? 2 : 1);
        const double experts = layers * mixtures / m.layers * m.experts * m.expert_parameters() / (job.ep * job.etp);
        Footprint here;
        const auto state = [&](double values, double shards) {
            here.weights += 2 * values / (job.zero >= 3 ? shards : 1);
            here.gradients += job.gradient_bytes * values / (job.zero >= 2 ? shards : 1);
            if (nanotron && job.dp() > 1) here.gradients += 2 * values;  // buckets of DistributedDataParallel
            here.optimizer += 12 * values / (job.zero >= 1 ? shards : 1);
        };
        state(dense, replicas);
        state(experts, expert_replicas);
        if (job.wide()) {  // no second copy of the weights
            here.weights *= 2;
            here.optimizer *= 8.0 / 12;
        }
        if (job.offload.optimizer) here.offloaded += std::exchange(here.optimizer, 0);
        if (job.offload.weights) here.offloaded += std::exchange(here.weights, 0);
        const double of_all = kept * layers * held;
        double of_layers = of_all;  // on the device
        if (job.offload.activations) {
            // The layer in hand stays, and the statistics of softmax and norms of the others.
            here.offloaded_layer = kept;
            here.offloaded += of_all;
            of_layers = std::min(of_all, kept);
            if (job.recompute != Recompute::full)
                here.activations = 4 * tokens * (m.heads / t + 2 / sp) * std::max(0.0, layers * held - 1);
        }
        // What the embedding puts out, in nanotron before it is scattered over the sequence.
        if (first && job.pp > 1) here.activations += (nanotron ? 2 * rows * m.hidden : input) * held;
        const double backward = (job.recompute == Recompute::none ? 0 : saved) + working;  // of a layer
        if (job.stack == Stack::tutti) {
            const double weights = job.zero >= 3 ? value : 0, gradient = job.zero >= 2 ? 4 : 0;
            const double layer = dense_layer + experts / std::max(1.0, layers);
            const double in_use = (2 * weights + gradient) * layer;  // the weights of two layers
            const double chunk = std::min(value * tokens * m.vocab / t, kLossChunk);
            const double received = gradient / replicas;  // of a reduction
            double most_here = 0;
            const auto moment = [&, others = here.activations](double activations, double gathered, double logits) {
                if (activations + gathered + logits <= most_here) return;
                most_here = activations + gathered + logits;
                here.activations = others + activations;
                here.gathered = gathered;
                here.logits = logits;
            };
            moment(of_layers + backward, in_use, 0);
            // The gradients of a layer are reduced while the next one runs backward, which has one layer less to keep.
            // Over several ranks of tp the norms' gradients come last.
            if (job.tp == 1)
                moment(std::min(of_layers, of_all - kept) + backward, in_use + (gradient + received) * dense_layer, 0);
            // Those of the embedding, while the last layer of the next microbatch does.
            if (first && held > 1)
                moment(std::min(of_layers, of_all - kept * layers) + backward,
                       in_use + (gradient + received) * embedding, 0);
            if (last) {
                const double at_head = 2 * rows * m.hidden * (2 + 1 / sp) + (job.offload.activations ? 0 : of_all);
                const double of_head = (weights + gradient) * embedding;
                moment(at_head, of_head, chunk);
                moment(at_head, of_head + received * embedding + weights * layer, 0);
            }
        } else {
            here.activations += of_layers + backward;
            if (last) here.logits = extra.logit_bytes * rows * m.vocab / t;
            if (job.zero >= 3) here.gathered = 2 * 2 * (dense + experts) / std::max(1.0, layers);
        }
        here.reserved = extra.reserved;
        if (here.total() > most.total()) most = here;
        if (job.pp == 1) break;
    }
    return most;
}

}  // namespace tutti::simulate
