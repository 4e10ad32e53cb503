#include "tutti/published/memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::published {

namespace {

double in_flight(const PublishedRun& run) {
    const double p = run.pp, v = run.virtual_stages, m = run.microbatches();
    if (run.pp == 1) return 1;
    if (run.schedule == "gpipe" || run.schedule == "afab") return m;
    return std::min(m, v > 1 ? p * (1 + (p - 1) / (p * v)) : p);
}

// nanotron allocates buffers for gathered inputs on one stream and uses them on another, so that memory that the host
// has freed is taken again only when the device has come so far. Where a layer takes the device longer than the host,
// the host runs ahead, and the gathered inputs of all layers in flight are held. Found in the sweep of 8 to 512 H100
// (decision 25): beyond a forward of 1.4 ms at 450 TFLOP/s, once a pipeline is full; with 256 ranks and more, and in
// groups of more than two nodes, most layouts do not show it.
bool host_runs_ahead(const PublishedRun& run, double layer_values) {
    if (!run.software.host_runs_ahead || run.tp <= 1) return false;
    if (run.pp == 1) return true;
    const double flops = 2 * run.micro_batch * run.seq / run.cp * layer_values;
    return flops > 6.3e11 && run.microbatches() > run.pp && run.ranks < 256 && run.tp <= 16;
}

struct Layer {
    double input = 0, kept = 0, backward = 0;  // of a microbatch: kept until its backward, needed beside it
};

Layer layer_of(const PublishedRun& run) {
    const Model& m = run.model;
    const Traits& s = run.software;
    const double t = run.tp, sp = s.sequence_parallel ? t : 1, rows = run.micro_batch * run.seq / run.cp;
    const double share = m.expert_layers() / m.layers;
    const double inner = share * (m.top_k * m.expert_ffn / sp * t + m.shared_ffn) + (1 - share) * m.ffn;
    const double gates = m.mlp_matrices == 3 ? s.gate_bytes : 4;
    const bool unfused = s.attention == simulate::Attention::unfused;
    const double scores = unfused ? 5 * rows * run.seq * m.heads / t : 0;
    double saved = rows * (8 * m.hidden / sp + (4 * m.heads + 4 * m.kv_heads) * m.head_dim / t + gates * inner / t);
    saved = s.held_activations * (saved + rows / sp * 4 * m.top_k * m.hidden * share + scores);
    if (host_runs_ahead(run, (Model::values_of(m.attention(1)) + Model::values_of(m.mlp(m.ffn, 1))) / t))
        saved += 2 * rows * m.hidden;
    Layer layer{.input = 2 * rows * m.hidden / sp, .kept = saved};
    if (run.recompute == Recompute::full) layer.kept = layer.input;
    if (run.recompute == Recompute::selective || run.recompute == Recompute::operations) {
        if (unfused)
            layer.kept -= s.held_activations * scores;
        else if (s.checkpoints_products)
            layer.kept = 2 * s.held_activations * rows *
                         (2 * m.hidden / sp + ((2 * m.heads + m.kv_heads) * m.head_dim + inner) / t);
    }
    if (s.new_gathers && s.sequence_parallel && run.tp > 1) layer.backward = 4 * 2 * rows * m.hidden;
    if (run.recompute != Recompute::none) layer.backward += saved;
    return layer;
}

Memory of_stage(const PublishedRun& run, const Layer& layer, double layers, double held, bool first, bool last) {
    const Model& m = run.model;
    const Traits& s = run.software;
    const double share = m.expert_layers() / m.layers;
    const double mlp =
        (1 - share) * m.mlp_matrices * m.hidden * m.ffn + share * m.mlp_matrices * m.hidden * m.shared_ffn;
    const double dense = layers * (Model::values_of(m.attention(run.tp)) + mlp / run.tp) +
                         m.vocab * m.hidden / run.tp * (run.pp == 1 && !m.tied ? 2 : 1);
    const double experts = layers * share * m.experts * m.mlp_matrices * m.hidden * m.expert_ffn / std::max(1, run.ep);
    Memory here;
    const bool wide = run.wide() || s.weights_are_masters;
    const auto state = [&](double values, double shards) {
        here.weights += (wide ? 4 : 2) * values / (run.zero >= 3 ? shards : 1);
        here.gradients += s.gradient_bytes * values / (run.zero >= 2 ? shards : 1);
        if (run.dp > 1) here.gradients += s.bucket_copy_bytes * values;
        here.optimizer += (wide ? 8 : 12) * values / (run.zero >= 1 ? shards : 1);
    };
    state(dense, double(run.dp) * run.cp);
    state(experts, std::max(1.0, double(run.ranks) / (double(run.pp) * run.ep)));
    if (run.offload_optimizer) here.optimizer = 0;
    const double rows = run.micro_batch * run.seq / run.cp;
    here.activations = layer.kept * layers * held + layer.backward;
    if (first && run.pp > 1) here.activations += (s.embeds_whole ? 2 * rows * m.hidden : layer.input) * held;
    if (last) here.logits = s.held_logit_bytes * rows * m.vocab / run.tp;
    if (run.zero >= 3) here.gathered = 2 * 2 * (dense + experts) / std::max(1.0, layers);
    here.reserved = s.reserved_bytes;
    return here;
}

}  // namespace

