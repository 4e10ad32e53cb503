// cli/bench.h: what the benchmarks share. Each fills a BenchResult while it prints its lines; bench.cpp writes the
// result as JSON. Below: peak.h, timing.h, the kernels.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/product.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/timing.h"
#include "tutti/device/cpu/peak.h"
#include "tutti/ops/context.h"

namespace tutti::cli {

using BenchValue = std::variant<bool, int64_t, double, std::string>;
using BenchRecord = std::vector<std::pair<std::string, BenchValue>>;  // in the order of the document

struct BenchResult {
    BenchRecord summary;
    std::vector<BenchRecord> rows;
    std::vector<std::string> notes;  // what was left out, and why
};

struct Bench {
    Bench(const BenchArguments& arguments_, std::ostream& text_);

    const BenchArguments& arguments;
    std::ostream& text;  // for people
    std::unique_ptr<Device> device;
    ops::Context ctx;
    DType dtype;
    double end;  // on the clock of seconds_now(): when patience ends

    double patience_left() const { return end - seconds_now(); }
    void note(BenchResult& result, const std::string& words) const;  // prints and keeps
};

BenchResult bench_memory(Bench& bench);
BenchResult bench_gemm(Bench& bench);
BenchResult bench_attention(Bench& bench);
BenchResult bench_step(Bench& bench);

// The ceiling of arithmetic in this run: the register loop, or a matrix product when one was faster (a noisy machine, a
// build without optimisation).
struct Peak {
    RegisterPeak registers;
    double gemm = 0;  // FLOP/s of the best matrix product seen
    std::string gemm_shape;

    void see_gemm(double flops_per_s, const std::string& shape);
    double flops_per_s() const { return std::max(registers.flops_per_s, gemm); }
    std::string origin() const;  // "vdpbf16ps zmm on registers"
};
Peak measure_peak(Bench& bench, double seconds);
// Bytes read and written per second by a copy or by an update in place, whichever is the faster.
double measure_bandwidth(Bench& bench, const Patience& patience);
void add_peak(BenchRecord& record, const Peak& peak);

// One product as ops/linear.cpp makes them.
struct GemmShape {
    std::string name;
    int64_t rows, out, in;  // x (rows, in), w (out, in), y (rows, out)
    Product product = Product::forward;
    double flops() const {
        return 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
    }
};
// `engine`: where to say what made it (KernelTable::gemm_engine).
Timing time_gemm(Bench& bench, const GemmShape& shape, const Patience& patience, std::string* engine = nullptr);

// Standard normal values, tiled from one block: filling must not take longer than measuring.
Tensor normal_values(ops::Context& ctx, const Shape& shape, DType dtype);

BenchRecord timing_record(const Timing& timing);
std::string timing_columns(const Timing& timing);  // median, min .. max, runs
std::string timing_heading();

}  // namespace tutti::cli
