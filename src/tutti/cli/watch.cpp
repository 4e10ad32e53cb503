// cli/watch.cpp: `tutti watch`: runs while they go on, read from their directories (report/watched_run.h).
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/report/watched_run.h"

namespace tutti::cli {

namespace {

using report::WatchedRun;

double clock_now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

size_t terminal_columns() {
    struct winsize size = {};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

bool goes_on(const WatchedRun& run) {
    using enum WatchedRun::State;
    return run.state() == waiting || run.state() == running || run.state() == silent;
}

Json describe(const WatchedRun& run) {
    Json document = {{"run", run.path()}, {"state", name_of(run.state())}, {"steps", run.steps()}};
    if (const auto& last = run.last()) {
        document["step"] = last->step;
        for (const auto& [key, number] : report::kLoggedNumbers)
            if (const auto& value = (*last).*number)
                document[key] = std::isfinite(*value) ? Json(*value) : Json(nullptr);
    }
    if (const auto left = run.seconds_left()) document["seconds_left"] = *left;
    if (const auto& c = run.checkpoint()) document["checkpoint"] = {{"step", c->step}, {"written", c->written}};
    document["skipped"] = run.skipped();
    if (const report::RunEvent* start = run.start()) {
        document["generation"] = start->generation;
        document["ranks"] = start->ranks;
    }
    if (const report::RunEvent* death = run.death())
        document["death"] = {{"generation", death->generation}, {"text", death->text}, {"time", death->time}};
    return document;
}

}  // namespace

int watch(const WatchArguments& arguments, const Io& io) {
    std::vector<WatchedRun> runs;
    for (const std::string& path : arguments.run_dirs) runs.emplace_back(path);
    const bool redraws = io.text_terminal() && !arguments.once;
    std::atomic<bool> asked = false;
    const StopSignals signals([&](int) { asked = true; });
    for (bool first = true;; first = false) {
        const double now = clock_now();
        std::string picture, lines;
        bool all_ended = true;
        for (WatchedRun& run : runs) {
            for (const report::LoggedStep& step : run.update(now)) lines += render(run, step) + '\n';
            picture += render(run, terminal_columns(), now) + '\n';
            all_ended = all_ended && !goes_on(run);
        }
        const bool last = all_ended || arguments.once || asked;
        if (redraws)
            io.text() << (first ? "\033[2J" : "") << "\033[H" << picture << "\033[J" << std::flush;
        else if (!arguments.once)
            io.text() << lines << (last ? picture : "") << std::flush;
        else
            io.text() << picture << std::flush;
        if (last) break;
        for (int i = 0; i < 10 && !asked; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    Json documents = Json::array();
    for (const WatchedRun& run : runs) documents.push_back(describe(run));
    io.print(Json{{"runs", documents}});
    return 0;
}

}  // namespace tutti::cli
