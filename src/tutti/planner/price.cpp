// planner/price.cpp: stages from probes, the timeline of the pipeline, data parallelism beside it, and the memory of
// each position.
#include "tutti/planner/price.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/models/flops.h"
#include "tutti/optim/rules.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/pipeline/stages.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

struct Pricer::Layout {
    const spec::RunSpec* run = nullptr;
    const LayerProbe* probe = nullptr;
    const schedule::Schedule* schedule = nullptr;
    std::vector<Stage> stages;
    std::vector<std::vector<int>> stages_of_rank;
    double microbatches = 1, dp_shard = 1, replicas = 1, shards = 1, expert_shards = 1;

    double busy(size_t rank) const {  // of a microbatch
        double sum = 0;
        for (const int s : stages_of_rank[rank]) {
            const Stage& stage = stages[static_cast<size_t>(s)];
            sum += stage.forward + stage.input + stage.weight;
        }
        return sum;
    }
};

namespace {

// Bytes of `values` in flat buffers of `shards` shards, per rank.
double shard_of(double values, double shards) {
    if (values == 0) return 0;
    return static_cast<double>(
        parallel::flat_layout({static_cast<int64_t>(values)}, static_cast<int64_t>(shards)).shard_size);
}

}  // namespace

Pricer::Pricer(const Request& request, const rehearsal::Target& target)
    : request_(request),
      target_(target),
      prices_(request.cluster, {}, request.precision == "f32" ? "fp32" : request.precision),
      probes_(
          target,
          [&] {
              spec::RunSpec run;
              run.precision.compute = request.precision;
              return simulate::prices_on(run, request.cluster, {});
          }(),
          request.gpus) {
    const models::Model model = models::outline(request.model);
    costs_ = pipeline::forward_costs(model, request.seq_len);
}

const schedule::Schedule& Pricer::schedule_of(const spec::ParallelSpec& p, int64_t microbatches) {
    const auto key = std::tuple(p.pp == 1 ? std::string("1f1b") : p.schedule, p.pp, p.virtual_stages, microbatches);
    const auto known = schedules_.find(key);
    if (known != schedules_.end()) return known->second;
    return schedules_
        .emplace(key, schedule::generate(std::get<0>(key), {.ranks = static_cast<int>(p.pp),
                                                            .chunks = static_cast<int>(p.virtual_stages),
                                                            .microbatches = static_cast<int>(microbatches)}))
        .first->second;
}

const std::vector<std::pair<int64_t, int64_t>>& Pricer::layers_of(const spec::RunSpec& run, int stages) {
    const bool empty_ends = !run.parallel.stage_layers.empty();
    std::vector<std::pair<int64_t, int64_t>>& layers = layers_[{stages, empty_ends}];
    if (!layers.empty()) return layers;
    const int64_t all = run.model.layers;
    if (empty_ends) {
        for (int64_t s = 0; s < stages; ++s)
            layers.emplace_back(std::clamp<int64_t>(s - 1, 0, all), std::clamp<int64_t>(s, 0, all));
        return layers;
    }
    for (const pipeline::Span& span : pipeline::balanced(costs_, stages))
        layers.emplace_back(static_cast<int64_t>(span.begin == 0 ? 0 : span.begin - 1),
                            std::min<int64_t>(static_cast<int64_t>(span.end) - 1, all));
    return layers;
}

Pricer::Layout Pricer::layout_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l{.run = &run, .probe = &probes_.of(run)};
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    const int64_t dp = spec::data_parallel_ranks(p, request_.gpus);
    const int64_t microbatches = run.train.global_batch / (run.train.micro_batch * dp);
    l.microbatches = real(microbatches);
    l.replicas = real(p.dp_replicate);
    l.dp_shard = real(dp) / l.replicas;
    l.shards = l.dp_shard * real(p.cp);
    l.expert_shards = std::max(1.0, request_.gpus / (real(p.pp) * real(p.ep) * real(p.etp) * l.replicas));
    l.schedule = &schedule_of(p, microbatches);
    const int stages = l.schedule->placement.stages;
    const auto& layers = layers_of(run, stages);
    l.stages_of_rank.resize(static_cast<size_t>(p.pp));
    const bool ties_here = run.model.tie_embeddings && p.pp == 1;
    for (int s = 0; s < stages; ++s) {
        Stage& stage = l.stages.emplace_back();
        const auto add = [&](const UnitProbe& unit) {
            stage.forward += unit.forward;
            stage.input += unit.input;
            stage.weight += unit.weight;
            stage.kept += unit.kept;
            stage.kept_for_weight += unit.kept_for_weight;
            stage.offloaded += unit.offloaded;
            stage.dense += unit.dense;
            stage.experts += unit.experts;
            ++stage.units;
        };
        // The input of a later stage takes the place of the embedding's output.
        stage.kept = l.probe->embedding.kept;
        if (s == 0) {
            stage.kept = 0;
            add(l.probe->embedding);
        }
        for (int64_t i = layers[static_cast<size_t>(s)].first; i < layers[static_cast<size_t>(s)].second; ++i) {
            stage.last = &l.probe->kinds[l.probe->kind_of_layer[static_cast<size_t>(i)]];
            add(*stage.last);
        }
        stage.has_head = s + 1 == stages;
        if (stage.has_head) {
            add(l.probe->head);
            stage.kept -= l.probe->head.kept;
            if (ties_here) stage.dense -= l.probe->embedding.dense;
        }
        l.stages_of_rank[static_cast<size_t>(l.schedule->placement.rank_of(0, s))].push_back(s);
        if (run.offload.activations) {
            const double copy = prices_.host_copy(stage.offloaded);
            stage.forward = std::max(stage.forward, copy);
            stage.input = std::max(stage.input, copy - stage.weight);
        }
    }
    return l;
}

