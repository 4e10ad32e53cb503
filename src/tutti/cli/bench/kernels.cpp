// cli/bench/kernels.cpp: `tutti bench memory`, `tutti bench gemm` and `tutti bench attention`: kernels by themselves,
// beside the ceilings of the machine.
#include <algorithm>
#include <map>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/backends.h"
#include "tutti/ops/ops.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/spec/families.h"
#include "tutti/spec/model_spec.h"

namespace tutti::cli {

using diagnose::copy_values, diagnose::filled, diagnose::GemmShape, diagnose::kBufferBytes, diagnose::normal_values,
    diagnose::time_gemm;

namespace {

using kernels::KernelTable;

// --- tutti bench memory ---------------------------------------------------------------------------------------------
// The ceiling is a plain copy; kernels with little arithmetic per byte should come near it. Bytes are those that the
// algorithm must read and write; a store that first fetches its cache line moves more.

constexpr int64_t kRowWidth = 1024;

struct MemoryCase {
    std::string name;
    std::string traffic;  // per value
    double bytes;         // of one call
    std::function<void()> call;
};

// McCalpin's STREAM triad, a = b + s c, in f32.
void triad(const Stream& stream, const Tensor& b, const Tensor& c, const Tensor& a) {
    parallel_for(stream, a.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
        const float* __restrict x = b.view().as<float>();
        const float* __restrict y = c.view().as<float>();
        float* __restrict z = a.view().as<float>();
        for (int64_t i = begin; i < end; ++i) z[i] = x[i] + 3.0f * y[i];
    });
}

// Bytes of a copy between two buffers of kBufferBytes, read and written.
constexpr double kCopyBytes = 2.0 * kBufferBytes;

// Runs one case, prints its line, adds its row. Returns bytes per second.
double measure(Bench& bench, BenchResult& result, const MemoryCase& c, double copy_rate, int cases) {
    const Timing t = bench.time({.seconds = bench.seconds_left() / cases, .min_runs = 5, .max_runs = 30}, c.call);
    const double rate = c.bytes / t.median;
    const double share = copy_rate > 0 ? rate / copy_rate : 1;
    bench.text << left(c.name, 20) << left(c.traffic, 26) << right(format_fixed(rate / 1e9, 1), 8)
               << right(format_percent(share), 10) << timing_columns(t) << std::endl;
    Json row = {{"name", c.name}, {"bytes", c.bytes}, {"bytes_per_s", rate}, {"share_of_copy", share}};
    row.update(to_json(t));
    result.rows.push_back(std::move(row));
    return rate;
}

// Least bytes per value of AdamW: master, m, v are read and written, the gradient is read, the rounded copy written.
// `moments`: f32, or u8 with a largest magnitude for each kStateBlock of them.
MemoryCase adamw_case(Bench& bench, int64_t values, DType moments, std::vector<Tensor>& keep) {
    const auto add = [&](int64_t n, DType type, float value) {
        keep.push_back(filled(bench.ctx, {n}, type == DType::u8 ? DType::f32 : type, value));
        return keep.back().view();
    };
    const bool rounded = bench.dtype == DType::bf16, codes = moments == DType::u8;
    kernels::OptimizerPiece piece{.master = add(values, DType::f32, 0), .gradient = add(values, DType::f32, 1e-3f)};
    piece.weight_decay = 0.1f;
    if (rounded) piece.value = add(values, DType::bf16, 0);
    for (kernels::Moment* moment : {&piece.m, &piece.v}) {
        if (!codes) {
            moment->values = add(values, DType::f32, 0);
            continue;
        }
        moment->values = View(add(values / 4, DType::f32, 0).data, DType::u8, {values});  // codes of any value
        moment->largest = add(values / kernels::kStateBlock, DType::f32, 1e-3f);
    }
    const double bytes = 12 + (rounded ? 2 : 0) + (codes ? 4 + 16.0 / kernels::kStateBlock : 16);
    return {
        codes ? "adamw, 8 bits" : "adamw",
        concat(codes ? "f32, 2 u8 rw, 1 r" : "3 f32 rw, 1 r", rounded ? ", bf16 w" : ""),
        static_cast<double>(values) * bytes, [&bench, piece] {
            const kernels::AdamW update{.pieces = {&piece, 1}, .lr = 1e-4f, .correction1 = 0.1f, .correction2 = 0.05f};
            ops::call(bench.ctx, &KernelTable::adamw, "adamw", update);
        }};
}

}  // namespace