Memory memory(const PublishedRun& run) {
    const Layer layer = layer_of(run);
    const double even = std::ceil(run.model.layers / run.pp);
    double of_first = even, of_last = even;
    if (run.pp > 1 && run.software.stages_by_cost) {
        const std::vector<Stage> stages = stages_by_cost(run.model, run.pp);
        const auto head = std::find_if(stages.begin(), stages.end(), [](const Stage& s) { return s.head; });
        of_first = stages.front().layers;
        of_last = head->layers;
    }
    const Memory first = of_stage(run, layer, of_first, in_flight(run), true, run.pp == 1);
    if (run.pp == 1) return first;
    const Memory last = of_stage(run, layer, of_last, 1, false, true);
    return last.total() > first.total() ? last : first;
}

MemoryErrors memory_errors(const std::vector<PublishedRun>& runs, const std::string& software) {
    std::vector<double> off, sizes;
    for (const PublishedRun& run : runs) {
        if (run.memory_bytes <= 0 || run.estimated || !run.problem.empty()) continue;
        if (!software.empty() && run.software.name != software) continue;
        off.push_back(memory(run).total() / run.memory_bytes - 1);
        sizes.push_back(std::abs(off.back()));
    }
    if (off.empty()) return {};
    const auto median = [](std::vector<double>& values) {
        std::ranges::sort(values);
        return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
    };
    const double sum = std::accumulate(sizes.begin(), sizes.end(), 0.0);
    return {static_cast<int>(off.size()), sum / static_cast<double>(off.size()), median(sizes), median(off)};
}

std::vector<Stage> stages_by_cost(const Model& m, int pp) {
    enum class Block { embedding, layer, head, free };
    std::vector<Block> blocks = {Block::embedding};
    blocks.insert(blocks.end(), static_cast<size_t>(m.layers), Block::layer);
    for (const Block block : {Block::free, Block::head, Block::free, Block::free}) blocks.push_back(block);
    const double layer = 4 * m.heads * m.head_dim * m.hidden + 3 * m.ffn * m.hidden, head = m.vocab * m.hidden;
    const double all = m.layers * layer + head;
    std::vector<Stage> stages(to_size(pp));
    size_t at = 0;
    double cost = 0;
    for (const Block block : blocks) {
        cost += block == Block::layer ? layer : block == Block::head ? head : 0;
        ++stages[at].blocks;
        stages[at].layers += block == Block::layer ? 1 : 0;
        stages[at].head |= block == Block::head;
        // The last share is the whole, which no cost exceeds.
        if (at + 1 < stages.size() && cost > all * (static_cast<double>(at + 1) / pp)) ++at;
    }
    return stages;
}

std::string layout_problem(const PublishedRun& run) {
    const double grid = double(run.tp) * run.cp * run.pp;
    if (grid > run.ranks) return concat("tp * cp * pp = ", grid, " exceeds ", run.ranks, " ranks");
    if (grid * run.dp > run.ranks)
        return concat("tp * cp * pp * dp = ", grid * run.dp, " exceeds ", run.ranks, " ranks");
    // 5 %: batches that a source gives in tokens are no whole numbers of sequences.
    if (run.micro_batch_given && run.micro_batch * run.dp > 1.05 * run.global_batch)
        return concat("micro_batch ", run.micro_batch, " on each of ", run.dp, " replicas exceeds global_batch ",
                      run.global_batch);
    if (run.pp > run.model.layers) return concat("pp ", run.pp, " exceeds ", run.model.layers, " layers");
    if (run.model.experts > 0 && run.ep > run.model.experts)
        return concat("ep ", run.ep, " exceeds ", run.model.experts, " experts");
    if (run.software.stages_by_cost && run.pp > 1) {
        // Asserted by nanotron's OneForwardOneBackwardPipelineEngine.
        if (run.schedule == "1f1b" && run.microbatches() < run.pp - 1)
            return concat("nanotron's 1F1B needs at least pp - 1 = ", run.pp - 1, " microbatches, got ",
                          run.microbatches());
        if (stages_by_cost(run.model, run.pp).back().blocks == 0)
            return concat("nanotron's balance by cost leaves the last of ", run.pp, " stages without a block of the ",
                          run.model.layers, " layers");
    }
    return "";
}

}  // namespace tutti::published
