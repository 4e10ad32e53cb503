// train/run_directory.h: the files of a run for people and tools: config.toml (resolved), the tokenizer, metrics.jsonl
// (one object per logged step), the same as TensorBoard event files when asked, first_step.json (what the first step of
// a start showed), run.json (totals) and report.html. Checkpoints lie beside them. A failure to write never stops
// training: only the first one causes a warning. A directory that is taken away while the run goes on is made again at
// the next line of the log, with a warning.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/checkpoint/file_system.h"
#include "tutti/report/event_file.h"
#include "tutti/train/step_metrics.h"

namespace tutti::train {

// Makes the directory `path` and locks it for one run. UsageError when the directory cannot be made, when it holds
// files of a run's names that no run wrote, or when another run holds it, with the name of that run. Removes temporary
// files of killed runs. Null on a file system without locks.
std::unique_ptr<checkpoint::FileLock> lock_run(const std::string& path);

// Of a start that has begun no run nothing stays: removes this room's locks and `others` of the directory, unless
// anything else is there; then the directory, if the start has `made` it.
void remove_unless_begun(const std::string& path, bool made, const std::vector<std::filesystem::path>& others);

// Whether run.json says that the run in `path` ended by itself after `step`: its evaluation, sample and report are
// made.
bool has_results(const std::string& path, int64_t step);

class RunDirectory {
  public:
    using Warn = std::function<void(const std::string&)>;
    // `path` must exist. The first log() drops lines of metrics.jsonl after `resumed_step`, so that no step is logged
    // twice, and damaged lines, of which the constructor warns by name. DataError when metrics.jsonl cannot be read.
    // With `events`, each session has an event file in tensorboard/.
    RunDirectory(std::string path, int64_t resumed_step, bool events, Warn warn);

    const std::string& path() const { return path_; }
    void write_config(const std::string& toml);
    // Copies the tokenizer's file, as tokenizer.json or tokenizer.model, and the files beside it that name its special
    // tokens, so that the run directory is complete wherever it is moved. XXH128SUMS lists the copies.
    void copy_tokenizer(const std::string& file);
    void log(const StepMetrics& metrics);
    // The last line of the log if it is that of `step`, else an empty object.
    Json last_line(int64_t step) const { return split_before(step).second; }
    // Adds the eval_loss to that line.
    void log_evaluation(int64_t step, double loss);
    Json first_step() const;                         // what write_first_step() wrote; empty: nothing
    void write_first_step(const std::string& json);  // the whole document
    void write_totals(const std::string& json);      // the whole document
    void write_report(const std::string& html);

  private:
    void make_again();
    void log_events(const StepMetrics& metrics, const Json& line);  // `line`: of metrics.jsonl
    void add_events(int64_t step, const std::vector<report::Scalar>& scalars);
    // False, with a warning, when `write` fails.
    bool or_warn(const std::string& name, const std::function<void(checkpoint::FileSystem&)>& write);
    bool write_whole(const std::string& name, const std::string& text);
    std::optional<std::string> lines_up_to(int64_t step);
    std::pair<std::string, Json> split_before(int64_t step) const;

    std::string path_, config_, tokenizer_file_;
    std::optional<std::string> kept_;  // of metrics.jsonl, until the first log(); nothing: all lines
    Warn warn_;
    std::unique_ptr<checkpoint::FileLock> lock_;  // of a directory that was made again
    std::optional<report::EventFile> events_;
    bool failed_ = false;  // and warned of
};

}  // namespace tutti::train