BenchResult bench_memory(Bench& bench) {
    BenchResult result;
    constexpr int kBuffers = 6;  // that live at once, AdamW's five and one
    check(bench.device->free_bytes() > kBuffers * kBufferBytes, "bench memory needs ",
          format_bytes(kBuffers * kBufferBytes), " of memory, available: ", format_bytes(bench.device->free_bytes()));
    bench.text << left("", 20) << left("traffic per value", 26) << right("GB/s", 8) << right("of copy", 10)
               << timing_heading() << std::endl;

    double copy_rate = 0;
    constexpr double kBytes = kBufferBytes;
    {
        const int64_t n = kBufferBytes / 4;
        const Tensor a = filled(bench.ctx, {n}, DType::f32, 1), b = filled(bench.ctx, {n}, DType::f32, 2);
        const Tensor c = filled(bench.ctx, {n}, DType::f32, 3);
        copy_rate =
            measure(bench, result, {"copy", "1 r, 1 w", kCopyBytes, [&] { copy_values(bench.ctx, a, b); }}, 0, 7);
        if (bench.device->host_readable()) {  // a loop of the host
            const Stream& stream = bench.device->stream();
            const MemoryCase of_triad{"triad (f32)", "2 r, 1 w", 3 * kBytes, [&] { triad(stream, a, b, c); }};
            result.summary["triad_bytes_per_s"] = measure(bench, result, of_triad, copy_rate, 6);
        }
    }
    {
        const int64_t rows = kBufferBytes / size_of(bench.dtype) / kRowWidth;
        const Shape shape = {rows, kRowWidth};
        const Tensor x = filled(bench.ctx, shape, bench.dtype, 1), z = filled(bench.ctx, shape, bench.dtype, 2);
        const Tensor y = filled(bench.ctx, shape, bench.dtype, 0), w = filled(bench.ctx, {kRowWidth}, bench.dtype, 1);
        const Tensor rstd = filled(bench.ctx, {rows}, DType::f32, 0);
        ops::Context& ctx = bench.ctx;
        const auto rms_norm = [&] {
            ops::call(ctx, &KernelTable::norm_forward, "norm_forward",
                      kernels::NormForward{.x = x, .w = w, .eps = 1e-5f, .y = y, .rstd = rstd});
        };
        const bool at_once = ctx.kernels.norm_gradients_at_once;
        const Tensor dw = filled(bench.ctx, {kRowWidth}, DType::f32, 0);
        const auto rms_norm_backward = [&] {
            ops::call(ctx, &KernelTable::norm_backward_input, "norm_backward_input",
                      kernels::NormBackward{
                          .dy = z, .x = x, .w = w, .rstd = rstd, .dx = y, .dw = at_once ? dw.view() : View()});
        };
        const auto add = [&] { ops::call(ctx, &KernelTable::add, "add", x, z, y); };
        const auto swiglu = [&] {
            ops::call(ctx, &KernelTable::swiglu_forward, "swiglu_forward", ops::Gate::silu, x, z, y);
        };
        measure(bench, result, {"rms_norm", "1 r, 1 w", 2 * kBytes, rms_norm}, copy_rate, 5);
        measure(bench, result,
                {"rms_norm backward", at_once ? "2 r, 1 w, and dw" : "2 r, 1 w", 3 * kBytes, rms_norm_backward},
                copy_rate, 4);
        measure(bench, result, {"add", "2 r, 1 w", 3 * kBytes, add}, copy_rate, 3);
        measure(bench, result, {"swiglu", "2 r, 1 w", 3 * kBytes, swiglu}, copy_rate, 2);
    }
    bench.device->memory().trim();
    for (const DType moments : {DType::f32, DType::u8}) {
        std::vector<Tensor> keep;
        measure(bench, result, adamw_case(bench, kBufferBytes / 4, moments, keep), copy_rate,
                moments == DType::f32 ? 2 : 1);
    }
    result.summary["copy_bytes_per_s"] = copy_rate;
    result.summary["buffer_bytes"] = kBufferBytes;
    bench.text << "\nBuffers of " << format_bytes(kBufferBytes)
               << "; medians. of copy: the share of the copy's rate.\n";
    return result;
}

