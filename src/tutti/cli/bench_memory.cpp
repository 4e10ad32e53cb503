// cli/bench_memory.cpp: `tutti bench memory`. The ceiling is a plain copy; kernels that do little arithmetic per byte
// should come near it. Bytes are what the algorithm must read and write; a store that first fetches its line moves
// more.
#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench.h"
#include "tutti/cli/text.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/ops/ops.h"

namespace tutti::cli {

using diagnose::copy_values, diagnose::filled, diagnose::kBufferBytes;

namespace {

using kernels::KernelTable;

constexpr int64_t kWidth = 1024;

struct MemoryCase {
    std::string name;
    const char* traffic;  // per value
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
    const Timing t = bench.time({.seconds = bench.patience_left() / cases, .min_runs = 5, .max_runs = 30}, c.call);
    const double rate = c.bytes / t.median;
    const double share = copy_rate > 0 ? rate / copy_rate : 1;
    bench.text << left(c.name, 20) << left(c.traffic, 22) << right(format_fixed(rate / 1e9, 1), 8)
               << right(format_percent(share), 10) << timing_columns(t) << std::endl;
    BenchRecord row = {{"name", c.name}, {"bytes", c.bytes}, {"bytes_per_s", rate}, {"share_of_copy", share}};
    for (auto& entry : timing_record(t)) row.push_back(entry);
    result.rows.push_back(std::move(row));
    return rate;
}

// Least bytes per value of AdamW: master, m, v are read and written, the gradient is read, the rounded copy written.
MemoryCase adamw_case(Bench& bench, int64_t values, std::vector<Tensor>& keep) {
    for (int i = 0; i < 3; ++i) keep.push_back(filled(bench.ctx, {values}, DType::f32, 0.0f));
    keep.push_back(filled(bench.ctx, {values}, DType::f32, 1e-3f));
    kernels::OptimizerPiece piece{
        .master = keep[0], .gradient = keep[3], .m = keep[1], .v = keep[2], .weight_decay = 0.1f};
    const bool rounded = bench.dtype == DType::bf16;
    if (rounded) {
        keep.push_back(filled(bench.ctx, {values}, DType::bf16, 0.0f));
        piece.value = keep.back();
    }
    return {
        "adamw", rounded ? "3 f32 rw, 1 r, bf16 w" : "3 f32 rw, 1 f32 r",
        static_cast<double>(values) * (rounded ? 30 : 28), [&bench, piece] {
            const kernels::AdamW update{.pieces = {&piece, 1}, .lr = 1e-4f, .correction1 = 0.1f, .correction2 = 0.05f};
            ops::call(bench.ctx, &KernelTable::adamw, "adamw", update);
        }};
}

}  // namespace

BenchResult bench_memory(Bench& bench) {
    BenchResult result;
    constexpr int kBuffers = 6;  // that live at once, AdamW's five and one
    check(bench.device->free_bytes() > kBuffers * kBufferBytes, "bench memory needs ",
          format_bytes(kBuffers * kBufferBytes), " of memory, available are ",
          format_bytes(bench.device->free_bytes()));
    bench.text << left("", 20) << left("traffic per value", 22) << right("GB/s", 8) << right("of copy", 10)
               << timing_heading() << std::endl;

    double copy_rate = 0;
    constexpr double kBytes = kBufferBytes;
    {
        const int64_t n = kBufferBytes / 4;
        const Tensor a = filled(bench.ctx, {n}, DType::f32, 1), b = filled(bench.ctx, {n}, DType::f32, 2);
        const Tensor c = filled(bench.ctx, {n}, DType::f32, 3);
        copy_rate =
            measure(bench, result, {"copy", "1 r, 1 w", kCopyBytes, [&] { copy_values(bench.ctx, a, b); }}, 0, 6);
        if (bench.device->kind() == DeviceKind::cpu) {  // a loop of the host
            const Stream& stream = bench.device->stream();
            const MemoryCase of_triad{"triad (f32)", "2 r, 1 w", 3 * kBytes, [&] { triad(stream, a, b, c); }};
            result.summary.emplace_back("triad_bytes_per_s", measure(bench, result, of_triad, copy_rate, 5));
        }
    }
    {
        const int64_t rows = kBufferBytes / size_of(bench.dtype) / kWidth;
        const Shape shape = {rows, kWidth};
        const Tensor x = filled(bench.ctx, shape, bench.dtype, 1), z = filled(bench.ctx, shape, bench.dtype, 2);
        const Tensor y = filled(bench.ctx, shape, bench.dtype, 0), w = filled(bench.ctx, {kWidth}, bench.dtype, 1);
        const Tensor rstd = filled(bench.ctx, {rows}, DType::f32, 0);
        ops::Context& ctx = bench.ctx;
        measure(bench, result,
                {"rms_norm", "1 r, 1 w", 2 * kBytes,
                 [&] {
                     ops::call(ctx, &KernelTable::norm_forward, "norm_forward",
                               kernels::NormForward{.x = x, .w = w, .eps = 1e-5f, .y = y, .rstd = rstd});
                 }},
                copy_rate, 4);
        measure(bench, result,
                {"add", "2 r, 1 w", 3 * kBytes, [&] { ops::call(ctx, &KernelTable::add, "add", x, z, y); }}, copy_rate,
                3);
        measure(bench, result,
                {"swiglu", "2 r, 1 w", 3 * kBytes,
                 [&] { ops::call(ctx, &KernelTable::swiglu_forward, "swiglu_forward", x, z, y); }},
                copy_rate, 2);
    }
    bench.device->memory().trim();
    std::vector<Tensor> keep;
    measure(bench, result, adamw_case(bench, kBufferBytes / 4, keep), copy_rate, 1);
    result.summary.emplace_back("copy_bytes_per_s", copy_rate);
    result.summary.emplace_back("buffer_bytes", kBufferBytes);
    bench.text << "\nBuffers of " << format_bytes(kBufferBytes)
               << "; medians. of copy: the share of the copy's rate.\n";
    return result;
}

}  // namespace tutti::cli
