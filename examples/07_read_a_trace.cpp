// 07: reading a run's trace: where the time of its steps went, on each rank.
//   07_read_a_trace TEXT
// Trains a small Llama on two ranks with log.trace and reads trace.json. Spans of a rank's own thread nest: a step
// holds forwards, backwards and the optimizer, and these hold waits. So a span's time less that of the spans inside it
// belongs to its kind alone, and the kinds add up to the step. These sums must be those of the run's report
// (report::times_of, which unites and intersects stretches of time). Prints milliseconds of a step by kind.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/report/trace_read.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"

using namespace tutti;
using report::TracedSpan;

constexpr int kRanks = 2;
constexpr const char* kConfig = R"(
    model.preset = "llama-tiny"
    parallel.zero = 3
    log.trace = true
    [train]
    steps = 8
    seq_len = 64
    global_batch = 8
    micro_batch = 4
    threads = 1
)";
constexpr double kRounding_us = 2e-3;  // times are whole nanoseconds, read as doubles of microseconds

std::string kind_of(const TracedSpan& s) {
    if (s.activity == "step" || s.activity == "action") return "between spans";
    if (s.activity == "begin") return "wait";  // to begin an operation moves those that are under way
    if (s.activity != "compute") return s.activity;
    for (const char* pass : {"forward", "backward"})
        if (s.name.starts_with(pass)) return pass;  // "forward model.layers.3"
    return "optimizer";                             // gradient norm and update
}

// Milliseconds of all traced steps by kind.
std::map<std::string, double> times_by_kind(const report::TracedRank& rank) {
    std::vector<TracedSpan> spans;
    for (const TracedSpan& s : rank.spans)
        if (s.activity != "communication") spans.push_back(s);  // runs beside the rank's own thread
    std::stable_sort(spans.begin(), spans.end(), [](const TracedSpan& a, const TracedSpan& b) {
        return a.begin_us != b.begin_us ? a.begin_us < b.begin_us : a.end_us > b.end_us;
    });
    std::map<std::string, double> times;
    std::vector<const TracedSpan*> open;  // each inside the one before
    for (const TracedSpan& s : spans) {
        while (!open.empty() && open.back()->end_us <= s.begin_us + kRounding_us) open.pop_back();
        if (open.empty() && s.activity != "step") continue;  // between two steps
        const double ms = (s.end_us - s.begin_us) / 1000;
        times[kind_of(s)] += ms;
        if (!open.empty()) {
            check(s.end_us <= open.back()->end_us + kRounding_us, "rank ", rank.rank, ": required: spans nest, but ",
                  s.name, " ends ", s.end_us - open.back()->end_us, " us after ", open.back()->name,
                  ", which it is in");
            times[kind_of(*open.back())] -= ms;
        }
        open.push_back(&s);
    }
    return times;
}

void expect_near(const char* what, double ms, double expected_ms, const report::TracedRank& rank) {
    const double tolerance = static_cast<double>(rank.spans.size()) * kRounding_us / 1000;
    check(std::abs(ms - expected_ms) <= tolerance, "rank ", rank.rank, ": required: ", expected_ms, " ms of ", what,
          ", as the report has it, got ", ms);
}

int main(int argc, char** argv) try {
    check<UsageError>(argc == 2, "required: a text to learn; usage: 07_read_a_trace TEXT");
    train::TrainOptions options;
    options.out = "07_run";
    options.ranks = kRanks;
    options.run = spec::parse_text(kConfig, "07_read_a_trace", {std::string("data.train=") + argv[1]});
    spec::validate(options.run, kRanks);
    std::filesystem::remove_all(options.out);
    train::train(options);

    const std::vector<report::TracedRank> trace = report::read_trace(options.out + "/trace.json");
    check(trace.size() == kRanks, "required: the spans of ", kRanks, " ranks, got ", trace.size());
    const std::vector<report::RankTimes> times = report::times_of(trace);
    for (size_t r = 0; r < trace.size(); ++r) {
        std::map<std::string, double> by_kind = times_by_kind(trace[r]);
        const auto steps = static_cast<double>(times[r].steps);
        double sum = 0, compute = 0;
        std::printf("rank %zu: %.2f ms a step =", r, times[r].step_ms);
        for (auto& [kind, ms] : by_kind) {
            sum += ms /= steps;
            if (kind == "forward" || kind == "backward" || kind == "optimizer") compute += ms;
            std::printf("%s %.2f %s", kind == by_kind.begin()->first ? "" : " +", ms, kind.c_str());
        }
        std::printf("\n");
        expect_near("the step", sum, times[r].step_ms, trace[r]);
        expect_near("compute", compute, times[r].compute_ms, trace[r]);
        expect_near("data", by_kind["data"], times[r].data_ms, trace[r]);
        expect_near("waits", by_kind["wait"], times[r].wait_ms, trace[r]);
    }
    std::printf("open 07_run/trace.json in ui.perfetto.dev, 07_run/report.html in a browser\n");
} catch (const Error& error) {
    std::fprintf(stderr, "07_read_a_trace: %s\n", error.what());
    return error.exit_code();
}
