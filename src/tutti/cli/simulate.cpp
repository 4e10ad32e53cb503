// cli/simulate.cpp: `tutti simulate`: the time, the rates and the memory of a step before it runs, on any cluster; and
// of published runs of other systems, with the error.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/simulate/calibrate.h"
#include "tutti/simulate/prediction.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

namespace {

using simulate::Prediction;

void print(const Prediction& p, const hardware::Cluster& cluster, std::ostream& text) {
    const auto line = [&](const char* what, const std::string& value, const std::string& remark = "") {
        text << left(what, 22) << (remark.empty() ? value : left(value, 20) + remark) << '\n';
    };
    line("step", format_time(p.seconds()),
         concat(format_time(p.seconds() * p.low), " to ", format_time(p.seconds() * p.high), " in 8 of 10 runs"));
    line("throughput", format_rate(p.tokens_per_s(), "tokens"),
         concat(format_rate(p.tokens_per_s() / p.ranks, "tokens"), " of a rank"));
    line("MFU", format_percent(p.share_of_peak(p.model_causal)), "causal attention, of the 16-bit peak");
    line("", format_percent(p.share_of_peak(p.model_full)), "full attention");
    line("", format_percent(p.share_of_peak(p.model_causal) * p.peak / p.precision_peak), "of the precision's peak");
    line("HFU", format_percent(p.share_of_peak(p.hardware)), "with recomputed FLOPs");
    const double share = p.memory.total() / cluster.memory;
    line("memory of a rank", format_bytes(static_cast<int64_t>(p.memory.total())),
         concat(format_percent(share), " of ", format_bytes(static_cast<int64_t>(cluster.memory)),
                share > 1 ? ": does not fit" : ""));
    text << '\n';
    for (const auto& [name, seconds] : kinds_of(p.time))
        if (seconds > 0) line(name, format_time(seconds), format_percent(seconds / p.seconds()));
}

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
        slow[rank] = factor;
    }
    return slow;
}

// The prediction that `tutti report` shows beside the measured values, for a step on `machine`.
void save(const SimulateArguments& a, const simulate::RehearsedStep& step, const std::string& machine) {
    if (!a.trace.empty()) write_file("--trace", a.trace, to_trace(step.timeline));
    if (!a.svg.empty())
        write_file("--svg", a.svg,
                   to_svg(step.timeline, concat("predicted step of ", format_time(step.seconds), " on ", machine)));
    if (a.run.empty()) return;
    Json communication = Json::array();
    for (const parallel::GroupTraffic& t : step.traffic)
        communication.push_back({{"group", t.group}, {"operation", name_of(t.operation)}, {"sent", t.traffic.sent}});
    const Json document = {{"machine", machine},
                           {"step_time_s", step.seconds},
                           {"step_time_low_s", step.seconds * step.low},
                           {"step_time_high_s", step.seconds * step.high},
                           {"peak_bytes", step.shown.memory.peak()},
                           {"communication", std::move(communication)}};
    write_file("--run", a.run + "/predicted.json", document.dump(2) + "\n");
    write_file("--run", a.run + "/predicted_trace.json", to_trace(step.timeline));
}

// A run of thread ranks on the machine of a profile.
int simulate_here(const SimulateArguments& a, const Io& io) {
    const simulate::MachineProfile profile = simulate::read_profile(a.profile);
    spec::RunSpec run = spec::parse_file(a.config, a.set);
    run.train.device = "cpu";
    spec::validate(run, a.ranks);
    if (run.train.threads == 0) run.train.threads = std::max(1, profile.cores / a.ranks);
    rehearsal::Target target = rehearsal::target_of(engine::machine_of(run, {0, a.ranks}, ""));
    target.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    const simulate::RehearsedStep step =
        simulate::rehearse_in_time(run, target, a.ranks, profile, wants_spans(a), stragglers(a));
    save(a, step, profile.machine);

    const models::TokenFlops& flops = step.shown.counts.model;
    const auto tokens = static_cast<double>(run.train.global_batch * run.train.seq_len);
    std::ostream& text = io.text();
    const auto line = [&](const std::string& what, const std::string& value, const std::string& remark) {
        text << left(what, 26) << left(value, 20) << remark << '\n';
    };
    text << name_of(run.model) << " on " << a.ranks << (a.ranks == 1 ? " thread rank of " : " thread ranks of ")
         << profile.machine << "\n\n";
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
    kinds.emplace_back("communication", step.communication);
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

}  // namespace

int calibrate(const CalibrateArguments& a, const Io& io) {
    std::ostream& text = io.text();
    const simulate::MachineProfile profile =
        simulate::calibrate([&](const std::string& what) { text << what << std::endl; });
    write_file("OUT", a.out, to_json(profile).dump() + "\n");
    text << "written to " << a.out << std::endl;
    io.print(Json{{"profile", a.out}, {"machine", profile.machine}});
    return 0;
}

Command calibrate_command(CalibrateArguments& a, const Io& io) {
    return command_of("calibrate", "time the kernels and operations of this machine for `tutti simulate`", a, io,
                      calibrate, {required({"OUT", "", "", "JSON file to write the profile to", &a.out, kPath})},
                      "This takes one to two minutes; no other program should run meanwhile.\n\n"
                      "Examples:\n"
                      "  tutti bench calibrate here.json\n"
                      "  tutti simulate run.toml --profile here.json --ranks 4");
}

