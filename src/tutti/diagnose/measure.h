// diagnose/measure.h: measures the speed of products, memory and collectives of this machine.
#pragma once

#include <string>

#include "tutti/base/timing.h"
#include "tutti/comm/communicator.h"
#include "tutti/ops/context.h"
#include "tutti/ops/ops.h"

namespace tutti::diagnose {

// Times calls that start kernels.
Timing time_kernels(Device& device, const TimingLimits& limits, const std::function<void()>& call);

// Times calls that all ranks of the group make together. The time of a run is its slowest rank's, so all ranks make the
// same decisions. Calls too short for the clock are timed several to a run. At least five runs, or as many as take ten
// times `seconds`, and one in any case.
Timing time_together(comm::Communicator& group, double seconds, const std::function<void()>& call);

// One product as ops/linear.cpp makes them.
struct GemmShape {
    std::string name;
    int64_t rows, out, in;  // x (rows, in), w (out, in), y (rows, out)
    ops::GemmRole product = ops::GemmRole::forward;
    double flops() const {
        return 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
    }
};
// Operands have type `dtype`. `implementation` receives the name of the GEMM implementation
// (KernelTable::gemm_implementation).
Timing time_gemm(ops::Context& ctx, DType dtype, const GemmShape& shape, const TimingLimits& limits,
                 std::string* implementation = nullptr);

constexpr int64_t kBufferBytes = 256 << 20;  // several times the last-level cache of common servers

// Bytes read and written per second by a copy or by an update in place, whichever is faster, in buffers of
// `buffer_bytes`.
double measure_bandwidth(ops::Context& ctx, const TimingLimits& limits, int64_t buffer_bytes = kBufferBytes);

// y = x of the same type, by a loop of the host or a kernel of the GPU.
void copy_values(ops::Context& ctx, const Tensor& x, const Tensor& y);

Tensor filled(ops::Context& ctx, const Shape& shape, DType dtype, float value);
// Standard normal values, the same on every rank. On the CPU one block is repeated, so that filling takes less time
// than measuring.
Tensor normal_values(ops::Context& ctx, const Shape& shape, DType dtype);

}  // namespace tutti::diagnose
