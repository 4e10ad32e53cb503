// train/run_directory.h: the files that a run leaves for people and tools: config.toml (resolved), the tokenizer,
// metrics.jsonl (one object per logged step), the same as TensorBoard event files when asked, run.json (totals) and
// report.html. Checkpoints lie beside them. Writing them never stops training: a full disk is said once and counted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/checkpoint/file_system.h"
#include "tutti/report/event_file.h"
#include "tutti/train/step_metrics.h"

namespace tutti::train {

// Makes the directory `path` (UsageError when it cannot) and holds it for one run: UsageError that names the other one.
// Removes what runs that were killed left half written there. Null where the file system knows no locks.
std::unique_ptr<checkpoint::FileLock> lock_run(const std::string& path);

class RunDirectory {
  public:
    using Warn = std::function<void(const std::string&)>;
    // Of a directory that exists. Lines of metrics.jsonl after `resumed_step` are dropped: a step is never logged
    // twice. So are damaged lines, with a warning that names them. DataError when that file cannot be read. With
    // `events`, each session has an event file in tensorboard/.
    RunDirectory(std::string path, int64_t resumed_step, bool events, Warn warn);

    const std::string& path() const { return path_; }
    void write_config(const std::string& toml);
    // A copy of the tokenizer's file, as tokenizer.json or tokenizer.model, and of those beside it that say which
    // tokens are special, so that the run can speak wherever it is. XXH128SUMS lists them.
    void copy_tokenizer(const std::string& file);
    void log(const StepMetrics& metrics);
    void write_totals(const std::string& json);  // the whole document
    void write_report(const std::string& html);

  private:
    void log_events(const StepMetrics& metrics);
    // False, and warned of, when it did not work.
    bool or_warn(const std::string& name, const std::function<void(checkpoint::FileSystem&)>& write);
    bool write_whole(const std::string& name, const std::string& text);
    void drop_lines_after(int64_t step);

    std::string path_;
    Warn warn_;
    std::optional<report::EventFile> events_;
    bool failed_ = false;  // said once
};

}  // namespace tutti::train
