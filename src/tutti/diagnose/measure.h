// diagnose/measure.h: how fast products, memory and collectives of this machine are, for benchmarks and for health.
#pragma once

#include <string>

#include "tutti/base/timing.h"
#include "tutti/comm/communicator.h"
#include "tutti/ops/context.h"
#include "tutti/ops/ops.h"

namespace tutti::diagnose {

// Of calls that start kernels.
Timing time_kernels(Device& device, const Patience& patience, const std::function<void()>& call);

// Of calls that all ranks of the group make together. A run is as long as its slowest rank's, and all take the same
// decisions. Calls too short for the clock are timed several to a run; at least five runs.
Timing time_together(comm::Communicator& group, double seconds, const std::function<void()>& call);

// One product as ops/linear.cpp makes them.
struct GemmShape {
    std::string name;
    int64_t rows, out, in;  // x (rows, in), w (out, in), y (rows, out)
    ops::Product product = ops::Product::forward;
    double flops() const {
        return 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
    }
};
// Of operands of type `dtype`. `engine`: where to say what made it (KernelTable::gemm_engine).
Timing time_gemm(ops::Context& ctx, DType dtype, const GemmShape& shape, const Patience& patience,
                 std::string* engine = nullptr);

constexpr int64_t kBufferBytes = 256 << 20;  // several times the last-level cache of common servers

// Bytes read and written per second by a copy or by an update in place, whichever is the faster, in buffers of
// `buffer_bytes`.
double measure_bandwidth(ops::Context& ctx, const Patience& patience, int64_t buffer_bytes = kBufferBytes);

// y = x, of one type: a loop of the host, or a kernel of the GPU.
void copy_values(ops::Context& ctx, const Tensor& x, const Tensor& y);

Tensor filled(ops::Context& ctx, const Shape& shape, DType dtype, float value);
// Standard normal values, on every rank the same; on the CPU tiled from one block: filling must not take longer than
// measuring.
Tensor normal_values(ops::Context& ctx, const Shape& shape, DType dtype);

}  // namespace tutti::diagnose