double Pricer::lower_bound(const spec::RunSpec& run) {
    const Layout l = layout_of(run);
    double most = 0;
    for (size_t r = 0; r < l.stages_of_rank.size(); ++r) most = std::max(most, l.busy(r));
    return l.microbatches * most;
}

// Seconds of gathers and reductions that the passes do not hide, of a step, and the update.
double Pricer::exposed_data_parallel(const Layout& l, size_t rank) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    double dense = 0, experts = 0, forward = 0, backward = 0, units = 0;
    for (const int s : l.stages_of_rank[rank]) {
        const Stage& stage = l.stages[static_cast<size_t>(s)];
        dense += stage.dense;
        experts += stage.experts;
        forward += stage.forward;
        backward += stage.input + stage.weight;
        units += stage.units;
    }
    const double chunks = static_cast<double>(l.stages_of_rank[rank].size());
    const simulate::Group over = prices_.group(static_cast<int>(l.shards), static_cast<int>(p.tp));
    const simulate::Group expert_over =
        prices_.group(static_cast<int>(l.expert_shards), static_cast<int>(p.ep * p.etp));
    const simulate::Group copies =
        prices_.group(static_cast<int>(l.replicas), static_cast<int>(l.shards) * static_cast<int>(p.tp));
    const auto exchange = [&](double bytes) {
        return prices_.gather(bytes * dense, over, units) + prices_.gather(bytes * experts, expert_over, units);
    };
    const double value = run.precision.compute == "bf16" ? 2 : 4;
    const double owned = (p.zero > 0 ? dense / l.shards + experts / l.expert_shards : dense + experts);
    const MemoryByPurpose per_value = optim::state_bytes(1 << 20, run.precision.compute, run.optimizer);
    const double state = static_cast<double>(per_value[Purpose::optimizer]) / (1 << 20);
    double update = l.probe->update * owned;
    if (run.offload.optimizer) update = std::max(update, prices_.host_copy(2 * state * owned));
    if (l.shards * l.replicas <= 1 && l.expert_shards * l.replicas <= 1) return update;

    const double across = l.replicas > 1 ? prices_.all_reduce(4 * owned, copies, units) : 0;
    const double reduce =
        p.zero > 0 ? exchange(4)
                   : prices_.all_reduce(4 * dense, over, units) + prices_.all_reduce(4 * experts, expert_over, units);
    // What the backward of the other units does not hide; in a pipeline the last microbatch passes the last chunk.
    const auto beside = [&](double comm, double window) {
        return std::max(comm / units, comm - window * (1 - 1 / units));
    };
    if (p.zero <= 1) return update + beside(reduce, backward / chunks) + across / units;
    if (p.zero == 2) return update + l.microbatches * beside(reduce, backward) + across / units;
    double gather = exchange(value);
    if (run.offload.params) gather = std::max(gather, prices_.host_copy(value * owned));
    const double first = chunks * gather / units;
    const double of_forward = std::max(0.0, gather - forward) + first;
    const double of_backward = std::max(0.0, gather + reduce - backward) + first + reduce / units;
    return update + l.microbatches * (of_forward + of_backward) + across / units;
}

