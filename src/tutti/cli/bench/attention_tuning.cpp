// cli/bench/attention_tuning.cpp: `tutti bench attention --tune`: every request of attention in a step, timed by all
// kernels that take it, and the file for [train] attention_tuning.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/io.h"
#include "tutti/kernels/backends.h"

namespace tutti::cli {

namespace {

void print_times(const Bench& bench, const kernels::AttentionTuning& tuning, BenchResult& result) {
    bench.text << "attention of a step, " << (tuning.library.empty() ? "without cuDNN" : tuning.library) << "\n"
               << right("us", 10) << "  " << left("by", 8) << "request\n";
    for (const auto& [key, request] : tuning.requests) {
        std::vector<std::pair<double, std::string>> times;
        Json seconds = Json::object();
        for (const auto& [kernels, time] : request.seconds) {
            times.emplace_back(time, kernels);
            seconds[kernels] = time;
        }
        std::sort(times.begin(), times.end());
        for (const auto& [time, kernels] : times)
            bench.text << right(format_fixed(1e6 * time, 1), 10) << "  " << left(kernels, 8) << request.text << '\n';
        result.rows.push_back({{"request", request.text}, {"fastest", times.front().second}, {"seconds", seconds}});
    }
    bench.text << std::flush;
}

}  // namespace

BenchResult tune_attention(Bench& bench) {
    const std::string& file = bench.arguments.tune;
    const kernels::Backend& backend = *kernels::backend_of(*bench.device);
    check<UsageError>(backend.attention_library != nullptr, "--tune ", file, ": there is one kernel of attention on ",
                      bench.device->name());
    spec::RunSpec run = step_run(bench.arguments);
    check<UsageError>(run.train.attention == "own", "--tune ", file,
                      " measures all kernels: leave train.attention and ", "train.attention_tuning out");
    run.train.attention = "fastest";
    kernels::AttentionTuning tuning = kernels::empty_attention_tuning(backend);
    BenchResult result;
    if (tuning.library.empty()) note_missing(bench, *backend.attention_library, result);
    for_each_rank(
        run,
        [&](engine::Machine& machine) {
            tuning.measures = true;
            machine.attention.tuning = std::make_unique<kernels::AttentionTuning>(std::move(tuning));
        },
        [&](engine::Engine& engine, const std::function<void()>& take_step) {
            take_step();
            tuning = std::move(*engine.attention.tuning);
        });
    tuning.measures = false;
    check<UsageError>(!tuning.requests.empty(), "--tune ", file, ": a step of ", run.model.preset, " has no attention");
    result.summary = {{"model", run.model.preset}, {"tp", run.parallel.tp}, {"library", tuning.library}};
    write_file("--tune", file, tuning.to_json());
    print_times(bench, tuning, result);
    return result;
}

}  // namespace tutti::cli
