// cli/bench_step.cpp: `tutti bench step`: a training step and its MFU, by the five steps of the definition. The step is
// train/step.cpp's own, on one batch that lies ready: reading data is not part of it.
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/philox.h"
#include "tutti/cli/bench.h"
#include "tutti/cli/machine.h"
#include "tutti/cli/text.h"
#include "tutti/plan/flops.h"
#include "tutti/plan/memory.h"
#include "tutti/plan/units.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/step.h"

namespace tutti::cli {

namespace {

// What was given with --set counts over what a benchmark would choose.
spec::RunSpec run_of(const BenchArguments& a) {
    std::vector<std::string> overrides = {"model.preset=" + (a.model.empty() ? std::string("llama-tiny") : a.model),
                                          "precision.compute=" + a.dtype, "train.global_batch=8", "train.micro_batch=8",
                                          "train.steps=1000000"};
    overrides.insert(overrides.end(), a.set.begin(), a.set.end());
    spec::RunSpec run = spec::parse_text("", "bench step", overrides);
    if (run.model.family != spec::Family::mlp) run.data.train = {"random tokens"};
    spec::validate(run, 1);
    return run;
}

// The same values for every microbatch of every step.
class FixedBatches final : public train::Batches {
  public:
    FixedBatches(ops::Context& ctx, const spec::RunSpec& run) : terms_(run.train.global_batch * run.train.seq_len) {
        const int64_t B = run.train.micro_batch, T = run.train.seq_len;
        if (run.model.family == spec::Family::mlp) {
            const DType compute = run.precision.compute == "bf16" ? DType::bf16 : DType::f32;
            batch_.features = normal_values(ctx, {B * T, run.model.width}, compute);
            batch_.feature_targets = normal_values(ctx, {B * T, run.model.width}, compute);
        } else {
            std::vector<int32_t> windows(static_cast<size_t>(B * (T + 1)));
            const RandomKey key = random_key(static_cast<uint64_t>(run.train.seed), "bench tokens");
            for (size_t i = 0; i < windows.size(); ++i)
                windows[i] = static_cast<int32_t>(uniform_below(key, i, static_cast<uint64_t>(run.model.vocab)));
            batch_ = nn::make_batch(ctx.device, windows, B, 0);
        }
        batch_.grad_scale = 1.0f / static_cast<float>(terms_);
    }
    nn::Batch microbatch(int64_t, int64_t) override { return batch_; }
    int64_t terms(int64_t) override { return terms_; }

