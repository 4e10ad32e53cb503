// planner/price.cpp: stages from probes, the timeline of the pipeline, data parallelism beside it, and the memory of
// each position.
#include "tutti/planner/price.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/models/flops.h"
#include "tutti/optim/rules.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/pipeline/stages.h"
#include "tutti/planner/rules.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

struct Pricer::Layout {
    static constexpr int64_t kMany = 1 << 20;
    const spec::RunSpec* run = nullptr;
    const LayerProbe* probe = nullptr;
    const schedule::Schedule* schedule = nullptr;
    std::vector<Stage> stages;
    std::vector<std::vector<int>> stages_of_rank;
    double microbatches = 1, replicas = 1, shards = 1, expert_shards = 1;
    MemoryByPurpose state;  // of kMany values

    double of_value(Purpose purpose) const { return static_cast<double>(state[purpose]) / kMany; }

    std::vector<const Stage*> of_rank(size_t rank) const {
        std::vector<const Stage*> own;
        for (const int s : stages_of_rank[rank]) own.push_back(&stages[static_cast<size_t>(s)]);
        return own;
    }
};

namespace {

bool splits(const spec::ParallelSpec& p) { return p.pp > 1 && splits_backward(p.schedule); }

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
      prices_(request.cluster, request.constants,
              request.run.precision.compute == "f32" ? "fp32" : request.run.precision.compute),
      probes_(target, simulate::prices_on(request.run, request.cluster, request.constants), request.gpus) {
    const models::Model model = models::outline(request.run.model);
    costs_ = pipeline::forward_costs(model, request.run.train.seq_len);
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

const Pricer::Shape& Pricer::shape_of(const spec::ParallelSpec& p, int64_t microbatches) {
    constexpr int64_t kRanks = 8, kRounds = 4;  // more ranks and rounds have the same shape
    const int64_t ranks = std::min(p.pp, kRanks);
    const int64_t m = std::clamp<int64_t>(microbatches * ranks / p.pp, 1, kRounds * ranks);
    const auto [known, is_new] = shapes_.try_emplace({p.schedule, p.pp, p.virtual_stages, m});
    Shape& shape = known->second;
    if (!is_new || p.pp == 1) return shape;
    schedule::Schedule few;
    try {
        few = schedule::generate(p.schedule, {.ranks = static_cast<int>(ranks),
                                              .chunks = static_cast<int>(p.virtual_stages),
                                              .microbatches = static_cast<int>(m)});
    } catch (const UsageError&) {
        shapes_.erase(known);
        throw;
    }
    const auto timeline = schedule::simulate<double>(few, {});
    const auto chunks = static_cast<double>(p.virtual_stages);
    shape.idle = (timeline.makespan / (3 * chunks) - static_cast<double>(m)) / static_cast<double>(ranks - 1);
    shape.folded = few.placement == schedule::v_placement(static_cast<int>(ranks));
    const int64_t places[] = {0, ranks / 2, ranks - 1};
    for (size_t i = 0; i < 3; ++i) {
        const double held = timeline.peak_until_w[static_cast<size_t>(places[i])] / chunks;
        shape.held[i] = std::min(static_cast<double>(microbatches),
                                 1 + (held - 1) * static_cast<double>(p.pp) / static_cast<double>(ranks));
    }
    return shape;
}

// The stages of a position, in order.
std::vector<int64_t> Pricer::stages_at(const spec::ParallelSpec& p, const Shape& shape, int64_t position) const {
    std::vector<int64_t> own;
    for (int64_t chunk = 0; chunk < p.virtual_stages; ++chunk)
        own.push_back(shape.folded && chunk == 1 ? 2 * p.pp - 1 - position : chunk * p.pp + position);
    return own;
}

const MemoryByPurpose& Pricer::state_of_many(const spec::RunSpec& run) const {
    const auto same = [&](const State& s) {
        return s.zero == run.parallel.zero && s.optimizer == run.optimizer && s.precision == run.precision &&
               s.offload == run.offload;
    };
    auto known = std::find_if(states_.begin(), states_.end(), same);
    if (known == states_.end())
        known = states_.insert(states_.end(), {run.parallel.zero, run.optimizer, run.precision, run.offload,
                                               optim::state_bytes(Layout::kMany, run)});
    return known->bytes;
}

Pricer::Layout Pricer::sizes_of(const spec::RunSpec& run, const LayerProbe& probe) const {
    const spec::ParallelSpec& p = run.parallel;
    Layout l{.run = &run, .probe = &probe};
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    l.state = state_of_many(run);
    const int64_t dp = spec::data_parallel_ranks(p, request_.gpus);
    l.microbatches = real(run.train.global_batch / (run.train.micro_batch * dp));
    l.replicas = real(p.dp_replicate);
    l.shards = real(dp / p.dp_replicate * p.cp);
    l.expert_shards = std::max(1.0, request_.gpus / (real(p.pp) * real(p.ep) * real(p.etp) * l.replicas));
    return l;
}

Pricer::Layout Pricer::layout_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l = sizes_of(run, probes_.of(run));
    l.schedule = &schedule_of(p, static_cast<int64_t>(l.microbatches));
    const int stages = l.schedule->placement.stages;
    l.stages_of_rank.resize(static_cast<size_t>(p.pp));
    for (int s = 0; s < stages; ++s) {
        l.stages.push_back(stage_of(l, s, stages));
        l.stages_of_rank[static_cast<size_t>(l.schedule->placement.rank_of(0, s))].push_back(s);
        add_data_parallelism(l, l.stages.back());
    }
    return l;
}

Pricer::Stage Pricer::stage_of(const Layout& l, int64_t index, int64_t stages) {
    const spec::RunSpec& run = *l.run;
    const auto& layers = layers_of(run, static_cast<int>(stages));
    Stage stage;
    const auto add = [&](const UnitProbe& unit) {
        stage.forward += unit.forward;
        stage.input += unit.input;
        stage.weight += unit.weight;
        stage.kept += unit.kept;
        stage.kept_for_weight += unit.kept_for_weight;
        stage.offloaded += unit.offloaded;
        stage.dense += unit.dense;
        stage.experts += unit.experts;
        stage.units.push_back(&unit);
    };
    // The input of a later stage takes the place of the embedding's output.
    stage.kept = l.probe->embedding.kept;
    if (index == 0) {
        stage.kept = 0;
        add(l.probe->embedding);
    }
    const auto [begin, end] = layers[static_cast<size_t>(index)];
    for (int64_t i = begin; i < end; ++i) {
        stage.last = &l.probe->kinds[l.probe->kind_of_layer[static_cast<size_t>(i)]];
        add(*stage.last);
    }
    stage.has_head = index + 1 == stages;
    if (stage.has_head) {
        add(l.probe->head);
        stage.kept -= l.probe->head.kept;
        if (run.model.tie_embeddings && run.parallel.pp == 1) stage.dense -= l.probe->embedding.dense;
    }
    return stage;
}

// Gathers and reductions of parallel::DataParallel beside the passes over the units of a stage: the next unit's weights
// are gathered ahead, a unit's gradients are reduced beside the backward of the next ones, and a forward begins when no
// reduction is under way.
void Pricer::add_data_parallelism(const Layout& l, Stage& stage) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    const double value = static_cast<double>(size_of(spec::compute_dtype(run)));
    struct Set {  // of dense parameters, or of experts: their groups
        double UnitProbe::*values;
        double shards;
        simulate::Group over, copies;
        double free = 0;  // when its last operation ends
    };
    const auto tp = static_cast<int>(p.tp), etp = static_cast<int>(p.ep * p.etp);
    const auto shards = static_cast<int>(l.shards), expert_shards = static_cast<int>(l.expert_shards);
    const auto replicas = static_cast<int>(l.replicas);
    std::array<Set, 2> sets = {
        Set{&UnitProbe::experts, l.expert_shards, prices_.group(expert_shards, etp),
            prices_.group(replicas, expert_shards * etp)},
        Set{&UnitProbe::dense, l.shards, prices_.group(shards, tp), prices_.group(replicas, shards * tp)}};
    const bool rounds = p.zero == 3 && l.of_value(Purpose::weights) == 0;  // masters for each gather
    const auto gather = [&](const UnitProbe& unit, Set& set) {
        const double bytes = value * unit.*set.values;
        double seconds = bytes > 0 && set.shards > 1 ? prices_.gather(bytes, set.over) : 0;
        if (rounds) seconds += prices_.pass((4 + value) * unit.*set.values / set.shards);
        return run.offload.params ? std::max(seconds, prices_.host_copy(bytes / set.shards)) : seconds;
    };
    const auto reduce = [&](const UnitProbe& unit, Set& set) {
        const double bytes = static_cast<double>(size_of(spec::reduce_dtype(run))) * unit.*set.values;
        if (bytes == 0 || set.shards <= 1) return 0.0;
        return p.zero == 0 ? prices_.all_reduce(bytes, set.over) : prices_.gather(bytes, set.over);
    };
    double now = 0;
    const auto begin_gather = [&](const UnitProbe& unit) {
        double end = 0;
        for (Set& set : sets) end = std::max(end, set.free = std::max(set.free, now) + gather(unit, set));
        return end;
    };
    // Forward.
    const size_t n = stage.units.size();
    double arrives = p.zero == 3 ? begin_gather(*stage.units[0]) : 0;
    for (size_t u = 0; u < n; ++u) {
        now = std::max(now, arrives);
        if (p.zero == 3 && u + 1 < n) arrives = begin_gather(*stage.units[u + 1]);
        now += stage.units[u]->forward;
    }
    stage.forward = now;
    // Backward, with reductions as after the last microbatch; `each`: after every microbatch.
    const bool each = p.zero >= 2;
    const auto backward = [&](bool reduces) {
        now = 0;
        for (Set& set : sets) set.free = 0;
        std::deque<std::pair<double, double>> under_way;  // ends, and times to add the shards
        const auto finish_until = [&](int64_t most) {
            for (; std::ssize(under_way) > most; under_way.pop_front())
                now = std::max(now, under_way.front().first) + under_way.front().second;
        };
        const auto start = [&](Set& set, double seconds, double values) {
            if (p.zero > 0) finish_until(p.reductions - 1);
            set.free = std::max(set.free, now) + seconds;
            under_way.emplace_back(set.free, each && l.microbatches > 1 ? prices_.pass(12 * values / set.shards) : 0);
        };
        double weights = n > 1 || p.zero < 3 ? 0 : begin_gather(*stage.units[0]);  // the last unit is gathered still
        for (size_t u = n; u-- > 0;) {
            now = std::max(now, weights);
            if (p.zero == 3 && u > 0) weights = begin_gather(*stage.units[u - 1]);
            now += stage.units[u]->input + stage.units[u]->weight;
            if (!reduces) continue;
            for (Set& set : sets) {
                const double values = stage.units[u]->*set.values;
                if (values > 0) start(set, reduce(*stage.units[u], set), values);
            }
            // Norms, whose gradients are summed over tp too, are reduced last, and by themselves.
            if (p.tp > 1 && p.sequence_parallel && sets[1].shards > 1)
                start(sets[1], prices_.gather(8 * static_cast<double>(run.model.width), sets[1].over), 0);
        }
        finish_until(0);
        return now;
    };
    const double before = stage.input + stage.weight, plain = backward(each);
    stage.input += plain - before;
    double across = 0;  // the sum over replicas of the last unit; the others' are hidden
    for (Set& set : sets)
        if (replicas > 1)
            across += prices_.all_reduce(static_cast<double>(size_of(spec::gradient_dtype(run))) *
                                             stage.units[0]->*set.values / (p.zero > 0 ? set.shards : 1),
                                         set.copies);
    stage.last_reduction = backward(true) - plain + across;
}

