// simulate/footprint.cpp: weights, gradients, optimizer state and activations of the first and the last stage.
#include "tutti/simulate/footprint.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti::simulate {
namespace {

constexpr double kReserved = 1.0e9;     // a CUDA context, workspaces
constexpr double kLossChunk = 1 << 30;  // bytes of logits that this system makes at a time on a GPU

// A rank's two stages are one of the first half and one of the second, in reverse order.
bool is_folded(const Job& job) {
    return job.schedule == "zb-v" || job.schedule == "dualpipe-v" || job.schedule.starts_with("v-");
}

double microbatches_in_flight(const Job& job) {
    const double p = job.pp, v = job.virtual_stages, m = job.microbatches();
    if (job.pp == 1) return 1;
    if (job.schedule == "gpipe" || job.schedule == "afab") return m;
    double most = p;
    if (job.schedule == "zb-h2") most = 2 * p - 1;
    if (job.schedule == "v-half") most = p / 2 + 1;
    if (job.schedule == "v-min") most = p / 3 + 1;
    if (job.schedule == "dualpipe-v") return std::min(m, p + 0.5);
    if (job.virtual_stages > 1 && !job.schedule.starts_with("zb-v") && !job.schedule.starts_with("v-"))
        most = p * (1 + (p - 1) / (p * v));
    return std::min(m, most);
}

// Messages that a rank of this system has sent and keeps (pipeline/executor.h).
double messages_under_way(const Job& job) {
    return std::min(16.0, std::min(2.0, job.microbatches()) * (is_folded(job) ? 2 : 2 * job.virtual_stages - 1));
}

// Layers at the first and at the last position of a pipeline.
struct Ends {
    double first, last;
};

// As this system lays them out: stages of equal cost, of which the head takes a part of the last one; or, with two
// layers fewer than stages, none on the first and the last.
Ends layers_of_ends(const Job& job) {
    const Sizes& m = job.model;
    const double v = job.virtual_stages, stages = job.pp * v;
    if (m.layers + 2 == stages) return {v, std::max(1.0, v - 1)};  // the second position has one of every stage
    const double layer = (m.active_parameters() - m.vocab * m.hidden) / m.layers + job.seq * m.heads * m.head_dim / 2;
    const double head = m.vocab * m.hidden / layer, mean = (m.layers + head) / stages;
    const double on_last = std::clamp(std::floor(mean - head + 0.5), 1.0, std::ceil(m.layers / stages));
    const double others = (m.layers - on_last) / (stages - 1);  // mean: which of them have one more is not known here
    if (is_folded(job)) return {2 * others, others + on_last};  // the second position has two of the others
    return {v * others, (v - 1) * others + on_last};
}

using Layer = FootprintParts::Layer;
using Stage = FootprintParts::Stage;

double tokens_of(const Job& job) { return job.micro_batch * job.seq / job.cp; }
// The ranks that shard dense state.
double replicas_of(const Job& job) { return double(job.dp()) * job.cp / job.dp_replicate; }
double value_bytes(const Job& job) { return job.wide() ? 4 : 2; }

Layer bytes_of_layer(const Job& job) {
    const Sizes& m = job.model;
    const double t = job.tp, sp = job.sequence_parallel ? t : 1, mixtures = m.mixtures();
    const double rows = tokens_of(job) * value_bytes(job) / 2;  // of values of 2 bytes, which the formulas count
    const double routed = m.top_k * (job.token_drop ? 1 : std::max(1.0, job.imbalance));  // to the fullest rank
    const double shared = job.mixture() ? routed * m.expert_ffn / sp * t + m.shared_ffn : m.ffn;
    const double inner = mixtures > 0 ? (mixtures * shared + (m.layers - mixtures) * m.ffn) / m.layers : m.ffn;
    const double gates = m.mlp_matrices == 3 ? 6 : 4;  // gate, up and their product
    double saved = rows * (8 * m.hidden / sp + (4 * m.heads + 4 * m.kv_heads) * m.head_dim / t + gates * inner / t);
    if (mixtures > 0) saved += rows / sp * 4 * routed * m.hidden * job.etp * mixtures / m.layers;
    const double gathers = job.sequence_parallel ? 1 - 1 / t : 0;
    saved += gathers * 2 * 2 * rows * m.hidden;  // the inputs of attention and MLP stay gathered
    if (job.exchanging() > 1) saved += 2 * rows * m.heads * m.head_dim / t;  // before and after the exchange
    Layer layer{.input = 2 * rows * m.hidden / sp, .kept = saved};
    if (job.recompute == Recompute::full) layer.kept = layer.input;
    // Outputs of activation functions, and of norms unless they stay gathered.
    if (job.recompute == Recompute::selective)
        layer.kept = saved - rows * (2 * inner / t + (gathers > 0 ? 0 : 4 * m.hidden));
    // A schedule that defers weight gradients keeps, for two fifths of its microbatches, the gradients of all products'
    // outputs and the recomputed tensors.
    const bool splits = job.schedule.starts_with("zb-") || job.schedule.starts_with("v-");
    if (job.pp > 1 && splits)
        layer.kept =
            saved + 0.8 * rows *
                        ((m.heads + 2 * m.kv_heads) * m.head_dim / t + (m.mlp_matrices - 1) * inner / t + 2 * m.hidden);
    layer.backward = rows * (2 * (m.mlp_matrices - 1) * inner / t + 2 * m.hidden);
    if (job.etp > 1) layer.backward = std::max(layer.backward, rows / sp * 4 * routed * m.hidden * job.etp);
    if (job.recompute != Recompute::none) layer.backward += saved;
    return layer;
}

// Activations, gathered weights, gradients in reduction and logits of this system: at the moment of a step when their
// sum is largest.
void add_fullest_moment(const Job& job, const Layer& layer, const Stage& stage, Footprint& here) {
    const double t = job.tp, sp = job.sequence_parallel ? t : 1, value = value_bytes(job), tokens = tokens_of(job);
    const double all = layer.kept * stage.waiting();
    const bool offloads = job.offload.activations;
    const double on_device = offloads ? std::min(all, layer.kept) : all;
    const double weights = job.zero >= 3 ? value : 0, gradient = job.zero >= 2 ? 4 : 0;
    const double received = gradient / replicas_of(job);  // of a reduction
    const double values = stage.dense_layer + stage.experts / std::max(1.0, stage.layers);
    const double in_use = (2 * weights + gradient) * values;  // the weights of two layers
    double most = 0;
    const auto moment = [&, others = here.activations](double activations, double gathered, double logits) {
        if (activations + gathered + logits <= most) return;
        most = activations + gathered + logits;
        here.activations = others + activations;
        here.gathered = gathered;
        here.logits = logits;
    };
    moment(on_device + layer.backward, in_use, 0);
    // The gradients of a layer are reduced while the next one runs backward, which has one layer less to keep. Over
    // several ranks of tp the norms' gradients come last.
    if (job.tp == 1)
        moment(std::min(on_device, all - layer.kept) + layer.backward,
               in_use + (gradient + received) * stage.dense_layer, 0);
    // The saved tensors of the embedding, while the last layer of the next microbatch runs.
    if (stage.first && stage.held > 1)
        moment(std::min(on_device, all - layer.kept * stage.layers) + layer.backward,
               in_use + (gradient + received) * stage.embedding, 0);
    if (!stage.last) return;
    const double at_head = value * tokens * job.model.hidden * (2 + 1 / sp) + (offloads ? 0 : all);
    const double of_head = (weights + gradient) * stage.embedding;
    moment(at_head, of_head, std::min(value * tokens * job.model.vocab / t, kLossChunk));
    moment(at_head, of_head + received * stage.embedding + weights * values, 0);
}

// Moves what the job offloads out of the sums. Of the activations the layer in hand stays on the device, and the
// statistics of softmax and norms of all layers.
void offload(const Job& job, const Layer& layer, const Stage& stage, Footprint& here) {
    if (job.offload.optimizer) here.offloaded += std::exchange(here.optimizer, 0);
    if (job.offload.weights) here.offloaded += std::exchange(here.weights, 0);
    if (!job.offload.activations) return;
    here.offloaded_layer = layer.kept;
    here.offloaded += layer.kept * stage.waiting();
    const double t = job.tp, sp = job.sequence_parallel ? t : 1;
    if (job.recompute != Recompute::full)
        here.activations = 4 * tokens_of(job) * (job.model.heads / t + 2 / sp) * std::max(0.0, stage.waiting() - 1);
}

Footprint footprint_of(const Job& job, const Layer& layer, const Stage& stage) {
    Footprint here;
    const auto state = [&](double values, double shards) {
        here.weights += job.weight_bytes() * values / (job.zero >= 3 ? shards : 1);
        here.gradients += job.gradient_bytes * values / (job.zero >= 2 ? shards : 1);
        here.optimizer += job.optimizer_bytes() * values / (job.zero >= 1 ? shards : 1);
    };
    const double dense = stage.layers * stage.dense_layer + stage.embedding * (job.pp == 1 && !job.model.tied ? 2 : 1);
    state(dense, replicas_of(job));
    state(stage.experts, std::max(1.0, double(job.ranks) / (double(job.pp) * job.ep * job.etp * job.dp_replicate)));
    offload(job, layer, stage, here);
    // The output of the embedding.
    if (stage.first && job.pp > 1 && !job.offload.activations) here.activations += layer.input * stage.held;
    if (job.pp > 1) here.activations += messages_under_way(job) * layer.input;
    add_fullest_moment(job, layer, stage, here);
    here.reserved = kReserved;
    return here;
}

}  // namespace