  private:
    nn::Batch batch_;
    int64_t terms_;
};

struct StepMeasurement {
    Timing timing;
    double first_loss = 0, last_loss = 0;
};

StepMeasurement measure_steps(Bench& bench, const spec::RunSpec& run, double seconds) {
    models::Model model = models::make_model(bench.ctx, run.model, run.train.seq_len);
    models::materialize(bench.ctx, model, bench.dtype, static_cast<uint64_t>(run.train.seed), true);
    optim::Optimizer optimizer(bench.ctx, model.parameters(), run.optimizer);
    FixedBatches batches(bench.ctx, run);
    train::StepContext context{bench.ctx, model, optimizer, batches, run};
    StepMeasurement measured;
    int64_t step = 0;
    measured.timing = time_calls({.seconds = seconds, .min_runs = 3, .max_runs = 100}, [&] {
        const train::StepResult result = train::train_step(context, ++step);
        bench.device->synchronize();
        check(!result.skipped, "step ", step, " is not finite, first in ", result.culprit,
              ": it was not a whole step and its time means nothing; try a smaller optimizer.lr");
        if (step == 1) measured.first_loss = result.loss;
        measured.last_loss = result.loss;
    });
    return measured;
}

// Register loop and a few products; before and after the steps, because a shared machine changes its mind.
void see_peak(Bench& bench, Peak& peak) {
    const Peak now = measure_peak(bench, 0.3);
    if (now.registers.flops_per_s > peak.registers.flops_per_s) peak.registers = now.registers;
    for (const int64_t n : {1024, 2048}) {
        const GemmShape shape{concat("N = ", n), n, n, n};
        const Timing t = time_gemm(bench, shape, {.seconds = 0.5, .min_runs = 3, .max_runs = 20});
        peak.see_gemm(shape.flops() / t.min, concat(n, " x ", n, " x ", n));
    }
}

struct Mfu {
    double flops = 0;  // of one step, on the model or the hardware
    double rate = 0;   // FLOP/s
    double share = 0;
};

Mfu mfu_of(double flops_per_token, double tokens, double seconds, const Peak& peak) {
    return {flops_per_token * tokens, flops_per_token * tokens / seconds,
            plan::mfu(flops_per_token, tokens / seconds, peak.flops_per_s())};
}

}  // namespace

BenchResult bench_step(Bench& bench) {
    const spec::RunSpec run = run_of(bench.arguments);
    bench.dtype = run.precision.compute == "bf16" ? DType::bf16 : DType::f32;
    const spec::TrainSpec& t = run.train;
    const int64_t needed = plan::predict_memory(run).peak();
    check<UsageError>(needed < available_memory(), "a step of this model needs about ", plan::format_bytes(needed),
                      " of memory, available are ", plan::format_bytes(available_memory()),
                      "; --set train.micro_batch=1, recompute.policy=full or a smaller model need less");
    const auto tokens = static_cast<double>(t.global_batch * t.seq_len);
    const char* unit = run.model.family == spec::Family::mlp ? " rows" : " tokens";
    bench.text << run.model.preset << ": " << plan::format_count(static_cast<double>(spec::parameter_count(run.model)))
               << " parameters, " << bench.dtype << ", batch " << t.global_batch << " x " << t.seq_len << " = "
               << t.global_batch * t.seq_len << unit << " in " << t.global_batch / t.micro_batch
               << (t.global_batch == t.micro_batch ? " microbatch" : " microbatches") << ", recompute "
               << run.recompute.policy << '\n'
               << std::endl;

    Peak peak;
    see_peak(bench, peak);
    const StepMeasurement measured = measure_steps(bench, run, std::max(bench.patience_left() - 2, 1.0));
    const int64_t memory = bench.device->memory().total().peak;
    see_peak(bench, peak);

    const double seconds = measured.timing.median;
    const plan::TokenFlops flops = plan::model_flops(run.model, t.seq_len);
    const plan::TokenFlops hardware = plan::hardware_flops(run.model, t.seq_len, run.recompute.policy);
    const Mfu causal = mfu_of(flops.causal(), tokens, seconds, peak),
              full = mfu_of(flops.full(), tokens, seconds, peak);
    const Mfu hfu = mfu_of(hardware.causal(), tokens, seconds, peak);

    const auto line = [&](const char* what, const std::string& value, const std::string& remark) {
        bench.text << left(what, 25) << left(value, 18) << remark << '\n';
    };
    const bool attention = flops.full_attention > 0;
    line("1  FLOPs of the model", plan::format_flops(causal.flops),
         concat("a step: ", plan::format_flops(flops.causal()), " x ", t.global_batch * t.seq_len, unit,
                attention ? ", attention's causal half" : ""));
    if (attention) line("", plan::format_flops(full.flops), "with full attention");
    line("2  time per step", short_time(seconds),
         concat("median of ", measured.timing.runs, "; ", short_time(measured.timing.min), " to ",
                short_time(measured.timing.max)));
    line("3  reached: 1 / 2", plan::format_flop_rate(causal.rate), "causal");
    if (attention) line("", plan::format_flop_rate(full.rate), "full");
    line("4  peak in this run", plan::format_flop_rate(peak.flops_per_s()), peak.origin());
    line("", plan::format_flop_rate(peak.gemm), "best matrix product, " + peak.gemm_shape);
    line("5  MFU: 3 / 4", plan::format_percent(causal.share), attention ? "causal" : "");
    if (attention) line("", plan::format_percent(full.share), "full");
    if (run.recompute.policy != "none")
        line("   HFU", plan::format_percent(hfu.share), "with what is recomputed, causal");
    line("   of the best product", plan::format_percent(causal.rate / peak.gemm), attention ? "causal" : "");
    bench.text << '\n'
               << plan::format_rate(tokens / seconds, unit + 1) << ", " << plan::format_bytes(memory)
               << " of memory at most, loss " << fixed(measured.first_loss, 4) << " to " << fixed(measured.last_loss, 4)
               << std::endl;

    BenchResult result;
    result.summary = {{"model", run.model.preset},
                      {"parameters", spec::parameter_count(run.model)},
                      {"seq_len", t.seq_len},
                      {"global_batch", t.global_batch},
                      {"micro_batch", t.micro_batch},
                      {"recompute", run.recompute.policy},
                      {"tokens_per_step", t.global_batch * t.seq_len},
                      {"flops_per_token_causal", flops.causal()},
                      {"flops_per_token_full", flops.full()},
                      {"flops_per_step_causal", causal.flops},
                      {"flops_per_step_full", full.flops},
                      {"step_s", seconds},
                      {"step_s_min", measured.timing.min},
                      {"step_s_max", measured.timing.max},
                      {"runs", int64_t{measured.timing.runs}},
                      {"tokens_per_s", tokens / seconds},
                      {"flops_per_s_causal", causal.rate},
                      {"flops_per_s_full", full.rate}};
    add_peak(result.summary, peak);
    for (auto& entry : BenchRecord{{"mfu_causal", causal.share},
                                   {"mfu_full", full.share},
                                   {"hfu_causal", hfu.share},
                                   {"share_of_best_gemm", causal.rate / peak.gemm},
                                   {"mem_peak_bytes", memory},
                                   {"first_loss", measured.first_loss},
                                   {"last_loss", measured.last_loss}})
        result.summary.push_back(entry);
    return result;
}

}  // namespace tutti::cli