double Pricer::update(const Layout& l, std::span<const Stage* const> stages) const {
    const spec::RunSpec& run = *l.run;
    double owned = 0;
    for (const Stage* stage : stages)
        owned += run.parallel.zero > 0 ? stage->dense / l.shards + stage->experts / l.expert_shards
                                       : stage->dense + stage->experts;
    const double seconds = l.probe->update * owned;
    return run.offload.optimizer ? std::max(seconds, prices_.host_copy(2 * l.of_value(Purpose::optimizer) * owned))
                                 : seconds;
}

// Weights, gradients and optimizer state.
Price Pricer::state_of(const Layout& l, std::span<const Stage* const> stages) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    double whole = 0, sharded = 0;  // values of the rank: all, and its shards
    for (const Stage* stage : stages) {
        whole += stage->dense + stage->experts;
        sharded += shard_of(stage->dense, l.shards) + shard_of(stage->experts, l.expert_shards);
    }
    Price price;
    const double weights = l.of_value(Purpose::weights) * (p.zero >= 3 ? sharded : whole);
    const double owned = p.zero >= 1 ? sharded : whole;
    (run.offload.params ? price.offloaded : price.bytes) += weights;
    price.bytes += l.of_value(Purpose::gradients) * (p.zero >= 2 ? sharded : whole);
    (run.offload.optimizer ? price.offloaded : price.bytes) += l.of_value(Purpose::optimizer) * owned;
    price.saved = static_cast<double>(saved_bytes(l.state, run)) / Layout::kMany *
                  (p.zero >= 1 ? sharded : whole / (l.shards * l.replicas));
    return price;
}

