// planner/price.cpp: stages from probes, the timeline of the pipeline, and data parallelism beside it.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/models/flops.h"
#include "tutti/optim/rules.h"
#include "tutti/pipeline/stages.h"
#include "tutti/planner/price_layout.h"
#include "tutti/planner/rules.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/timeline.h"
#include "tutti/simulate/clock.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

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
    {
        const std::lock_guard lock(mutex_);
        const auto known = schedules_.find(key);
        if (known != schedules_.end()) return known->second;
    }
    auto made = schedule::insert_messages(
        schedule::generate(std::get<0>(key), {.ranks = static_cast<int>(p.pp),
                                              .chunks = static_cast<int>(p.virtual_stages),
                                              .microbatches = static_cast<int>(microbatches)}));
    const std::lock_guard lock(mutex_);
    return schedules_.try_emplace(key, std::move(made)).first->second;
}

const Pricer::Layers& Pricer::layers_of(const spec::RunSpec& run, int64_t stages) {
    const bool empty_ends = !run.parallel.stage_layers.empty();
    const std::lock_guard lock(mutex_);
    Layers& layers = layers_[{stages, empty_ends}];
    if (!layers.empty()) return layers;
    const int64_t all = run.model.layers;
    if (empty_ends) {
        for (int64_t s = 0; s < stages; ++s)
            layers.emplace_back(std::clamp<int64_t>(s - 1, 0, all), std::clamp<int64_t>(s, 0, all));
        return layers;
    }
    for (const pipeline::Span& span : pipeline::balanced(costs_, static_cast<int>(stages)))
        layers.emplace_back(static_cast<int64_t>(span.begin == 0 ? 0 : span.begin - 1),
                            std::min<int64_t>(static_cast<int64_t>(span.end) - 1, all));
    return layers;
}

const Pricer::Shape& Pricer::shape_of_few(const spec::ParallelSpec& p, int64_t ranks, int64_t microbatches) {
    const std::tuple key(p.schedule, ranks, p.virtual_stages, microbatches);
    {
        const std::lock_guard lock(mutex_);
        const auto known = shapes_.find(key);
        if (known != shapes_.end()) return known->second;
    }
    Shape shape;
    try {
        const schedule::Schedule few = schedule::generate(p.schedule, {.ranks = static_cast<int>(ranks),
                                                                       .chunks = static_cast<int>(p.virtual_stages),
                                                                       .microbatches = static_cast<int>(microbatches)});
        const auto timeline = schedule::simulate<double>(few, {});
        const auto chunks = static_cast<double>(p.virtual_stages);
        shape.idle =
            (timeline.makespan / (3 * chunks) - static_cast<double>(microbatches)) / static_cast<double>(ranks - 1);
        shape.folded = few.placement == schedule::v_placement(static_cast<int>(ranks));
        const int64_t places[] = {0, ranks / 2, ranks - 1};
        for (size_t i = 0; i < 3; ++i) shape.held[i] = timeline.peak_until_w[to_size(places[i])] / chunks;
    } catch (const UsageError& error) {
        shape.problem = error.what();
    }
    const std::lock_guard lock(mutex_);
    return shapes_.try_emplace(key, std::move(shape)).first->second;
}

// UsageError for a schedule that does not exist.
Pricer::Shape Pricer::shape_of(const spec::ParallelSpec& p, int64_t microbatches) {
    constexpr int64_t kRanks = 8, kRounds = 4;  // more ranks and rounds have the same shape
    if (p.pp == 1) return {};
    const int64_t ranks = std::min(p.pp, kRanks);
    Shape shape = shape_of_few(p, ranks, std::clamp<int64_t>(microbatches * ranks / p.pp, 1, kRounds * ranks));
    check<UsageError>(shape.problem.empty(), shape.problem);
    for (double& held : shape.held)
        held = std::min(static_cast<double>(microbatches),
                        1 + (held - 1) * static_cast<double>(p.pp) / static_cast<double>(ranks));
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
    const std::lock_guard lock(mutex_);
    auto known = std::find_if(states_.begin(), states_.end(), same);
    if (known == states_.end())
        return states_
            .emplace_back(State{run.parallel.zero, run.optimizer, run.precision, run.offload,
                                optim::state_bytes(Layout::kMany, run)})
            .bytes;
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
    l.units.reserve(probe.kind_of_layer.size() + 2);
    l.units.push_back(&probe.embedding);
    for (const size_t kind : probe.kind_of_layer) l.units.push_back(&probe.kinds[kind]);
    l.units.push_back(&probe.head);
    return l;
}

