// train/run_directory.h: the files that a run leaves for people and tools: config.toml (resolved), the tokenizer,
// metrics.jsonl (one object per logged step), the same as TensorBoard event files when asked, run.json (totals).
// Checkpoints lie beside them. Writing them never stops training: a full disk is said once and counted.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/engine/step.h"
#include "tutti/plan/memory.h"
#include "tutti/train/event_file.h"

namespace tutti::train {

// One line of metrics.jsonl (design.md, section 5). Numbers read back to the same bits.
struct StepMetrics {
    int64_t step = 0;
    int64_t tokens = 0;  // since the run began
    engine::StepResult result;
    double step_ms = 0;  // mean per step since the line before
    double tokens_per_s = 0;
    double mfu = 0, hfu = 0;  // of the peak measured at the start (device/cpu/peak.h), causal half
    int64_t mem_peak_bytes = 0;
    // Of the first rank per step since the line before, by group; in bytes those sent over links.
    struct Comm {
        std::string group;
        double operations = 0, bytes = 0, wait_ms = 0;
    };
    std::vector<Comm> comm;
    int64_t comm_bytes() const;  // of all groups
    int64_t skipped = 0;         // in the run so far
    std::optional<double> eval_loss;
};

class RunDirectory {
  public:
    using Warn = std::function<void(const std::string&)>;
    // Makes the directory when missing (UsageError when it cannot). Lines of metrics.jsonl after `resumed_step` are
    // dropped: a step is never logged twice. With `events`, each session has an event file in tensorboard/.
    RunDirectory(std::string path, int64_t resumed_step, bool events, Warn warn);

    const std::string& path() const { return path_; }
    void write_config(const std::string& toml);
    // A copy of the tokenizer's file, as tokenizer.json or tokenizer.model, and of those beside it that say which
    // tokens are special, so that the run can speak wherever it is.
    void copy_tokenizer(const std::string& file);
    void log(const StepMetrics& metrics);
    // `json` is the whole document; written beside and renamed.
    void write_totals(const std::string& json);

  private:
    void log_events(const StepMetrics& metrics);
    void write_whole(const std::string& name, const std::string& text);
    void drop_lines_after(int64_t step);

    std::string path_;
    Warn warn_;
    std::optional<EventFile> events_;
    bool failed_ = false;  // said once
};

}  // namespace tutti::train
