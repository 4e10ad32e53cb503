// planner/explain.cpp: the layout of the search beside the rules of a lecture and the layout of a published run.
#include <ranges>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/models/flops.h"
#include "tutti/planner/known_runs.h"
#include "tutti/planner/node.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"

namespace tutti::planner {

namespace {

// The thresholds of the scaling recipe of Stanford CS231n, lecture 11 (2025).
constexpr double kPlainData = 1e9, kAdvancedParameters = 50e9;
constexpr int kHybridFrom = 256, kAdvancedFrom = 1000;
constexpr int64_t kAdvancedTokens = 16384;

// Prices layouts that a recipe names.
class Recipes {
  public:
    explicit Recipes(const Request& r) : r_(r), pricer_(r, target_of(r)) {}

    // Rules 1 to 5: data parallelism, sharded above 1 B parameters, in replicated groups above 256 devices.
    std::optional<Candidate> of_lecture() {
        spec::RunSpec run = plain_run(r_);
        run.parallel.zero = double(models::parameter_count(r_.run.model)) > kPlainData ? 3 : 0;
        if (run.parallel.zero == 0 || r_.gpus <= kHybridFrom) return largest_batch(run);
        for (const int each : std::views::reverse(divisors(r_.gpus, r_.gpus / std::max(1, r_.cluster.per_node)))) {
            run.parallel.dp_replicate = each;
            run.parallel.dp_shard = r_.gpus / each;
            if (const auto found = largest_batch(run)) return found;
        }
        return std::nullopt;
    }

    // The axes of the published run on the devices of the request. A pipeline that does not divide its layers or its
    // batch becomes the next shorter one that does.
    std::optional<Candidate> of_run(const KnownRun::Layout& known) {
        for (int pp = known.pp; pp >= 1; --pp)
            for (int v = known.virtual_stages; v >= 1; --v)
                for (const char* recompute : kPolicies) {
                    const int grid = known.tp * known.cp * pp;
                    if (r_.gpus % grid != 0) continue;
                    spec::RunSpec run = plain_run(r_);
                    run.parallel.tp = known.tp;
                    run.parallel.cp = known.cp;
                    run.parallel.pp = pp;
                    run.parallel.dp_shard = r_.gpus / grid;
                    run.parallel.zero = known.zero;
                    run.recompute.policy = recompute;
                    // DualPipe holds each weight twice and is not planned; DualPipeV has its passes side by side too.
                    const std::string_view named = known.schedule_name(),
                                           schedule = named == "dualpipe" ? "dualpipe-v" : named;
                    const bool own = pp > 1 && schedule != "interleaved" && schedule != "1f1b";
                    run.parallel.schedule = pp == 1 ? "1f1b" : own ? schedule : v > 1 ? "interleaved" : "1f1b";
                    run.parallel.virtual_stages = pp == 1 ? 1 : own ? 2 : v;
                    set_stages(run);
                    for (run.parallel.ep = known.ep; run.parallel.ep >= 1; run.parallel.ep /= 2)
                        if (const auto found = priced(run)) return found;
                }
        return std::nullopt;
    }

  private:
    std::optional<Candidate> priced(const spec::RunSpec& run) {
        if (!allowed(r_, run)) return std::nullopt;
        const std::optional<Price> price = pricer_.price(run);
        if (!price || price->bytes > r_.cluster.memory) return std::nullopt;
        return Candidate{run, price->seconds, price->bytes};
    }

    // The largest micro batch that fits; activations recomputed where that makes room for a larger one.
    std::optional<Candidate> largest_batch(spec::RunSpec run) {
        for (const int micro_batch : std::views::reverse(micro_batches_of(r_)))
            for (const char* recompute : {"none", "full"}) {
                run.train.micro_batch = micro_batch;
                run.recompute.policy = recompute;
                if (const auto found = priced(run)) return found;
            }
        return std::nullopt;
    }