// --- tutti bench gemm -----------------------------------------------------------------------------------------------
// The HFU sweep: square products that double in size until memory or time ends, then, when asked, the products of a
// model; each as a share of the peak measured in the same run.

namespace {

constexpr int64_t kProductRows = 4096;  // rows of a model's products

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
    return values * (s.product == ops::GemmRole::weight_gradient ? 4 : size_of(dtype)) +
           4 * std::max(s.rows, s.out) * s.in;
}

const char* formula_of(ops::GemmRole product) {
    constexpr const char* kFormulas[] = {"y = x w^T", "dx = dy w", "dw += dy^T x"};  // by GemmRole
    return kFormulas[to_size(product)];
}

Timing measure(Sweep& sweep, const GemmShape& shape, double seconds) {
    Bench& bench = sweep.bench;
    std::string implementation;
    const Timing t =
        time_gemm(bench.ctx, bench.dtype, shape, {.seconds = seconds, .min_runs = 3, .max_runs = 30}, &implementation);
    const double rate = shape.flops() / t.median;
    sweep.peak.see_gemm(shape.flops() / t.min, size_text(shape));
    bench.text << left(shape.name, 24) << right(std::to_string(shape.rows), 7) << right(std::to_string(shape.out), 7)
               << right(std::to_string(shape.in), 7) << right(format_fixed(rate / 1e12, 3), 9)
               << right(format_percent(rate / sweep.peak.flops_per_s()), 9) << "  " << left(implementation, 7)
               << timing_columns(t) << std::endl;
    Json row = {{"name", shape.name},  {"product", formula_of(shape.product)},
                {"rows", shape.rows},  {"out", shape.out},
                {"in", shape.in},      {"flops", shape.flops()},
                {"flops_per_s", rate}, {"implementation", implementation}};
    row.update(to_json(t));
    sweep.result.rows.push_back(std::move(row));
    sweep.rates.push_back(rate);
    return t;
}

void sweep_sizes(Sweep& sweep, const std::vector<GemmShape>& products, double seconds) {
    for (const GemmShape& shape : products) {
        const int64_t bytes = memory_of(shape, sweep.bench.dtype);
        if (bytes > sweep.bench.device->free_bytes())
            sweep.bench.note(sweep.result,
                             concat(shape.name, " is left out: it needs ", format_bytes(bytes), " of memory"));
        else
            measure(sweep, shape, seconds / double(products.size()));
    }
    check<UsageError>(!sweep.rates.empty(), "--sizes: no product fits the memory of this machine");
}

