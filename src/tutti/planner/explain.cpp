// planner/explain.cpp: the layout of the search beside the rules of a lecture and the layout of a published run.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/models/flops.h"
#include "tutti/planner/known_runs.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/simulate/footprint.h"
#include "tutti/simulate/step_time.h"

namespace tutti::planner {

namespace {

using simulate::Job;
using simulate::Recompute;

// The thresholds of the scaling recipe of Stanford CS231n, lecture 11 (2025).
constexpr double kPlainData = 1e9, kAdvancedParameters = 50e9;
constexpr int kHybridFrom = 256, kAdvancedFrom = 1000;
constexpr int64_t kAdvancedTokens = 16384;

std::optional<Candidate> priced(const Request& r, const Job& job) {
    if (!allowed(r, job)) return std::nullopt;
    const double bytes = footprint(job).total();
    if (bytes > r.cluster.memory) return std::nullopt;
    return Candidate{job, step_time(job, r.cluster, r.constants).total(), bytes};
}

// The largest micro batch that fits; activations recomputed where that makes room for a larger one.
std::optional<Candidate> largest_batch(const Request& r, Job job, const std::vector<Recompute>& policies) {
    std::vector<int> micro_batches = divisors(r.global_batch, 64);
    std::reverse(micro_batches.begin(), micro_batches.end());
    for (const int micro_batch : micro_batches)
        for (const Recompute recompute : policies) {
            job.micro_batch = micro_batch;
            job.recompute = recompute;
            if (const auto found = priced(r, job)) return found;
        }
    return std::nullopt;
}

// Rules 1 to 5: data parallelism, sharded above 1 B parameters, in replicated groups above 256 devices.
std::optional<Candidate> layout_of_lecture(const Request& r) {
    Job job = plain_job(r);
    job.zero = double(models::parameter_count(r.model)) > kPlainData ? 3 : 0;
    const std::vector<Recompute> policies = {Recompute::none, Recompute::full};
    if (job.zero == 0 || r.gpus <= kHybridFrom) return largest_batch(r, job, policies);
    std::vector<int> replicas = divisors(job.dp(), job.dp() / std::max(1, r.cluster.per_node));
    std::reverse(replicas.begin(), replicas.end());
    for (const int each : replicas) {
        job.dp_replicate = each;
        if (const auto found = largest_batch(r, job, policies)) return found;
    }
    return std::nullopt;
}

// The axes of the published run on the devices of the request. A pipeline that does not divide its layers or its batch
// becomes the next shorter one that does.
std::optional<Candidate> layout_of_run(const Request& r, const KnownRun& run) {
    for (int pp = run.pp; pp >= 1; --pp)
        for (int v = run.virtual_stages; v >= 1; --v)
            for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
                Job job = plain_job(r);
                job.tp = run.tp;
                job.cp = run.cp;
                job.pp = pp;
                job.ep = run.ep;
                if (r.gpus % (job.tp * job.cp * job.pp) != 0) continue;
                job.zero = run.zero;
                job.micro_batch = 1;
                job.recompute = recompute;
                const bool own =
                    pp > 1 && std::string(run.schedule) != "interleaved" && run.schedule != std::string("1f1b");
                job.schedule = pp == 1 ? "1f1b" : own ? run.schedule : v > 1 ? "interleaved" : "1f1b";
                job.virtual_stages = pp == 1 ? 1 : own ? 2 : v;
                for (; job.ep >= 1; job.ep /= 2)
                    if (const auto found = priced(r, job)) return found;
            }
    return std::nullopt;
}

std::string beside(const Request& r, const std::string& what, const Candidate& theirs, const Candidate& choice) {
    const simulate::Prediction best = predict(choice.job, r.cluster, r.constants),
                               other = predict(theirs.job, r.cluster, r.constants);
    const Comparison c = compare(best, other);
    const std::string step = concat(what, ": ", describe_layout(theirs.job), ": ", format_time(other.seconds()), ", ");
    if (c.slower <= 0) return concat(step, format_percent(-c.slower), " shorter than the choice before its rehearsal");
    return concat(step, format_percent(c.slower), " longer; most of it is ", c.kind, ", +", format_time(c.difference),
                  c.within_error ? ". That is less than the model's error: measure both"
                                 : ". That is more than the model's error");
}

}  // namespace

Recipe field_recipe(const Request& r, const Candidate& choice) {
    Recipe recipe;
    const Job& b = choice.job;
    const auto parameters = double(models::parameter_count(r.model));
    const bool large = parameters > kPlainData, many = r.gpus > kHybridFrom,
               advanced = r.gpus > kAdvancedFrom || parameters > kAdvancedParameters || r.seq_len > kAdvancedTokens;
    const std::string here =
        concat(format_count(parameters), " parameters, ", r.gpus, " devices, ", r.seq_len, " tokens");
    const auto rule = [&](const char* text, bool applies, const std::string& says, const std::string& chosen,
                          bool agrees) {
        recipe.rules.push_back({text, applies ? says : "-", chosen, !applies || agrees});
    };
    const bool data_only = b.tp * b.cp * b.pp == 1;
    rule("1. data parallelism up to 128 devices and about 1 B parameters", !large && r.gpus <= 128, "dp alone",
         data_only ? "dp alone" : "more axes", data_only);
    rule(
        "2. the micro batch as large as the memory allows", true, "full memory",
        concat("micro batch ", b.micro_batch, ", ", std::lround(100 * choice.bytes / r.cluster.memory), " % of memory"),
        choice.bytes > 0.8 * r.cluster.memory);
    rule("3. above 1 B parameters FSDP", large && !advanced, "ZeRO-3", concat("ZeRO-", b.zero), b.zero == 3);
    rule("4. activation checkpointing for larger batches", true, "where needed",
         concat("recompute ", name_of(b.recompute)), true);
    rule("5. above 256 devices HSDP", many && large && !advanced, "replicas",
         concat("dp ", b.dp_replicate, " x ", b.dp() / b.dp_replicate), b.dp_replicate > 1);
    rule("6. above 1000 devices, 50 B parameters or 16 K tokens: CP, PP, TP", advanced, "more axes",
         data_only ? "dp alone" : concat("tp ", b.tp, ", cp ", b.cp, ", pp ", b.pp), !data_only);
    recipe.verdict = concat("here: ", here, '\n');
    if (const auto lecture = layout_of_lecture(r)) {
        recipe.layout = lecture;
        recipe.verdict += beside(r, "rules 1 to 5 alone", *lecture, choice) + '\n';
    } else {
        recipe.verdict += "rules 1 to 5 alone: no such layout fits\n";
    }
    const KnownRun& run = nearest_run(parameters, r.gpus, double(r.seq_len), b.mixture());
    recipe.published = concat(run.model, " on ", run.devices, " ", run.cluster, ": ", describe_layout(run),
                              run.mfu > 0 ? concat(", MFU ", format_percent(run.mfu)) : "", " [", run.source, "]");
    recipe.verdict += concat("the nearest published run: ", recipe.published, '\n');
    if (const auto theirs = layout_of_run(r, run)) {
        recipe.published_layout = theirs;
        recipe.verdict += beside(r, "its axes here", *theirs, choice);
    } else {
        recipe.verdict += "its axes do not divide this model, batch and number of devices, or do not fit";
    }
    return recipe;
}

}  // namespace tutti::planner