Pricer::Layout Pricer::layout_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l = sizes_of(run, probes_.of(run));
    l.schedule = &schedule_of(p, static_cast<int64_t>(l.microbatches));
    const int stages = l.schedule->placement.stages;
    l.layers = &layers_of(run, stages);
    l.stages_of_rank.resize(to_size(p.pp));
    for (int s = 0; s < stages; ++s) {
        l.stages_of_rank[to_size(l.schedule->placement.rank_of(0, s))].push_back(s);
        if (s > 0 && alike(l, s - 1, s)) {
            l.stages.push_back(Stage(l.stages.back()));
            continue;
        }
        Stage& stage = l.stages.emplace_back(stage_of(l, s));
        set_transients(l, stage);
        add_data_parallelism(l, stage);
    }
    return l;
}

// Whether two stages have the same units.
bool Pricer::alike(const Layout& l, int64_t a, int64_t b) {
    const int64_t last = std::ssize(*l.layers) - 1;
    if (a == 0 || b == 0 || a == last || b == last) return a == b;
    const auto [begin, end] = (*l.layers)[to_size(a)];
    const auto [other, other_end] = (*l.layers)[to_size(b)];
    const auto kind = l.probe->kind_of_layer.begin();
    return std::equal(kind + begin, kind + end, kind + other, kind + other_end);
}

Pricer::Stage Pricer::stage_of(const Layout& l, int64_t index) {
    const spec::RunSpec& run = *l.run;
    Stage stage{.is_first = index == 0};
    const auto add = [&](const UnitProbe& unit) {
        stage.forward += unit.forward;
        stage.input += unit.input;
        stage.weight += unit.weight;
        stage.kept += unit.kept;
        stage.kept_for_weight += unit.kept_for_weight;
        stage.offloaded += unit.offloaded;
        stage.dense += unit.dense;
        stage.experts += unit.experts;
    };
    // The input of a later stage takes the place of the embedding's output.
    stage.kept = l.probe->embedding.kept;
    if (index == 0) {
        stage.kept = 0;
        add(l.probe->embedding);
    }
    const auto [begin, end] = (*l.layers)[to_size(index)];
    for (int64_t i = begin; i < end; ++i) {
        stage.last = &l.probe->kinds[l.probe->kind_of_layer[to_size(i)]];
        add(*stage.last);
    }
    stage.has_head = index + 1 == std::ssize(*l.layers);
    const int64_t first = index == 0 ? 0 : begin + 1;
    stage.units = std::span(l.units).subspan(to_size(first), to_size(end + (stage.has_head ? 2 : 1) - first));
    if (stage.has_head) {
        add(l.probe->head);
        stage.kept -= l.probe->head.kept;
        if (run.model.tie_embeddings && run.parallel.pp == 1) stage.dense -= l.probe->embedding.dense;
    }
    return stage;
}

// Gathers and reductions of parallel::DataParallel beside the passes over the units of a stage: the next unit's weights
// are gathered ahead, a unit's gradients are reduced beside the backward of the next ones, and a forward begins when no
// reduction is in flight. Seconds since the first pass.
class Pricer::Walk {
  public:
    Walk(const Pricer& pricer, const Layout& l)
        : prices_(pricer.prices_),
          run_(*l.run),
          p_(run_.parallel),
          several_(l.microbatches > 1),
          masters_gathered_(p_.zero == 3 && l.of_value(Purpose::weights) == 0),
          value_(static_cast<double>(size_of(spec::compute_dtype(run_)))),
          reduced_value_(static_cast<double>(size_of(spec::reduce_dtype(run_)))) {
        const auto tp = static_cast<int>(p_.tp), etp = static_cast<int>(p_.ep * p_.etp);
        const auto shards = static_cast<int>(l.shards), expert_shards = static_cast<int>(l.expert_shards);
        const auto replicas = static_cast<int>(l.replicas);
        sets_ = {Set{&UnitProbe::experts, l.expert_shards, prices_.group(expert_shards, etp),
                     prices_.group(replicas, expert_shards * etp)},
                 Set{&UnitProbe::dense, l.shards, prices_.group(shards, tp), prices_.group(replicas, shards * tp)}};
    }

