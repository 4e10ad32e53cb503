// bench/cpu_passes.cpp: the CPU tables' kernels whose least cost is memory, beside the bandwidth of the same run, for
// bench/results/passes_cpu_*.md. Matrix products and attention: cpu_kernels.cpp. Not part of the build:
//   g++ -std=c++20 -O2 -Isrc bench/cpu_passes.cpp build/release/libtutti_{kernels,device,base}.a -ldnnl -lfmt -fopenmp
//   (a build with CUDA: and -L/usr/local/cuda/lib64 -lcudart_static -ldl -lrt)
//   OMP_WAIT_POLICY=passive ./a.out THREADS [avx2|avx512|avx512_bf16]
// Best of 0.4 s each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "array.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/kernels/work.h"

using namespace tutti;
using namespace tutti::kernels;

namespace {

template <class Run>
double best_seconds(Run&& run) {
    using Clock = std::chrono::steady_clock;
    double best = 1e9;
    const auto end = Clock::now() + std::chrono::milliseconds(400);
    for (int i = 0; i < 3 || Clock::now() < end; ++i) {
        const auto start = Clock::now();
        run();
        best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
}

// Bytes per second of a copy or of an update in place of 256 MiB, whichever is faster.
double bandwidth(const KernelTable& table, const Stream& stream) {
    const Shape shape = {64 << 20};
    const View x = array(DType::f32, shape), y = array(DType::f32, shape);
    const double bytes = 8.0 * static_cast<double>(shape.numel());
    const double copy = best_seconds([&] { table.cast(stream, x, y); });
    const double update = best_seconds([&] { table.scale(stream, x, 1.0f); });
    for (const View& v : {x, y}) std::free(v.data);
    return bytes / std::min(copy, update);
}

// Every kernel whose least cost is memory, on (rows, 3072) activations and (rows, 768) residual streams, as in GPT-2.
// What a store fetches before it overwrites is not counted: a pass that reads one array and writes another can reach
// two thirds where neither fits a cache.
class Passes {
  public:
    Passes(const KernelTable& table, const Stream& stream, DType type, int64_t rows, double bytes_per_s)
        : table_(table), stream_(stream), bytes_per_s_(bytes_per_s) {
        std::printf("%s, %ld rows; floor at %.1f GB/s\n", type == DType::f32 ? "f32" : "bf16", rows, bytes_per_s / 1e9);
        activations(type, {rows, 3072});
        norms(type, rows, 768);
        convolution(type, rows, 1024);
        losses(type, rows / 4);
        experts(type, rows, 768);
        optimizer(rows * 768);
    }

  private:
    template <class... Parameters, class... Arguments>
    void time(const char* name, void (*kernel)(const Stream&, Parameters...), const Arguments&... arguments) {
        const double s = best_seconds([&] { kernel(stream_, arguments...); });
        const double floor = work_of_call(name, arguments...).bytes / bytes_per_s_;
        std::printf("  %-28s %8.3f ms, %3.0f %% of the floor\n", name, 1e3 * s, 100 * floor / s);
    }
    void activations(DType type, const Shape& shape) {
        const View x = array(type, shape), y = array(type, shape), dy = array(type, shape);
        const View up = array(type, shape), dup = array(type, shape), db = array(DType::f32, {shape[1]});
        time("gelu_forward", table_.gelu_forward, x, y);
        time("gelu_backward", table_.gelu_backward, dy, x, y);
        time("swiglu_forward", table_.swiglu_forward, Gate(Gate::silu), x, up, y);
        time("swiglu_backward", table_.swiglu_backward, Gate(Gate::silu), dy, x, up, y, dup);
        time("add", table_.add, x, up, y);
        time("accumulate", table_.accumulate, x, y);
        time("bias_backward", table_.bias_backward, dy, db);
        for (const View& v : {x, y, dy, up, dup, db}) std::free(v.data);
    }
    void norms(DType type, int64_t rows, int64_t width) {
        const View x = array(type, {rows, width}), y = array(type, {rows, width}), dy = array(type, {rows, width});
        const View w = array(type, {width}), b = array(type, {width}), sum = array(type, {rows, width});
        const View mean = array(DType::f32, {rows}), rstd = array(DType::f32, {rows});
        const View dw = array(DType::f32, {width}), db = array(DType::f32, {width});
        for (const bool centred : {true, false}) {
            const View none, bias = centred ? b : none, means = centred ? mean : none;
            std::printf(" %s:\n", centred ? "layer norm" : "RMS norm");
            time("norm_forward", table_.norm_forward, NormForward{x, w, bias, 1e-5f, y, means, rstd});
            time("norm_forward", table_.norm_forward, NormForward{x, w, bias, 1e-5f, y, means, rstd, dy, sum});
            time("norm_backward_input", table_.norm_backward_input, NormBackward{dy, x, w, means, rstd, y});
            time("norm_backward_input", table_.norm_backward_input, NormBackward{dy, x, w, means, rstd, y, y});
            time("norm_backward_weight", table_.norm_backward_weight, dy, x, means, rstd, dw, centred ? db : none);
        }
        for (const View& v : {x, y, dy, w, b, sum, mean, rstd, dw, db}) std::free(v.data);
    }
    // Of LFM2: the three parts of one projection.
    void convolution(DType type, int64_t rows, int64_t width) {
        const View p = array(type, {1, rows, 3 * width}), dp = array(type, {1, rows, 3 * width});
        const View z = array(type, {1, rows, width}), dz = array(type, {1, rows, width});
        const View w = array(type, {width, 3}), dw = array(DType::f32, {width, 3});
        const View places = array(DType::f32, {1, rows});
        const View positions(places.data, DType::i32, {1, rows});
        for (int64_t t = 0; t < rows; ++t) positions.as<int32_t>()[t] = static_cast<int32_t>(t);
        const auto part = [&](View x, int64_t i) {
            x.data = x.as<std::byte>() + i * width * size_of(type);
            x.shape[2] = width;
            return x;
        };
        const ShortConvolution f{.b = part(p, 0), .c = part(p, 1), .x = part(p, 2), .w = w, .positions = positions};
        const ShortConvolutionBackward g{.dz = dz, .db = part(dp, 0), .dc = part(dp, 1), .dx = part(dp, 2)};
        std::printf(" short convolution, 3 taps:\n");
        time("short_convolution_forward", table_.short_convolution_forward, f, z);
        time("short_convolution_backward_input", table_.short_convolution_backward_input, f, g);
        time("short_convolution_backward_weight", table_.short_convolution_backward_weight, f, dz, dw, View());
        for (const View& v : {p, dp, z, dz, w, dw, places}) std::free(v.data);
    }
    void losses(DType type, int64_t rows) {
        const int64_t vocab = 50257;
        const View logits = array(type, {rows, vocab}), targets = array(DType::f32, {rows});
        const View losses = array(DType::f32, {rows});
        std::memset(targets.data, 0, static_cast<size_t>(rows) * 4);
        const CrossEntropy loss{.logits = logits,
                                .targets = View(targets.data, DType::i32, {rows}),
                                .losses = losses,
                                .vocab = vocab,
                                .gradient = true};
        time("cross_entropy", table_.cross_entropy, loss);
        for (const View& v : {logits, targets, losses}) std::free(v.data);
    }
    // 4 of 32 experts a row, in the order of experts, and back.
    void experts(DType type, int64_t rows, int64_t width) {
        constexpr int64_t kExperts = 32, kChosen = 4;
        const int64_t choices = rows * kChosen;
        const View x = array(type, {rows, width}), y = array(type, {choices, width}),
                   dx = array(type, {choices, width});
        const View sum = array(type, {rows, width}), weights = array(DType::f32, {rows, kChosen});
        const View logits = array(DType::f32, {rows, kExperts}), entropy = array(DType::f32, {rows});
        const View log_sum = array(DType::f32, {rows}), dlogits = array(DType::f32, {rows, kExperts});
        const View from(array(DType::f32, {choices}).data, DType::i32, {choices});
        const View to(array(DType::f32, {choices}).data, DType::i32, {rows, kChosen});
        const View chosen(array(DType::f32, {choices}).data, DType::i32, {rows, kChosen});
        // Choice i stands at place i * 4099 of all: rows are far apart, as after sorting by experts.
        for (int64_t i = 0; i < choices; ++i) {
            const int64_t place = i * 4099 % choices;
            to.as<int32_t>()[i] = static_cast<int32_t>(place);
            from.as<int32_t>()[place] = static_cast<int32_t>(i / kChosen);
        }
        const Routing routing{.logits = logits,
                              .sigmoid = true,
                              .normalise = true,
                              .experts = chosen,
                              .weights = weights,
                              .entropy = entropy,
                              .log_sum = log_sum};
        time("cast", table_.cast, y, dx);
        time("gather_rows", table_.gather_rows, x, from, y);
        time("combine_rows", table_.combine_rows, y, to, weights, sum);
        time("combine_rows_backward", table_.combine_rows_backward, x, y, to, weights, dx, weights);
        time("route", table_.route, routing);
        time("route_backward", table_.route_backward,
             RoutingBackward{.forward = routing, .dweights = weights, .dlogits = dlogits});
        for (const View& v : {x, y, dx, sum, weights, logits, entropy, log_sum, dlogits, from, to, chosen})
            std::free(v.data);
    }
    void optimizer(int64_t n) {
        const View master = array(DType::f32, {n}), m = array(DType::f32, {n}), v = array(DType::f32, {n});
        const View gradient = array(DType::f32, {n}), value = array(DType::bf16, {n});
        const View sums = array(DType::f32, {2 * (n / kSumBlock + 1)});
        table_.fill(stream_, v, 1);
        const OptimizerPiece piece{.master = master, .gradient = gradient, .value = value, .m = m, .v = v};
        time("adamw", table_.adamw, AdamW{.pieces = {&piece, 1}, .lr = 1e-6f});
        time("sums_of_squares", table_.sums_of_squares, gradient,
             View(sums.data, DType::f64, {(n + kSumBlock - 1) / kSumBlock}));
        time("fill", table_.fill, gradient, 0.0f);
        for (const View& x : {master, m, v, gradient, value, sums}) std::free(x.data);
    }

    const KernelTable& table_;
    const Stream& stream_;
    double bytes_per_s_;
};

}  // namespace

int main(int count, char** arguments) {
    if (count < 2) return std::fprintf(stderr, "usage: cpu_passes THREADS [avx2|avx512|avx512_bf16]\n"), 2;
    const Stream stream{std::atoi(arguments[1])};
    const Isa isa = isa_named(count > 2 ? arguments[2] : nullptr);
    const KernelTable& table = cpu_table(isa);
    std::printf("%s, threads %d\n", table.name, stream.threads);
    for (const DType type : {DType::bf16, DType::f32})
        for (const int64_t rows : {1024, 8192}) Passes(table, stream, type, rows, bandwidth(table, stream));
}