void sweep_squares(Sweep& sweep, double seconds) {
    const double end = seconds_now() + seconds;
    double last = 0;
    const bool gpu = !sweep.bench.device->host_readable();
    for (int64_t n = kSmallestSide; n <= (gpu ? kLargestSideOfGpu : kLargestSide); n *= 2) {
        const GemmShape shape{concat("N = ", n), n, n, n};
        const double left_s = end - seconds_now(), predicted = 4 * 8 * last;  // two to warm up, two more; 8: (2 N)^3
        if (n > kSmallestSide && predicted > left_s) {
            sweep.bench.note(sweep.result,
                             concat("stopped before N = ", n, ": it needs about ", format_duration(predicted), ", and ",
                                    format_duration(std::max(left_s, 0.0)), " of --seconds are left"));
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

// The products of a training step of the model on one rank, by shape, as a rehearsal finds them; those of experts,
// which are grouped, are left out.
struct StepProduct {
    GemmShape shape;
    int64_t calls;
};
std::vector<StepProduct> products_of_step(const Bench& bench, BenchResult& result) {
    BenchArguments step = bench.arguments;
    const spec::ModelSpec model = spec::preset(step.model);
    const int64_t seq_len = spec::traits_of(model).tokens ? std::min(kProductRows, model.max_positions) : kProductRows;
    const int64_t batch = kProductRows / seq_len;
    step.set = {concat("train.seq_len=", seq_len), concat("train.micro_batch=", batch),
                concat("train.global_batch=", batch)};
    const spec::RunSpec run = step_run(step);
    const rehearsal::Rehearsal rehearsed =
        rehearsal::rehearse(run, rehearsal::target_of(engine::machine_of(run, {}, "")), 1, 0);
    std::map<std::tuple<int64_t, int64_t, int64_t, ops::GemmRole>, int64_t> calls;
    int64_t grouped = 0;
    for (const rehearsal::KernelTotal& total : rehearsal::kernel_totals(rehearsed.program)) {
        const std::string_view kernel = total.kernel;
        if (kernel == "grouped_gemm") grouped += total.calls;
        if (kernel != "gemm") continue;
        const kernels::ProblemShape& shape = total.work.shape;
        const auto [M, K, N] = std::tuple(shape.sizes[0], shape.sizes[1], shape.sizes[2]);
        if (shape.transpose_a)
            calls[{K, M, N, ops::GemmRole::weight_gradient}] += total.calls;
        else if (shape.transpose_b)
            calls[{M, N, K, ops::GemmRole::forward}] += total.calls;
        else
            calls[{M, K, N, ops::GemmRole::input_gradient}] += total.calls;
    }
    std::vector<StepProduct> products;
    for (const auto& [key, times] : calls) {
        const auto [rows, out, in, role] = key;
        constexpr const char* kResults[] = {"y", "dx", "dw"};  // by GemmRole
        products.push_back(
            {{concat(kResults[to_size(role)], ", ", counted(times, "time")), rows, out, in, role}, times});
    }
    if (grouped > 0)
        bench.note(result,
                   concat(grouped, " grouped products of experts are left out; bench step --kernels times them"));
    return products;
}

void sweep_model(Sweep& sweep) {
    Bench& bench = sweep.bench;
    bench.text << '\n'
               << bench.arguments.model << ", the products of a step of " << kProductRows
               << " tokens: y = x w^T, dx = dy w, dw += dy^T x (f32)" << std::endl;
    const std::vector<StepProduct> all = products_of_step(bench, sweep.result);
    for (size_t i = 0; i < all.size(); ++i) {
        measure(sweep, all[i].shape, std::max(bench.seconds_left(), 0.0) / static_cast<double>(all.size() - i));
        sweep.result.rows.back()["calls"] = all[i].calls;
    }
}

}  // namespace

BenchResult bench_gemm(Bench& bench) {
    Sweep sweep{bench, {}, Peak{bench.device->peak(bench.compute_type, 0.5)}, {}};
    bench.text << "peak: " << format_flop_rate(sweep.peak.flops_per_s()) << ", " << sweep.peak.origin() << "\n\n"
               << left("", 24) << right("M", 7) << right("N", 7) << right("K", 7) << right("TFLOP/s", 9)
               << right("of peak", 9) << "  " << left("by", 7) << timing_heading() << std::endl;
    const double seconds = bench.arguments.model.empty() ? bench.seconds_left() : bench.seconds_left() / 2;
    if (!bench.arguments.sizes)
        sweep_squares(sweep, seconds);
    else
        sweep_sizes(sweep, products_of(*bench.arguments.sizes), seconds);
    size_t best = 0;
    for (size_t i = 0; i < sweep.rates.size(); ++i)
        if (sweep.rates[i] > sweep.rates[best]) best = i;
    const double best_rate = sweep.rates.at(best);
    const std::string best_name = sweep.result.rows[best]["name"].text();
    if (!bench.arguments.model.empty()) sweep_model(sweep);

    for (size_t i = 0; i < sweep.rates.size(); ++i)
        sweep.result.rows[i]["share_of_peak"] = sweep.rates[i] / sweep.peak.flops_per_s();
    sweep.result.summary.update(to_json(sweep.peak));
    sweep.result.summary["best_square_flops_per_s"] = best_rate;
    bench.text << (bench.arguments.sizes ? "\nbest: " : "\nbest square: ") << format_flop_rate(best_rate) << " at "
               << best_name << ", " << format_percent(best_rate / sweep.peak.flops_per_s()) << " of the peak ("
               << format_flop_rate(sweep.peak.flops_per_s()) << ", " << sweep.peak.origin() << ")" << std::endl;
    return sweep.result;
}

// --- tutti bench attention ------------------------------------------------------------------------------------------
// Causal self-attention, forward and forward with backward. FLOPs are the half that the mask leaves: forward 2 B H T^2
// D (two products of 2 T^2 D, halved), backward 2.5 times that (five products), as in the FlashAttention papers. A
// window W takes the triangle of T - W away: T^2 - (T - W)^2.

namespace {

constexpr int64_t kAttentionWidth = 768, kAttentionWidthOfGpu = 4096;  // H D: 12 heads of 64, 6 of 128; 64 and 32

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
    std::string by;  // the kernels
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
    times.by = ctx.kernels.attention_implementation(ctx.device.stream(), {.q = q, .k = k, .v = v, .o = q});
    times.forward = bench.time({.seconds = seconds / 4, .min_runs = 3, .max_runs = 30}, forward);
    times.both = bench.time({.seconds = seconds * 3 / 4, .min_runs = 3, .max_runs = 30}, [&] {
        const ops::Attention y = forward();
        ops::attention_backward(ctx, dy, q, k, v, y, mask, dq, dk, dv);
    });
    return times;
}

// The kernels to time: those that were asked for, without a library that this build or this machine lacks.
std::vector<kernels::AttentionChoice> contenders(const Bench& bench, BenchResult& result) {
    const kernels::AttentionLibrary* library = kernels::backend_of(*bench.device)->attention_library;
    std::vector<kernels::AttentionChoice> all;
    std::vector<std::string> asked = bench.arguments.by;
    if (asked.empty()) asked = {"own"};
    if (bench.arguments.by.empty() && library != nullptr) asked.emplace_back(library->name);
    for (const std::string& by : asked) {
        if (library != nullptr && by == library->name && note_missing(bench, *library, result)) continue;
        all.push_back(kernels::attention_choice(*bench.device, by, ""));
    }
    return all;
}

void print_and_add(Bench& bench, BenchResult& result, const AttentionCase& c, const AttentionTimes& times,
                   const Peak& peak) {
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
                   << right(format_percent(share), 10) << "  " << left(times.by, 7) << timing_columns(pass.timing)
                   << std::endl;
        Json row = {{"T", c.T},
                    {"H", c.H()},
                    {"D", c.D},
                    {"window", c.window},
                    {"pass", pass.name},
                    {"by", times.by},
                    {"flops", pass.flops},
                    {"flops_per_s", rate},
                    {"share_of_peak", share}};
        row.update(to_json(pass.timing));
        result.rows.push_back(std::move(row));
    }
}

}  // namespace