void Pricer::set_transients(const Layout& l, Stage& stage) const {
    using schedule::Op;
    for (const Op op : {Op::forward, Op::backward, Op::backward_input, Op::backward_weight})
        stage.transient[static_cast<size_t>(op)] = transient_of(l, stage, op, splits(l.run->parallel));
}

Price Pricer::memory_of(const Layout& l, size_t rank) const {
    const spec::ParallelSpec& p = l.run->parallel;
    const std::vector<const Stage*> own = l.of_rank(rank);
    const bool has_head = own.back()->has_head || own.front()->has_head;
    Price price = state_of(l, own);

    // Each action on top of what waits for its backward or its weight gradients.
    double live = 0, most = 0, waiting = 0, most_waiting = 0;
    for (const schedule::Action& action : l.schedule->programs[rank]) {
        using schedule::Op;
        double beside = 0;
        for (const schedule::Action& part : schedule::Parts(action)) {
            const Stage& stage = l.stages[static_cast<size_t>(part.stage)];
            if (part.op == Op::forward) {
                live += stage.kept;
                waiting += stage.offloaded;
            }
            beside = std::max(beside, stage.transient[static_cast<size_t>(part.op)]);
        }
        most = std::max(most, live + beside);
        most_waiting = std::max(most_waiting, waiting);
        for (const schedule::Action& part : schedule::Parts(action)) {
            const Stage& stage = l.stages[static_cast<size_t>(part.stage)];
            if (part.op == Op::backward) live -= stage.kept;
            if (part.op == Op::backward_input) live -= stage.kept - stage.kept_for_weight;
            if (part.op == Op::backward_weight) live -= stage.kept_for_weight;
            if (part.op == Op::backward || part.op == Op::backward_input) waiting -= stage.offloaded;
        }
    }
    price.offloaded += most_waiting;
    double messages = 0;
    if (p.pp > 1) {
        const double channels =
            static_cast<double>(l.stages_of_rank[rank].size()) * 2 - (rank == 0 ? 1 : 0) - (has_head ? 1 : 0);
        messages = std::min(16.0, std::min(2.0, l.microbatches) * channels) * l.probe->hidden;
    }
    price.bytes += most + messages + static_cast<double>(target_.device.workspace_bytes);
    return price;
}

