// cli/bench/step.cpp: `tutti bench step`: a training step and its MFU, by the five steps of the definition. The step is
// engine/step.cpp's own, on one batch in memory: reading data is not measured.
#include "tutti/engine/step.h"

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/io.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/models/flops.h"
#include "tutti/ops/kernel_times.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/spec/families.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

using diagnose::GemmShape, diagnose::measure_bandwidth, diagnose::normal_values, diagnose::time_gemm;

namespace {

struct StepMeasurement {
    Timing timing;
    std::vector<ops::KernelTimes::Row> kernels;  // of kTimedSteps steps, which `timing` leaves out
    double timed_s = 0;                          // that these took
    double first_loss = 0, last_loss = 0;
    int64_t memory = 0;  // peak, bytes
    kernels::GemmTuning tuning;
    std::vector<std::string> attention;  // requests that other kernels computed, or that have no times
};

constexpr int kTimedSteps = 3;

// Times the candidates of each product the first time that a step computes it. A second step does this for layouts
// whose communication occupies multiprocessors.
void tune(const spec::RunSpec& run, engine::Engine& engine, const std::function<void()>& take_step) {
    kernels::GemmTuning* tuning = engine.tuning.get();
    tuning->measures = true;
    take_step();
    if (run.comm.spare_multiprocessors && run.comm.max_ctas > 0) {
        const auto spared = static_cast<int>(run.comm.max_ctas);
        engine.device->choose_products({tuning, spared, spared});
        take_step();
        engine.device->choose_products({tuning});
    }
    tuning->measures = false;
}

kernels::GemmTuning tune_ranks(const spec::RunSpec& run, kernels::GemmTuning tuning) {
    for_each_rank(
        run,
        [&](engine::Machine& machine) { machine.tuning = std::make_unique<kernels::GemmTuning>(std::move(tuning)); },
        [&](engine::Engine& engine, const std::function<void()>& take_step) {
            tune(run, engine, take_step);
            tuning = std::move(*engine.tuning);
        });
    return tuning;
}

StepMeasurement measure_steps(const spec::RunSpec& run, const rehearsal::MemoryPlan& plan, double seconds,
                              const BenchArguments& arguments, comm::World& one_rank) {
    engine::Machine machine = engine::machine_of(run, {}, std::filesystem::temp_directory_path());
    machine.device->memory().open_arena(plan.arena);
    if (!arguments.tune.empty()) machine.tuning = std::make_unique<kernels::GemmTuning>(machine.kernels.gemm_tuning());
    engine::Engine engine(run, one_rank, std::move(machine), [&](ops::Context& ctx, const engine::BatchShard& share) {
        return engine::fixed_batches(ctx, run, share);
    });
    StepMeasurement measured;
    int64_t step = 0;
    const auto take_step = [&] {
        const engine::StepResult result = engine::train_step(engine, ++step);
        engine.device->synchronize();
        check(!result.skipped, "step ", step, " is not finite, first in ", result.culprit,
              ": the step was not complete and its time is meaningless; try a smaller optimizer.lr");
        if (step == 1) measured.first_loss = result.loss;
        measured.last_loss = result.loss;
    };
    if (!arguments.tune.empty()) tune(run, engine, take_step);
    measured.timing = time_calls({.seconds = seconds, .min_runs = 3, .max_runs = 100}, take_step);
    if (arguments.kernels) {
        ops::KernelTimes times;
        engine.ctx.meter = &times;
        const double begin = seconds_now();
        for (int i = 0; i < kTimedSteps; ++i) take_step();
        measured.timed_s = seconds_now() - begin;
        measured.kernels = times.rows();
        engine.ctx.meter = nullptr;
    }
    measured.memory = engine.device->memory().total().peak;
    if (engine.tuning) measured.tuning = *engine.tuning;
    for (const auto& [key, text] : engine.attention.others) measured.attention.push_back(text);
    if (engine.attention.tuning)
        for (const auto& [key, text] : engine.attention.tuning->missed)
            measured.attention.push_back("no measured times for attention, " + text);
    return measured;
}

// Measures the device's peak and a few products, larger ones where they are fast. Called before and after the steps,
// because the speed of a shared machine varies.
void see_peak(Bench& bench, Peak& peak) {
    const ArithmeticPeak now = bench.device->peak(bench.compute_type, 0.3);
    if (now.flops_per_s > peak.device.flops_per_s) peak.device = now;
    constexpr double kNoTime = 5e-3;
    double last = 0;
    for (int64_t n = 1024; n <= 2048 || (n <= 16384 && last < kNoTime); n *= 2) {
        const GemmShape shape{concat("N = ", n), n, n, n};
        const Timing t = time_gemm(bench.ctx, bench.dtype, shape, {.seconds = 0.5, .min_runs = 3, .max_runs = 20});
        peak.see_gemm(shape.flops() / t.min, concat(n, " x ", n, " x ", n));
        last = t.median;
    }
}

// All that the five steps need.
struct StepReport {
    const spec::RunSpec& run;
    const rehearsal::Rehearsal& rehearsal;
    StepMeasurement measured;
    Peak peak;

