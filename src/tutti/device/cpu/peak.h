// device/cpu/peak.h: the measured arithmetic peak of this CPU.
#pragma once

#include "tutti/base/dtype.h"
#include "tutti/device/device.h"

namespace tutti {

// The peak of which MFU and HFU are shares: multiply-adds on registers, without memory, the best of several runs on all
// threads of the stream over about `seconds`. For bf16 the fastest unit that takes bf16 (AMX tiles, then the AVX-512
// dot product); a CPU without such a unit widens to f32, and the f32 multiply-add is the peak. Measure the peak in the
// run that is compared with it, so that a slow hour slows both.
ArithmeticPeak measure_register_peak(const Stream& stream, DType compute, double seconds);

}  // namespace tutti
