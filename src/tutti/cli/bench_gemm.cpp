// cli/bench_gemm.cpp: `tutti bench gemm`: the HFU sweep. Square products that double in size until memory or patience
// ends, then, when asked, the products of a model; each as a share of the peak measured in the same run.
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench.h"
#include "tutti/cli/text.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/ops/loss_chunk.h"
#include "tutti/parallel/apply.h"
#include "tutti/spec/model_spec.h"

namespace tutti::cli {

using diagnose::GemmShape, diagnose::time_gemm;

namespace {

constexpr int64_t kSmallest = 512, kLargest = 8192, kLargestOfGpu = 32768;
constexpr int64_t kTokens = 4096;  // rows of a model's products

struct Sweep {
    Bench& bench;
    BenchResult result;
    Peak peak;
    std::vector<double> rates;  // FLOP/s, by row
};

std::string size_text(const GemmShape& s) { return concat(s.rows, " x ", s.out, " x ", s.in); }

// Bytes of x, w, y, and of the f32 values that fill the larger of x and w.
int64_t memory_of(const GemmShape& s, DType dtype) {
    const int64_t values = s.rows * s.in + s.out * s.in + s.rows * s.out;
    return values * (s.product == ops::Product::weight_gradient ? 4 : size_of(dtype)) +
           4 * std::max(s.rows, s.out) * s.in;
}

const char* name_of(ops::Product product) {
    switch (product) {
        case ops::Product::forward: return "y = x w^T";
        case ops::Product::input_gradient: return "dx = dy w";
        case ops::Product::weight_gradient: return "dw += dy^T x";
    }
    return "";
}

Timing measure(Sweep& sweep, const GemmShape& shape, double seconds) {
    Bench& bench = sweep.bench;
    std::string engine;
    const Timing t =
        time_gemm(bench.ctx, bench.dtype, shape, {.seconds = seconds, .min_runs = 3, .max_runs = 30}, &engine);
    const double rate = shape.flops() / t.median;
    sweep.peak.see_gemm(shape.flops() / t.min, size_text(shape));
    bench.text << left(shape.name, 24) << right(std::to_string(shape.rows), 7) << right(std::to_string(shape.out), 7)
               << right(std::to_string(shape.in), 7) << right(format_fixed(rate / 1e12, 3), 9)
               << right(format_percent(rate / sweep.peak.flops_per_s()), 9) << "  " << left(engine, 7)
               << timing_columns(t) << std::endl;
    BenchRecord row = {{"name", shape.name},  {"product", std::string(name_of(shape.product))},
                       {"rows", shape.rows},  {"out", shape.out},
                       {"in", shape.in},      {"flops", shape.flops()},
                       {"flops_per_s", rate}, {"engine", engine}};
    for (auto& entry : timing_record(t)) row.push_back(entry);
    sweep.result.rows.push_back(std::move(row));
    sweep.rates.push_back(rate);
    return t;
}

void sweep_squares(Sweep& sweep, double patience) {
    const double end = seconds_now() + patience;
    double last = 0;
    const bool gpu = sweep.bench.device->kind() == DeviceKind::cuda;
    for (int64_t n = kSmallest; n <= (gpu ? kLargestOfGpu : kLargest); n *= 2) {
        const GemmShape shape{concat("N = ", n), n, n, n};
        const double left_s = end - seconds_now(), predicted = 4 * 8 * last;  // two to warm up, two more; 8: (2 N)^3
        if (n > kSmallest && predicted > left_s) {
            sweep.bench.note(sweep.result,
                             concat("stopped before N = ", n, ": it needs about ", format_duration(predicted),
                                    ", patience has ", format_duration(std::max(left_s, 0.0)), " (--seconds)"));
            return;
        }
        if (memory_of(shape, sweep.bench.dtype) > sweep.bench.device->free_bytes()) {
            sweep.bench.note(sweep.result, concat("stopped before N = ", n, ": it needs ",
                                                  format_bytes(memory_of(shape, sweep.bench.dtype)), " of memory"));
            return;
        }
        last = measure(sweep, shape, std::min(2.0, left_s / 2)).median;
    }
}

// The linears of one block and the head, as models/gpt2.cpp and models/llama.cpp have them on these kernels.
std::vector<GemmShape> linears_of(const spec::ModelSpec& m, DType dtype, const kernels::KernelTable& kernels) {
    if (m.family == spec::Family::mlp) return {{"linear", kTokens, m.width, m.width}};
    const int64_t query = m.heads * m.head_dim, key = m.kv_heads * m.head_dim;
    std::vector<GemmShape> linears;
    const bool gpt2 = m.family == spec::Family::gpt2;
    if (gpt2 || (kernels.fused_projections && !m.head_norm)) {
        linears = {{"q k v", kTokens, query + 2 * key, m.width}};
    } else {
        linears = {{"q", kTokens, query, m.width}};
        if (key != query) linears.push_back({"k, v", kTokens, key, m.width});
    }
    linears.push_back({"attention out", kTokens, m.width, query});
    linears.push_back({gpt2 ? "ffn up" : "ffn gate, up", kTokens, m.ffn, m.width});
    linears.push_back({"ffn down", kTokens, m.width, m.ffn});
    constexpr int64_t kGrain = parallel::kVocabularyGrain;
    const int64_t words = (m.vocab + kGrain - 1) / kGrain * kGrain;
    linears.push_back(
        {"head", ops::loss_chunk_rows(kTokens, words * size_of(dtype), kernels.loss_chunk_bytes), words, m.width});
    return linears;
}

void sweep_model(Sweep& sweep, const std::string& name) {
    Bench& bench = sweep.bench;
    bench.text << '\n' << name << ", " << kTokens << " tokens: y = x w^T, dx = dy w, dw += dy^T x (f32)" << std::endl;
    std::vector<GemmShape> all;
    for (const GemmShape& linear : linears_of(spec::preset(name), bench.dtype, bench.ctx.kernels)) {
        for (const auto& [product, suffix] :
             {std::pair{ops::Product::forward, " y"}, std::pair{ops::Product::input_gradient, " dx"},
              std::pair{ops::Product::weight_gradient, " dw"}}) {
            all.push_back(linear);
            all.back().name += suffix;
            all.back().product = product;
        }
    }
    for (size_t i = 0; i < all.size(); ++i)
        measure(sweep, all[i], std::max(bench.patience_left(), 0.0) / static_cast<double>(all.size() - i));
}

}  // namespace

BenchResult bench_gemm(Bench& bench) {
    if (!bench.arguments.model.empty()) spec::preset(bench.arguments.model);  // a slip in the name is said at once
    Sweep sweep{bench, {}, measure_peak(bench, 0.5), {}};
    bench.text << "peak: " << format_flop_rate(sweep.peak.flops_per_s()) << ", " << sweep.peak.origin() << "\n\n"
               << left("", 24) << right("M", 7) << right("N", 7) << right("K", 7) << right("TFLOP/s", 9)
               << right("of peak", 9) << "  " << left("by", 7) << timing_heading() << std::endl;
    sweep_squares(sweep, bench.arguments.model.empty() ? bench.patience_left() : bench.patience_left() / 2);
    size_t best = 0;
    for (size_t i = 0; i < sweep.rates.size(); ++i)
        if (sweep.rates[i] > sweep.rates[best]) best = i;
    const double best_rate = sweep.rates.at(best);
    const std::string best_name = std::get<std::string>(sweep.result.rows[best][0].second);
    if (!bench.arguments.model.empty()) sweep_model(sweep, bench.arguments.model);

    for (size_t i = 0; i < sweep.rates.size(); ++i)
        sweep.result.rows[i].emplace_back("share_of_peak", sweep.rates[i] / sweep.peak.flops_per_s());
    add_peak(sweep.result.summary, sweep.peak);
    sweep.result.summary.emplace_back("best_square_flops_per_s", best_rate);
    bench.text << "\nbest square: " << format_flop_rate(best_rate) << " at " << best_name << ", "
               << format_percent(best_rate / sweep.peak.flops_per_s()) << " of the peak ("
               << format_flop_rate(sweep.peak.flops_per_s()) << ", " << sweep.peak.origin() << ")" << std::endl;
    return sweep.result;
}

}  // namespace tutti::cli