Price Pricer::memory_of(const Layout& l, size_t rank) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    const LayerProbe& probe = *l.probe;
    const double value = run.precision.compute == "bf16" ? 2 : 4;
    const MemoryByPurpose per_value = optim::state_bytes(1 << 20, run.precision.compute, run.optimizer);
    const double optimizer = static_cast<double>(per_value[Purpose::optimizer]) / (1 << 20);
    double whole = 0, sharded = 0;  // values of the rank: all, and its shards
    const UnitProbe* last = nullptr;
    bool has_head = false;
    for (const int s : l.stages_of_rank[rank]) {
        const Stage& stage = l.stages[static_cast<size_t>(s)];
        whole += stage.dense + stage.experts;
        sharded += shard_of(stage.dense, l.shards) + shard_of(stage.experts, l.expert_shards);
        if (stage.last != nullptr) last = stage.last;
        has_head = has_head || stage.has_head;
    }
    Price price;
    const double weights = value * (p.zero >= 3 ? sharded : whole);
    const double owned = p.zero >= 1 ? sharded : whole;
    (run.offload.params ? price.offloaded : price.bytes) += weights;
    price.bytes += 4 * (p.zero >= 2 ? sharded : whole);
    (run.offload.optimizer ? price.offloaded : price.bytes) += optimizer * owned;
    price.saved = (optimizer + (run.precision.compute == "bf16" ? 0 : value)) *
                  (p.zero >= 1 ? sharded : whole / (l.shards * l.replicas));

    // The most that waits for its backward, and then for its weight gradients.
    double live = 0, most = 0, messages = 0, waiting = 0, most_waiting = 0;
    for (const schedule::Action& whole_action : l.schedule->programs[rank]) {
        for (const schedule::Action& part : schedule::Parts(whole_action))
            if (part.op == schedule::Op::forward) {
                live += l.stages[static_cast<size_t>(part.stage)].kept;
                waiting += l.stages[static_cast<size_t>(part.stage)].offloaded;
            }
        most = std::max(most, live);
        most_waiting = std::max(most_waiting, waiting);
        for (const schedule::Action& part : schedule::Parts(whole_action)) {
            const Stage& stage = l.stages[static_cast<size_t>(part.stage)];
            using schedule::Op;
            if (part.op == Op::backward) live -= stage.kept;
            if (part.op == Op::backward_input) live -= stage.kept - stage.kept_for_weight;
            if (part.op == Op::backward_weight) live -= stage.kept_for_weight;
            if (part.op == Op::backward || part.op == Op::backward_input) waiting -= stage.offloaded;
        }
    }
    price.offloaded += most_waiting;
    if (p.pp > 1) {
        const double channels =
            static_cast<double>(l.stages_of_rank[rank].size()) * 2 - (rank == 0 ? 1 : 0) - (has_head ? 1 : 0);
        messages = std::min(16.0, std::min(2.0, l.microbatches) * channels) * probe.hidden;
    }
    const double layer_dense = last != nullptr ? last->dense : 0, layer_experts = last != nullptr ? last->experts : 0;
    const double layer = layer_dense + layer_experts;
    const double layer_shard = shard_of(layer_dense, l.shards) + shard_of(layer_experts, l.expert_shards);
    const double gradient = p.zero >= 2 ? 4 : 0, gathered = p.zero >= 3 ? value : 0;
    double transient = 0;
    if (last != nullptr) {
        const double in_use = (2 * gathered + gradient) * layer;
        const double before = last->backward_peak - last->kept;
        const double head_in_flight =
            has_head ? gradient * (probe.head.dense + shard_of(probe.head.dense, l.shards)) : 0;
        transient =
            std::max(before + in_use + head_in_flight, before - last->kept + in_use + gradient * (layer + layer_shard));
        transient = std::max(transient, last->forward_peak - last->kept + 2 * gathered * layer);
    }
    if (has_head)
        transient = std::max(transient, std::max(probe.head.forward_peak, probe.head.backward_peak) +
                                            (gathered + gradient) * probe.head.dense + gathered * layer);
    price.bytes += most + messages + transient + probe.input + static_cast<double>(target_.device.workspace_bytes);
    return price;
}

Price Pricer::price(const spec::RunSpec& run) {
    const Layout l = layout_of(run);
    Price fullest;
    double tail = 0;
    for (size_t r = 0; r < l.stages_of_rank.size(); ++r) {
        const Price here = memory_of(l, r);
        if (here.bytes > fullest.bytes) fullest = here;
        tail = std::max(tail, exposed_data_parallel(l, r));
    }
    if (l.stages_of_rank.size() == 1) {
        fullest.seconds = l.microbatches * l.busy(0) + tail;
        return fullest;
    }
    schedule::Times<double> times;
    times.stages.clear();
    for (const Stage& stage : l.stages) times.stages.push_back({stage.forward, stage.input, stage.weight});
    times.transfer =
        prices_.message(l.probe->hidden, request_.gpus / static_cast<int>(run.parallel.pp) >= prices_.cluster().domain);
    fullest.seconds = schedule::simulate(*l.schedule, times).makespan + tail;
    return fullest;
}

}  // namespace tutti::planner
