#include "tutti/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "tutti/base/digits.h"
#include "tutti/base/to_size.h"
#include "tutti/models/flops.h"
#include "tutti/schedule/automatic.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/schedule.h"
#include "tutti/schedule/validate.h"
#include "tutti/spec/layers.h"

namespace tutti::pipeline {

using schedule::Op;
using schedule::Program;
using schedule::Schedule;

namespace {

// FLOPs of a token in a module.
struct Cost {
    double forward = 0;            // products with matrices, and causal attention
    double with_forward = 0;       // gradients that the forward takes (the head's)
    double input = 0, weight = 0;  // other input gradients, weight gradients
};

// Attention has no weights, and its backward makes five products where the forward makes two (Dao 2023).
std::vector<Cost> costs_of(const models::Model& model, int64_t seq_len) {
    constexpr double kAttentionBackward = 2.5;
    std::vector<Cost> costs;
    for (const auto& module : model.modules()) {
        const autograd::Unit& unit = module->unit;
        const models::TokenFlops flops = models::forward_flops(model, unit, seq_len);
        Cost cost{.forward = flops.causal(), .input = kAttentionBackward * flops.full_attention / 2};
        for (const autograd::Parameter* p : unit.parameters) {
            const double input = models::product_flops(model, unit, *p), weight = p->frozen() ? 0 : input;
            if (std::ranges::find(unit.gradients_in_forward, p) != unit.gradients_in_forward.end()) {
                cost.with_forward += input + weight;
            } else {
                cost.input += input;
                cost.weight += weight;
            }
        }
        costs.push_back(cost);
    }
    return costs;
}

// "11,11,10"
std::vector<Span> given(const std::string& text, int64_t layers, int stages) {
    const auto parsed = parse_numbers<int64_t>(text);
    check<UsageError>(parsed && std::ranges::all_of(*parsed, [](int64_t count) { return count >= 0; }),
                      "[parallel] stage_layers = \"", text,
                      "\": required the number of layers of each stage, such as \"11,11,10\"");
    const std::vector<int64_t>& counts = *parsed;
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    check<UsageError>(static_cast<int>(counts.size()) == stages && sum == layers, "[parallel] stage_layers = \"", text,
                      "\": ", counts.size(), " stages with ", sum, " layers; required: ", stages,
                      " stages (pp times the stages of a rank) with [model] layers = ", layers);
    std::vector<Span> spans;
    size_t end = 1;  // the first stage has the module before the layers, the last stage the module after them
    for (size_t s = 0; s < counts.size(); ++s) {
        const bool inner = s > 0 && s + 1 < counts.size();
        check<UsageError>(counts[s] > 0 || !inner, "[parallel] stage_layers = \"", text, "\": stage ", s,
                          " has nothing to do; only the first and the last stage may be without layers");
        const size_t begin = s == 0 ? 0 : end;
        end += to_size(counts[s]);
        spans.push_back({begin, s + 1 == counts.size() ? end + 1 : end});
    }
    return spans;
}

std::vector<Span> spans_of(const spec::RunSpec& run, const models::Model& model, int stages) {
    const std::string& layers = run.parallel.stage_layers;
    return layers.empty() ? balanced(forward_costs(model, run.train.seq_len), stages)
                          : given(layers, static_cast<int64_t>(model.modules().size()) - 2, stages);
}

// The same times in whole units, for the search.
schedule::Times<int64_t> whole_units(const schedule::Times<double>& times) {
    const auto units = [](double time) { return std::max<int64_t>(std::llround(1000 * time), 1); };
    schedule::Times<int64_t> whole;
    whole.stages.clear();
    for (const auto& t : times.stages)
        whole.stages.push_back({units(t.forward), units(t.backward_input), units(t.backward_weight)});
    return whole;
}

bool is_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

// A schedule from a file must fit this run: ranks, microbatches, stages that divide. Its messages, unshards and
// reshards keep their order.
Schedule from_file(const spec::ParallelSpec& p, int64_t microbatches) {
    Schedule s = schedule::read_csv(p.schedule);
    check<UsageError>(s.placement.ranks == p.pp && s.total_microbatches() == microbatches, p.schedule, ": is one of ",
                      s.placement.ranks, " ranks and ", s.total_microbatches(), " microbatches; required: pp = ", p.pp,
                      " ranks and the ", microbatches,
                      " microbatches of a step (global_batch / (micro_batch * data-parallel ranks))");
    return s;
}

Schedule compute_schedule(const spec::RunSpec& run, const models::Model& model, int64_t microbatches) {
    const spec::ParallelSpec& p = run.parallel;
    if (is_file(p.schedule)) return from_file(p, microbatches);
    const schedule::Dimensions d{.ranks = static_cast<int>(p.pp),
                                 .chunks = static_cast<int>(p.virtual_stages),
                                 .microbatches = static_cast<int>(microbatches),
                                 .group_size = static_cast<int>(p.microbatch_group)};
    if (p.schedule == "pipedream") return schedule::pipedream(d);  // its updates are the engine's
    if (p.schedule != "auto") return schedule::generate(p.schedule, d);
    const auto times = estimated_times(run, model, spans_of(run, model, d.ranks * d.chunks));
    return schedule::automatic(d, whole_units(times), {.chunks = static_cast<int>(p.live_chunks)});
}

bool has(const Schedule& s, Op op) {
    for (const Program& program : s.programs)
        for (const schedule::Action& action : program)
            if (action.op == op) return true;
    return false;
}

// The schedule for the executor: with messages, and with unshard and reshard if [parallel] asks for them.
Schedule lowered(const spec::ParallelSpec& p, Schedule s) {
    if (p.unsharded_stages > 0) {
        check<UsageError>(!has(s, Op::unshard), "unsharded_stages = ", p.unsharded_stages,
                          ": the file has UNSHARD actions of its own; set unsharded_stages = 0, or take them out");
        s = schedule::insert_unshard(s, static_cast<int>(p.unsharded_stages));
    }
    return s.has_messages() ? s : schedule::insert_messages(s);
}

Schedule valid_schedule(const spec::RunSpec& run, const models::Model& model, int64_t microbatches) {
    Schedule s = compute_schedule(run, model, microbatches);
    schedule::validate(s);
    return lowered(run.parallel, std::move(s));
}

// A schedule that follows from `parallel` and the microbatches alone. A thread keeps the last one: it rehearses the
// ranks of a pipeline in turn, and a long schedule takes longer to make and to validate than a rank's step.
const Schedule& generated_schedule(const spec::RunSpec& run, const models::Model& model, int64_t microbatches) {
    struct Made {
        spec::ParallelSpec parallel;
        int64_t microbatches = 0;
        Schedule schedule;
    };
    thread_local std::optional<Made> last;
    if (!last || last->microbatches != microbatches || last->parallel != run.parallel)
        last = Made{run.parallel, microbatches, valid_schedule(run, model, microbatches)};
    return last->schedule;
}

}  // namespace

std::vector<double> forward_costs(const models::Model& model, int64_t seq_len) {
    std::vector<double> forwards;
    for (const Cost& cost : costs_of(model, seq_len)) forwards.push_back(cost.forward);
    return forwards;
}

std::vector<Span> balanced(const std::vector<double>& costs, int parts) {
    const auto P = to_size(parts);
    const size_t layers = costs.size() - 2;
    check<UsageError>(
        layers >= P, parts, " stages for a model of ", layers,
        " layers: required at least a layer for each; set [parallel] pp or virtual_stages lower, or give ",
        "the first and the last stage none with stage_layers");
    std::vector<double> before = {0};  // of the first n layers
    for (size_t i = 0; i < layers; ++i) before.push_back(before.back() + costs[i + 1]);
    // best[k][n]: for the first n layers in k parts, the cost of the most expensive part, then the sum of squares.
    using Cost = std::pair<double, double>;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::vector<std::vector<Cost>> best(P + 1, std::vector<Cost>(layers + 1, {kInfinity, kInfinity}));
    std::vector<std::vector<size_t>> cut(P + 1, std::vector<size_t>(layers + 1, 0));
    best[0][0] = {0, 0};
    for (size_t k = 1; k <= P; ++k)
        for (size_t n = k; n <= layers; ++n)
            for (size_t m = k - 1; m < n; ++m) {
                if (best[k - 1][m].first == kInfinity) continue;
                double cost = before[n] - before[m];
                if (k == 1) cost += costs.front();
                if (k == P) cost += costs.back();
                const Cost all{std::max(best[k - 1][m].first, cost), best[k - 1][m].second + cost * cost};
                if (all < best[k][n]) best[k][n] = all, cut[k][n] = m;
            }
    std::vector<Span> spans(P);
    for (size_t k = P, end = layers; k > 0; --k) {
        const size_t begin = cut[k][end];
        spans[k - 1] = {begin + 1, end + 1};
        end = begin;
    }
    spans.front().begin = 0;
    spans.back().end = costs.size();
    return spans;
}

schedule::Times<double> estimated_times(const spec::RunSpec& run, const models::Model& model,
                                        const std::vector<Span>& spans) {
    const std::vector<Cost> costs = costs_of(model, run.train.seq_len);
    double layers = 0;
    for (size_t i = 1; i + 1 < costs.size(); ++i) layers += costs[i].forward;
    const double layer = std::max(layers / static_cast<double>(std::max<size_t>(costs.size() - 2, 1)), 1.0);
    const bool recomputes = spec::recompute_of(run.recompute.policy, run.model.layers).segment > 0;
    schedule::Times<double> times;
    times.stages.clear();
    for (const Span& span : spans) {
        schedule::StageTimes<double> t{0, 0, 0};
        for (size_t i = span.begin; i < span.end; ++i) {
            const bool again = recomputes && i > 0 && i + 1 < costs.size();
            t.forward += (costs[i].forward + costs[i].with_forward) / layer;
            t.backward_input += (costs[i].input + (again ? costs[i].forward : 0)) / layer;
            t.backward_weight += costs[i].weight / layer;
        }
        times.stages.push_back(t);
    }
    return times;
}

Pipeline make_pipeline(const spec::RunSpec& run, const models::Model& model, int64_t microbatches, int rank) {
    Pipeline pipeline{.rank = rank, .unsharded_stages = static_cast<int>(run.parallel.unsharded_stages)};
    try {
        const bool generated = !is_file(run.parallel.schedule) && run.parallel.schedule != "auto";
        pipeline.schedule =
            generated ? generated_schedule(run, model, microbatches) : valid_schedule(run, model, microbatches);
    } catch (const UsageError& error) {
        if (is_file(run.parallel.schedule)) throw UsageError(concat("[parallel] schedule: ", error.what()));
        throw UsageError(concat("[parallel] schedule = \"", run.parallel.schedule, "\" for pp = ", run.parallel.pp,
                                " and ", microbatches,
                                " microbatches, which [train] global_batch / (micro_batch * data-parallel ",
                                "ranks) makes: ", error.what()));
    }
    pipeline.spans = spans_of(run, model, pipeline.stages());
    return pipeline;
}

bool Pipeline::delays_weight_gradients() const { return has(schedule, Op::backward_weight); }

std::vector<ModelChunk> Pipeline::chunks() const {
    std::vector<ModelChunk> here;
    for (int stage = 0; stage < stages(); ++stage)
        for (int replica = 0; replica < schedule.placement.replicas; ++replica)
            if (schedule.placement.rank_of(replica, stage) == rank)
                here.push_back({replica, stage, spans[to_size(stage)],
                                static_cast<int64_t>(schedule.microbatches[to_size(replica)].size())});
    return here;
}

// Batch k passes stage s in slot k + s: programs in the order of the slots never wait for a later action.
Program Pipeline::forward_program(int microbatches) const {
    Schedule forwards{.name = "forward", .placement = schedule.placement, .programs = {}};
    forwards.microbatches.resize(to_size(forwards.placement.replicas));
    forwards.programs.resize(to_size(forwards.placement.ranks));
    for (int k = 0; k < microbatches; ++k) forwards.microbatches.front().push_back(k);
    for (int slot = 0; slot < microbatches + stages() - 1; ++slot)
        for (int stage = std::max(0, slot - microbatches + 1); stage <= std::min(slot, stages() - 1); ++stage)
            forwards.programs[to_size(schedule.placement.rank_of(0, stage))].push_back(
                schedule::action(Op::forward, {0, stage, slot - stage}));
    if (unsharded_stages > 0) forwards = schedule::insert_unshard(forwards, unsharded_stages);
    return schedule::insert_messages(forwards).programs[to_size(rank)];
}

void share_between_stages(const Pipeline& pipeline, models::Model& model) {
    const schedule::Placement& placement = pipeline.schedule.placement;
    std::map<autograd::Parameter*, std::set<int>> holders;
    for (int stage = 0; stage < placement.stages; ++stage)
        for (const autograd::Unit* unit : model.units(pipeline.spans[to_size(stage)]))
            for (autograd::Parameter* p : unit->parameters)
                for (int replica = 0; replica < placement.replicas; ++replica)
                    holders[p].insert(placement.rank_of(replica, stage));
    for (auto& [parameter, ranks] : holders)
        if (ranks.size() > 1) parameter->pipeline_ranks.assign(ranks.begin(), ranks.end());
}

}  // namespace tutti::pipeline