// Bytes of a pass over a stage at its fullest moment, above what all microbatches keep, its own with them.
double Pricer::transient_of(const Layout& l, const Stage& stage, schedule::Op op, bool splits) const {
    using schedule::Op;
    const spec::ParallelSpec& p = l.run->parallel;
    const double value = static_cast<double>(size_of(spec::compute_dtype(*l.run)));
    const double gradient = p.zero >= 2 ? 4 : 0, gathered = p.zero >= 3 ? value : 0;
    const double head = stage.has_head ? l.probe->head.dense : 0;
    double layer = 0, layer_shard = 0;
    if (stage.last != nullptr) {
        layer = stage.last->dense + stage.last->experts;
        layer_shard = shard_of(stage.last->dense, l.shards) + shard_of(stage.last->experts, l.expert_shards);
    }
    double most = 0;
    if (op == Op::forward) {
        if (stage.last != nullptr) most = stage.last->forward_peak - stage.last->kept + 2 * gathered * layer;
        if (stage.has_head)
            most = std::max(most, l.probe->head.forward_peak + (gathered + gradient) * head + gathered * layer);
        return most;
    }
    if (op == Op::backward_weight) {
        const double of_layer = stage.last != nullptr ? stage.last->kept_for_weight : 0;
        return std::max(gradient * layer, gradient * (2 * layer + layer_shard) - of_layer);
    }
    if (stage.has_head) most = l.probe->head.backward_peak + (gathered + gradient) * head + gathered * layer;
    if (stage.last == nullptr) return most;
    // The last layer; the one before it, beside the reduction of the last one's gradients; the first one, where the
    // others wait for their weight gradients.
    const double of_layer = splits ? 0 : gradient, kept = stage.last->kept, later = stage.last->kept_for_weight;
    const double alone = stage.last->backward_peak - kept + (2 * gathered + of_layer) * layer;
    most = std::max(most, alone + of_layer * (head + shard_of(head, l.shards)));
    most = std::max(most, alone - kept + (splits ? later : 0) + of_layer * (layer + layer_shard));
    if (p.reductions > 1)  // the gradients of two layers before are under way too
        most = std::max(most, alone - 2 * kept + 2 * (splits ? later : 0) + 2 * of_layer * (layer + layer_shard));
    const auto layers = static_cast<double>(stage.units.size()) - (stage.has_head ? 1 : 0) -
                        (stage.units.front() == &l.probe->embedding ? 1 : 0);
    if (splits) most = std::max(most, alone + (layers - 1) * (later - kept));
    return most;
}

