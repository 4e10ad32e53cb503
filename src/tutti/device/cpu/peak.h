// device/cpu/peak.h: the arithmetic ceiling of this machine, measured: multiply-adds on registers only, no memory. What
// MFU and HFU are shares of. Called by the trainer and the benchmarks, in the same run as what they measure, so that a
// slow hour slows both.
#pragma once

#include <string>

#include "tutti/base/dtype.h"
#include "tutti/device/device.h"

namespace tutti {

struct RegisterPeak {
    double flops_per_s = 0;   // best of several runs on all threads of the stream
    std::string instruction;  // "vdpbf16ps zmm"
};

// For bf16 the fastest unit that takes bf16 (AMX tiles, then the AVX-512 dot product); where there is none, kernels
// widen to f32, and the f32 multiply-add is the peak. Measures for about `seconds`.
RegisterPeak measure_register_peak(const Stream& stream, DType compute, double seconds);

}  // namespace tutti
