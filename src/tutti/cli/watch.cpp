// cli/watch.cpp: `tutti watch`: shows running runs from the files of their directories (report/watched_run.h).
#include "tutti/cli/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/diagnose/flight_findings.h"
#include "tutti/report/watched_run.h"

namespace tutti::cli {

namespace {

struct WatchArguments {
    std::vector<std::string> run_dirs;
    bool once = false;   // show the runs as they are and end
    bool http = false;   // serve a page
    std::string listen;  // its address; "": a free port of this machine alone
};

using report::WatchedRun;

struct Screen {
    size_t columns = 100, rows = 1000;  // of a file or pipe
};

Screen terminal_size() {
    struct winsize size = {};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
    return {size.ws_col, size.ws_row};
}

bool goes_on(const WatchedRun& run) {
    using enum WatchedRun::State;
    return run.state() == waiting || run.state() == running || run.state() == silent;
}

// The modification time of a file or directory in seconds; 0: it does not exist.
double changed_at(const std::string& path) {
    std::error_code missing;
    const auto time = std::filesystem::last_write_time(path, missing);
    return missing ? 0 : std::chrono::duration<double>(time.time_since_epoch()).count();
}

Json describe(const WatchedRun& run) {
    Json document = {{"run", run.path()}, {"state", name_of(run.state())}, {"steps", run.steps()}};
    if (const auto& last = run.last()) {
        document["step"] = last->step;
        for (const auto& [key, number, tag] : report::kLoggedNumbers)
            if (const auto& value = (*last).*number)
                document[key] = std::isfinite(*value) ? Json(*value) : Json(nullptr);
    }
    if (const auto left = run.seconds_left()) document["seconds_left"] = *left;
    if (const auto& c = run.checkpoint()) document["checkpoint"] = {{"step", c->step}, {"written", c->written}};
    document["skipped"] = run.skipped();
    if (const auto spent = newest_times(run.history())) {
        document["seconds"] = to_json(*spent);
        if (spent->goodput()) document["goodput"] = *spent->goodput();
    }
    if (const report::RunEvent* start = run.start()) {
        document["generation"] = start->generation;
        document["ranks"] = start->ranks;
    }
    if (const report::RunEvent* death = run.death())
        document["death"] = {{"generation", death->generation}, {"text", death->text}, {"time", death->time}};
    return document;
}

// The picture with escape sequences that overwrite the previous one. Lines and columns beyond the screen are cut: if
// they wrapped or scrolled, the next picture would begin at another place.
std::string drawn_anew(const std::string& picture, const Screen& screen, bool first) {
    std::string text = first ? "\033[2J\033[H" : "\033[H";
    const size_t lines = to_size(std::count(picture.begin(), picture.end(), '\n'));
    const size_t room = std::max<size_t>(screen.rows, 3) - 1;  // the cursor stands below the last line
    const size_t shown = lines <= room ? lines : room - 1;
    std::istringstream in(picture);
    std::string line;
    for (size_t i = 0; i < shown && std::getline(in, line); ++i)
        text += concat(first_columns(line, screen.columns), "\033[K\n");
    if (shown < lines)
        text +=
            concat(first_columns(concat(lines - shown, " more lines: a taller terminal shows them"), screen.columns),
                   "\033[K\n");
    return text + "\033[J";
}

// Prints the runs each second until all have ended.
void show(const std::vector<WatchedRun>& runs, const std::function<std::vector<report::LoggedStep>(size_t)>& update,
          bool redraws, bool once, const std::atomic<bool>& asked, const Io& io) {
    for (bool first = true;; first = false) {
        const double now = unix_time();
        const Screen screen = terminal_size();
        std::string picture, lines;
        bool all_ended = true;
        for (size_t i = 0; i < runs.size(); ++i) {
            const WatchedRun& run = runs[i];
            for (const report::LoggedStep& step : update(i))
                lines += concat(run.path(), " ", log_line(run, step), '\n');
            picture += render(run, screen.columns, now) + '\n';
            all_ended = all_ended && !goes_on(run);
        }
        const bool last = all_ended || once || asked;
        if (redraws)
            io.text() << drawn_anew(picture, screen, first) << std::flush;
        else if (!once)
            io.text() << lines << (last ? picture : "") << std::flush;
        else
            io.text() << picture << std::flush;
        if (last) break;
        for (int i = 0; i < 10 && !asked; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}

int watch(const WatchArguments& arguments, const Io& io) {
    std::vector<WatchedRun> runs;
    std::vector<double> flights;  // when each directory of flight records was changed
    for (const std::string& path : arguments.run_dirs) {
        const bool again =
            std::any_of(runs.begin(), runs.end(), [&](const WatchedRun& run) { return run.path() == path; });
        if (again) continue;
        report::check_holds_run(path);
        runs.emplace_back(path);
    }
    flights.resize(runs.size(), 0);
    // Reads a run's files; returns the new lines of its log.
    const auto update = [&](size_t i) {
        const double changed = changed_at(runs[i].path() + "/flight");
        if (std::exchange(flights[i], changed) != changed) runs[i].set_flight(flight_summary(runs[i].path()));
        return runs[i].update(unix_time());
    };
    const bool redraws = io.text_terminal() && !arguments.once;
    std::atomic<bool> asked = false;
    const StopSignals signals([&](int) { asked = true; });
    Json document = Json::object();
    if (arguments.http || !arguments.listen.empty()) {
        const auto update_all = [&] {
            for (size_t i = 0; i < runs.size(); ++i) update(i);
        };
        document["url"] = serve_runs(arguments.listen, runs, update_all, asked, io);
    } else {
        show(runs, update, redraws, arguments.once, asked, io);
    }
    document["runs"] = Json::array();
    for (const WatchedRun& run : runs) document["runs"].push_back(describe(run));
    io.print(document);
    return 0;
}

}  // namespace

report::FlightSummary flight_summary(const std::string& run_directory) {
    report::FlightSummary summary;
    if (!std::filesystem::is_directory(run_directory + "/flight")) return summary;
    try {
        const diagnose::FlightReading reading = diagnose::read_flight(run_directory);
        summary.missing = reading.missing;
        for (const diagnose::FlightFinding& finding : reading.findings) summary.findings.push_back(finding.text);
        for (const comm::FlightRecord& record : reading.records) {
            summary.written = std::max(summary.written, record.written);
            summary.last_operations[record.rank] = diagnose::last_operation(record);
        }
    } catch (const DataError&) {  // being written, or of an earlier version
    }
    return summary;
}

Command watch_command(Arguments& all, const Io& io) {
    auto& a = all.add<WatchArguments>();
    const Options options = {
        required({"RUN_DIR", "...", "", "directory of a run, going on or ended; several are shown below each other",
                  &a.run_dirs, kPath}),
        {"--once", "", "", "show the runs as they are, and end", &a.once, {}, {}, {"--http", "--listen"}},
        {"--http", "", "", "serve a live page and /metrics to this machine, at a free port", &a.http},
        {"--listen",
         "[ADDRESS:]PORT",
         "",
         "the same at this port; at an ADDRESS of this machine also to other machines",
         &a.listen,
         {},
         {},
         {"--http"}}};
    return command_of(
        "watch", "show runs while they go on: state, time left, checkpoint, loss", a, io, watch, options,
        "Reads the files of the runs and writes nothing. A terminal is redrawn each second; a pipe gets a\n"
        "line for each step. Ends with the last run, or by Ctrl-C.\n\n"
        "--http prints the URL of a page with the cards of `tutti report`, which is updated during the runs\n"
        "and stays available after them; chosen runs share their charts. From another machine: ssh -L\n"
        "6007:127.0.0.1:6007 HOST and --listen 6007. Other users of this machine can read the page, too.\n"
        "--listen 0.0.0.0:6007 opens it to the network, unencrypted: losses, config, host names. It then\n"
        "requires a token, in the URL or in the Authorization header of Prometheus.\n\n"
        "Examples:\n  tutti watch runs/bible\n  tutti watch runs/*\n  tutti watch runs/* --http\n"
        "  tutti watch runs/bible --once --json");
}

}  // namespace tutti::cli
