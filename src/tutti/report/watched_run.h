// report/watched_run.h: a run directory while the run goes on, or after it: what is new is read, nothing is written;
// and the run as lines of a terminal.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tutti/report/run_events.h"
#include "tutti/report/run_history.h"
#include "tutti/report/svg.h"
#include "tutti/spec/run_spec.h"

namespace tutti::report {

class WatchedRun {
  public:
    enum class State {
        waiting,  // no step is logged yet
        running,
        stopped,  // by a signal, with a checkpoint: the same command continues
        ended,    // all steps are done
        died,     // its process is gone and has written no end
        silent,   // of another host: no line for long, so it may have died
    };

    // UsageError where `path` is no directory.
    explicit WatchedRun(std::string path);

    // Reads what the files have gained. `now`: seconds of the system's clock. Returns the new lines of metrics.jsonl.
    // A resumed run replaces that file: the new one is read from its start, and lines seen before are left out. A
    // damaged file is left out with a note in history().notes.
    std::vector<LoggedStep> update(double now);

    const std::string& path() const { return path_; }
    State state() const { return state_; }
    int64_t steps() const { return config_ ? config_->train.steps : 0; }  // train.steps of the config; 0: not known yet
    // "stage 2 of 3, until step 1500: train.seq_len = 8192", of the newest line; "" of a run without stages.
    std::string stage() const;
    const std::optional<LoggedStep>& last() const { return last_; }
    const std::optional<LoggedStep>& last_evaluation() const { return last_evaluation_; }
    double last_line() const { return last_line_; }  // time of the newest line, in seconds of the system's clock
    int64_t skipped() const { return skipped_; }
    std::optional<double> seconds_left() const;  // of a running run

    struct Checkpoint {
        int64_t step = 0;
        double written = 0;  // in seconds of the system's clock
    };
    const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }

    const std::vector<RunEvent>& events() const { return events_; }
    // The newest start by `tutti launch`, and the newest death of a rank or host that ended one; nullptr: none.
    const RunEvent* start() const { return newest(kStarted); }
    const RunEvent* death() const { return newest(kDied); }

    // The run as a page draws it: at most kMostPoints lines, of which each is the mean of lines_of_point() of the log
    // (cumulative numbers: of the last one), and the other files.
    static constexpr size_t kMostPoints = 2000;
    const RunHistory& history() const { return history_; }
    int64_t lines_of_point() const { return stride_; }
    static constexpr size_t kTail = 30;
    const std::deque<LoggedStep>& tail() const { return tail_; }  // the last lines as they are
    // Sums over all lines that were read, in seconds; of the first rank by group, and by rank.
    struct Sums {
        double positions = 0;  // computed, with or without a target
        std::map<std::string, double> wait_of_group;
        std::map<int, double> wait_of_rank;
    };
    const Sums& sums() const { return sums_; }
    // Of flight records, which another room reads; nothing where they are older than the newest line.
    void set_flight(FlightSummary flight) { history_.flight = std::move(flight); }

  private:
    // Whether a file has changed since the last call with it.
    struct Stamp {
        uint64_t file = 0;
        int64_t size = -1;
        double modified = 0;
        bool operator==(const Stamp&) const = default;
    };
    bool has_changed(const std::string& name);
    void read_log(std::vector<LoggedStep>& added);
    void take(const std::string& line, std::vector<LoggedStep>& added);
    void read_other();
    void read_checkpoints();
    void find_state(double now);
    const RunEvent* newest(std::string_view kind) const;

    std::string path_, checkpoints_;
    State state_ = State::waiting;
    std::optional<spec::RunSpec> config_;
    int64_t skipped_ = 0;
    std::optional<LoggedStep> last_, last_evaluation_;
    std::optional<Checkpoint> checkpoint_;
    double last_line_ = 0;
    std::vector<RunEvent> events_;
    RunHistory history_;
    RunTotals header_;                   // of the log's first line
    std::vector<std::string> damaged_;   // notes of this log
    int64_t stride_ = 1, in_point_ = 0;  // lines of a point, and of the last one so far
    std::deque<LoggedStep> tail_;
    Sums sums_;
    std::map<std::string, Stamp> stamps_;  // by name in the run directory

    uint64_t file_ = 0;  // inode of metrics.jsonl
    int64_t offset_ = 0, line_ = 0;
    std::unordered_set<size_t> seen_;  // hashes of lines
};

// Appends a line of the log to at most `most` points of `stride` lines each, the last one of `in_point` so far.
void add_point(std::vector<LoggedStep>& points, const LoggedStep& line, size_t most, int64_t& stride,
               int64_t& in_point);

const char* name_of(WatchedRun::State state);  // "running"

// ---- on a terminal (watch_screen.cpp) ----

// The run as lines for a terminal of `columns` columns: state, progress, the newest numbers, the curve of the loss.
std::string render(const WatchedRun& run, size_t columns, double now);
// A line of the log on one line: "step 40/400   loss 2.1000   ...".
std::string log_line(const WatchedRun& run, const LoggedStep& step);

// `points` as a picture of braille characters (2 x 4 dots each) in `rows` lines of `columns` columns, with the largest
// and the smallest value beside it. "" without two finite points.
std::string braille_curve(const std::vector<Point>& points, size_t columns, size_t rows);

}  // namespace tutti::report
