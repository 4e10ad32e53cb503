// report/run_history.h: reads the files of a run directory into plain data, from which pages and CSV are made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/report/precision.h"
#include "tutti/report/time_spent.h"
#include "tutti/report/trace_read.h"

namespace tutti::report {

// A rank since the previous line. A log has all ranks of a run of up to kMostRanks; of a larger one those with the
// shortest, the middle and the longest wait.
struct RankFigures {
    int rank = 0;
    double wait_ms = 0;  // for other ranks, per step
    double mem_peak_bytes = 0;
    bool operator==(const RankFigures&) const = default;
};
inline constexpr size_t kMostRanks = 64;

// One line of metrics.jsonl. nullopt: the line lacks the key. NaN: the value is null, which stands for a number that is
// not finite.
struct LoggedStep {
    int64_t step = 0;
    int64_t skipped_before = 0;  // steps skipped since the previous line, this one included
    std::optional<double> tokens, loss, eval_loss, grad_norm, lr, step_ms, tokens_per_s;
    std::optional<double> mfu, hfu;  // shares of the dense peak: 0.37, not 37
    std::optional<double> mem_peak_bytes, comm_bytes, bubble;
    std::optional<double> aux_loss, router_entropy, dropped_share;  // of a mixture of experts
    std::optional<double> loss_scale;
    std::optional<double> fp8_saturated, fp8_flushed;  // shares of the values cast to 8 bits
    std::vector<double> mtp_losses;                    // by depth of multi-token prediction
    std::vector<std::vector<double>> expert_load;      // (layers with experts, E): multiples of the mean
    std::vector<int64_t> expert_layers;                // the layers with experts; may be missing
    std::string skip_reason;                           // the name of the non-finite value, if known
    struct Group {
        std::optional<double> operations, bytes, wait_ms;
    };
    std::map<std::string, Group> comm;  // by group of ranks
    std::vector<RankFigures> ranks;     // none of a run of one rank
    std::optional<double> time;         // of the line, in seconds of the system's clock
    std::optional<TimeSpent> spent;     // of the run until then
};

// The key of mtp_losses in metrics.jsonl, and the name of one of them on pages and in other logs: "mtp_loss_1".
inline constexpr const char* kMtpLosses = "mtp_losses";
std::string name_of_mtp_loss(size_t k);  // k from 0

// The numbers of a line by their keys in metrics.jsonl. Their tags in TensorBoard's event files are those that Hugging
// Face's trainer and the large trainers have in common, as far as they agree.
struct LoggedNumber {
    const char* key;
    std::optional<double> LoggedStep::*value;
    const char* tag = nullptr;  // null: not in event files
};
inline constexpr LoggedNumber kLoggedNumbers[] = {
    {"tokens", &LoggedStep::tokens, "train/tokens"},
    {"loss", &LoggedStep::loss, "train/loss"},
    {"eval_loss", &LoggedStep::eval_loss, "eval/loss"},
    {"grad_norm", &LoggedStep::grad_norm, "train/grad_norm"},
    {"lr", &LoggedStep::lr, "train/learning_rate"},
    {"step_ms", &LoggedStep::step_ms, "perf/step_ms"},
    {"tokens_per_s", &LoggedStep::tokens_per_s, "perf/tokens_per_s"},
    {"mfu", &LoggedStep::mfu, "perf/mfu"},
    {"hfu", &LoggedStep::hfu, "perf/hfu"},
    {"mem_peak_bytes", &LoggedStep::mem_peak_bytes, "perf/mem_peak_bytes"},
    {"comm_bytes", &LoggedStep::comm_bytes, "perf/comm_bytes"},
    {"bubble", &LoggedStep::bubble, "perf/bubble"},
    {"aux_loss", &LoggedStep::aux_loss, "train/aux_loss"},
    {"router_entropy", &LoggedStep::router_entropy, "experts/entropy"},
    {"dropped_share", &LoggedStep::dropped_share, "experts/dropped_share"},
    {"loss_scale", &LoggedStep::loss_scale, "train/loss_scale"},
    {"fp8_saturated", &LoggedStep::fp8_saturated, "train/fp8_saturated"},
    {"fp8_flushed", &LoggedStep::fp8_flushed, "train/fp8_flushed"},
    {"time", &LoggedStep::time}};

// Bytes of one purpose (weights, gradients, optimizer, ...), as planned and as the allocator counted.
struct MemoryUse {
    std::string purpose;
    std::optional<double> predicted_bytes, measured_bytes;
};

// Bytes of a rank by purpose at the peak of the first step, and as rehearsed.
struct RankMemory {
    int rank = 0;
    std::map<std::string, double> measured, predicted;
    bool operator==(const RankMemory&) const = default;
};

// What the flight records of a failed run say (diagnose/flight_findings.h).
struct FlightSummary {
    double written = 0;                          // in seconds of the system's clock; 0: there are none
    std::vector<std::string> findings;           // sentences, the cause first
    std::vector<int> missing;                    // ranks without a record: killed
    std::map<int, std::string> last_operations;  // by rank
};

// The model, machine and results of a run. Each is optional: first_step.json, which a run writes after its first step,
// has some, run.json at its end all.
struct RunTotals {
    std::string model, machine, sample, layout, version;
    std::string peak_origin;  // how the peak was obtained
    std::string loss_unit = "nats per token";
    std::optional<double> parameters, tokens, wall_s, final_loss, peak_flops;
    std::vector<MemoryUse> memory;  // of the first rank
    std::vector<RankMemory> ranks;
    std::optional<TimeSpent> spent;
};

// The prediction of `tutti simulate --run`: predicted.json and predicted_trace.json.
struct PredictedStep {
    std::string machine;
    double step_s = 0, low_s = 0, high_s = 0;
    double peak_bytes = 0;
    double goodput = 0, between_failures_s = 0;  // 0: not in the file
    int64_t first = 1, last = 0;                 // the steps that are alike, those of a stage; last 0: all
    std::map<std::string, double> sent;          // bytes of the first rank in a step, by group
    std::vector<TracedRank> trace;
};

struct RunHistory {
    std::string name;  // of the run directory
    std::vector<LoggedStep> steps;
    RunTotals totals;
    std::string config;             // text of config.toml
    std::vector<TracedRank> trace;  // of trace.json; empty without it
    std::optional<PredictedStep> predicted;
    std::optional<PrecisionReading> precision;  // of precision.json, by `tutti inspect --precision`
    FlightSummary flight;                       // read by others than this room
    std::vector<std::string> notes;             // sentences about missing or incomplete files
};

// A line of metrics.jsonl; `where` names it in errors ("runs/a/metrics.jsonl:12"), `skipped_total` is the count of
// skipped steps up to the line before and is updated. Nothing for the line with which a log may begin, which sets
// `totals`. DataError for damage.
std::optional<LoggedStep> read_step(const std::string& line, const std::string& where, int64_t& skipped_total,
                                    RunTotals& totals);

// Reads metrics.jsonl (required), first_step.json, run.json and config.toml (the last two noted when absent),
// trace.json, the prediction and precision.json. A last line of metrics.jsonl that was cut off by a crash is left out
// with a note. Any other damage throws DataError with file:line.
RunHistory read_run(const std::filesystem::path& run_dir);

// DataError for what is no directory.
void check_run_directory(const std::filesystem::path& run_dir);
// The same, also for a directory in which no run has begun.
void check_holds_run(const std::filesystem::path& run_dir);

std::string name_of_run(const std::filesystem::path& run_dir);

// Of the newest line, or of run.json.
std::optional<TimeSpent> newest_times(const RunHistory& run);
// The memory at a rank's peak as it was rehearsed; 0: not known.
double predicted_bytes(const RunHistory& run, int rank);

// The same but for metrics.jsonl: everything of `run` that another file has. DataError for a damaged one.
void read_other_files(const std::filesystem::path& run_dir, RunHistory& run);
// The names of those files.
inline constexpr const char* kOtherFiles[] = {"first_step.json", "run.json",       "config.toml",
                                              "trace.json",      "predicted.json", "predicted_trace.json",
                                              "precision.json"};

}  // namespace tutti::report
