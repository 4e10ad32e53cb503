// planner/node.cpp: pipelines and data parallelism of a node, estimated.
#include "tutti/planner/node.h"

#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/recipe.h"

namespace tutti::planner {

namespace {

constexpr double kSlack = 1.1;  // of the memory: the price counts it again
constexpr int kMostMicroBatch = 64;

}  // namespace

std::vector<int> micro_batches_of(const Request& r) { return divisors(r.run.train.global_batch, kMostMicroBatch); }

void MemorySeen::add(const MemorySeen& other) {
    if (other.least > 0 && (least == 0 || other.least < least)) least = other.least;
    scarce = scarce || other.scarce;
    host = host || other.host;
}

NodeLayouts::NodeLayouts(const Request& r, Pricer& pricer, double capacity)
    : r_(r), pricer_(pricer), capacity_(capacity), micro_batches_(micro_batches_of(r)), run_(plain_run(r)) {}

// --- The current layout

bool NodeLayouts::set(const Node& node) {
    spec::ParallelSpec& p = run_.parallel;
    p.tp = node.tp;
    p.cp = node.cp;
    p.cp_method = node.how.name;
    p.cp_ulysses = node.how.ulysses;
    p.ep = node.ep;
    p.etp = node.etp;
    p.dp_replicate = 1;
    p.dp_shard = r_.gpus / (node.tp * node.cp);
    p.zero = 0;
    p.sequence_parallel = true;
    if (!spec::sequence_parallel_fits(run_)) p.sequence_parallel = false;
    set_pipeline(node.splits ? 2 : 1, node.splits ? "zb-h1" : "1f1b", 1);
    run_.train.micro_batch = micro_batches_[node.micro_batch];
    run_.recompute.policy = kPolicies[to_size(node.recompute)];
    run_.offload = {};
    run_.offload.activations = node.offloads;
    return spec::tp_fits(run_) && spec::cp_fits(run_) && spec::ep_has_experts(run_) &&
           spec::divides(node.etp, r_.run.model.moe.ffn) && node.ep * node.etp <= r_.gpus && groups_fit();
}

// Of the recipe's groups. What is gathered as codes also depends on the stage of ZeRO, and on whether tp > 1.
bool NodeLayouts::groups_fit() const {
    if (r_.run.precision.recipe == "none") return true;
    spec::RunSpec run = run_;
    run.precision.gather = "none";
    return recipe_fits(run);
}

bool NodeLayouts::may_shard(int zero) const {
    return Limits::in(r_.limits.zero, zero) && (zero == 3 || !spec::gathers_codes_of_weights(r_.run.precision));
}

void NodeLayouts::set(const PipelineEstimate& pipeline) {
    set(pipeline.node);
    set_pipeline(pipeline.pp, pipeline.schedule, pipeline.virtual_stages);
    replicate(r_.gpus / (pipeline.node.tp * pipeline.node.cp * pipeline.pp), 1);
}

void NodeLayouts::set(const DataEstimate& data) {
    const spec::ParallelSpec& p = run_.parallel;
    replicate(r_.gpus / (p.tp * p.cp * p.pp), data.replicas);
    run_.parallel.zero = data.zero;
    run_.parallel.reductions = data.reductions;
    run_.offload.params = data.offloads_weights;
    run_.offload.optimizer = data.offloads_optimizer;
}

void NodeLayouts::set_pipeline(int64_t pp, std::string_view schedule, int64_t virtual_stages) {
    run_.parallel.pp = pp;
    run_.parallel.schedule = schedule;
    run_.parallel.virtual_stages = virtual_stages;
    set_stages(run_);
}

void NodeLayouts::replicate(int64_t dp, int64_t replicas) {
    run_.parallel.dp_replicate = replicas;
    run_.parallel.dp_shard = dp / replicas;
}

// --- Numbers of layouts

// Calls visit(schedule, virtual stages) for each pipeline of `pp` ranks.
template <class Visit>
void NodeLayouts::for_each_pipeline(int64_t pp, Visit visit) const {
    if (pp == 1) return visit(std::string_view("1f1b"), int64_t{1});
    for (const schedule::Kind* kind : schedules()) {
        const int64_t first = kind->chunks > 0 ? kind->chunks : 2;
        const int64_t last = kind->chunks > 0 ? kind->chunks : (r_.run.model.layers + 2) / pp;
        for (int64_t v = first; v <= last; ++v) visit(kind->name, v);
    }
}

bool NodeLayouts::may_offload(std::string_view schedule, bool activations) const {
    spec::OffloadSpec all;
    all.optimizer = true;
    all.activations = activations;
    return offload_allowed(r_, schedule, all);
}

// ZeRO, replicas and offload of state: ZeRO-0 has nothing to shard.
int64_t NodeLayouts::data_layouts(int64_t dp, std::string_view schedule) const {
    const auto replicas = static_cast<int64_t>(divisors(dp, dp).size());
    const int64_t offloads = may_offload(schedule, false) ? 2 : 1;
    return offloads * (1 + 2 * replicas) + offloads * offloads * replicas;
}

int64_t NodeLayouts::layouts_of_space() const {
    int64_t all = 0, experts = 0;
    for (const int ep : divisors(std::max<int64_t>(1, r_.run.model.moe.experts), r_.gpus))
        for (int64_t etp = 1; etp <= (r_.run.model.moe.experts > 0 ? kMostExpertTp : 1); etp *= 2)
            experts += ep * etp <= r_.gpus ? 1 : 0;
    for (const int64_t tp : divisors(r_.gpus, r_.gpus))
        for (const int64_t cp : divisors(r_.gpus / tp, r_.gpus)) {
            int64_t of_grid = 0;
            for (const int64_t pp : divisors(r_.gpus / tp / cp, r_.gpus))
                for_each_pipeline(pp, [&](std::string_view schedule, int64_t) {
                    of_grid += data_layouts(r_.gpus / (tp * cp * pp), schedule) * (may_offload(schedule, true) ? 2 : 1);
                });
            all += of_grid * static_cast<int64_t>(context_methods(cp).size());
        }
    return all * experts * std::ssize(micro_batches_) * std::ssize(kPolicies);
}

// --- Estimates

bool NodeLayouts::on_host(const spec::RunSpec& run, const Price& price) const {
    return simulate::host_memory_problem(simulate::host_memory(run, price.offloaded, price.saved, r_.gpus, r_.cluster),
                                         r_.cluster)
        .empty();
}

Price NodeLayouts::estimate(const LayerProbe& probe, double limit, MemorySeen& seen) {
    constexpr double kScarce = 0.8;                             // of the memory
    run_.parallel.reductions = run_.parallel.zero > 0 ? 2 : 1;  // in flight: faster, where they fit
    Price price = pricer_.estimate(run_, probe, {capacity_, capacity_, limit});
    if (price.bytes > capacity_) {
        run_.parallel.reductions = 1;
        price = pricer_.estimate(run_, probe,
                                 {kSlack * capacity_, seen.least > 0 ? seen.least : Pricer::kUnlimited, limit});
    }
    seen.add({price.bytes, price.bytes > kScarce * capacity_, false});
    return price;
}

std::vector<int64_t> NodeLayouts::first_replicas(int64_t dp) const {
    constexpr int kMostShards = 64;
    const int64_t replicas = dp / divisors(dp, kMostShards).back();
    if (replicas == 1 || !Limits::in(r_.limits.dp_replicate, static_cast<int>(replicas))) return {1};
    return {replicas, 1};
}

void NodeLayouts::estimate(PipelineEstimate& pipeline, const LayerProbe& probe, double limit) {
    set(pipeline);
    const int64_t dp = run_.parallel.dp_shard;
    const auto fits = [&](int zero, bool offload) {
        if (offload && !may_offload(pipeline.schedule, false)) return false;
        run_.parallel.zero = zero;
        run_.offload.params = run_.offload.optimizer = offload;
        for (const int64_t replicas : first_replicas(dp)) {
            if (replicas > 1 && zero == 0) continue;
            replicate(dp, replicas);
            const Price price = estimate(probe, limit, pipeline.seen);
            if (price.bytes > capacity_) continue;
            if (!on_host(run_, price)) {
                pipeline.seen.host = true;
                continue;
            }
            if (!pipeline.seconds || price.seconds < *pipeline.seconds) pipeline.seconds = price.seconds;
            return true;
        }
        return false;
    };
    for (const int zero : {1, 0, 2, 3})  // ZeRO-0 where only that may be taken
        if (may_shard(zero) && fits(zero, false) && zero == 1) return;
    if (!pipeline.seconds) fits(3, true);
}

NodePipelines NodeLayouts::pipelines(const Node& node, const LayerProbe& probe, bool any) {
    NodePipelines all;
    const Limits& l = r_.limits;
    const int64_t left = r_.gpus / (node.tp * node.cp);
    const auto matches = [&](int64_t pp, std::string_view schedule) {
        return any || ((pp > 1 && splits_backward(schedule)) == node.splits &&
                       (!node.offloads || may_offload(schedule, true)));
    };
    for (const int64_t pp : divisors(left, left))
        for_each_pipeline(pp, [&](std::string_view schedule, int64_t v) {
            const int64_t dp = left / pp, layouts = data_layouts(dp, schedule);
            const bool held =
                Limits::in(l.pp, pp) && Limits::in(l.dp, dp) &&
                (pp == 1 || (Limits::in(l.schedules, std::string(schedule)) && Limits::in(l.virtual_stages, v)));
            if (held && stages_allowed(r_.run.model.layers, pp * v)) {
                set_pipeline(pp, schedule, v);
                replicate(dp, 1);
                run_.parallel.zero = 0;
                if (spec::keeps_rules(run_, r_.gpus)) {
                    if (!matches(pp, schedule)) return;
                    Pricer::Bounds least{Pricer::kUnlimited, Pricer::kUnlimited};
                    for (const int64_t replicas : first_replicas(dp)) {
                        replicate(dp, replicas);
                        const Pricer::Bounds bounds = pricer_.bounds(run_, probe);
                        if (bounds.step < least.step) least = bounds;
                    }
                    if (least.step < Pricer::kUnlimited) {
                        all.pipelines.push_back({node, pp, schedule, v, layouts, least.passes, least.step});
                        return;
                    }
                }
            }
            if (matches(pp, schedule)) all.against_rules += layouts;
        });
    std::ranges::stable_sort(all.pipelines, {}, &PipelineEstimate::least);
    return all;
}

DataEstimates NodeLayouts::data_parallel(const PipelineEstimate& pipeline, double limit) {
    DataEstimates all;
    set(pipeline);
    const LayerProbe& probe = pricer_.probe(run_);
    const int64_t dp = r_.gpus / (pipeline.node.tp * pipeline.node.cp * pipeline.pp);
    const bool host = may_offload(pipeline.schedule, false);
    for (const int zero : {1, 0, 2, 3}) {
        bool too_large = false;
        for (const int replicas : zero == 0 ? std::vector{1} : divisors(dp, dp)) {
            DataEstimate each{zero, replicas};
            set(each);
            const bool held =
                may_shard(zero) && Limits::in(r_.limits.dp_replicate, replicas) && spec::ep_fits(run_, r_.gpus);
            bool fits = false, tried = false;
            for (const bool weights : {false, true})
                for (const bool optimizer : {false, true}) {
                    if (((weights || optimizer) && !host) || (weights && zero < 3)) continue;
                    if (!held) {
                        ++all.against_rules;
                    } else if (fits) {
                        ++all.not_needed;  // offload of what fits is slower
                    } else if (too_large) {
                        ++all.too_large;
                    } else {
                        each.offloads_weights = weights;
                        each.offloads_optimizer = optimizer;
                        set(each);
                        const Price price = estimate(probe, limit, all.seen);
                        tried = true;
                        fits = price.bytes <= kSlack * capacity_ && on_host(run_, price);
                        if (fits) {
                            each.reductions = static_cast<int>(run_.parallel.reductions);
                            each.seconds = price.seconds;
                            each.bytes = price.bytes;
                            all.fitting.push_back(each);
                        } else {
                            ++all.too_large;
                        }
                    }
                }
            too_large = too_large || (tried && !fits);  // more replicas need more memory
        }
    }
    return all;
}

}  // namespace tutti::planner
