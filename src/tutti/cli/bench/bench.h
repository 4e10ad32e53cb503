// cli/bench/bench.h: the frame of the benchmarks. Each prints its lines and fills a BenchResult, the JSON document.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cli/commands.h"
#include "tutti/diagnose/measure.h"
#include "tutti/engine/engine.h"
#include "tutti/kernels/backends.h"
#include "tutti/spec/run_spec.h"

namespace tutti::cli {

struct Bench;
struct BenchResult {
    Json summary = Json::object();
    std::vector<Json> rows;
    std::vector<std::string> notes;  // skipped measurements, and why
};

struct BenchArguments {
    const char* name = nullptr;  // gemm, attention, memory or step
    BenchResult (*measure)(Bench&) = nullptr;
    std::string dtype = "bf16";
    std::string device = "auto";
    int threads = 0;              // 0: all cores that the process may use
    double seconds = 0;           // for all measurements; 0: the benchmark's own
    int64_t window = 0;           // attention: keys of a sliding window; 0: no window
    std::vector<std::string> by;  // attention: kernels to time, of [train] attention; none: own, and the library's
    std::string model;  // gemm: preset whose products are measured too; step, attention with tune: preset to train
    std::optional<std::string> sizes;  // gemm: products in place of the sweep
    std::string cluster;               // gemm: predict for it; "": measure
    std::vector<std::string> set_cluster;
    std::vector<std::string> set;
    bool kernels = false;  // step: also show the time of each kernel beside its lower bound
    std::string tune;      // the file that gets what a step's products, or its attention, measured
};
int bench(const BenchArguments& arguments, const Io& io);

struct BenchCommArguments : MeasuringArguments {
    bool progress_thread = false;
};
int bench_comm(const BenchCommArguments& arguments, const Io& io);

struct BenchPipelineArguments {
    std::string kind = "all";  // a schedule
    int stages = 4;            // ranks
    int chunks = 2;            // of a rank, where a schedule leaves them free
    int microbatches = 16;
    double forward = 10, backward_input = 10, backward_weight = 10;  // milliseconds of a rank's part of the model
    int repeats = 3;
    bool progress_thread = false;
};
int bench_pipeline(const BenchPipelineArguments& arguments, const Io& io);

struct Bench {
    Bench(const BenchArguments& arguments_, std::ostream& text_);

    const BenchArguments& arguments;
    std::ostream& text;  // for people
    std::unique_ptr<Device> device;
    ComputeType compute_type;
    ops::Context ctx;
    DType dtype;  // of operands
    double end;   // of the time for measurements, on the clock of seconds_now()

    double seconds_left() const { return end - seconds_now(); }
    // Times calls that start kernels.
    Timing time(const TimingLimits& limits, const std::function<void()>& call) const {
        return diagnose::time_kernels(*device, limits, call);
    }
    void note(BenchResult& result, const std::string& words) const;  // prints and records
};

spec::RunSpec step_run(const BenchArguments& arguments);  // the run of bench_step
// A run on every rank of tensor parallelism, one rank after another on this GPU, in a world without peers: values that
// others would send are missing, and kernels take the same time with any values. `take_step` waits for the GPU.
void for_each_rank(const spec::RunSpec& run, const std::function<void(engine::Machine& machine)>& prepare,
                   const std::function<void(engine::Engine& engine, const std::function<void()>& take_step)>& use);

// The sweep of square products.
inline constexpr int64_t kSmallestSide = 512, kLargestSide = 8192, kLargestSideOfGpu = 32768;
// "256x4096x4096,...": M x K x N of products (M, K) x (K, N). UsageError.
std::vector<diagnose::GemmShape> products_of(const std::string& sizes);
int predict_products(const BenchArguments& arguments, const Io& io);  // on a cluster

BenchResult bench_memory(Bench& bench);
BenchResult bench_gemm(Bench& bench);
BenchResult bench_attention(Bench& bench);
// Whether the library is missing; the note says why it is not timed.
bool note_missing(const Bench& bench, const kernels::AttentionLibrary& library, BenchResult& result);
BenchResult tune_attention(Bench& bench);  // bench_attention with --tune
BenchResult bench_step(Bench& bench);

// The ceiling of arithmetic in this run: the device's, or a matrix product when one was faster (a noisy machine, a
// build without optimisation).
struct Peak {
    ArithmeticPeak device;
    double gemm = 0;  // FLOP/s of the best matrix product seen
    std::string gemm_shape;

    void see_gemm(double flops_per_s, const std::string& shape);
    double flops_per_s() const { return std::max(device.flops_per_s, gemm); }
    std::string origin() const;  // "vdpbf16ps zmm on registers"
};
Json to_json(const Peak& peak);

Json to_json(const Timing& timing);
std::string timing_columns(const Timing& timing);  // median, min .. max, runs
std::string timing_heading();

}  // namespace tutti::cli
