// planner/rules.cpp: the rules, and layouts in words.
#include "tutti/planner/rules.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {

std::span<const schedule::Kind* const> schedules() {
    static const std::vector<const schedule::Kind*> kSchedules = [] {
        std::vector<const schedule::Kind*> all;
        for (const schedule::Kind& kind : schedule::kinds())
            if (kind.name != "naive" && kind.name != "gpipe" && kind.name != "looped-bfs" && kind.name != "chimera" &&
                kind.name != "dualpipe")
                all.push_back(&kind);
        return all;
    }();
    return kSchedules;
}

std::string_view peak_of(const Request& r) { return hardware::peak_name(spec::compute_type_of(r.run)); }

Request request_for(const spec::ModelSpec& model, const hardware::Cluster& cluster, int gpus, int64_t global_batch,
                    int64_t seq_len) {
    Request r{.run = {}, .cluster = cluster, .gpus = gpus};
    r.run.model = model;
    r.run.data.train = {"x.bin"};
    r.run.train.global_batch = global_batch;
    r.run.train.seq_len = seq_len;
    return r;
}

void check_run(const Request& r) {
    check<UsageError>(spec::traits_of(r.run.model).tokens,
                      "the family mlp has no sequences and no parallel axis but data; plan a language model");
    spec::RunSpec alone = plain_run(r);
    alone.parallel.dp_shard = 1;
    alone.precision.gather = "none";  // what is gathered as codes depends on the layout
    spec::validate(alone, 1);
}

void check_request(const Request& r) {
    check_run(r);
    simulate::check_machine(plain_run(r), r.cluster);
}

std::vector<ContextMethod> context_methods(int64_t cp) {
    if (cp == 1) return {{}};
    std::vector<ContextMethod> methods = {{"ulysses", 0}};
    for (const int ulysses : divisors(cp, cp - 1))
        for (const char* name : {"ring", "all_gather"}) methods.push_back({name, ulysses > 1 ? ulysses : 0});
    return methods;
}

bool stages_allowed(int64_t layers, int64_t stages) {
    constexpr double kUneven = 1.125;
    if (stages == 1 || layers + 2 == stages) return true;
    if (layers < stages) return false;
    const int64_t most = (layers + stages - 1) / stages;
    return (layers + 2) % stages == 0 || double(most * stages) <= kUneven * double(layers);
}

bool offload_allowed(const Request& r, std::string_view schedule, const spec::OffloadSpec& offload) {
    const bool in_order = schedule == "1f1b" || schedule == "interleaved";
    const bool any = offload.optimizer || offload.params || offload.activations;
    return (!any || (r.limits.offload && r.cluster.host_bandwidth > 0)) && (!offload.activations || in_order);
}

bool recipe_fits(const spec::RunSpec& run) {
    return !spec::recipe_of(run.precision) ||
           (spec::recipe_problems(run).empty() && spec::code_product_problems(run).empty());
}

bool allowed(const Request& r, const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    if (!r.limits.allow(run) || !spec::keeps_rules(run, r.gpus) || !recipe_fits(run) ||
        !offload_allowed(r, p.schedule, run.offload))
        return false;
    if (p.pp == 1) return p.schedule == "1f1b" && p.virtual_stages == 1;
    const auto all = schedules();
    const auto kind = std::find_if(all.begin(), all.end(), [&](const auto* k) { return p.schedule == k->name; });
    return kind != all.end() && ((*kind)->chunks > 0 ? (*kind)->chunks == p.virtual_stages : p.virtual_stages > 1) &&
           stages_allowed(run.model.layers, p.pp * p.virtual_stages);
}

spec::RunSpec plain_run(const Request& r) {
    spec::RunSpec run = r.run;
    run.parallel = {};
    run.recompute = {};
    run.offload = {};
    run.train.micro_batch = 1;
    run.parallel.dp_shard = r.gpus;
    return run;
}

void set_stages(spec::RunSpec& run) {
    std::string& layers = run.parallel.stage_layers;
    layers.clear();
    if (run.parallel.pp * run.parallel.virtual_stages != run.model.layers + 2) return;
    layers = "0";
    for (int64_t layer = 0; layer < run.model.layers; ++layer) layers += ",1";
    layers += ",0";
}

int64_t saved_bytes(const MemoryByPurpose& state, const spec::RunSpec& run) {
    const bool masters = spec::compute_dtype(run) != DType::f32 && run.precision.master == "f32";
    return state[Purpose::optimizer] + (masters ? 0 : state[Purpose::weights]);
}

std::string describe_numerics(const spec::RunSpec& run) {
    const std::string &recipe = run.precision.recipe, &rule = run.optimizer.name;
    return concat(run.precision.compute, recipe == "none" ? "" : concat(", 8-bit products (", recipe, ")"),
                  rule == "adamw" ? "" : concat(", ", rule));
}

std::string describe_layout(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    std::string text;
    const auto add = [&](const auto&... parts) { text += (text.empty() ? "" : ", ") + concat(parts...); };
    if (p.tp > 1) add("tp ", p.tp, p.sequence_parallel ? "" : " without sp");
    if (p.cp > 1)
        add("cp ", p.cp, p.cp_method == "ring" ? "" : " " + p.cp_method,
            p.cp_ulysses > 1 ? concat(" with ulysses ", p.cp_ulysses) : "");
    if (p.pp > 1) {
        add("pp ", p.pp, " ", p.schedule);
        if (p.schedule.starts_with("interleaved")) text += concat(" x ", p.virtual_stages);
    }
    if (p.ep > 1) add("ep ", p.ep);
    if (p.etp > 1) add("etp ", p.etp);
    if (p.dp_replicate > 1)
        add("dp ", p.dp_replicate, " x ", p.dp_shard);
    else
        add("dp ", p.dp_shard);
    add("ZeRO-", p.zero);
    add("micro batch ", run.train.micro_batch);
    if (run.recompute.policy != "none") add(run.recompute.policy, " recompute");
    std::string offloaded;
    for (const auto& [part, is_offloaded] : {std::pair("optimizer", run.offload.optimizer),
                                             {"weights", run.offload.params},
                                             {"activations", run.offload.activations}})
        if (is_offloaded) offloaded += (offloaded.empty() ? "" : " + ") + std::string(part);
    if (!offloaded.empty()) add("offloaded ", offloaded);
    return text;
}

std::vector<int> divisors(int64_t n, int64_t most) {
    std::vector<int> all, large;
    for (int64_t d = 1; d * d <= n; ++d) {
        if (n % d != 0) continue;
        if (d <= most) all.push_back(static_cast<int>(d));
        if (d * d != n && n / d <= most) large.push_back(static_cast<int>(n / d));
    }
    all.insert(all.end(), large.rbegin(), large.rend());
    return all;
}

}  // namespace tutti::planner
