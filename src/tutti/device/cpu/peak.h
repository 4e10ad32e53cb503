// device/cpu/peak.h: the arithmetic ceiling of this machine, measured: multiply-adds on registers only, no memory. What
// MFU and HFU are shares of. Called by cpu_device.cpp; measured in the same run as what is held against it, so that
// a slow hour slows both.
#pragma once

#include "tutti/base/dtype.h"
#include "tutti/device/device.h"

namespace tutti {

// For bf16 the fastest unit that takes bf16 (AMX tiles, then the AVX-512 dot product); where there is none, kernels
// widen to f32, and the f32 multiply-add is the peak. The best of several runs on all threads of the stream, over about
// `seconds`.
ArithmeticPeak measure_register_peak(const Stream& stream, DType compute, double seconds);

}  // namespace tutti