int simulate(const SimulateArguments& a, const Io& io) {
    check<UsageError>(a.table.empty() != a.config.empty(),
                      "give a CONFIG and --cluster, or --table FILE with published runs");
    if (!a.table.empty()) return simulate_table(a, io);
    check<UsageError>(a.fit.empty() && a.leave_out.empty(), "--fit and --leave-out need --table with measured runs");
    check<UsageError>(a.cluster.empty() || a.profile.empty(), "--cluster and --profile exclude each other");
    if (!a.profile.empty()) return simulate_here(a, io);
    check<UsageError>(!a.cluster.empty(), "--cluster is missing: the name of a cluster (", hardware::cluster_names()[0],
                      ", ...) or a file");
    const hardware::Cluster cluster = hardware::cluster_named(a.cluster);
    spec::RunSpec run = spec::parse_file(a.config, a.set);
    spec::validate(run, a.ranks);
    stragglers(a);
    const std::vector<double> loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    simulate::Job job = simulate::job_of(run, a.ranks);
    job.imbalance = simulate::imbalance_of(loads, job.ep);
    const Prediction p = simulate::predict(job, cluster);
    std::ostream& text = io.text();
    text << name_of(run.model) << " on " << a.ranks << " x " << cluster.name << "\n\n";
    print(p, cluster, text);
    Json document = describe(p);
    try {
        rehearsal::Target target = simulate::target_for(cluster, spec::compute_type_of(run));
        target.expert_loads = loads;
        const simulate::RehearsedStep step =
            simulate::rehearse_on(run, target, a.ranks, cluster, physics_of(a), wants_spans(a), stragglers(a));
        save(a, step, concat(a.ranks, " x ", cluster.name));
        text
            << "\nrehearsed: the program and the kernels of Tutti, with exact memory; the formulas above are fitted to "
               "published runs of other systems\n"
            << left("step", 22) << left(format_time(step.seconds), 20)
            << format_percent(p.model_causal / (step.seconds * a.ranks * p.peak)) << " MFU, causal\n"
            << left("memory of a rank", 22) << left(format_bytes(step.shown.memory.peak()), 20) << "at "
            << step.shown.memory.peak_place << (step.shown.fits ? "" : ": does not fit") << '\n';
        Json kernels = Json::object();
        for (const auto& [name, seconds] : step.kernels) kernels[name] = seconds;
        document["rehearsed"] = {
            {"step_time_s", step.seconds},
            {"peak_bytes", step.shown.memory.peak()},
            {"fits", step.shown.fits},
            {"busiest_rank_s", *std::max_element(step.timeline.busy.begin(), step.timeline.busy.end())},
            {"kernels", std::move(kernels)}};
    } catch (const UsageError& error) {
        check<UsageError>(!wants_spans(a), "--trace, --svg and --run need a rehearsal: ", error.what());
        text << "\nclosed formulas alone: " << error.what() << '\n';
        document["rehearsed"] = nullptr;
    }
    text << std::flush;
    io.print(document);
    return 0;
}

Command simulate_command(SimulateArguments& a, const Io& io) {
    constexpr double kManyRanks = 1 << 20;
    return command_of(
        "simulate", "predict time, rates and memory of a step on any cluster", a, io, simulate,
        {{"CONFIG", "", "", "TOML file of the run", &a.config, kPath},
         {"--cluster", "NAME|FILE", "", "a cluster below, or a TOML file of one", &a.cluster,
          Suggestions{hardware::cluster_names(), true}},
         {"--ranks", "N", "1", "devices of the run", &a.ranks, Between{1, kManyRanks}},
         set_option(a.set, "override a key of CONFIG; repeatable"),
         {"--profile", "FILE", "", "in place of a cluster: a profile by `tutti bench calibrate`", &a.profile, kPath},
         {"--trace", "FILE", "", "write the predicted timeline, for ui.perfetto.dev", &a.trace, kPath},
         {"--svg", "FILE", "", "draw the predicted timeline", &a.svg, kPath},
         {"--run", "RUN_DIR", "", "write the prediction into a run directory, for `tutti report`", &a.run, kPath},
         {"--slow", "RANK=FACTOR", "", "a straggler, whose kernels take FACTOR times as long; repeatable", &a.slow},
         expert_loads_option(a.expert_loads),
         {"--site", "FILE", "", "constants of a site, written by --fit", &a.site, kPath},
         {"--table", "FILE", "", "predict the runs of a JSON file {\"rows\": [...]} and show the errors", &a.table,
          kPath},
         {"--fit", "OUT", "", "fit the constants to --table, three rows or more, and write them", &a.fit, kPath},
         {"--leave-out", "GROUP", "", "predict each house, family or generation of --table by a fit to the others",
          &a.leave_out}},
        concat("Clusters: ", joined(hardware::cluster_names()),
               "\n\nExamples:\n"
               "  tutti simulate run.toml --cluster h100 --ranks 64\n"
               "  tutti simulate run.toml --profile here.json --ranks 4 --trace predicted.json\n"
               "  tutti simulate --table published.json --json\n"
               "  tutti simulate --table three_runs.json --fit site.json\n"
               "  tutti simulate run.toml --cluster h100 --ranks 256 --site site.json"));
}

}  // namespace tutti::cli
