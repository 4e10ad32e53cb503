#include "tutti/diagnose/measure.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/ops/ops.h"

namespace tutti::diagnose {

namespace {

// A GPU draws values faster than the host could copy them in.
Tensor drawn_values(ops::Context& ctx, const Shape& shape) {
    const Tensor x = ops::empty(ctx, shape, DType::f32, Purpose::workspace);
    const int64_t columns = x.view().columns();
    ops::normal(ctx, {.y = x.reshape({x.view().rows(), columns}), .key = random_key(0, "bench"), .row_step = columns});
    return x;
}

Tensor tiled_values(ops::Context& ctx, const Shape& shape) {
    constexpr size_t kBlock = 1 << 16;
    static_assert(kBlock % 2 == 0);
    std::vector<float> values(to_size(shape.numel()));
    const RandomKey key = random_key(0, "bench");
    for (size_t i = 0; i < std::min(values.size(), kBlock); ++i) values[i] = normal(key, i);
    for (size_t i = kBlock; i < values.size(); ++i) values[i] = values[i - kBlock];
    return Tensor::from_host<float>(ctx.device, shape, values, Purpose::workspace);
}

}  // namespace

Timing time_kernels(Device& device, const TimingLimits& limits, const std::function<void()>& call) {
    return time_calls(limits, call, [&device] { device.synchronize(); });
}

Timing time_together(comm::Communicator& group, double seconds, const std::function<void()>& call) {
    constexpr double kShortestRun = 2e-3;
    const auto run = [&](int calls) {
        group.barrier();
        const double begin = seconds_now();
        for (int i = 0; i < calls; ++i) call();
        return group.max(seconds_now() - begin) / calls;
    };
    run(1);
    const double once = run(1);
    const int calls = static_cast<int>(std::clamp(kShortestRun / once, 1.0, 10000.0));
    std::vector<double> times;
    double spent = 0;  // equal on all ranks
    while (times.empty() || (times.size() < 5 && spent < 10 * seconds) || (times.size() < 200 && spent < seconds)) {
        times.push_back(run(calls));
        spent += calls * times.back();
    }
    return timing_of(std::move(times));
}

Timing time_gemm(ops::Context& ctx, DType dtype, const GemmShape& s, const TimingLimits& limits,
                 std::string* implementation) {
    const bool weights = s.product == ops::GemmRole::weight_gradient;
    // In the weight gradient x and y are read and w is written, in the input gradient x is.
    const Tensor x = s.product == ops::GemmRole::input_gradient
                         ? ops::zeros(ctx, {s.rows, s.in}, dtype, Purpose::workspace)
                         : normal_values(ctx, {s.rows, s.in}, dtype);
    const Tensor w = weights ? ops::zeros(ctx, {s.out, s.in}, DType::f32, Purpose::workspace)
                             : normal_values(ctx, {s.out, s.in}, dtype);
    const Tensor y = s.product == ops::GemmRole::forward ? ops::zeros(ctx, {s.rows, s.out}, dtype, Purpose::workspace)
                                                         : normal_values(ctx, {s.rows, s.out}, dtype);
    const kernels::Gemm gemm = ops::gemm_of(s.product, x, w, y);
    if (implementation) *implementation = ctx.kernels.gemm_implementation(ctx.device.stream(), gemm);
    return time_kernels(ctx.device, limits, [&] { ops::gemm(ctx, gemm); });
}

// A store into a line that was not read fetches it first: an update in place moves less than it seems.
double measure_bandwidth(ops::Context& ctx, const TimingLimits& limits, int64_t buffer_bytes) {
    const Shape shape = {buffer_bytes / 4};
    const Tensor a = filled(ctx, shape, DType::f32, 1), b = filled(ctx, shape, DType::f32, 2);
    const auto fastest = [&](const std::function<void()>& call) {
        return 2.0 * static_cast<double>(buffer_bytes) /
               time_kernels(ctx.device, {limits.seconds / 2, limits.min_runs, limits.max_runs}, call).min;
    };
    return std::max(fastest([&] { copy_values(ctx, a, b); }), fastest([&] {
                        ops::call(ctx, &kernels::KernelTable::scale, "scale", static_cast<View>(a), 1.0f);
                    }));
}

void copy_values(ops::Context& ctx, const Tensor& x, const Tensor& y) {
    if (!ctx.device.host_readable()) return ops::cast_into(ctx, x, y);
    parallel_for(ctx.device.stream(), x.bytes(), 1 << 20, [&](int64_t begin, int64_t end) {
        std::memcpy(y.view().as<char>() + begin, x.view().as<char>() + begin, to_size(end - begin));
    });
}

Tensor filled(ops::Context& ctx, const Shape& shape, DType dtype, float value) {
    const Tensor x = ops::empty(ctx, shape, dtype, Purpose::workspace);
    ops::fill(ctx, x, value);
    return x;
}

Tensor normal_values(ops::Context& ctx, const Shape& shape, DType dtype) {
    const Tensor x = ctx.device.host_readable() ? tiled_values(ctx, shape) : drawn_values(ctx, shape);
    return dtype == DType::f32 ? x : ops::cast(ctx, x, dtype, Purpose::workspace);
}

}  // namespace tutti::diagnose
