// planner/present.cpp: a plan as text for a terminal, as JSON, and as the config of its run.
#include "tutti/rehearsal/present.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/models/flops.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/toml.h"

namespace tutti::planner {

namespace {

using simulate::RehearsedStep;

std::string line_of(const char* what, double value, double of) {
    return concat(left(what, 34), right(format_count(value), 10), of > 0 ? right(format_percent(value / of), 9) : "",
                  '\n');
}

// The largest kinds of time: "products 61 %, bubble 12 %, exposed tp 9 %".
std::string where_time_goes(const RehearsedStep& step, size_t count) {
    auto kinds = simulate::kinds_of(step.time);
    std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (size_t i = 0; i < std::min(count, kinds.size()) && kinds[i].second > 0.005 * step.seconds; ++i)
        text += concat(text.empty() ? "" : ", ", kinds[i].first, " ", std::lround(100 * kinds[i].second / step.seconds),
                       " %");
    return text;
}

Json describe_axes(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    return {{"tp", p.tp},
            {"sequence_parallel", p.tp > 1 && p.sequence_parallel},
            {"cp", p.cp},
            {"cp_method", p.cp_method},
            {"cp_ulysses", spec::ulysses_ranks(p)},
            {"pp", p.pp},
            {"schedule", p.pp > 1 ? Json(p.schedule) : Json(nullptr)},
            {"virtual_stages", p.virtual_stages},
            {"ep", p.ep},
            {"etp", p.etp},
            {"dp_replicate", p.dp_replicate},
            {"dp_shard", p.dp_shard},
            {"zero", p.zero},
            {"micro_batch", run.train.micro_batch},
            {"microbatches", run.train.global_batch / (run.train.micro_batch * p.dp_replicate * p.dp_shard)},
            {"recompute", run.recompute.policy},
            {"offload_optimizer", run.offload.optimizer},
            {"offload_weights", run.offload.params},
            {"offload_activations", run.offload.activations}};
}

Json describe_candidate(const Candidate& c) {
    return {{"layout", describe_layout(c.run)},
            {"axes", describe_axes(c.run)},
            {"step_time_s", c.seconds},
            {"peak_bytes", std::round(c.bytes)}};
}

}  // namespace

std::string render(const Comparison& c) {
    if (c.difference <= 0) return "as fast as the first";
    return concat(format_difference(c.slower), ": ", c.kind, " +", format_time(c.difference),
                  c.within_error ? ", within the model's error" : "");
}

std::string render(const Plan& plan) {
    const Request& r = plan.request;
    const SearchCounts& g = plan.found.counts;
    std::string text =
        concat(name_of(r.run.model), ", ", format_count(double(models::parameter_count(r.run.model))),
               " parameters, on ", r.gpus, " x ", r.cluster.name, "; global batch ", r.run.train.global_batch, " of ",
               r.run.train.seq_len, " tokens, ", describe_numerics(r.run), "\n\n");
    const RehearsedStep& best = plan.finalists.chosen.front().step;
    constexpr size_t kIndent = 33;
    text += concat(right("", 3), right("step", 9), right("MFU", 8), right("memory", 11), "  layout\n");
    const auto below = [](const std::string& line) {
        return std::string(kIndent, ' ') + wrapped(line, kIndent) + '\n';
    };
    int place = 0;
    double most_offloaded = 0;
    for (const Finalist& f : plan.finalists.chosen) {
        const auto offloaded = static_cast<double>(f.step.shown.memory.offloaded);
        text += concat(right(std::to_string(++place), 3), right(format_time(f.seconds()), 9),
                       right(format_percent(f.step.mfu()), 8), right(format_bytes(f.bytes()), 11), "  ",
                       wrapped(describe_layout(f.run), kIndent), '\n');
        text +=
            below(concat(where_time_goes(f.step, 3),
                         offloaded > 0 ? concat("; ", format_bytes(offloaded), " of a device in host memory") : ""));
        if (place > 1) text += below(render(compare(best, f.step)));
        most_offloaded = std::max(most_offloaded, offloaded);
    }
    if (most_offloaded > 0 && r.cluster.host_memory <= 0)
        text += concat("the host memory of ", r.cluster.name, " is not known; the most that a node needs here is ",
                       format_bytes(most_offloaded * std::min(r.gpus, r.cluster.per_node)),
                       " ([host] memory_gb of a cluster file limits it)\n");
    text += concat("\nthe first: ", format_rate(best.tokens_per_s(), "tokens"), ", ",
                   format_rate(best.tokens_per_s() / best.ranks, "tokens"), " of a device\n8 of 10 runs take ",
                   format_fixed(best.low, 2), " to ", format_fixed(best.high, 2), " times the predicted step\n");
    if (!plan.finalists.dropped.empty()) {
        text += concat(plan.finalists.dropped.size(), " faster by their probes did not pass: ",
                       describe_layout(plan.finalists.dropped.front().candidate.run), " ",
                       plan.finalists.dropped.front().reason, '\n');
    }
    constexpr double kSlowest = 1.25;  // times the best; --json and --html have all
    text += "\ntime against memory by probes, up to 1.25 times the best: no layout is faster with less memory\n";
    for (const Candidate& c : plan.found.front)
        if (c.seconds <= kSlowest * plan.found.best.front().seconds)
            text += concat(right(format_time(c.seconds), 12), right(format_bytes(c.bytes), 11), "  ",
                           wrapped(describe_layout(c.run), 25), '\n');
    text += '\n';
    const auto all = double(g.all);
    text += line_of("layouts", all, 0);
    text += line_of("- layers too slow, or against a rule", double(g.unopened), all);
    text += line_of("- against the engine's rules", double(g.rules), all);
    text += line_of("- too much memory", double(g.memory), all);
    text += line_of("- too slow without dp and offload", double(g.passes), all);
    text += line_of("= estimated", double(g.estimated), all);
    text += concat("searched in ", format_time(g.seconds), " with ", g.probes,
                   " rehearsed probes: ", format_rate(all / g.seconds, "layouts"), ", ", g.priced,
                   " priced\ntime and memory: ", plan.certified, ", ", plan.finalists.chosen.size(), " finalists in ",
                   format_time(plan.finalists.seconds), "\n");
    return text;
}

std::string render(const Recipe& recipe) {
    std::string text = "\nthe scaling recipe of a lecture (CS231n 2025, lecture 11), rule by rule\n";
    for (const RecipeRule& rule : recipe.rules)
        text += concat("  ",
                       left(rule.recipe == "-" ? "not here"
                            : rule.agrees      ? "as chosen"
                                               : "differs",
                            11),
                       left(rule.choice, 34), wrapped(rule.rule, 47), '\n');
    std::istringstream verdict(recipe.verdict);
    for (std::string line; std::getline(verdict, line);) text += wrapped(line) + '\n';
    return text;
}

Json to_json(const Plan& plan) {
    const Request& r = plan.request;
    const SearchCounts& g = plan.found.counts;
    Json finalists = Json::array(), dropped = Json::array(), front = Json::array();
    const RehearsedStep& best = plan.finalists.chosen.front().step;
    for (const Finalist& f : plan.finalists.chosen) {
        const Comparison c = compare(best, f.step);
        const Json memory = {{"step_time_s", f.seconds()},
                             {"peak_bytes", f.bytes()},
                             {"capacity_bytes", f.step.shown.memory_capacity},
                             {"rank", f.step.shown.rank},
                             {"place", f.step.shown.memory.peak_place},
                             {"memory", rehearsal::to_json(f.step.shown.memory.at_peak)}};
        finalists.push_back({{"layout", describe_layout(f.run)},
                             {"axes", describe_axes(f.run)},
                             {"predicted", describe(f.step)},
                             {"rehearsed", memory},
                             {"slower", c.slower},
                             {"loses_by", c.difference > 0 ? Json(c.kind) : Json(nullptr)},
                             {"loses_s", c.difference},
                             {"within_error", c.within_error}});
    }
    for (const Dropped& d : plan.finalists.dropped) {
        Json entry = describe_candidate(d.candidate);
        entry["reason"] = d.reason;
        dropped.push_back(entry);
    }
    for (const Candidate& c : plan.found.front) front.push_back(describe_candidate(c));
    return {{"model", name_of(r.run.model)},
            {"parameters", models::parameter_count(r.run.model)},
            {"cluster", r.cluster.name},
            {"gpus", r.gpus},
            {"global_batch", r.run.train.global_batch},
            {"seq_len", r.run.train.seq_len},
            {"precision", r.run.precision.compute},
            {"recipe", r.run.precision.recipe},
            {"optimizer", r.run.optimizer.name},
            {"layouts", g.all},
            {"gates",
             {{"unopened", g.unopened},
              {"rules", g.rules},
              {"memory", g.memory},
              {"passes", g.passes},
              {"estimated", g.estimated}}},
            {"priced", g.priced},
            {"probes", g.probes},
            {"seconds", g.seconds},
            {"rehearsal_seconds", plan.finalists.seconds},
            {"certified", plan.certified},
            {"finalists", finalists},
            {"dropped", dropped},
            {"front", front}};
}

Json to_json(const Recipe& recipe) {
    Json rules = Json::array();
    for (const RecipeRule& rule : recipe.rules)
        rules.push_back(
            {{"rule", rule.rule}, {"recipe", rule.recipe}, {"choice", rule.choice}, {"agrees", rule.agrees}});
    const auto layout = [](const std::optional<Candidate>& c) { return c ? describe_candidate(*c) : Json(nullptr); };
    return {{"layout", layout(recipe.layout)},
            {"published", recipe.published},
            {"published_layout", layout(recipe.published_layout)},
            {"rules", rules},
            {"verdict", recipe.verdict}};
}

std::string to_config(const Plan& plan, const Finalist& f) {
    const Request& r = plan.request;
    return concat("# Planned for ", r.gpus, " x ", r.cluster.name, ": ", describe_layout(f.run), ".\n# A step takes ",
                  format_time(f.seconds()), " (", format_time(f.seconds() * f.step.low), " to ",
                  format_time(f.seconds() * f.step.high), "), MFU ", format_percent(f.step.mfu()), "; a rank needs ",
                  format_bytes(f.bytes()), " (", plan.certified, ").\n# tutti train THIS.toml --ranks ", r.gpus, "\n\n",
                  spec::to_toml(f.run));
}

}  // namespace tutti::planner
