// cli/report.cpp: `tutti report`: runs as one page (report/report.h), and with --flight which rank of a failed run
// diverged first (diagnose/flight_findings.h).
#include "tutti/report/report.h"

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/command.h"
#include "tutti/cli/watch.h"
#include "tutti/diagnose/flight_findings.h"
#include "tutti/report/step_page.h"

namespace tutti::cli {

namespace {

struct ReportArguments {
    std::vector<std::string> run_dirs;
    std::string out;     // "": report.html in the run directory, of several runs comparison.html here
    std::string csv;     // "": none
    std::string step;    // file for the page of one traced step; "": none
    std::string flight;  // read the flight records of this run instead of writing a page
};

// Means per traced step of each rank; [] without a trace.
Json describe_trace(const report::RunHistory& run) {
    auto ranks = Json::array();
    for (const report::RankTimes& t : report::times_of(run.trace))
        ranks.push_back({{"rank", t.rank},
                         {"steps", t.steps},
                         {"step_ms", t.step_ms},
                         {"compute_ms", t.compute_ms},
                         {"data_ms", t.data_ms},
                         {"wait_ms", t.wait_ms},
                         {"communication_ms", t.communication_ms},
                         {"hidden_ms", t.hidden_ms}});
    return ranks;
}

// --- --flight -------------------------------------------------------------------------------------------------------

using diagnose::last_operation;

Json describe(const diagnose::FlightReading& reading) {
    Json findings = Json::array(), stood = Json::array();
    for (const diagnose::FlightFinding& f : reading.findings) {
        Json finding = {{"finding", name_of(f.kind)}, {"ranks", f.ranks}};
        if (!f.group.empty()) finding.update({{"group", f.group}, {"sequence", f.sequence}});
        finding["text"] = f.text;
        findings.push_back(finding);
    }
    for (const comm::FlightRecord& r : reading.records) {
        Json groups = Json::object();
        for (const auto& g : r.groups) groups[g.name] = g.begun;
        stood.push_back({{"rank", r.rank},
                         {"cause", name_of(r.cause)},
                         {"reason", r.reason},
                         {"written", r.written},
                         {"last", last_operation(r)},
                         {"begun", groups}});
    }
    return {{"ranks", reading.ranks},
            {"missing", reading.missing},
            {"left_out", reading.left_out},
            {"findings", findings},
            {"records", stood}};
}

int report_flight(const std::string& directory, const Io& io) {
    report::check_run_directory(directory);
    const diagnose::FlightReading reading = diagnose::read_flight(directory);
    io.print(describe(reading));
    if (io.json) return 0;
    constexpr const char* kCauses[] = {"failed first", "timed out", "was stopped"};  // by comm::Cause
    double written = 0;
    for (const comm::FlightRecord& r : reading.records) written = std::max(written, r.written);
    io.out << "records of " << reading.records.size() << " of " << reading.ranks << " ranks, " << utc_text(written)
           << '\n';
    for (const diagnose::FlightFinding& finding : reading.findings)
        io.out << (&finding == &reading.findings.front() ? "=> " : "   then: ") << finding.text << '\n';
    for (const comm::FlightRecord& r : reading.records) {
        io.out << "\nrank " << r.rank << " " << kCauses[to_size(r.cause)] << ": " << r.reason
               << "\n  last: " << last_operation(r) << "\n  begun:";
        for (const auto& g : r.groups) io.out << (&g == &r.groups.front() ? " " : ", ") << g.name << " " << g.begun;
        io.out << '\n';
    }
    for (const std::string& name : reading.left_out)
        io.err << "tutti: note: " << name << " belongs to an earlier session of the run and was left out\n";
    return 0;
}

// UsageError where an output has the name of a file that a run writes and reads.
void require_own_name(const std::string& option, const std::string& path, const std::vector<std::string>& run_dirs) {
    namespace fs = std::filesystem;
    const fs::path parent = fs::path(path).parent_path();
    for (const std::string& run : run_dirs) {
        std::error_code missing;
        if (path.empty() || !fs::equivalent(parent.empty() ? "." : parent, run, missing)) continue;
        for (const char* ending : {".jsonl", ".json", ".toml", ".model", ".lock"})
            check<UsageError>(fs::path(path).extension() != ending, option, " ", path, ": files of a run end with ",
                              ending, ", and one of that name would be lost; give another ending");
    }
}

int report(const ReportArguments& arguments, const Io& io) {
    if (!arguments.flight.empty()) return report_flight(arguments.flight, io);
    check<UsageError>(!arguments.run_dirs.empty(), "RUN_DIR is required: the directory of a run, or --flight DIR");
    std::vector<report::RunHistory> runs;
    for (const std::string& directory : arguments.run_dirs) {
        report::RunHistory& run = runs.emplace_back(report::read_run(directory));
        report::FlightSummary flight = flight_summary(directory);
        const bool has_gone_on = !run.steps.empty() && run.steps.back().time.value_or(0) > flight.written;
        if (!has_gone_on) run.flight = std::move(flight);
    }
    const bool one = runs.size() == 1;
    if (!arguments.step.empty()) {
        check<UsageError>(one, "--step ", arguments.step, ": a page of one run; got ", runs.size(), " runs");
        check<UsageError>(!runs[0].trace.empty(), "--step ", arguments.step, ": ", arguments.run_dirs[0],
                          " has no trace.json; train with --set log.trace=true");
    }
    std::filesystem::path path = arguments.out;
    if (path.empty()) path = one ? std::filesystem::path(arguments.run_dirs[0]) / "report.html" : "comparison.html";
    const std::pair<const char*, const std::string*> outputs[] = {{"--csv", &arguments.csv},
                                                                  {"--step", &arguments.step}};
    require_own_name("--out", path.string(), arguments.run_dirs);
    for (const auto& [option, output] : outputs) {
        require_own_name(option, *output, arguments.run_dirs);
        check<UsageError>(output->empty() || !are_one_file(*output, path.string()), option, " ", *output,
                          " is the page of --out; give another name");
    }
    const std::string page = one ? report::render_report(runs[0]) : report::render_comparison(runs);
    write_file("--out", path.string(), page);
    if (!arguments.csv.empty()) write_file("--csv", arguments.csv, report::render_csv(runs));
    if (!arguments.step.empty()) {
        const bool has_memory = !runs[0].trace[0].memory.empty();
        write_file("--step", arguments.step,
                   report::render_step(
                       {.title = concat("A step of ", runs[0].name),
                        .about = has_memory ? "Measured: the typical step of the trace, and the memory that "
                                              "was in use at the begin and end of its passes."
                                            : "Measured: the typical step of the trace. This trace has no "
                                              "memory: train again, or see what tutti rehearse --html predicts.",
                        .trace = runs[0].trace}));
    }

    Json document = {{"report", path.string()}, {"bytes", page.size()}};
    if (!arguments.csv.empty()) document["csv"] = arguments.csv;
    const std::vector<std::string> names = report::names_of(runs);
    for (size_t i = 0; i < runs.size(); ++i) {
        const report::RunHistory& run = runs[i];
        const Json about = {{"run", names[i]},
                            {"logged_steps", run.steps.size()},
                            {"last_step", run.steps.empty() ? 0 : run.steps.back().step},
                            {"notes", run.notes}};
        if (one) {
            document.update(about);
            document["trace"] = describe_trace(run);
        } else {
            document["runs"].push_back(about);
        }
        if (io.json) continue;
        for (const std::string& note : run.notes)
            io.err << "tutti: note: " << (one ? "" : names[i] + ": ") << note << '\n';
    }
    io.print(document);
    if (io.json) return 0;
    io.out << path.string() << '\n';
    if (!arguments.csv.empty()) io.out << arguments.csv << '\n';
    return 0;
}

}  // namespace

Command report_command(Arguments& all, const Io& io) {
    auto& a = all.add<ReportArguments>();
    const Options options = joined_options(
        {{{"RUN_DIR", "...", "", "directory of a run, finished or not; several are compared", &a.run_dirs, kPath},
          {"--out", "FILE", "", "the page [RUN_DIR/report.html; for several runs comparison.html]", &a.out, kOutput},
          {"--csv", "FILE", "", "also write the logged numbers, one line per step of each run", &a.csv, kOutput},
          {"--step", "FILE", "", "also write a traced step as a page with a slider: what each rank does at a time",
           &a.step, kOutput}},
         without({"RUN_DIR", "--out", "--csv", "--step"},
                 {{"--flight", "DIR", "", "read the flight records of a failed run: which rank diverged first",
                   &a.flight, kPath}})});
    return command_of("report", "write an HTML page about runs: curves, memory, sample", a, io, report, options,
                      "Examples:\n  tutti report runs/bible\n  tutti report runs/lr-1e-3 runs/lr-3e-4 --csv runs.csv\n"
                      "  tutti report --flight runs/failed");
}

}  // namespace tutti::cli