    double now() const { return clock_.now; }

    // ZeRO-3.
    void forward(const Stage& stage) {
        const size_t n = stage.units.size();
        Gather arrives = gather(*stage.units[0]);
        for (size_t u = 0; u < n; ++u) {
            wait_for(arrives);
            if (u + 1 < n) arrives = gather(*stage.units[u + 1]);
            clock_.compute(stage.units[u]->forward);
        }
    }

    // ZeRO-1 and 2: all weights are gathered after the update of the step before, while the first forwards run.
    void first_forwards(std::span<const Stage* const> stages) {
        std::vector<Gather> arrive;
        for (const Stage* stage : stages)
            for (const UnitProbe* unit : stage->units) arrive.push_back(gather(*unit));
        auto next = arrive.begin();
        for (size_t i = 0; i < stages.size(); ++i) {
            if (i > 0) clock_.compute(gap(stages[i - 1]->begins + stages[i - 1]->forward, stages[i]->begins));
            for (const UnitProbe* unit : stages[i]->units) {
                wait_for(*next++);
                clock_.compute(unit->forward);
            }
        }
    }

    // The backwards of one microbatch. `last`: of the step, after which gradients are summed over replicas too.
    void backwards(std::span<const Stage* const> stages, bool reduces, bool last) {
        for (size_t i = stages.size(); i-- > 0;) {
            backward(*stages[i], reduces, last);
            if (i > 0)
                clock_.compute(
                    gap(stages[i]->ends, stages[i - 1]->ends - stages[i - 1]->input - stages[i - 1]->weight));
        }
        finish_until(0, last);
        for (const Operation& sum : sums_) wait_for(sum);
        sums_.clear();
    }

  private:
    struct Set {  // of dense parameters, or of experts: their groups
        double UnitProbe::*values;
        double shards;
        simulate::Group over, copies;
        double free = 0, copies_free = 0;  // when the last operations end
        // Of the last unit, which most others are like.
        double bytes = -1, seconds = 0;
    };
    struct Operation {
        double begin = 0, seconds = 0;
    };
    using Gather = std::array<Operation, 2>;
    struct Reduction {
        Operation operation;
        Set* set;
        double values;
    };

    Operation begin(double& free, double seconds) const {
        const Operation operation{std::max(free, clock_.now), seconds};
        free = operation.begin + seconds;
        return operation;
    }
    void wait_for(const Operation& o) {
        if (o.seconds == 0 && o.begin <= clock_.now) return;
        clock_.now = clock_.end_of_wait(o.begin, o.begin + o.seconds, prices_.physics().contention);
    }
    void wait_for(const Gather& gather) {
        for (const Operation& o : gather) wait_for(o);
    }
    // Between the passes of two stages of a rank, in which others run.
    static double gap(double end, double begin) { return std::max(0.0, begin - end); }

    Gather gather(const UnitProbe& unit) {
        const auto of = [&](Set& set) {
            const double bytes = value_ * unit.*set.values;
            double seconds = bytes > 0 && set.shards > 1 ? prices_.gather(bytes, set.over) : 0;
            if (masters_gathered_) seconds += prices_.pass((4 + value_) * unit.*set.values / set.shards);
            if (run_.offload.params) seconds = std::max(seconds, prices_.host_copy(bytes / set.shards));
            return begin(set.free, seconds);
        };
        return {of(sets_[0]), of(sets_[1])};
    }

    void backward(const Stage& stage, bool reduces, bool last) {
        const size_t n = stage.units.size();
        Gather weights = {};  // of the last unit: gathered still
        if (n == 1 && p_.zero == 3) weights = gather(*stage.units[0]);
        for (size_t u = n; u-- > 0;) {
            wait_for(weights);
            if (p_.zero == 3 && u > 0) weights = gather(*stage.units[u - 1]);
            clock_.compute(stage.units[u]->input + stage.units[u]->weight);
            if (!reduces) continue;
            const auto start = [&](Set& set, double values, double seconds) {
                if (p_.zero >= 2 || (p_.zero == 1 && stage.is_first)) finish_until(p_.reductions - 1, last);
                reductions_.push_back({begin(set.free, seconds), &set, values});
            };
            for (Set& set : sets_) {
                const double values = stage.units[u]->*set.values;
                if (values == 0) continue;
                const double bytes = reduced_value_ * values;
                if (bytes != set.bytes) {
                    set.bytes = bytes;
                    set.seconds = set.shards <= 1 ? 0.0
                                  : p_.zero == 0  ? prices_.all_reduce(bytes, set.over)
                                                  : prices_.gather(bytes, set.over);
                }
                start(set, values, set.seconds);
            }
            // Norms, whose gradients are summed over tp too, are reduced last, and by themselves.
            if (p_.tp > 1 && p_.sequence_parallel && sets_[1].shards > 1)
                start(sets_[1], 0, prices_.gather(8 * static_cast<double>(run_.model.width), sets_[1].over));
        }
    }