std::optional<Price> Pricer::price(const spec::RunSpec& run, double limit) {
    Layout l = layout_of(run);
    double tail = 0, busiest = 0;
    for (size_t r = 0; r < l.stages_of_rank.size(); ++r) {
        const std::vector<const Stage*> own = l.of_rank(r);
        // The first microbatch reaches the position through the stages before it, and the last one's gradient goes
        // back through them.
        double before = 0, busy = 0;
        for (int s = 0; s < l.stages_of_rank[r].front(); ++s)
            before += l.stages[static_cast<size_t>(s)].forward + l.stages[static_cast<size_t>(s)].input;
        for (const Stage* stage : own) busy += stage->passes();
        busiest = std::max(busiest, before + l.microbatches * busy);
        tail = std::max(tail, update(l, own) + own.front()->last_reduction);
    }
    if (busiest + tail > limit) return std::nullopt;
    double seconds = busiest;
    if (l.stages_of_rank.size() > 1) {
        schedule::Times<double> times;
        times.stages.clear();
        for (const Stage& stage : l.stages) times.stages.push_back({stage.forward, stage.input, stage.weight});
        times.transfer = message(l);
        seconds = schedule::simulate(*l.schedule, times).makespan;
        if (seconds + tail > limit) return std::nullopt;
    }
    Price fullest;
    for (Stage& stage : l.stages) set_transients(l, stage);
    for (size_t r = 0; r < l.stages_of_rank.size(); ++r) {
        const Price here = memory_of(l, r);
        if (here.bytes > fullest.bytes) fullest = here;
    }
    fullest.seconds = seconds + tail;
    return fullest;
}