FootprintParts footprint_parts(const Job& job) {
    const Sizes& m = job.model;
    const double mixtures = m.mixtures() / m.layers;  // share of the layers
    Ends ends = {std::ceil(m.layers / job.pp), std::ceil(m.layers / job.pp)};
    if (job.pp > 1) ends = layers_of_ends(job);
    FootprintParts parts{.layer = bytes_of_layer(job)};
    parts.first = {.first = true, .last = job.pp == 1, .layers = ends.first, .held = microbatches_in_flight(job)};
    parts.last = {.first = job.pp == 1, .last = true, .layers = ends.last, .held = 1};
    for (FootprintParts::Stage* stage : {&parts.first, &parts.last}) {
        stage->dense_layer = (m.attention_parameters() + (1 - mixtures) * m.mlp_parameters() +
                              mixtures * m.mlp_matrices * m.hidden * m.shared_ffn) /
                             job.tp;
        stage->experts = stage->layers * mixtures * m.experts * m.expert_parameters() / (job.ep * job.etp);
        stage->embedding = m.vocab * m.hidden / job.tp;
    }
    return parts;
}

Footprint footprint(const Job& job, const FootprintParts& parts) {
    const Footprint first = footprint_of(job, parts.layer, parts.first);
    if (job.pp == 1) return first;
    const Footprint last = footprint_of(job, parts.layer, parts.last);
    return last.total() > first.total() ? last : first;
}

Footprint footprint(const Job& job) { return footprint(job, footprint_parts(job)); }

}  // namespace tutti::simulate
