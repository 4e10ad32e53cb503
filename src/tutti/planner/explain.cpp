// planner/explain.cpp: the layout that handbooks recommend, compared with the layout of the search.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/models/flops.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/simulate/footprint.h"
#include "tutti/simulate/step_time.h"

namespace tutti::planner {

namespace {

using simulate::Job;
using simulate::Recompute;

constexpr double kTokensOfRank = 8192;  // of a long sequence: Llama 3 has 131,072 tokens over 16 ranks
constexpr double kFullyShardedFrom = 1e9;

bool sharded(const Request& r) { return double(models::parameter_count(r.model)) > kFullyShardedFrom; }

std::optional<Candidate> recipe_layout(const Request& r) {
    Job job = plain_job(r);
    const bool shards_all = sharded(r);
    spec::RunSpec longer = run_of(r, job);
    const auto may_double = [&] {
        longer.parallel.cp = 2 * job.cp;
        return r.gpus % longer.parallel.cp == 0 && spec::cp_fits(longer);
    };
    while (double(r.seq_len) / job.cp > kTokensOfRank && may_double()) job.cp *= 2;
    std::vector<int> micro_batches = divisors(r.global_batch, 64);
    std::reverse(micro_batches.begin(), micro_batches.end());
    std::vector<int> expert_ranks = {1};
    if (job.mixture()) {
        expert_ranks = divisors(r.model.moe.experts, r.cluster.domain);
        std::reverse(expert_ranks.begin(), expert_ranks.end());
    }
    for (const int pp : divisors(r.gpus, r.gpus))
        for (const Recompute recompute : {Recompute::none, Recompute::full})
            for (const int tp : divisors(r.gpus, r.cluster.domain))
                for (const int ep : expert_ranks)
                    for (const int micro_batch : micro_batches) {
                        job.pp = pp;
                        job.tp = tp;
                        job.ep = ep;
                        job.recompute = recompute;
                        job.micro_batch = micro_batch;
                        job.zero = pp == 1 && shards_all ? 3 : 1;
                        if (!allowed(r, job)) continue;
                        const double bytes = footprint(job).total();
                        if (bytes <= r.cluster.memory)
                            return Candidate{job, step_time(job, r.cluster, r.constants).total(), bytes};
                    }
    return std::nullopt;
}

}  // namespace

Recipe field_recipe(const Request& r, const Candidate& choice) {
    Recipe recipe;
    recipe.layout = recipe_layout(r);
    if (!recipe.layout) {
        recipe.verdict = "no layout of the recipe fits";
        return recipe;
    }
    const Job &a = recipe.layout->job, &b = choice.job;
    const auto rule = [&](const std::string& text, const auto& recommended, const auto& chosen) {
        recipe.rules.push_back({text, concat(recommended), concat(chosen), concat(recommended) == concat(chosen)});
    };
    rule(sharded(r) ? "above 1 B parameters shard everything (FSDP = ZeRO-3); beside a pipeline ZeRO-1"
                    : "up to 1 B parameters data parallelism alone, optimizer sharded (ZeRO-1)",
         concat("ZeRO-", a.zero), concat("ZeRO-", b.zero));
    rule(concat("tensor parallel only as far as memory or the batch require, inside the ", r.cluster.domain,
                " devices of a link domain"),
         concat("tp ", a.tp), concat("tp ", b.tp));
    rule("a pipeline only beyond that", concat("pp ", a.pp), concat("pp ", b.pp));
    rule(concat("context parallel for length: at most ", kTokensOfRank, " tokens of a sequence on a rank"),
         concat("cp ", a.cp), concat("cp ", b.cp));
    if (a.mixture())
        rule("experts over the ranks of a link domain", concat("ep ", a.ep, ", etp ", a.etp),
             concat("ep ", b.ep, ", etp ", b.etp));
    rule("recompute only where nothing else fits", name_of(a.recompute), name_of(b.recompute));
    rule("the largest micro batch that fits", a.micro_batch, b.micro_batch);
    const simulate::Prediction best = predict(b, r.cluster, r.constants), other = predict(a, r.cluster, r.constants);
    const Comparison c = compare(best, other);
    if (c.slower <= 0) {
        recipe.verdict = c.slower < 0 ? concat("the recipe's step is ", format_percent(-c.slower),
                                               " shorter by the closed forms; it did not fit when rehearsed")
                                      : "the recipe and the search agree";
    } else {
        recipe.verdict =
            concat("the recipe's step takes ", format_time(other.seconds()), ", ", format_percent(c.slower),
                   " longer; most of it is ", c.kind, ", +", format_time(c.difference),
                   c.within_error ? ". That is less than the model's error: measure both"
                                  : ". That is more than the model's error");
    }
    return recipe;
}

}  // namespace tutti::planner
