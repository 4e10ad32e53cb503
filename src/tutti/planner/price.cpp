// planner/price.cpp: stages from probes; estimates from a few passes of a rank, and steps without a pipeline.
#include <algorithm>
#include <array>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/optim/rules.h"
#include "tutti/parallel/flat_unit.h"
#include "tutti/pipeline/stages.h"
#include "tutti/planner/price_walk.h"
#include "tutti/planner/rules.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/timeline.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

Pricer::Pricer(const Request& request, const rehearsal::Target& target)
    : request_(request),
      target_(target),
      prices_(request.cluster, request.constants, std::string(peak_of(request))),
      probes_(target, simulate::prices_on(request.run, request.cluster, request.constants)) {
    const models::Model model = models::outline(request.run.model);
    costs_ = pipeline::forward_costs(model, request.run.train.seq_len);
}

namespace {

// Bytes of `values` in flat buffers of `shards` shards, per rank.
double shard_of(double values, double shards) {
    if (values == 0) return 0;
    return static_cast<double>(parallel::shard_size(static_cast<int64_t>(values), static_cast<int64_t>(shards)));
}

std::optional<schedule::Schedule> generated(const std::string& kind, int64_t ranks, int64_t chunks,
                                            int64_t microbatches) {
    try {
        return schedule::generate(kind, {.ranks = static_cast<int>(ranks),
                                         .chunks = static_cast<int>(chunks),
                                         .microbatches = static_cast<int>(microbatches)});
    } catch (const UsageError&) {
        return std::nullopt;
    }
}

}  // namespace

const schedule::Schedule* Pricer::schedule_of(const spec::ParallelSpec& p, int64_t microbatches) {
    const auto& known = schedules_.get({p.schedule, p.pp, p.virtual_stages, microbatches}, [&] {
        auto made = generated(p.schedule, p.pp, p.virtual_stages, microbatches);
        if (made) made = schedule::insert_messages(*made);
        return made;
    });
    return known ? &*known : nullptr;
}

const Pricer::Layers& Pricer::layers_of(const spec::RunSpec& run, int64_t stages) {
    const bool empty_ends = !run.parallel.stage_layers.empty();
    return layers_.get({stages, empty_ends}, [&] {
        const int64_t all = run.model.layers;
        Layers layers;
        if (empty_ends)
            for (int64_t s = 0; s < stages; ++s)
                layers.emplace_back(std::clamp<int64_t>(s - 1, 0, all), std::clamp<int64_t>(s, 0, all));
        else
            for (const pipeline::Span& span : pipeline::balanced(costs_, static_cast<int>(stages)))
                layers.emplace_back(static_cast<int64_t>(span.begin == 0 ? 0 : span.begin - 1),
                                    std::min<int64_t>(static_cast<int64_t>(span.end) - 1, all));
        return layers;
    });
}

const Pricer::Shape& Pricer::shape_of_few(const spec::ParallelSpec& p, int64_t ranks, int64_t microbatches) {
    return shapes_.get({p.schedule, ranks, p.virtual_stages, microbatches}, [&] {
        const auto few = generated(p.schedule, ranks, p.virtual_stages, microbatches);
        Shape shape{.exists = few.has_value()};
        if (!few) return shape;
        const auto timeline = schedule::simulate<double>(*few, {});
        const auto chunks = static_cast<double>(p.virtual_stages);
        shape.idle =
            (timeline.makespan / (3 * chunks) - static_cast<double>(microbatches)) / static_cast<double>(ranks - 1);
        shape.folded = few->placement == schedule::v_placement(static_cast<int>(ranks));
        const int64_t places[] = {0, ranks / 2, ranks - 1};
        for (size_t i = 0; i < 3; ++i) shape.held[i] = timeline.peak_until_w[to_size(places[i])] / chunks;
        return shape;
    });
}

