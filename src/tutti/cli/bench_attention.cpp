// cli/bench_attention.cpp: `tutti bench attention`: causal self-attention, forward and forward with backward. FLOPs are
// the half that the mask leaves: forward 2 B H T^2 D (two products of 2 T^2 D, halved), backward 2.5 times that (five
// products), as in the FlashAttention papers. A window W takes the triangle of T - W away: T^2 - (T - W)^2.
#include <algorithm>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench.h"
#include "tutti/cli/text.h"
#include "tutti/kernels/cuda/attention_cudnn.h"
#include "tutti/ops/ops.h"

namespace tutti::cli {

using diagnose::normal_values;

namespace {

constexpr int64_t kWidth = 768, kWidthOfGpu = 4096;  // H D: 12 heads of 64, 6 of 128; 64 and 32

struct AttentionCase {
    int64_t T, D, window;  // 0: none
    int64_t width;
    int64_t H() const { return width / D; }
    double forward_flops() const {
        const int64_t hidden = window > 0 ? std::max<int64_t>(T - window, 0) : 0;
        return 2.0 * static_cast<double>(H() * D) * static_cast<double>(T * T - hidden * hidden);
    }
};

struct AttentionTimes {
    Timing forward, both;
};

AttentionTimes time_attention(const Bench& bench, ops::Context& ctx, const AttentionCase& c, double seconds) {
    const Shape shape = {1, c.T, c.H(), c.D};
    const kernels::AttentionMask mask{.window = c.window};
    const Tensor q = normal_values(ctx, shape, bench.dtype), k = normal_values(ctx, shape, bench.dtype);
    const Tensor v = normal_values(ctx, shape, bench.dtype), dy = normal_values(ctx, shape, bench.dtype);
    const Tensor dq = ops::empty(ctx, shape, bench.dtype), dk = ops::empty(ctx, shape, bench.dtype);
    const Tensor dv = ops::empty(ctx, shape, bench.dtype);
    const auto forward = [&] { return ops::attention(ctx, q, k, v, mask); };
    AttentionTimes times;
    times.forward = bench.time({.seconds = seconds / 4, .min_runs = 3, .max_runs = 30}, forward);
    times.both = bench.time({.seconds = seconds * 3 / 4, .min_runs = 3, .max_runs = 30}, [&] {
        const ops::Attention y = forward();
        ops::attention_backward(ctx, dy, q, k, v, y, mask, dq, dk, dv);
    });
    return times;
}

// Kernels that compute attention, and how rows call them.
struct Contender {
    std::string name;
    kernels::KernelTable table;
};

// On a GPU cuDNN's beside those of the run, where this build and this machine have it.
std::vector<Contender> contenders(const Bench& bench, BenchResult& result) {
    const char* named = std::getenv("TUTTI_CUDA_ATTENTION");
    const bool gpu = bench.device->kind() == DeviceKind::cuda;
    std::vector<Contender> all = {{gpu && named != nullptr ? named : "own", bench.ctx.kernels}};
    if (!gpu || all[0].name == "cudnn") return all;
    try {
        kernels::KernelTable table = bench.ctx.kernels;
        kernels::cuda::use_cudnn_attention(table);
        all.push_back({"cudnn", table});
    } catch (const UsageError& missing) {
        bench.note(result, concat("cuDNN is not timed: ", missing.what()));
    }
    return all;
}

void print_and_add(Bench& bench, BenchResult& result, const std::string& by, const AttentionCase& c,
                   const AttentionTimes& times, const Peak& peak) {
    struct Pass {
        const char* name;
        const Timing& timing;
        double flops;
    };
    for (const Pass& pass : {Pass{"forward", times.forward, c.forward_flops()},
                             Pass{"forward, backward", times.both, 3.5 * c.forward_flops()}}) {
        const double rate = pass.flops / pass.timing.median, share = rate / peak.flops_per_s();
        bench.text << right(std::to_string(c.T), 7) << right(std::to_string(c.H()), 5) << right(std::to_string(c.D), 6)
                   << "  " << left(pass.name, 19) << right(format_fixed(rate / 1e12, 3), 9)
                   << right(format_percent(share), 10) << "  " << left(by, 7) << timing_columns(pass.timing)
                   << std::endl;
        BenchRecord row = {{"T", c.T},
                           {"H", c.H()},
                           {"D", c.D},
                           {"window", c.window},
                           {"pass", std::string(pass.name)},
                           {"by", by},
                           {"flops", pass.flops},
                           {"flops_per_s", rate},
                           {"share_of_peak", share}};
        for (auto& entry : timing_record(pass.timing)) row.push_back(entry);
        result.rows.push_back(std::move(row));
    }
}

}  // namespace

BenchResult bench_attention(Bench& bench) {
    BenchResult result;
    const int64_t window = bench.arguments.window;
    const Peak peak = measure_peak(bench, 0.5);
    const std::vector<Contender> all = contenders(bench, result);
    bench.text << "peak: " << format_flop_rate(peak.flops_per_s()) << ", " << peak.origin()
               << "\ncausal half convention, batch 1" << (window > 0 ? concat(", window of ", window, " keys") : "")
               << "\n\n"
               << right("T", 7) << right("H", 5) << right("D", 6) << left("", 21) << right("TFLOP/s", 9)
               << right("of peak", 10) << "  " << left("by", 7) << timing_heading() << std::endl;
    double last = 0;  // seconds that the measurements of the last T took with the fewest runs
    for (int64_t T = 1024; T <= 16384; T *= 2) {
        const double predicted = 4 * last;
        if (predicted > bench.patience_left()) {
            bench.note(result, concat("stopped before T = ", T, ": it needs about ", format_duration(predicted),
                                      ", patience has ", format_duration(std::max(bench.patience_left(), 0.0)),
                                      " (--seconds)"));
            break;
        }
        last = 0;
        for (const int64_t D : {64, 128}) {
            const bool gpu = bench.device->kind() == DeviceKind::cuda;
            const AttentionCase c{T, D, window, gpu ? kWidthOfGpu : kWidth};
            for (const Contender& contender : all) {
                ops::Context ctx{*bench.device, contender.table};
                const AttentionTimes times = time_attention(bench, ctx, c, std::min(2.0, bench.patience_left() / 4));
                print_and_add(bench, result, contender.name, c, times, peak);
                last += 4 * (times.forward.median + times.both.median);  // a call to warm up, three runs
            }
        }
    }
    add_peak(result.summary, peak);
    return result;
}

}  // namespace tutti::cli
