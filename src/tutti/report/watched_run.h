// report/watched_run.h: a run directory while the run goes on, or after it: what is new is read, nothing is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "tutti/report/run_events.h"
#include "tutti/report/run_history.h"

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
    // A resumed run replaces that file: the new one is read from its start, and lines seen before are left out.
    std::vector<LoggedStep> update(double now);

    const std::string& path() const { return path_; }
    State state() const { return state_; }
    int64_t steps() const { return steps_; }  // train.steps of the config; 0: not known yet
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

    // The newest start by `tutti launch`, and the newest death of a rank or host that ended one; nullptr: none.
    const RunEvent* start() const;
    const RunEvent* death() const;

    struct Point {
        double step, loss;
    };
    static constexpr size_t kMostPoints = 2000;  // older neighbours are averaged beyond
    const std::vector<Point>& curve() const { return curve_; }

  private:
    void read_config();
    void read_checkpoints();
    void add_point(Point point);
    void find_state(double now);

    std::string path_, checkpoints_;
    State state_ = State::waiting;
    int64_t steps_ = 0, skipped_ = 0;
    std::optional<LoggedStep> last_, last_evaluation_;
    std::optional<Checkpoint> checkpoint_;
    double last_line_ = 0;
    std::vector<RunEvent> events_;
    std::vector<Point> curve_;
    int64_t stride_ = 1, in_point_ = 0;  // lines of a point, and of the last one so far

    uint64_t file_ = 0;  // inode of metrics.jsonl
    int64_t offset_ = 0, line_ = 0;
    std::unordered_set<size_t> seen_;  // hashes of lines
};

const char* name_of(WatchedRun::State state);  // "running"

// The run as lines for a terminal of `columns` columns: state, progress, the newest numbers, the curve of the loss.
std::string render(const WatchedRun& run, size_t columns, double now);
// A new line of the log on one line.
std::string render(const WatchedRun& run, const LoggedStep& step);

// `points` as a picture of braille characters (2 x 4 dots each) in `rows` lines of `columns` columns, with the largest
// and the smallest value beside it. "" without two finite points.
std::string braille_curve(const std::vector<WatchedRun::Point>& points, size_t columns, size_t rows);

}  // namespace tutti::report