    void finish_until(int64_t most, bool last) {
        for (; std::ssize(reductions_) - ended_ > most; ++ended_) {
            const auto& [operation, set, values] = reductions_[to_size(ended_)];
            wait_for(operation);
            if (p_.zero >= 2 && several_) clock_.compute(prices_.pass(12 * values / set->shards));
            if (!last || set->copies.ranks <= 1 || values == 0) continue;
            const double bytes = static_cast<double>(size_of(spec::gradient_dtype(run_))) * values;
            sums_.push_back(
                begin(set->copies_free, prices_.all_reduce(bytes / (p_.zero > 0 ? set->shards : 1), set->copies)));
        }
    }

    const simulate::MachinePrices& prices_;
    const spec::RunSpec& run_;
    const spec::ParallelSpec& p_;
    const bool several_, masters_gathered_;
    const double value_, reduced_value_;  // bytes of a weight, of a gradient that is reduced
    simulate::Clock clock_;
    std::array<Set, 2> sets_;
    std::vector<Reduction> reductions_;
    int64_t ended_ = 0;            // of these that have ended
    std::vector<Operation> sums_;  // over replicas
};

// What data parallelism adds to each microbatch.
void Pricer::add_data_parallelism(const Layout& l, Stage& stage) const {
    if (l.run->parallel.zero == 3) {
        Walk walk(*this, l);
        walk.forward(stage);
        stage.forward = walk.now();
    }
    if (l.run->parallel.zero >= 2) {
        Walk walk(*this, l);
        const Stage* const own[] = {&stage};
        walk.backwards(own, true, false);
        stage.input = walk.now() - stage.weight;
    }
}

// What data parallelism adds to the first microbatch of the stages of a rank, and to the last one.
double Pricer::first_gathers(const Layout& l, std::span<const Stage* const> stages) const {
    const int64_t zero = l.run->parallel.zero;
    if (zero != 1 && zero != 2) return 0;
    Walk gathered(*this, l);
    gathered.first_forwards(stages);
    return gathered.now() - (stages.back()->begins + stages.back()->forward - stages.front()->begins);
}

