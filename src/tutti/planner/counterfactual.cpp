#include "tutti/planner/counterfactual.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/device/on_cores.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {

namespace {

// A run with one change, not validated.
struct Variant {
    std::string what;
    spec::RunSpec run;
};

std::vector<Variant> variants_of(const spec::RunSpec& from, const spec::RunSpec& towards) {
    std::vector<Variant> all;
    const auto add = [&](const std::string& what, auto&& change) {
        spec::RunSpec run = from;
        run.parallel.dp_shard = -1;  // what the other axes leave
        change(run);
        if (!(run.parallel == from.parallel && run.recompute == from.recompute && run.offload == from.offload &&
              run.train == from.train))
            all.push_back({what, std::move(run)});
    };
    // The member of a run that takes these values.
    const auto key = [](auto section, auto member) {
        return [=](auto& run) -> auto& { return (run.*section).*member; };
    };
    const auto vary = [&](const char* what, auto member, const auto& values) {
        for (const auto& value : values)
            add(concat(what, member(from), " -> ", value), [&](spec::RunSpec& run) { member(run) = value; });
    };
    const auto axis = [&](const char* what, int64_t spec::ParallelSpec::*of) {
        const int64_t now = from.parallel.*of;
        std::set<int64_t> values = {now / 2, 2 * now, towards.parallel.*of};
        values.erase(0);
        vary(what, key(&spec::RunSpec::parallel, of), values);
    };
    axis("tp ", &spec::ParallelSpec::tp);
    axis("cp ", &spec::ParallelSpec::cp);
    if (from.parallel.stage_layers.empty()) axis("pp ", &spec::ParallelSpec::pp);
    axis("ep ", &spec::ParallelSpec::ep);
    axis("etp ", &spec::ParallelSpec::etp);
    axis("dp_replicate ", &spec::ParallelSpec::dp_replicate);
    vary("ZeRO-", key(&spec::RunSpec::parallel, &spec::ParallelSpec::zero), std::array{0, 1, 2, 3});
    vary("reductions ", key(&spec::RunSpec::parallel, &spec::ParallelSpec::reductions), std::array{2, 4});
    vary("recompute ", key(&spec::RunSpec::recompute, &spec::RecomputeSpec::policy), kPolicies);
    std::set<int64_t> sizes = {from.train.micro_batch / 2, from.train.micro_batch * 2, towards.train.micro_batch};
    sizes.erase(0);
    vary("micro batch ", key(&spec::RunSpec::train, &spec::TrainSpec::micro_batch), sizes);
    if (from.parallel.pp > 1)
        for (const auto& [schedule, v] : {std::pair("1f1b", 1),
                                          {"interleaved", 2},
                                          {"interleaved", 4},
                                          {"zb-h1", 1},
                                          {"zb-v", 2},
                                          {"dualpipe-v", 2}})
            add(concat("schedule ", from.parallel.schedule, " -> ", schedule, v > 1 ? concat(" x ", v) : ""),
                [&, kind = schedule, stages = v](spec::RunSpec& run) {
                    run.parallel.schedule = kind;
                    run.parallel.virtual_stages = stages;
                    run.parallel.stage_layers.clear();
                });
    if (from.offload.optimizer || from.offload.params || from.offload.activations)
        add("no offload",
            [](spec::RunSpec& run) { run.offload.optimizer = run.offload.params = run.offload.activations = false; });
    if (!from.parallel.sequence_parallel && from.parallel.tp > 1)
        add("sequence parallelism", [](spec::RunSpec& run) { run.parallel.sequence_parallel = true; });
    return all;
}

// The changes that keep the rules: the fastest by probes, those that fit first.
std::vector<Variant> promising(const Request& r, std::vector<Variant> all) {
    constexpr size_t kTried = 6;  // a rehearsal of many ranks takes a second
    Pricer pricer(r, target_of(r));
    std::vector<std::tuple<bool, double, size_t>> order;
    for (size_t i = 0; i < all.size(); ++i) try {
            spec::validate(all[i].run, r.gpus);
            if (const std::optional<Price> price = pricer.price(all[i].run))
                order.emplace_back(price->bytes > 1.1 * r.cluster.memory, price->seconds, i);
        } catch (const UsageError&) {
            // A change that breaks a rule is none.
        }
    std::sort(order.begin(), order.end());
    std::vector<Variant> kept;
    for (const auto& [too_large, seconds, i] : order)
        if (kept.size() < kTried) kept.push_back(std::move(all[i]));
    return kept;
}

// "parallel.tp=8": the keys that a plan chooses, but dp_shard, which the others leave; in alphabetical order.
std::vector<std::string> keys_of(const spec::RunSpec& run) {
    std::vector<std::string> keys;
    spec::for_each_field(run, [&]<class T>(const spec::Field& field, const T& value) {
        const std::string path = field.path();
        const bool chosen = field.section == "parallel" || field.section == "recompute" || field.section == "offload" ||
                            path == "train.micro_batch";
        if (!chosen || path == "parallel.dp_shard") return;
        if constexpr (std::is_same_v<T, std::string>)
            keys.push_back(concat(path, '=', value));
        else
            keys.push_back(concat(path, '=', spec::toml_text(value)));
    });
    std::ranges::sort(keys);
    return keys;
}

}  // namespace

