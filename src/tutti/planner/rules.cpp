// planner/rules.cpp: the rules, and the run of a job.
#include "tutti/planner/rules.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/spec/layers.h"

namespace tutti::planner {

namespace {

using simulate::Job;

// Zero-bubble and V-shaped schedules reach the bubble of their formula from so many microbatches on
// (schedule::simulate).
constexpr std::array kSchedules = {
    Schedule{"1f1b", 1, 0, false},       Schedule{"zb-h1", 1, 1, false},  Schedule{"interleaved", 0, 1, true},
    Schedule{"zb-v", 2, 1.5, false},     Schedule{"v-half", 2, 1, false}, Schedule{"v-min", 2, 1, false},
    Schedule{"dualpipe-v", 2, 2, false},
};

constexpr double kUneven = 1.125;

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

void check_request(const Request& r) {
    check<UsageError>(spec::traits_of(r.model).tokens,
                      "the family mlp has no sequences and no parallel axis but data; plan a language model");
    const std::string type = r.precision == "f32" ? "fp32" : r.precision;
    check<UsageError>(r.cluster.has(type), r.cluster.name, " has no ", type, " products (it has ", r.cluster.types(),
                      "), and Tutti trains in bf16, f32 or tf32; give another --precision");
}

void ContextMethod::set(spec::ParallelSpec& p) const {
    p.cp_method = name_of(method);
    p.cp_ulysses = ulysses > 1 ? ulysses : 0;
}

std::vector<ContextMethod> context_methods(int cp) {
    using simulate::Context;
    if (cp == 1) return {{}};
    std::vector<ContextMethod> methods = {{Context::ulysses, 1}};
    for (const int ulysses : divisors(cp, cp - 1))
        for (const Context method : {Context::ring, Context::all_gather}) methods.push_back({method, ulysses});
    return methods;
}

bool stages_allowed(int64_t layers, int stages) {
    if (stages == 1 || layers + 2 == stages) return true;
    if (layers < stages) return false;
    const int64_t most = (layers + stages - 1) / stages;
    return (layers + 2) % stages == 0 || double(most) * stages <= kUneven * double(layers);
}

bool schedule_allowed(const Schedule& s, int pp, int64_t microbatches) {
    return double(microbatches) >= s.microbatches_per_rank * pp && (!s.whole_rounds || microbatches % pp == 0);
}

bool offload_allowed(const Request& r, std::string_view schedule, const simulate::Offload& offload) {
    const bool in_order = schedule == "1f1b" || schedule == "interleaved";
    return (!offload.any() || (r.limits.offload && r.cluster.host_bandwidth > 0)) && (!offload.activations || in_order);
}

bool allowed(const Request& r, const Job& j) {
    if (!r.limits.allow(j) || !spec::keeps_rules(run_of(r, j), r.gpus) || !offload_allowed(r, j.schedule, j.offload))
        return false;
    if (j.pp == 1) return j.schedule == "1f1b" && j.virtual_stages == 1;
    const auto* const kind =
        std::find_if(kSchedules.begin(), kSchedules.end(), [&](const Schedule& s) { return j.schedule == s.name; });
    if (kind == kSchedules.end() || (kind->chunks > 0 && kind->chunks != j.virtual_stages)) return false;
    if (kind->chunks == 0 && j.virtual_stages < 2) return false;
    return stages_allowed(r.model.layers, j.pp * j.virtual_stages) &&
           schedule_allowed(*kind, j.pp, static_cast<int64_t>(j.microbatches()));
}

Job plain_job(const Request& r) {
    Job job;
    job.model = simulate::sizes_of(r.model);
    job.seq = double(r.seq_len);
    job.global_batch = double(r.global_batch);
    job.ranks = r.gpus;
    job.precision = r.precision == "f32" ? "fp32" : r.precision;
    job.token_drop = r.model.moe.capacity_factor > 0;
    job.imbalance = simulate::imbalance_of(r.expert_loads, 1);
    return job;
}

spec::RunSpec run_of(const Request& r, const Job& job) {
    spec::RunSpec run;
    run.model = r.model;
    run.data.train = r.data;
    run.train.seq_len = r.seq_len;
    run.train.global_batch = r.global_batch;
    run.train.micro_batch = static_cast<int64_t>(job.micro_batch);
    spec::ParallelSpec& p = run.parallel;
    p.tp = job.tp;
    p.sequence_parallel = job.sequence_parallel;
    p.cp = job.cp;
    ContextMethod{job.cp_method, job.cp_ulysses}.set(p);
    p.pp = job.pp;
    p.schedule = job.schedule;
    p.virtual_stages = job.virtual_stages;
    p.ep = job.ep;
    p.etp = job.etp;
    p.dp_replicate = job.dp_replicate;
    p.dp_shard = job.dp() / job.dp_replicate;
    p.zero = job.zero;
    if (job.pp * job.virtual_stages == r.model.layers + 2) {
        p.stage_layers = "0";
        for (int64_t layer = 0; layer < r.model.layers; ++layer) p.stage_layers += ",1";
        p.stage_layers += ",0";
    }
    run.recompute.policy = name_of(job.recompute);
    run.offload.optimizer = job.offload.optimizer;
    run.offload.params = job.offload.weights;
    run.offload.activations = job.offload.activations;
    run.precision.compute = r.precision;
    return run;
}

std::string describe_layout(const Job& job) {
    std::string text;
    const auto add = [&](const auto&... parts) { text += (text.empty() ? "" : ", ") + concat(parts...); };
    if (job.tp > 1) add("tp ", job.tp, job.sequence_parallel ? "" : " without sp");
    if (job.cp > 1)
        add("cp ", job.cp, job.cp_method == simulate::Context::ring ? "" : concat(" ", name_of(job.cp_method)),
            job.cp_ulysses > 1 ? concat(" with ulysses ", job.cp_ulysses) : "");
    if (job.pp > 1) {
        add("pp ", job.pp, " ", job.schedule);
        if (job.schedule == "interleaved") text += concat(" x ", job.virtual_stages);
    }
    if (job.ep > 1) add("ep ", job.ep);
    if (job.etp > 1) add("etp ", job.etp);
    if (job.dp_replicate > 1)
        add("dp ", job.dp_replicate, " x ", job.dp() / job.dp_replicate);
    else
        add("dp ", job.dp());
    add("ZeRO-", job.zero);
    add("micro batch ", job.micro_batch);
    if (job.recompute != simulate::Recompute::none) add(name_of(job.recompute), " recompute");
    std::string offloaded;
    for (const auto& [part, is_offloaded] : {std::pair("optimizer", job.offload.optimizer),
                                             {"weights", job.offload.weights},
                                             {"activations", job.offload.activations}})
        if (is_offloaded) offloaded += (offloaded.empty() ? "" : " + ") + std::string(part);
    if (!offloaded.empty()) add("offloaded ", offloaded);
    return text;
}

std::vector<int> divisors(int64_t n, int most) {
    std::vector<int> all;
    for (int64_t d = 1; d <= std::min<int64_t>(n, most); ++d)
        if (n % d == 0) all.push_back(static_cast<int>(d));
    return all;
}

}  // namespace tutti::planner
