#include "tutti/train/peak.h"

#include <algorithm>
#include <chrono>

#include "tutti/ops/ops.h"

namespace tutti::train {

double measure_gemm_peak(ops::Context& ctx, DType compute, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr int64_t kSize = 768;  // fits the caches of two cores; oneDNN's best shapes
    const Tensor a = ops::empty(ctx, {kSize, kSize}, compute, Purpose::workspace);
    const Tensor b = ops::empty(ctx, {kSize, kSize}, compute, Purpose::workspace);
    ops::fill(ctx, a, 1.0f);
    ops::fill(ctx, b, 0.5f);
    const auto begin = Clock::now();
    double best = 0;
    for (int i = 0; i < 3 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
        const auto start = Clock::now();
        const Tensor c = ops::linear(ctx, a, b, nullptr);
        ctx.device.synchronize();
        const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
        best = std::max(best, 2.0 * kSize * kSize * kSize / elapsed);
    }
    return best;
}

}  // namespace tutti::train