    double tokens() const { return static_cast<double>(run.train.global_batch * run.train.seq_len); }
    double seconds() const { return measured.timing.median; }
    double rate(double flops_per_token) const { return flops_per_token * tokens() / seconds(); }
    double share(double flops_per_token) const {
        return models::mfu(flops_per_token, tokens() / seconds(), peak.flops_per_s());
    }
    const models::TokenFlops& model() const { return rehearsal.counts.model; }
    const models::TokenFlops& hardware() const { return rehearsal.counts.hardware; }
    const char* unit() const { return !spec::traits_of(run.model).tokens ? "rows" : "tokens"; }
};

void print_head(const Bench& bench, const spec::RunSpec& run, const char* unit) {
    const spec::TrainSpec& t = run.train;
    const int64_t microbatches = t.global_batch / t.micro_batch;
    bench.text << run.model.preset;
    for (const std::string& set : bench.arguments.set) bench.text << ", " << set;
    bench.text << '\n'
               << format_count(static_cast<double>(models::parameter_count(run.model))) << " parameters, "
               << bench.compute_type << ", batch " << t.global_batch << " x " << t.seq_len << " = "
               << t.global_batch * t.seq_len << ' ' << unit << " in " << counted(microbatches, "microbatch")
               << ", recompute " << run.recompute.policy << '\n'
               << std::endl;
}

// Without attention the two conventions are one and need no names.
void print_five_steps(std::ostream& text, const StepReport& r) {
    const models::TokenFlops flops = r.model();
    const bool attention = flops.full_attention > 0;
    const char* causal = attention ? "causal" : "";
    const auto line = [&](const char* what, const std::string& value, const std::string& remark) {
        text << left(what, 25) << (remark.empty() ? value : left(value, 18) + remark) << '\n';
    };
    const auto full_line = [&](const std::string& value) {
        if (attention) line("", value, "full attention");
    };
    const Timing& t = r.measured.timing;
    line("1  FLOPs of the model", format_flops(flops.causal() * r.tokens()),
         concat(format_flops(flops.causal()), " x ", format_fixed(r.tokens(), 0), ' ', r.unit(),
                attention ? "; causal: half of the attention" : ""));
    full_line(format_flops(flops.full() * r.tokens()));
    line("2  time per step", format_time(t.median),
         concat("median of ", t.runs, "; ", format_time(t.min), " to ", format_time(t.max)));
    line("3  reached: 1 / 2", format_flop_rate(r.rate(flops.causal())), causal);
    full_line(format_flop_rate(r.rate(flops.full())));
    line("4  peak in this run", format_flop_rate(r.peak.flops_per_s()), r.peak.origin());
    line("", format_flop_rate(r.peak.gemm), "best matrix product, " + r.peak.gemm_shape);
    line("5  MFU: 3 / 4", format_percent(r.share(flops.causal())), causal);
    full_line(format_percent(r.share(flops.full())));
    line("   of the best product", format_percent(r.rate(flops.causal()) / r.peak.gemm), causal);
    if (r.run.recompute.policy != "none")
        line("   HFU", format_percent(r.share(r.hardware().causal())), "with recomputed FLOPs");
    text << '\n'
         << format_rate(r.tokens() / r.seconds(), r.unit()) << ", " << format_bytes(r.measured.memory)
         << " of memory at most, loss " << format_fixed(r.measured.first_loss, 4) << " to "
         << format_fixed(r.measured.last_loss, 4) << std::endl;
}

// How the calls of a row's kernel differ from those of a rehearsed step; "": they do not.
std::string difference_of(const std::vector<rehearsal::KernelTotal>& totals, const ops::KernelTimes::Row& row) {
    const auto total = std::find_if(totals.begin(), totals.end(), [&](const rehearsal::KernelTotal& t) {
        return t.kernel == row.kernel && t.work.shape == row.work.shape;
    });
    const int64_t rehearsed = total == totals.end() ? 0 : total->calls;
    if (row.calls == kTimedSteps * rehearsed) return "";
    return concat("the kernel ", row.kernel, " (", row.shape(), ") ran ", row.calls, " times in ", kTimedSteps,
                  " steps, and a rehearsed step calls it ", rehearsed, " times");
}

// Milliseconds of a step; the last line is what no kernel accounts for.
void print_kernels(std::ostream& text, const StepReport& r, double memory_bytes_per_s, BenchResult& result) {
    text << '\n'
         << left("kernel", 28) << left("shape", 46) << right("calls", 7) << right("ms", 10) << right("share", 9)
         << right("floor ms", 10) << right("of time", 9) << "  bound by\n";
    const double step_s = r.measured.timed_s / kTimedSteps, flops = r.peak.flops_per_s();
    const std::vector<rehearsal::KernelTotal> totals = kernel_totals(r.rehearsal.program);
    double rest = step_s;
    for (const ops::KernelTimes::Row& row : r.measured.kernels) {
        kernels::Work work = row.work;
        work.flops /= kTimedSteps;
        work.bytes /= kTimedSteps;
        // A defect, and the times are right all the same.
        if (std::string difference = difference_of(totals, row); !difference.empty()) {
            text << "note: " << difference << '\n';
            result.notes.push_back(std::move(difference));
        }
        const double seconds = row.seconds / kTimedSteps, floor = work.floor_s(flops, memory_bytes_per_s);
        const char* bound = work.flops / flops > work.bytes / memory_bytes_per_s ? "arithmetic" : "memory";
        rest -= seconds;
        text << left(row.kernel, 28) << left(row.shape(), 46) << right(std::to_string(row.calls / kTimedSteps), 7)
             << right(format_fixed(1e3 * seconds, 2), 10) << right(format_percent(seconds / step_s), 9)
             << right(format_fixed(1e3 * floor, 2), 10) << right(format_percent(floor / seconds), 9) << "  " << bound
             << '\n';
        result.rows.push_back({{"kernel", row.kernel},
                               {"shape", row.shape()},
                               {"calls", row.calls / kTimedSteps},
                               {"seconds", seconds},
                               {"share", seconds / step_s},
                               {"flops", work.flops},
                               {"bytes", work.bytes},
                               {"floor_s", floor},
                               {"bound_by", bound}});
    }
    text << left("outside kernels", 81) << right(format_fixed(1e3 * rest, 2), 10)
         << right(format_percent(rest / step_s), 9) << "\n\nFloor: FLOPs over the peak, or bytes over memory's "
         << format_fixed(memory_bytes_per_s / 1e9, 1)
         << " GB/s (a copy or an update in place); operands in a cache may beat it. A step took " << format_time(step_s)
         << " while its kernels were timed.\n";
}

// The time of each product by the heuristic's first algorithm, beside the fastest.
void print_tuning(std::ostream& text, const kernels::GemmTuning& tuning, BenchResult& result) {
    text << "\nmatrix products, " << tuning.library << ", by their first candidate and by the fastest\n"
         << right("first us", 10) << right("best us", 10) << right("gain", 8) << right("candidate", 11)
         << "  product\n";
    double first_s = 0, best_s = 0;
    for (const auto& [key, p] : tuning.products) {
        const double first = p.seconds.front(), best = p.seconds[to_size(p.candidate)];
        first_s += first;
        best_s += best;
        text << right(format_fixed(1e6 * first, 1), 10) << right(format_fixed(1e6 * best, 1), 10)
             << right(format_percent(first / best - 1), 8)
             << right(concat(p.candidate + 1, " of ", p.seconds.size()), 11) << "  " << p.text << '\n';
        result.rows.push_back({{"product", p.text},
                               {"first_s", first},
                               {"best_s", best},
                               {"candidate", p.candidate},
                               {"candidates", p.seconds.size()}});
    }
    text << right(format_fixed(1e6 * first_s, 1), 10) << right(format_fixed(1e6 * best_s, 1), 10)
         << right(format_percent(first_s / best_s - 1), 8) << "             each of them once" << std::endl;
    result.summary["tuned_products"] = tuning.products.size();
}

Json summary_of(const StepReport& r) {
    const spec::TrainSpec& train = r.run.train;
    const models::TokenFlops flops = r.model();
    Json record = {{"model", r.run.model.preset},
                   {"parameters", r.rehearsal.counts.parameters},
                   {"seq_len", train.seq_len},
                   {"global_batch", train.global_batch},
                   {"micro_batch", train.micro_batch},
                   {"recompute", r.run.recompute.policy},
                   {"tokens_per_step", train.global_batch * train.seq_len},
                   {"flops_per_token_causal", flops.causal()},
                   {"flops_per_token_full", flops.full()},
                   {"flops_per_step_causal", flops.causal() * r.tokens()},
                   {"flops_per_step_full", flops.full() * r.tokens()},
                   {"step_s", r.seconds()},
                   {"step_s_min", r.measured.timing.min},
                   {"step_s_max", r.measured.timing.max},
                   {"runs", r.measured.timing.runs},
                   {"tokens_per_s", r.tokens() / r.seconds()},
                   {"flops_per_s_causal", r.rate(flops.causal())},
                   {"flops_per_s_full", r.rate(flops.full())}};
    record.update(to_json(r.peak));
    record.update({{"mfu_causal", r.share(flops.causal())},
                   {"mfu_full", r.share(flops.full())},
                   {"hfu_causal", r.share(r.hardware().causal())},
                   {"share_of_best_gemm", r.rate(flops.causal()) / r.peak.gemm},
                   {"mem_peak_bytes", r.measured.memory},
                   {"first_loss", r.measured.first_loss},
                   {"last_loss", r.measured.last_loss}});
    return record;
}

}  // namespace