std::vector<std::string> differences(const spec::RunSpec& from, const spec::RunSpec& to) {
    std::vector<std::string> set;
    const auto mine = keys_of(from), theirs = keys_of(to);
    for (size_t i = 0; i < theirs.size(); ++i)
        if (mine[i] != theirs[i]) set.push_back(theirs[i]);
    if (!set.empty() && (from.parallel.dp_shard != -1)) set.emplace_back("parallel.dp_shard=-1");
    return set;
}

std::vector<Change> changes(const Request& r, const RehearsedRun& from, const spec::RunSpec& towards) {
    const std::vector<Variant> variants = promising(r, variants_of(from.run, towards));
    std::vector<std::optional<Change>> found(variants.size());
    for_each_on_cores(variants.size(), [&](size_t i) {
        try {
            RehearsedRun result = rehearsed(r, target_of(r), variants[i].run);
            if (result.fits() || !from.fits())
                found[i] = Change{variants[i].what, differences(from.run, variants[i].run), std::move(result)};
        } catch (const UsageError&) {
            // The machine lacks what this change needs.
        }
    });
    std::vector<Change> all;
    for (std::optional<Change>& change : found)
        if (change) all.push_back(std::move(*change));
    std::stable_sort(all.begin(), all.end(), [](const Change& a, const Change& b) {
        return std::pair(!a.result.fits(), a.result.seconds()) < std::pair(!b.result.fits(), b.result.seconds());
    });
    return all;
}

namespace {

std::string memory_of(const RehearsedRun& p) {
    return concat(
        format_bytes(p.bytes()), " of ", format_bytes(p.step.shown.memory_capacity), p.fits() ? "" : ", DOES NOT FIT",
        p.step.shown.memory.offloaded > 0 ? concat(", ", format_bytes(p.step.shown.memory.offloaded), " in host memory")
                                          : "");
}

const Change* most_helpful(const RehearsedRun& mine, const std::vector<Change>& changes) {
    constexpr double kHelps = 0.001;  // of the step: less is not shown
    if (changes.empty()) return nullptr;
    const Change& first = changes.front();
    const bool helps = first.result.seconds() < (1 - kHelps) * mine.seconds();
    return helps || (!mine.fits() && first.result.fits()) ? &first : nullptr;
}

}  // namespace

std::string compare(const std::string& name, const RehearsedRun& mine, const RehearsedRun& best,
                    const std::vector<Change>& changes) {
    const double slower = mine.seconds() / best.seconds() - 1;
    std::string text = concat('\n', name, ": ", format_time(mine.seconds()), " a step, ", memory_of(mine),
                              "\n  the best: ", format_time(best.seconds()), ", ", memory_of(best), ": ",
                              slower > 0 ? concat(name, " takes ", format_percent(slower), " longer")
                                         : concat(name, " is ", format_percent(-slower), " shorter"),
                              mine.step.high > 1 + std::abs(slower) ? ", which is within the model's error" : "", '\n');
    const std::vector<std::string> set = differences(mine.run, best.run);
    text += set.empty() ? "  both are the same layout\n" : "  to the best:";
    for (const std::string& each : set) text += concat(" --set ", each);
    if (!set.empty()) text += '\n';
    if (const Change* change = most_helpful(mine, changes)) {
        text += concat("  the one change that helps most: ", change->what, ": ", format_time(change->result.seconds()),
                       " (", format_difference(change->result.seconds() / mine.seconds() - 1), "), ",
                       memory_of(change->result), '\n');
    } else {
        text += changes.empty() ? "  no single change runs and fits\n"
                                : concat("  no single change is faster, of ", changes.size(), " that run and fit\n");
    }
    return text;
}

Json to_json(const RehearsedRun& mine, const RehearsedRun& best, const std::vector<Change>& changes) {
    const auto describe = [](const RehearsedRun& p) -> Json {
        return {{"step_time_s", p.seconds()},
                {"step_time_low_s", p.seconds() * p.step.low},
                {"step_time_high_s", p.seconds() * p.step.high},
                {"peak_bytes", p.bytes()},
                {"capacity_bytes", p.step.shown.memory_capacity},
                {"offloaded_bytes", p.step.shown.memory.offloaded},
                {"fits", p.fits()}};
    };
    Json list = Json::array();
    for (const Change& change : changes) {
        Json entry = describe(change.result);
        entry["change"] = change.what;
        entry["set"] = change.set;
        list.push_back(std::move(entry));
    }
    Json document = describe(mine);
    document["slower"] = mine.seconds() / best.seconds() - 1;
    document["best"] = describe(best);
    document["differences"] = differences(mine.run, best.run);
    document["changes"] = list;
    return document;
}

}  // namespace tutti::planner
