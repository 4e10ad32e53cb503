// cli/simulate.cpp: `tutti simulate`: the time, the rates and the memory of a step before it runs, on any cluster; and
// of published runs of other systems, with the error.
#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/forecast.h"
#include "tutti/planner/known_runs.h"
#include "tutti/planner/scaling.h"
#include "tutti/rehearsal/present.h"
#include "tutti/report/run_history.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

namespace {

simulate::Physics physics_of(const SimulateArguments& a) {
    return a.site.empty() ? simulate::Physics{} : simulate::read_physics(a.site);
}

bool wants_spans(const SimulateArguments& a) { return !a.trace.empty() || !a.svg.empty() || !a.run.empty(); }

// "3=1.5": rank 3 takes 1.5 times as long.
std::map<int, double> stragglers(const SimulateArguments& a) {
    std::map<int, double> slow;
    for (const std::string& text : a.slow) {
        std::istringstream in(text);
        int rank = -1;
        char equals = 0;
        double factor = 0;
        in >> rank >> equals >> factor;
        check<UsageError>(!in.fail() && in.eof() && equals == '=' && rank >= 0 && rank < a.ranks && factor > 0,
                          "--slow ", text, ": required RANK=FACTOR with 0 <= RANK < ", a.ranks,
                          " and a factor above 0, such as 3=1.5");
        check<UsageError>(slow.emplace(rank, factor).second, "--slow ", text, ": rank ", rank,
                          " has a factor already; give one for each rank");
    }
    return slow;
}

// The prediction that `tutti report` shows beside the measured values, for a step on `machine`.
// `failures`: of a cluster, for the goodput to expect at the best interval between checkpoints.
void save(const SimulateArguments& a, const spec::RunSpec& run, const simulate::RehearsedStep& step,
          const std::string& machine, const std::optional<report::GoodputTerms>& failures) {
    if (!a.trace.empty()) write_file("--trace", a.trace, to_trace(step.timeline));
    if (!a.svg.empty())
        write_file("--svg", a.svg,
                   svg::file(picture_of(step.timeline,
                                        concat("predicted step of ", format_time(step.seconds), " on ", machine))));
    if (a.run.empty()) return;
    Json communication = Json::array();
    for (const parallel::GroupTraffic& t : step.traffic)
        communication.push_back({{"group", t.group}, {"operation", name_of(t.operation)}, {"sent", t.traffic.sent}});
    Json document = {{"machine", machine},
                     {"step_time_s", step.seconds},
                     {"step_time_low_s", step.seconds * step.low},
                     {"step_time_high_s", step.seconds * step.high},
                     {"peak_bytes", step.shown.memory.peak()},
                     {"communication", std::move(communication)}};
    if (run.place.number > 0) {  // of a stage
        document["first_step"] = run.place.first;
        document["last_step"] = run.place.last;
    }
    if (failures) {
        document["between_failures_s"] = failures->between_failures;
        document["goodput"] = planner::goodput(*failures, planner::checkpoint_interval(*failures));
    }
    write_file("--run", a.run + "/predicted.json", document.dump(2) + "\n");
    write_file("--run", a.run + "/predicted_trace.json", to_trace(step.timeline));
}

// A run of thread ranks on the machine of a profile.
int simulate_here(const SimulateArguments& a, const Io& io) {
    const simulate::MachineProfile profile = simulate::read_profile(a.profile);
    spec::RunSpec run = parse_run(a, false);
    require_one_stage(run, "simulate");
    run.train.device = "cpu";
    spec::validate(run, a.ranks);
    if (run.train.threads == 0) run.train.threads = std::max(1, profile.cores / a.ranks);
    rehearsal::Target target = rehearsal::target_of(engine::machine_of(run, {0, a.ranks}, ""));
    target.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    const simulate::RehearsedStep step =
        simulate::rehearse_in_time(run, target, a.ranks, profile, wants_spans(a), stragglers(a));
    save(a, run, step, profile.machine, std::nullopt);

    const models::TokenFlops& flops = step.shown.counts.model;
    const auto tokens = static_cast<double>(run.train.global_batch * run.train.seq_len);
    std::ostream& text = io.text();
    const auto line = [&](const std::string& what, const std::string& value, const std::string& remark) {
        text << left(what, 26) << left(value, 20) << remark << '\n';
    };
    text << name_of(run.model) << " on " << counted(a.ranks, "thread rank") << " of " << profile.machine << "\n\n";
    line("step", format_time(step.seconds),
         concat(format_time(step.seconds * step.low), " to ", format_time(step.seconds * step.high),
                " in 8 of 10 runs"));
    line("throughput", format_rate(tokens / step.seconds, "tokens"),
         format_flop_rate(flops.causal() * tokens / step.seconds) + ", causal");
    line("memory of a rank", format_bytes(step.shown.memory.peak()), "at " + step.shown.memory.peak_place);
    text << "\nseconds of a core, of all ranks\n";
    double busy = 0;
    for (const double each : step.timeline.busy) busy += each;
    std::vector<std::pair<std::string, double>> kinds(step.kernels.begin(), step.kernels.end());
    kinds.emplace_back("communication", step.timeline.operations);
    kinds.emplace_back("outside kernels", step.between);
    std::sort(kinds.begin(), kinds.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
    Json time = Json::object();
    for (const auto& [name, seconds] : kinds) {
        if (seconds > 0.002 * busy) line(name, format_time(seconds), format_percent(seconds / busy));
        time[name] = seconds;
    }
    text << std::flush;
    io.print(Json{{"step_time_s", step.seconds},
                  {"step_time_low_s", step.seconds * step.low},
                  {"step_time_high_s", step.seconds * step.high},
                  {"tokens_per_s", tokens / step.seconds},
                  {"peak_bytes", step.shown.memory.peak()},
                  {"flops", step.shown.flops},
                  {"machine", profile.machine},
                  {"ranks", a.ranks},
                  {"longest_rank_s", step.timeline.seconds},
                  {"busy_s", busy},
                  {"time", std::move(time)}});
    return 0;
}

// A step of this system on a cluster, with its rates.
struct Answer {
    spec::RunSpec run;
    hardware::Cluster cluster;
    simulate::RehearsedStep step;

    const rehearsal::Rehearsal& shown() const { return step.shown; }
    double rate(double flops_per_token) const { return flops_per_token * step.tokens / step.seconds / step.ranks; }
    simulate::HostMemory host() const {
        return simulate::host_memory(run, double(step.offloaded), double(step.saved), step.ranks, cluster);
    }
};

Answer answer(const SimulateArguments& a) {
    Answer found{.run = read_run(a, a.ranks, false), .cluster = cluster_of(a)};
    require_one_stage(found.run, "simulate");
    const rehearsal::Target target = target_of(a, found.run);
    found.step =
        simulate::rehearse_on(found.run, target, a.ranks, found.cluster, physics_of(a), wants_spans(a), stragglers(a));
    return found;
}

Json describe(const Answer& x) {
    const rehearsal::Rehearsal& r = x.shown();
    const simulate::RehearsedStep& step = x.step;
    Json kernels = Json::object();
    for (const auto& [name, seconds] : step.kernels) kernels[name] = seconds;
    Json communication = Json::object();
    for (const auto& [group, overlap] : step.timeline.overlaps)
        communication[group] = {{"seconds", overlap.seconds}, {"beside_kernels_s", overlap.beside_kernels}};
    const double rate = step.tokens_per_s();
    Json document = {{"step_time_s", step.seconds},
                     {"step_time_low_s", step.seconds * step.low},
                     {"step_time_high_s", step.seconds * step.high},
                     {"tokens_per_s", rate},
                     {"tokens_per_s_per_rank", rate / step.ranks},
                     {"flops_per_s_per_rank", x.rate(r.counts.model.causal())},
                     {"mfu_causal", x.step.mfu()},
                     {"mfu_full", x.step.mfu_full()},
                     {"hfu", x.step.hfu()},
                     {"mfu_of_precision_peak", x.step.mfu()},
                     {"peak_bytes", r.memory.peak()},
                     {"capacity_bytes", r.memory_capacity},
                     {"fits", r.fits},
                     {"offloaded_bytes", r.memory.offloaded},
                     {"host_memory", to_json(x.host(), x.cluster)},
                     {"memory", rehearsal::to_json(r.memory.at_peak)},
                     {"largest", rehearsal::to_json(r.memory.peaks)}};
    document["rehearsed"] = {
        {"step_time_s", step.seconds},
        {"peak_bytes", r.memory.peak()},
        {"capacity_bytes", r.memory_capacity},
        {"fits", r.fits},
        {"busiest_rank_s", *std::max_element(step.timeline.busy.begin(), step.timeline.busy.end())},
        {"kernels", std::move(kernels)},
        {"communication", std::move(communication)}};
    return document;
}

// The groups of a pipeline, its edges "pp 0>1" and its copies "pp 1,14", are many and alike: one entry for all.
std::map<std::string, simulate::Overlap> by_axis(const std::map<std::string, simulate::Overlap>& groups) {
    std::map<std::string, simulate::Overlap> axes;
    for (const auto& [group, overlap] : groups) {
        simulate::Overlap& sum = axes[group.starts_with("pp ") ? "pp" : group];
        sum.seconds += overlap.seconds;
        sum.beside_kernels += overlap.beside_kernels;
    }
    return axes;
}

void print(const Answer& x, std::ostream& text) {
    const rehearsal::Rehearsal& r = x.shown();
    const simulate::RehearsedStep& step = x.step;
    const auto line = [&](const std::string& what, const std::string& value, const std::string& remark = "") {
        text << left(what, 22) << (remark.empty() ? value : left(value, 20) + remark) << '\n';
    };
    text << name_of(x.run.model) << " on " << step.ranks << " x " << x.cluster.name << "\n\n";
    line("step", format_time(step.seconds),
         concat(format_time(step.seconds * step.low), " to ", format_time(step.seconds * step.high),
                " in 8 of 10 runs"));
    const double rate = step.tokens_per_s();
    line("throughput", format_rate(rate, "tokens"), concat(format_rate(rate / step.ranks, "tokens"), " of a rank"));
    line("a device", format_flop_rate(x.rate(r.counts.model.causal())), concat("of ", format_flop_rate(step.peak)));
    const bool attention = r.counts.model.full() > r.counts.model.causal();
    line("MFU", format_percent(x.step.mfu()),
         concat(attention ? "causal attention: " : "", planner::verdict_of_mfu(x.step.mfu())));
    if (attention) line("", format_percent(x.step.mfu_full()), "full attention");
    line("HFU", format_percent(x.step.hfu()), "with recomputed FLOPs");
    line("memory of a rank", format_bytes(r.memory.peak()),
         concat(format_percent(double(r.memory.peak()) / double(r.memory_capacity)), " of ",
                format_bytes(r.memory_capacity), r.fits ? ", at " : ": DOES NOT FIT, at ", r.memory.peak_place));
    std::string largest;
    for (const Purpose purpose : kAllPurposes)
        if (r.memory.peaks[purpose] > r.memory.peak() / 1000)
            largest +=
                concat(largest.empty() ? "" : ", ", name_of(purpose), ' ', format_bytes(r.memory.peaks[purpose]));
    line("largest of each", wrapped(largest, 22));
    line("host memory of a node", wrapped(text_of(x.host(), x.cluster), 22));
    text << wrapped(planner::neighbours_of(x.cluster.name)) << '\n';
    const auto positions = double(step.timeline.busy.size());
    std::vector<std::pair<std::string, double>> kinds(step.kernels.begin(), step.kernels.end());
    std::sort(kinds.begin(), kinds.end(), [](const auto& p, const auto& q) { return p.second > q.second; });
    double compute = 0;
    for (const auto& [name, seconds] : kinds) compute += seconds / positions;
    for (const auto& [name, seconds] : kinds)
        if (seconds / positions > 0.01 * step.seconds)
            line(name, format_time(seconds / positions), format_percent(seconds / positions / step.seconds));
    line("no kernel runs", format_time(step.seconds - compute),
         concat(format_percent(1 - compute / step.seconds), ": exposed communication and waits",
                r.bubble > 0 ? concat(", ", format_percent(r.bubble), " of them by the schedule") : ""));
    for (const auto& [group, overlap] : by_axis(step.timeline.overlaps))
        if (overlap.seconds / positions > 1e-4 * step.seconds)
            line(concat("group ", group), format_time(overlap.seconds / positions),
                 concat(format_percent(overlap.beside_kernels / overlap.seconds), " of it beside kernels"));
}

std::string row_of(const Answer& x) {
    const double rate = x.rate(x.shown().counts.model.causal());
    return concat(right(format_time(x.step.seconds), 11), right(format_count(x.step.tokens_per_s()), 12),
                  right(format_fixed(rate / 1e12, 1), 10), right(format_percent(x.step.mfu()), 8),
                  right(format_bytes(x.shown().memory.peak()), 11), right(format_bytes(x.shown().memory.offloaded), 11),
                  x.shown().fits ? "" : "  does not fit");
}

// A line for each value as soon as it is known. Nothing is printed when no value is legal: the first error is then the
// answer.
int show_variations(const SimulateArguments& a, const Io& io) {
    std::ostream& text = io.text();
    std::string held = concat(left("", 32), right("step", 11), right("tokens/s", 12), right("TFLOP/s", 10),
                              right("MFU", 8), right("memory", 11), right("host", 11), '\n');
    bool any = false;
    std::exception_ptr first_error;
    Json list = Json::array();
    for (const auto& [setting, with] : variations(a)) {
        Json row;
        held += left(setting, 32);
        try {
            const Answer x = answer(with);
            held += row_of(x);
            row = describe(x);
            any = true;
        } catch (const UsageError& error) {
            if (!first_error) first_error = std::current_exception();
            held += concat("  ", error.what());
            row = {{"error", error.what()}};
        }
        held += '\n';
        if (any) text << std::exchange(held, "") << std::flush;
        row["set"] = setting;
        list.push_back(std::move(row));
    }
    if (!any) std::rethrow_exception(first_error);
    io.print(Json{{"variations", list}});
    return 0;
}

int simulate(const SimulateArguments& a, const Io& io) {
    const bool run = !a.config.empty() || !a.model.empty();
    check<UsageError>(a.tables.empty() == run,
                      "give a CONFIG or --model, and --cluster; or --table FILE with published runs");
    if (!a.tables.empty()) return simulate_table(a, io);
    if (!a.run.empty()) report::check_holds_run(a.run);
    if (!a.profile.empty()) return simulate_here(a, io);
    cluster_of(a);
    stragglers(a);
    if (!a.vary.empty()) return show_variations(a, io);
    const Answer x = answer(a);
    save(a, x.run, x.step, concat(a.ranks, " x ", x.cluster.name),
         planner::failures_of(x.cluster, a.ranks, planner::checkpoint_bytes(x.run), {},
                              double(x.run.checkpoint.memory_every) * x.step.seconds, x.run.checkpoint.async));
    print(x, io.text());
    io.text() << std::flush;
    io.print(describe(x));
    return 0;
}

}  // namespace

Command simulate_command(Arguments& all, const Io& io) {
    auto& a = all.add<SimulateArguments>();
    return command_of(
        "simulate", "predict time, rates and memory of a step on any cluster", a, io, simulate,
        joined_options(
            {without({"--table"}, run_options(a, "TOML file of the run")),
             without({"--table"}, joined_options({{stage_option(a)}, machine_options(a, "")})),
             without({"--table", "--cluster", "--vary"},
                     {{"--profile", "FILE", "", "in place of a cluster: a profile by `tutti bench calibrate`",
                       &a.profile, kPath}}),
             without({"--table", "--vary"},
                     {{"--trace", "FILE", "", "write the predicted timeline, for ui.perfetto.dev", &a.trace, kOutput},
                      {"--svg", "FILE", "", "draw the predicted timeline", &a.svg, kOutput},
                      {"--run", "RUN_DIR", "", "write the prediction into a run directory, for `tutti report`", &a.run,
                       kPath}}),
             without({"--table"}, {{"--slow", "RANK=FACTOR", "",
                                    "a straggler, whose kernels take FACTOR times as long; repeatable", &a.slow}}),
             {{"--site", "FILE", "", "constants of a site, written by --fit", &a.site, kPath},
              {"--table", "FILE", "",
               "predict the runs of a JSON file {\"rows\": [...]} and show the errors; repeatable", &a.tables, kPath}},
             beside({"--table"},
                    {{"--fit", "OUT", "", "fit the constants to three rows or more, and write them", &a.fit, kOutput},
                     {"--leave-out", "GROUP", "", "predict each house, family or generation by a fit to the others",
                      &a.leave_out}})}),
        concat("Clusters: ", wrapped(joined(hardware::cluster_names()), 10),
               "\n\nExamples:\n"
               "  tutti simulate run.toml --cluster h100 --ranks 64\n"
               "  tutti simulate --model llama3-8b --cluster h100 --ranks 32 --set train.micro_batch=1\n"
               "  tutti simulate run.toml --cluster h100 --ranks 64 --vary parallel.tp=1,2,4\n"
               "  tutti simulate run.toml --cluster h100 --ranks 64 --vary network.gbs=25,50\n"
               "  tutti simulate run.toml --profile here.json --ranks 4 --trace predicted.json\n"
               "  tutti simulate --table published.json --json\n"
               "  tutti simulate --table three_runs.json --fit site.json\n"
               "  tutti simulate run.toml --cluster h100 --ranks 256 --site site.json"));
}

}  // namespace tutti::cli