Pricer::Shape Pricer::shape_of(const spec::RunSpec& run) {
    constexpr int64_t kRanks = 8, kRounds = 4;  // more ranks and rounds have the same shape
    const spec::ParallelSpec& p = run.parallel;
    if (p.pp == 1) return {};
    const int64_t microbatches =
        run.train.global_batch / (run.train.micro_batch * spec::data_parallel_ranks(p, request_.gpus));
    const int64_t ranks = std::min(p.pp, kRanks);
    Shape shape = shape_of_few(p, ranks, std::clamp<int64_t>(microbatches * ranks / p.pp, 1, kRounds * ranks));
    for (double& held : shape.held)
        held = std::min(static_cast<double>(microbatches),
                        1 + (held - 1) * static_cast<double>(p.pp) / static_cast<double>(ranks));
    return shape;
}

Pricer::Layout Pricer::sizes_of(const spec::RunSpec& run, const LayerProbe& probe) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l{.run = &run, .probe = &probe};
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    l.state = states_.get({p.zero, run.offload.optimizer, run.offload.params},
                          [&] { return optim::state_bytes(Layout::kMany, run); });
    const int64_t dp = spec::data_parallel_ranks(p, request_.gpus);
    l.microbatches = real(run.train.global_batch / (run.train.micro_batch * dp));
    l.replicas = real(p.dp_replicate);
    l.shards = real(dp / p.dp_replicate * p.cp);
    l.expert_shards = std::max(1.0, request_.gpus / (real(p.pp) * real(p.ep) * real(p.etp) * l.replicas));
    add_sums(l);
    // A search estimates pipelines with replicas that experts do not fit, too.
    if (spec::ep_fits(run, request_.gpus)) {
        const mesh::Mesh mesh = parallel::make_mesh(run, request_.gpus);
        const bool device_sums = rehearsal::device_sums(run, target_, request_.gpus).has_value();
        for (const bool shared : {false, true}) {
            if (shared && !run.model.tie_embeddings) continue;
            const size_t groups = device_sums ? groups_that_sum(run, mesh, probe.sums, shared) : 0;
            l.beside[shared ? 1 : 0] = static_cast<double>(comm::kReductionBytes) *
                                       (static_cast<double>(groups) - static_cast<double>(probe.groups_that_sum));
        }
    }
    l.units.reserve(probe.kind_of_layer.size() + 2);
    l.units.push_back(&probe.embedding);
    for (const size_t kind : probe.kind_of_layer) l.units.push_back(&probe.kinds[kind]);
    l.units.push_back(&probe.head);
    return l;
}

void Pricer::add_sums(Layout& l) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    const double value = static_cast<double>(size_of(spec::compute_dtype(run))),
                 stored = static_cast<double>(size_of(spec::gradient_dtype(run))),
                 reduced = p.zero == 0 ? stored : static_cast<double>(size_of(spec::reduce_dtype(run)));
    for (const SummedTogether& of : l.probe->sums) {
        const bool experts = of.of_experts();
        const double shards = experts ? l.expert_shards : l.shards;
        const auto apart = static_cast<int>(experts ? p.ep * p.etp : p.tp);
        const auto ranks = static_cast<int>(shards), replicas = static_cast<int>(l.replicas);
        const bool in_one = p.zero == 0 && of.of_layers == 1;
        const simulate::Group over = prices_.group(in_one ? ranks * replicas : ranks, apart);
        simulate::Group beyond = prices_.group(replicas, apart * ranks);
        for (int* each : {&beyond.ranks, &beyond.per_domain, &beyond.per_rack}) *each *= of.of_layers;
        const double shard = p.zero == 0 ? of.values : of.values / shards;
        double gather = prices_.gather(value * of.values, over);
        if (run.offload.params) gather = std::max(gather, prices_.host_copy(value * shard));
        l.sums.push_back({.of = &of,
                          .shards = shards,
                          .shard = shard_of(of.values, shards),
                          .gather = gather,
                          .reduce = p.zero == 0 ? prices_.all_reduce(reduced * of.values, over)
                                                : prices_.gather(reduced * of.values, over),
                          .add = in_one ? 0 : prices_.all_reduce(stored * shard, beyond),
                          .in_one = in_one});
    }
}