double Pricer::message(const Layout& l) const {
    const bool crosses = request_.gpus / static_cast<int>(l.run->parallel.pp) >= prices_.cluster().domain;
    return prices_.message(l.probe->hidden, crosses);
}

double Pricer::passes(const spec::RunSpec& run, const LayerProbe& probe) {
    const Layout l = sizes_of(run, probe);
    const spec::ParallelSpec& p = run.parallel;
    const Shape& shape = shape_of(p, static_cast<int64_t>(l.microbatches));
    double busiest = 0;
    for (const int64_t position : {int64_t{0}, p.pp / 2, p.pp - 1}) {
        double busy = 0;
        for (const int64_t s : stages_at(p, shape, position)) busy += stage_of(l, s, p.pp * p.virtual_stages).passes();
        busiest = std::max(busiest, busy);
    }
    const auto others = static_cast<double>(p.pp - 1);
    return (l.microbatches + shape.idle * others) * busiest + 2 * others * (p.pp > 1 ? message(l) : 0);
}

Price Pricer::estimate(const spec::RunSpec& run, const LayerProbe& probe, double memory) {
    const Layout l = sizes_of(run, probe);
    const spec::ParallelSpec& p = run.parallel;
    const Shape& shape = shape_of(p, static_cast<int64_t>(l.microbatches));
    const std::array<int64_t, 3> positions = {0, p.pp / 2, p.pp - 1};
    std::array<std::vector<Stage>, 3> stages;
    std::array<std::vector<const Stage*>, 3> own;
    const size_t places = p.pp == 1 ? 1 : 3;
    Price fullest;
    for (size_t i = 0; i < places; ++i) {
        double kept = 0, offloaded = 0, beside = 0;
        for (const int64_t s : stages_at(p, shape, positions[i])) {
            Stage& stage = stages[i].emplace_back(stage_of(l, s, p.pp * p.virtual_stages));
            set_transients(l, stage);
            kept += stage.kept;
            offloaded += stage.offloaded;
            beside = std::max(beside, *std::max_element(stage.transient.begin(), stage.transient.end()));
        }
        for (const Stage& stage : stages[i]) own[i].push_back(&stage);
        Price here = state_of(l, own[i]);
        here.bytes += shape.held[i] * kept + beside + static_cast<double>(target_.device.workspace_bytes) +
                      (p.pp > 1 ? std::min(16.0, 4.0 * static_cast<double>(own[i].size())) * l.probe->hidden : 0);
        here.offloaded += shape.held[i] * offloaded;
        if (here.bytes > fullest.bytes) fullest = here;
    }
    if (fullest.bytes > memory) return fullest;
    double busiest = 0, tail = 0;
    for (size_t i = 0; i < places; ++i) {
        double busy = 0;
        for (Stage& stage : stages[i]) {
            add_data_parallelism(l, stage);
            busy += stage.passes();
        }
        busiest = std::max(busiest, busy);
        tail = std::max(tail, update(l, own[i]) + stages[i].front().last_reduction);
    }
    const auto others = static_cast<double>(p.pp - 1);
    fullest.seconds =
        (l.microbatches + shape.idle * others) * busiest + 2 * others * (p.pp > 1 ? message(l) : 0) + tail;
    return fullest;
}

}  // namespace tutti::planner
