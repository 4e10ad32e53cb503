// report/run_history.h: reads the files of a run directory into plain data, from which pages and CSV are made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/report/precision.h"
#include "tutti/report/trace_read.h"

namespace tutti::report {

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
    std::vector<std::vector<double>> expert_load;  // (layers with experts, E): multiples of the mean
    std::vector<int64_t> expert_layers;            // the layers with experts; may be missing
    std::string skip_reason;                       // the name of the non-finite value, if known
    struct Group {
        std::optional<double> operations, bytes, wait_ms;
    };
    std::map<std::string, Group> comm;  // by group of ranks
};

// The numbers of a line by their keys in metrics.jsonl.
inline constexpr std::pair<const char*, std::optional<double> LoggedStep::*> kLoggedNumbers[] = {
    {"tokens", &LoggedStep::tokens},
    {"loss", &LoggedStep::loss},
    {"eval_loss", &LoggedStep::eval_loss},
    {"grad_norm", &LoggedStep::grad_norm},
    {"lr", &LoggedStep::lr},
    {"step_ms", &LoggedStep::step_ms},
    {"tokens_per_s", &LoggedStep::tokens_per_s},
    {"mfu", &LoggedStep::mfu},
    {"hfu", &LoggedStep::hfu},
    {"mem_peak_bytes", &LoggedStep::mem_peak_bytes},
    {"comm_bytes", &LoggedStep::comm_bytes},
    {"bubble", &LoggedStep::bubble},
    {"aux_loss", &LoggedStep::aux_loss},
    {"router_entropy", &LoggedStep::router_entropy},
    {"dropped_share", &LoggedStep::dropped_share},
    {"loss_scale", &LoggedStep::loss_scale}};

// A line of metrics.jsonl; `where` names it in errors ("runs/a/metrics.jsonl:12"), `skipped_total` is the count of
// skipped steps up to the line before and is updated. DataError for damage.
LoggedStep read_step(const std::string& line, const std::string& where, int64_t& skipped_total);

// Bytes of one purpose (weights, gradients, optimizer, ...), as planned and as the allocator counted.
struct MemoryUse {
    std::string purpose;
    std::optional<double> predicted_bytes, measured_bytes;
};

// The model, machine and results of a run. Each is optional, because an unfinished run has no totals.
struct RunTotals {
    std::string model, machine, sample;
    std::string peak_origin;  // how the peak was obtained
    std::string loss_unit = "nats per token";
    std::optional<double> parameters, tokens, wall_s, final_loss, peak_flops;
    std::vector<MemoryUse> memory;
};

// The prediction of `tutti simulate --run`: predicted.json and predicted_trace.json.
struct PredictedStep {
    std::string machine;
    double step_s = 0, low_s = 0, high_s = 0;
    double peak_bytes = 0;
    std::map<std::string, double> sent;  // bytes of the first rank in a step, by group
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
    std::vector<std::string> notes;             // sentences about missing or incomplete files
};

// Reads metrics.jsonl (required), run.json and config.toml (each noted when absent), trace.json, the prediction and
// precision.json. A last line of metrics.jsonl that was cut off by a crash is left out with a note. Any other damage
// throws DataError with file:line.
RunHistory read_run(const std::filesystem::path& run_dir);

}  // namespace tutti::report
