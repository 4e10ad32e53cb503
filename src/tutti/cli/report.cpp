// cli/report.cpp: `tutti report`. The page is report/report.h's; here it gets to its place whole or not at all.
#include "tutti/report/report.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/commands.h"

namespace tutti::cli {

namespace {

// Beside the target and renamed: a reader never sees half a page, and a full disk leaves the old one.
void write_whole(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path temporary = concat(path.string(), ".", getpid(), ".tmp");
    errno = 0;
    std::ofstream file(temporary, std::ios::binary);
    file << text;
    file.close();
    const int reason = errno;
    std::error_code problem;
    if (file) std::filesystem::rename(temporary, path, problem);
    if (file && !problem) return;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw DataError(concat(path.string(), " cannot be written: ", problem ? problem.message() : std::strerror(reason),
                           "; --out names another place"));
}

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

}  // namespace

int report(const ReportArguments& arguments, const Io& io) {
    if (!arguments.flight.empty()) return report_flight(arguments.flight, arguments.json, io);
    check<UsageError>(!arguments.run_dirs.empty(), "RUN_DIR is required: the directory of a run, or --flight DIR");
    std::vector<report::RunHistory> runs;
    for (const std::string& directory : arguments.run_dirs) runs.push_back(report::read_run(directory));
    const bool one = runs.size() == 1;
    std::filesystem::path path = arguments.out;
    if (path.empty()) path = one ? std::filesystem::path(arguments.run_dirs[0]) / "report.html" : "comparison.html";
    const std::string page = one ? report::render_report(runs[0]) : report::render_comparison(runs);
    write_whole(path, page);
    if (!arguments.csv.empty()) write_whole(arguments.csv, report::render_csv(runs));

    Json document = {{"report", path.string()}, {"bytes", page.size()}};
    if (!arguments.csv.empty()) document["csv"] = arguments.csv;
    for (const report::RunHistory& run : runs) {
        const Json about = {{"run", run.name},
                            {"logged_steps", run.steps.size()},
                            {"last_step", run.steps.empty() ? 0 : run.steps.back().step},
                            {"notes", run.notes}};
        if (one) {
            document.update(about);
            document["trace"] = describe_trace(run);
        } else {
            document["runs"].push_back(about);
        }
        if (arguments.json) continue;
        for (const std::string& note : run.notes)
            io.err << "tutti: note: " << (one ? "" : run.name + ": ") << note << '\n';
    }
    if (arguments.json) {
        io.out << document.dump(2, Json::InvalidUtf8::replace) << '\n';
        return 0;
    }
    io.out << path.string() << '\n';
    if (!arguments.csv.empty()) io.out << arguments.csv << '\n';
    return 0;
}

}  // namespace tutti::cli