// Options given with --set override the benchmark's defaults.
spec::RunSpec step_run(const BenchArguments& a) {
    std::vector<std::string> overrides = {"model.preset=" + (a.model.empty() ? std::string("llama-tiny") : a.model),
                                          "precision.compute=" + a.dtype,
                                          "train.global_batch=8",
                                          "train.micro_batch=8",
                                          "train.steps=1000000",
                                          "train.device=" + a.device};
    overrides.insert(overrides.end(), a.set.begin(), a.set.end());
    spec::RunSpec run = spec::parse_text("", "bench step", overrides);
    check<UsageError>(run.data == spec::DataSpec{},
                      "bench step makes its own random tokens; leave [data] out of --set");
    if (spec::traits_of(run.model).tokens) run.data.train = {"random tokens"};
    if (a.threads > 0) run.train.threads = a.threads;
    const int64_t tp = run.parallel.tp;
    check<UsageError>(tp == 1 || !a.tune.empty(),
                      "bench step measures the step of a model on one rank, parallel.tp is ", tp,
                      "; only the products of ", tp, " ranks can be measured on one GPU: --tune FILE");
    spec::validate(run, static_cast<int>(tp));
    return run;
}

void for_each_rank(const spec::RunSpec& whole, const std::function<void(engine::Machine&)>& prepare,
                   const std::function<void(engine::Engine&, const std::function<void()>&)>& use) {
    spec::RunSpec run = whole;
    run.comm.gpu = "host";  // no other rank exists that could name its GPU
    const auto ranks = static_cast<int>(run.parallel.tp);
    for (int rank = 0; rank < ranks; ++rank) {
        comm::MetaWorld world(rank, ranks);
        engine::Machine machine = engine::machine_of(run, {}, std::filesystem::temp_directory_path());
        prepare(machine);
        engine::Engine engine(run, world, std::move(machine), [&](ops::Context& ctx, const engine::BatchShard& share) {
            return engine::fixed_batches(ctx, run, share);
        });
        int64_t step = 0;
        use(engine, [&] {
            engine::train_step(engine, ++step);
            engine.device->synchronize();
        });
    }
}