    const Request& r_;
    Pricer pricer_;
};

// Both as rehearsed.
std::string beside(const Request& r, const std::string& what, const Candidate& theirs, const Finalist& choice) {
    const RehearsedRun other = rehearsed(r, target_of(r), theirs.run);
    const Comparison c = compare(choice.step, other.step);
    const std::string step = concat(what, ": ", describe_layout(theirs.run), ": ", format_time(other.seconds()), ", ");
    if (c.slower <= 0) return concat(step, format_percent(-c.slower), " shorter than the choice");
    return concat(step, format_percent(c.slower), " longer; most of it is ", c.kind, ", +", format_time(c.difference),
                  c.within_error ? ". That is less than the model's error: measure both"
                                 : ". That is more than the model's error");
}

}  // namespace

Recipe field_recipe(const Request& r, const Finalist& choice) {
    Recipe recipe;
    Recipes recipes(r);
    const spec::ParallelSpec& b = choice.run.parallel;
    const auto parameters = double(models::parameter_count(r.run.model));
    const bool large = parameters > kPlainData, many = r.gpus > kHybridFrom,
               advanced =
                   r.gpus > kAdvancedFrom || parameters > kAdvancedParameters || r.run.train.seq_len > kAdvancedTokens;
    const std::string here =
        concat(format_count(parameters), " parameters, ", r.gpus, " devices, ", r.run.train.seq_len, " tokens");
    const auto rule = [&](const char* text, bool applies, const std::string& says, const std::string& chosen,
                          bool agrees) {
        recipe.rules.push_back({text, applies ? says : "-", chosen, !applies || agrees});
    };
    const bool data_only = b.tp * b.cp * b.pp == 1;
    rule("1. data parallelism up to 128 devices and about 1 B parameters", !large && r.gpus <= 128, "dp alone",
         data_only ? "dp alone" : "more axes", data_only);
    rule("2. the micro batch as large as the memory allows", true, "full memory",
         concat("micro batch ", choice.run.train.micro_batch, ", ",
                std::lround(100 * choice.bytes() / r.cluster.memory), " % of memory"),
         choice.bytes() > 0.8 * r.cluster.memory);
    rule("3. above 1 B parameters FSDP", large && !advanced, "ZeRO-3", concat("ZeRO-", b.zero), b.zero == 3);
    rule("4. activation checkpointing for larger batches", true, "where needed",
         concat("recompute ", choice.run.recompute.policy), true);
    rule("5. above 256 devices HSDP", many && large && !advanced, "replicas",
         concat("dp ", b.dp_replicate, " x ", b.dp_shard), b.dp_replicate > 1);
    rule("6. above 1000 devices, 50 B parameters or 16 K tokens: CP, PP, TP", advanced, "more axes",
         data_only ? "dp alone" : concat("tp ", b.tp, ", cp ", b.cp, ", pp ", b.pp), !data_only);
    recipe.verdict = concat("here: ", here, '\n');
    if (const auto lecture = recipes.of_lecture()) {
        recipe.layout = lecture;
        recipe.verdict += beside(r, "rules 1 to 5 alone", *lecture, choice) + '\n';
    } else {
        recipe.verdict += "rules 1 to 5 alone: no such layout fits\n";
    }
    const KnownRun& run = nearest_run(parameters, r.gpus, double(r.run.train.seq_len), r.run.model.moe.experts > 0);
    recipe.published = concat(run.model, " on ", run.devices, " ", run.cluster, ": ", describe_layout(run.layout),
                              run.mfu > 0 ? concat(", MFU ", format_percent(run.mfu)) : "", " [", run.source, "]");
    recipe.verdict += concat("the nearest published run: ", recipe.published, '\n');
    if (const auto theirs = recipes.of_run(run.layout)) {
        recipe.published_layout = theirs;
        recipe.verdict += beside(r, "its axes here", *theirs, choice);
    } else {
        recipe.verdict += "its axes do not divide this model, batch and number of devices, or do not fit";
    }
    return recipe;
}

}  // namespace tutti::planner