Pricer::Layout Pricer::layout_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    Layout l = sizes_of(run, probes_.of(run));
    l.schedule = schedule_of(p, static_cast<int64_t>(l.microbatches));
    if (l.schedule == nullptr) return l;
    const schedule::Placement& placement = l.schedule->placement;
    l.layers = &layers_of(run, placement.stages);
    l.tied = run.model.tie_embeddings && placement.rank_of(0, 0) == placement.rank_of(0, placement.stages - 1);
    std::vector<std::vector<int64_t>> numbers(to_size(p.pp));
    for (int s = 0; s < placement.stages; ++s) numbers[to_size(placement.rank_of(0, s))].push_back(s);
    for (std::vector<int64_t>& of_rank : numbers) l.ranks.push_back(position_of(l, std::move(of_rank)));
    return l;
}

Pricer::Layout Pricer::layout_of_few(const spec::RunSpec& run, const LayerProbe& probe, const Shape& shape) {
    Layout l = sizes_of(run, probe);
    l.layers = &layers_of(run, run.parallel.pp * run.parallel.virtual_stages);
    l.tied = run.model.tie_embeddings && (run.parallel.pp == 1 || shape.folded);
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

// Calls visit(sum) for all parameters of a unit. A matrix that embedding and head share is the embedding's where one
// rank has both.
template <class Visit>
void Pricer::for_each_sum(const Layout& l, const UnitProbe& unit, Visit visit) {
    for (const UnitProbe::State& state : unit.states) {
        const Layout::Sum& sum = l.sums[state.sum];
        if (!(l.tied && sum.of->is_shared && &unit == &l.probe->head)) visit(sum);
    }
}

Pricer::Stage Pricer::stage_of(const Layout& l, int64_t index) {
    const auto [begin, end] = (*l.layers)[to_size(index)];
    const bool is_first = index == 0, has_head = index + 1 == std::ssize(*l.layers);
    const int64_t first = is_first ? 0 : begin + 1;
    Stage stage{.units = std::span(l.units).subspan(to_size(first), to_size(end + (has_head ? 2 : 1) - first)),
                .is_first = is_first};
    // The input of a later stage takes the place of the embedding's output.
    if (!is_first) stage.kept = l.probe->embedding.kept;
    for (const UnitProbe* unit : stage.units) {
        stage.kept += unit->kept;
        stage.offloaded += unit->offloaded();
        for_each_sum(l, *unit, [&](const Layout::Sum& sum) {
            stage.values += sum.of->values;
            stage.shards += sum.shard;
        });
    }
    if (has_head) stage.kept -= l.probe->head.kept;
    add_passes(stage, has_head ? 0 : l.probe->hidden);
    return stage;
}

Pricer::Position Pricer::position_of(const Layout& l, std::vector<int64_t> numbers) {
    Position at;
    at.different.reserve(numbers.size());  // stages point to them
    for (size_t i = 0; i < numbers.size(); ++i) {
        if (i == 0 || !alike(l, numbers[i - 1], numbers[i])) at.different.push_back(stage_of(l, numbers[i]));
        at.stages.push_back(&at.different.back());
    }
    at.numbers = std::move(numbers);
    return at;
}

// The first, the middle and the last rank of the pipeline.
std::array<Pricer::Position, 3> Pricer::positions_of(const Layout& l, const Shape& shape) {
    const spec::ParallelSpec& p = l.run->parallel;
    const auto at = [&](int64_t rank) {
        std::vector<int64_t> numbers;
        for (int64_t chunk = 0; chunk < p.virtual_stages; ++chunk)
            numbers.push_back(shape.folded && chunk == 1 ? 2 * p.pp - 1 - rank : chunk * p.pp + rank);
        return position_of(l, std::move(numbers));
    };
    return {at(0), at(p.pp / 2), at(p.pp - 1)};
}

// `hidden`: of the output, whose gradient is held during a backward.
void Pricer::add_passes(Stage& stage, double hidden) {
    const auto add = [](Pass& pass, double peak, double bytes, std::initializer_list<const UnitPass*> of_unit) {
        pass.peak = std::max(pass.peak, pass.bytes + peak);
        pass.bytes += bytes;
        for (const UnitPass* each : of_unit)
            for (Piece piece : each->pieces) {
                pass.least += piece.seconds + piece.idle + std::min(0.0, piece.new_gradients);
                piece.prepend(pass.piece);
                pass.piece = piece;
            }
    };
    for (const UnitProbe* unit : stage.units) add(stage.f, unit->forward.peak, unit->kept, {&unit->forward});
    for (size_t u = stage.units.size(); u-- > 0;) {
        const UnitProbe& unit = *stage.units[u];
        const double held = u + 1 == stage.units.size() ? hidden : 0;
        add(stage.b, std::max(unit.recompute.peak, unit.backward.most()), held - unit.kept,
            {&unit.recompute, &unit.backward});
        add(stage.i, std::max(unit.recompute.peak, unit.input.peak), held - (unit.kept - unit.kept_for_weight),
            {&unit.recompute, &unit.input});
        add(stage.w, unit.weight.most(), -unit.kept_for_weight, {&unit.weight});
    }
    stage.b.bytes -= hidden;
    stage.i.bytes -= hidden;
    stage.forward = stage.f.least;
    stage.backward = stage.i.least + stage.w.least;
}

// Adds to the seconds of a stage what data parallelism adds to each microbatch; returns the bytes of a pass above what
// microbatches keep and the state: in the second microbatch.
double Pricer::add_data_parallelism(const Layout& l, Stage& stage) const {
    constexpr double kMany = 1e9;
    const Stage* const own[] = {&stage};
    Walk walk(*this, l, own, kMany, Walk::From::middle);
    const spec::ParallelSpec& p = l.run->parallel;
    const bool is_split = p.pp > 1 && splits_backward(p.schedule);
    const auto pass = [&] {
        walk.forward(0);
        const double between = walk.now();
        walk.backward(0, is_split);
        if (is_split) walk.backward_weight(0);
        return between;
    };
    if (p.zero >= 2) pass();  // a microbatch meets the reductions of the one before
    const double begin = walk.now(), before = walk.bytes();
    walk.forget_most();
    const double between = pass();
    stage.forward = between - begin;
    stage.backward = walk.now() - between;
    // The walk receives no input, which the embedding's output stands for.
    return walk.most() - before - stage.kept + (stage.is_first ? 0 : l.probe->embedding.kept);
}

// What data parallelism adds to the first microbatch of the stages of a rank, and to the last one.
double Pricer::first_gathers(const Layout& l, const Position& at) const {
    const int64_t zero = l.run->parallel.zero;
    if (zero != 1 && zero != 2) return 0;
    const size_t stages = at.stages.size();
    Walk walk(*this, l, at.stages, l.microbatches, Walk::From::update);
    for (size_t i = 0; i < stages; ++i) {
        if (i > 0) walk.compute(std::max(0.0, at.begins(i) - at.begins(i - 1) - at.stages[i - 1]->forward));
        walk.forward(i);
    }
    return walk.now() - (at.begins(stages - 1) + at.stages[stages - 1]->forward - at.begins(0));
}

double Pricer::last_reductions(const Layout& l, const Position& at) const {
    const size_t stages = at.stages.size();
    const auto gap = [&](size_t i) {  // between the backwards of a stage and of the one before, in which others run
        return i == 0 ? 0 : std::max(0.0, at.ends(i - 1) - at.stages[i - 1]->backward - at.ends(i));
    };
    const auto seconds = [&](double microbatches) {
        Walk walk(*this, l, at.stages, microbatches, Walk::From::middle);
        walk.take_early();
        for (size_t i = stages; i-- > 0;) {
            walk.backward(i);
            if (i > 0) walk.compute(gap(i));
        }
        walk.finish_gradients();
        return walk.now();
    };
    double before = 0;
    if (l.run->parallel.zero >= 2)
        before = seconds(2);
    else
        for (size_t i = 0; i < stages; ++i) before += at.stages[i]->backward + gap(i);
    return seconds(1) - before;
}

double Pricer::update(const Layout& l, std::span<const Stage* const> stages) const {
    const spec::RunSpec& run = *l.run;
    double owned = 0;
    for (const Stage* stage : stages) owned += run.parallel.zero > 0 ? stage->shards : stage->values;
    const double seconds = l.probe->update * owned;
    // The state is read and written there; of weights that are rounded masters, written.
    const double weights = run.offload.params ? (spec::compute_dtype(run) == DType::f32 ? 2 : 1) : 0;
    const double on_host =
        (run.offload.optimizer ? 2 : 0) * l.of_value(Purpose::optimizer) + weights * l.of_value(Purpose::weights);
    const double copies = on_host > 0 ? prices_.host_copy(on_host * owned) : 0;
    return std::max(seconds, copies) +
           prices_.all_reduce(l.probe->exchanged, prices_.group(request_.gpus, 1), l.probe->exchanges);
}

// Of the gradients of a matrix that the embedding and the head have on two ranks of the pipeline, after all passes.
double Pricer::sum_of_ends(const Layout& l) const {
    const spec::ParallelSpec& p = l.run->parallel;
    if (!l.run->model.tie_embeddings || l.tied) return 0;
    const double whole = std::ranges::find(l.probe->sums, true, &SummedTogether::is_shared)->values;
    const double values = whole / (p.zero > 0 ? l.shards : 1);
    const int of_stage = request_.gpus / static_cast<int>(p.pp),
              of_replica = of_stage / static_cast<int>(p.dp_replicate);
    std::vector<int> ranks;
    for (const int first : {0, request_.gpus - of_stage})
        for (int r = first; r < first + of_stage; r += of_replica) ranks.push_back(r);
    const auto bytes = static_cast<double>(size_of(spec::gradient_dtype(*l.run))) * values;
    return prices_.operation({.kind = comm::Kind::all_reduce, .bytes = static_cast<int64_t>(bytes)}, ranks);
}

// Weights and optimizer state, and the gradients that a step in its middle has.
Price Pricer::state_of(const Layout& l, std::span<const Stage* const> stages, bool with_gradients) const {
    const spec::RunSpec& run = *l.run;
    const spec::ParallelSpec& p = run.parallel;
    double whole = 0, sharded = 0;  // values of the rank: all, and its shards
    for (const Stage* stage : stages) {
        whole += stage->values;
        sharded += stage->shards;
    }
    Price price;
    const bool has_end = std::ranges::any_of(stages, [&](const Stage* stage) {
        return !stage->units.empty() &&
               (stage->units.front() == &l.probe->embedding || stage->units.back() == &l.probe->head);
    });
    price.bytes = l.beside[run.model.tie_embeddings && !l.tied && has_end ? 1 : 0];
    const double weights = l.of_value(Purpose::weights) * (p.zero >= 3 ? sharded : whole);
    const double owned = p.zero >= 1 ? sharded : whole;
    (run.offload.params ? price.offloaded : price.bytes) += weights;
    if (with_gradients) price.bytes += l.of_value(Purpose::gradients) * (p.zero >= 2 ? sharded : whole);
    (run.offload.optimizer ? price.offloaded : price.bytes) += l.of_value(Purpose::optimizer) * owned;
    price.saved = static_cast<double>(saved_bytes(l.state, run)) / Layout::kMany *
                  (p.zero >= 1 ? sharded : whole / (l.shards * l.replicas));
    return price;
}

// Without a pipeline: the first microbatch, one for all between, and the last.
Price Pricer::alone(const Layout& l) const {
    const Stage stage = stage_of(l, 0);
    const Stage* const own[] = {&stage};
    const double several = std::min(l.microbatches, 3.0);
    Walk walk(*this, l, own, several, Walk::From::update);
    double seconds = 0;
    for (double i = 0; i < several; ++i) {
        const double begin = walk.now();
        walk.forward(0);
        walk.backward(0);
        if (i == 1) seconds = (l.microbatches - several) * (walk.now() - begin);
    }
    walk.finish_gradients();
    Price price = state_of(l, own, false);
    price.seconds = seconds + walk.now() + update(l, own);
    price.bytes += walk.most() + l.probe->beside;
    price.offloaded += walk.waiting();
    return price;
}

// Of the gradients of a rank, once.
double Pricer::least_reductions(const Layout& l, const Position& at) const {
    std::array<double, 2> seconds = {};  // of all, of experts
    for (const Stage* stage : at.stages)
        for (const UnitProbe* unit : stage->units)
            for_each_sum(l, *unit,
                         [&](const Layout::Sum& sum) { seconds[sum.of->of_experts() ? 1 : 0] += sum.reduce; });
    return std::max(seconds[0], seconds[1]);
}

Pricer::Bounds Pricer::bounds(const spec::RunSpec& run, const LayerProbe& probe) {
    const Shape shape = shape_of(run);
    if (!shape.exists) return {kUnlimited, kUnlimited};
    const Layout l = layout_of_few(run, probe, shape);
    double busiest = 0, exposed = 0;
    for (const Position& at : positions_of(l, shape)) {
        double busy = 0;
        for (const Stage* stage : at.stages) busy += stage->passes();
        busiest = std::max(busiest, busy);
        exposed = std::max(exposed, least_reductions(l, at) - busy);
    }
    const double passes = seconds_of(l, shape, busiest);
    return {passes, passes + exposed};
}

// Of all passes, if a microbatch takes the busiest rank so long.
double Pricer::seconds_of(const Layout& l, const Shape& shape, double busiest) const {
    const int64_t pp = l.run->parallel.pp;
    if (pp == 1) return l.microbatches * busiest;
    const auto others = static_cast<double>(pp - 1);
    const double message = prices_.message(l.probe->hidden, prices_.reach(request_.gpus / static_cast<int>(pp)));
    return (l.microbatches + shape.idle * others) * busiest + 2 * others * message;
}

Price Pricer::estimate(const spec::RunSpec& run, const LayerProbe& probe, const Wanted& wanted) {
    const Shape shape = shape_of(run);
    check(shape.exists, "an estimate of a schedule that does not exist: ", run.parallel.schedule);
    const Layout l = layout_of_few(run, probe, shape);
    if (run.parallel.pp == 1) return alone(l);
    std::array<Position, 3> positions = positions_of(l, shape);
    std::array<Price, 3> prices;  // without what is held beside what microbatches keep
    for (size_t i = 0; i < positions.size(); ++i) {
        const std::vector<Stage*>& stages = positions[i].stages;
        double kept = 0, offloaded = 0;
        for (const Stage* stage : stages) {
            kept += stage->kept;
            offloaded += stage->offloaded;
        }
        prices[i] = state_of(l, stages, true);
        prices[i].bytes += shape.held[i] * kept + l.probe->beside +
                           std::min(16.0, 4.0 * static_cast<double>(stages.size())) * l.probe->hidden;
        prices[i].offloaded += shape.held[i] * offloaded;
        if (prices[i].bytes > std::max(wanted.memory, wanted.enough)) return prices[i];
    }
    Price fullest;
    double busiest = 0, seconds = 0;
    for (size_t i = 0; i < positions.size() && seconds <= wanted.limit; ++i) {
        double beside = 0, busy = 0;
        for (Stage& stage : positions[i].different) beside = std::max(beside, add_data_parallelism(l, stage));
        for (const Stage* stage : positions[i].stages) busy += stage->passes();
        prices[i].bytes += beside;
        if (prices[i].bytes > fullest.bytes) fullest = prices[i];
        busiest = std::max(busiest, busy);
        seconds = seconds_of(l, shape, busiest);
    }
    if (fullest.bytes > wanted.memory) return fullest;
    const double passes = seconds;
    double tail = 0;
    for (size_t i = 0; i < positions.size() && seconds <= wanted.limit; ++i) {
        tail = std::max(tail, update(l, positions[i].stages) + last_reductions(l, positions[i]));
        seconds = passes + tail;
    }
    if (seconds <= wanted.limit) seconds += first_gathers(l, positions.front()) + sum_of_ends(l);
    fullest.seconds = seconds;
    return fullest;
}

}  // namespace tutti::planner