BenchResult bench_step(Bench& bench) {
    const spec::RunSpec run = step_run(bench.arguments);
    const auto tp = static_cast<int>(run.parallel.tp);
    const rehearsal::Rehearsal rehearsal =
        rehearsal::rehearse(run, rehearsal::target_of(engine::machine_of(run, {}, "")), tp, 0);
    const std::string& file = bench.arguments.tune;
    check<UsageError>(file.empty() || bench.ctx.kernels.gemm_tuning != nullptr, "--tune ", file,
                      ": cuBLASLt must make the products, and they are by ", bench.ctx.kernels.gemm_implementations(),
                      " on ", bench.device->name());
    check<UsageError>(file.empty() || (run.train.gemm_tuning.empty() && !bench.arguments.kernels), "--tune ", file,
                      " measures algorithms: leave train.gemm_tuning and --kernels out");
    const int64_t needed = rehearsal.memory.peak();
    check<UsageError>(needed < bench.device->free_bytes(), "a step of this model needs ", format_bytes(needed),
                      " of memory, available: ", format_bytes(bench.device->free_bytes()),
                      "; --set train.micro_batch=1, recompute.policy=full or a smaller model need less");
    StepReport report{run, rehearsal, {}, {}};
    BenchResult result;
    print_head(bench, run, report.unit());
    if (tp > 1) {
        const kernels::GemmTuning tuning = tune_ranks(run, bench.ctx.kernels.gemm_tuning());
        result.summary = {{"model", run.model.preset}, {"tp", run.parallel.tp}};
        write_file("--tune", file, tuning.to_json());
        print_tuning(bench.text, tuning, result);
        return result;
    }

    see_peak(bench, report.peak);
    bench.device->memory().trim();
    comm::run_ranks(1, {}, [&](comm::World& world) {
        report.measured =
            measure_steps(run, rehearsal.memory, std::max(bench.seconds_left() - 2, 1.0), bench.arguments, world);
    });
    see_peak(bench, report.peak);
    print_five_steps(bench.text, report);
    if (bench.ctx.kernels.slow_work)
        for (const std::string& text : bench.ctx.kernels.slow_work()) bench.note(result, text);
    for (const std::string& text : report.measured.attention) bench.note(result, text);
    result.summary = summary_of(report);
    if (!file.empty()) {
        write_file("--tune", file, report.measured.tuning.to_json());
        print_tuning(bench.text, report.measured.tuning, result);
    }
    for (const auto& [key, product] : report.measured.tuning.missed)
        bench.note(result, "no measured algorithm for " + product);
    if (bench.arguments.kernels) {
        const double bandwidth = measure_bandwidth(bench.ctx, {.seconds = 1, .min_runs = 5, .max_runs = 20});
        print_kernels(bench.text, report, bandwidth, result);
        result.summary["memory_bytes_per_s"] = bandwidth;
    }
    return result;
}

}  // namespace tutti::cli