double Pricer::last_reductions(const Layout& l, std::span<const Stage* const> stages) const {
    Walk last(*this, l), before(*this, l);
    last.backwards(stages, true, true);
    before.backwards(stages, l.run->parallel.zero >= 2, false);
    return last.now() - before.now();
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

// When each stage begins and ends.
void Pricer::note_moments(Layout& l, const schedule::Timeline<double>& timeline) {
    for (Stage& stage : l.stages) stage.begins = timeline.makespan;
    for (const std::vector<schedule::Span<double>>& spans : timeline.ranks)
        for (const schedule::Span<double>& span : spans)
            for (const schedule::Action& part : schedule::Parts(span.action)) {
                Stage& stage = l.stages[to_size(part.stage)];
                stage.begins = std::min(stage.begins, span.start);
                stage.ends = std::max(stage.ends, span.end);
            }
}

std::optional<Price> Pricer::price(const spec::RunSpec& run, double limit) {
    Layout l = layout_of(run);
    const size_t ranks = l.stages_of_rank.size();
    for (size_t r = 0; r < ranks; ++r) {
        // The first microbatch reaches the position through the stages before it.
        double before = 0, busy = 0;
        for (int s = 0; s < l.stages_of_rank[r].front(); ++s) before += l.stages[to_size(s)].forward;
        for (const Stage* stage : l.of_rank(r)) busy += stage->passes();
        if (before + l.microbatches * busy > limit) return std::nullopt;
    }
    schedule::Times<double> times;
    times.stages.clear();
    for (const Stage& stage : l.stages) times.stages.push_back({stage.forward, stage.input, stage.weight});
    times.transfer = message(l);
    const auto timeline = schedule::simulate(*l.schedule, times);
    note_moments(l, timeline);
    double seconds = 0;
    for (size_t r = 0; r < ranks; ++r) {
        const std::vector<const Stage*> own = l.of_rank(r);
        seconds = std::max(seconds, timeline.ranks[r].back().end + last_reductions(l, own) + update(l, own));
    }
    seconds += first_gathers(l, l.of_rank(0));
    if (seconds > limit) return std::nullopt;
    Price fullest;
    for (size_t r = 0; r < l.stages_of_rank.size(); ++r) {
        const Price here = memory_of(l, r);
        if (here.bytes > fullest.bytes) fullest = here;
    }
    fullest.seconds = seconds;
    return fullest;
}

double Pricer::message(const Layout& l) const {
    const spec::ParallelSpec& p = l.run->parallel;
    return p.pp > 1 ? prices_.message(l.probe->hidden, prices_.reach(request_.gpus / static_cast<int>(p.pp))) : 0;
}

double Pricer::passes(const spec::RunSpec& run, const LayerProbe& probe) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l = sizes_of(run, probe);
    l.layers = &layers_of(run, p.pp * p.virtual_stages);
    const Shape shape = shape_of(p, static_cast<int64_t>(l.microbatches));
    double busiest = 0;
    for (const int64_t position : {int64_t{0}, p.pp / 2, p.pp - 1}) {
        double busy = 0;
        int64_t before = -1;
        double last = 0;
        for (const int64_t s : stages_at(p, shape, position)) {
            if (before < 0 || !alike(l, before, s)) last = stage_of(l, s).passes();
            busy += last;
            before = s;
        }
        busiest = std::max(busiest, busy);
    }
    const auto others = static_cast<double>(p.pp - 1);
    return (l.microbatches + shape.idle * others) * busiest + 2 * others * message(l);
}

Price Pricer::estimate(const spec::RunSpec& run, const LayerProbe& probe, double memory) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l = sizes_of(run, probe);
    l.layers = &layers_of(run, p.pp * p.virtual_stages);
    const Shape shape = shape_of(p, static_cast<int64_t>(l.microbatches));
    const std::array<int64_t, 3> positions = {0, p.pp / 2, p.pp - 1};
    std::array<std::vector<Stage>, 3> stages;
    std::array<std::vector<const Stage*>, 3> own;
    const size_t places = p.pp == 1 ? 1 : 3;
    Price fullest;
    for (size_t i = 0; i < places; ++i) {
        double kept = 0, offloaded = 0, beside = 0;
        stages[i].reserve(to_size(p.virtual_stages));
        int64_t before = -1;
        for (const int64_t s : stages_at(p, shape, positions[i])) {
            const bool repeats = before >= 0 && alike(l, before, s);
            Stage& stage = stages[i].emplace_back(repeats ? Stage(stages[i].back()) : stage_of(l, s));
            if (!repeats) beside = std::max(beside, most_beside(l, stage));
            before = s;
            kept += stage.kept;
            offloaded += stage.offloaded;
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
        const std::vector<int64_t> indices = stages_at(p, shape, positions[i]);
        for (size_t s = 0; s < stages[i].size(); ++s) {
            Stage& stage = stages[i][s];
            if (s > 0 && alike(l, indices[s - 1], indices[s])) {
                stage.forward = stages[i][s - 1].forward;
                stage.input = stages[i][s - 1].input;
            } else {
                add_data_parallelism(l, stage);
            }
            busy += stage.passes();
            stage.begins = static_cast<double>(indices[s]) * stage.forward;  // the others are like it
            stage.ends = -static_cast<double>(indices[s]) * (stage.input + stage.weight);
        }
        busiest = std::max(busiest, busy);
        tail = std::max(tail, update(l, own[i]) + last_reductions(l, own[i]));
    }
    const auto others = static_cast<double>(p.pp - 1);
    fullest.seconds =
        (l.microbatches + shape.idle * others) * busiest + 2 * others * message(l) + tail + first_gathers(l, own[0]);
    return fullest;
}

}  // namespace tutti::planner