bool note_missing(const Bench& bench, const kernels::AttentionLibrary& library, BenchResult& result) {
    try {
        library.version();
        return false;
    } catch (const UsageError& missing) {
        bench.note(result, concat(library.title, " is not timed: ", missing.what()));
        return true;
    }
}

BenchResult bench_attention(Bench& bench) {
    if (!bench.arguments.tune.empty()) return tune_attention(bench);
    BenchResult result;
    const int64_t window = bench.arguments.window;
    const Peak peak = Peak{bench.device->peak(bench.compute_type, 0.5)};
    std::vector<kernels::AttentionChoice> all = contenders(bench, result);
    bench.text << "peak: " << format_flop_rate(peak.flops_per_s()) << ", " << peak.origin()
               << "\ncausal half convention, batch 1" << (window > 0 ? concat(", window of ", window, " keys") : "")
               << "\n\n"
               << right("T", 7) << right("H", 5) << right("D", 6) << left("", 21) << right("TFLOP/s", 9)
               << right("of peak", 10) << "  " << left("by", 7) << timing_heading() << std::endl;
    double last = 0;  // seconds that the measurements of the last T took with the fewest runs
    for (int64_t T = 1024; T <= 16384; T *= 2) {
        const double predicted = 4 * last;
        if (predicted > bench.seconds_left()) {
            bench.note(result,
                       concat("stopped before T = ", T, ": it needs about ", format_duration(predicted), ", and ",
                              format_duration(std::max(bench.seconds_left(), 0.0)), " of --seconds are left"));
            break;
        }
        last = 0;
        for (const int64_t D : {64, 128}) {
            const bool gpu = !bench.device->host_readable();
            const AttentionCase c{T, D, window, gpu ? kAttentionWidthOfGpu : kAttentionWidth};
            for (kernels::AttentionChoice& choice : all) {
                bench.device->choose_attention(&choice);
                const AttentionTimes times =
                    time_attention(bench, bench.ctx, c, std::min(2.0, bench.seconds_left() / 4));
                bench.device->choose_attention(nullptr);
                print_and_add(bench, result, c, times, peak);
                last += 4 * (times.forward.median + times.both.median);  // a call to warm up, three runs
            }
        }
    }
    result.summary.update(to_json(peak));
    return result;
}

}  // namespace tutti::cli
