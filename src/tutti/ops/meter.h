// ops/meter.h: what is told of every kernel that a context runs: a clock (ops/kernel_times.h) or a program
// (rehearsal/).
#pragma once

#include "tutti/device/device.h"
#include "tutti/kernels/work.h"

namespace tutti::ops {

class Meter {
  public:
    virtual ~Meter() = default;
    virtual void before_kernel(Device&) {}
    // `kernel`: the entry of the kernel table, "norm_forward".
    virtual void after_kernel(Device& device, const char* kernel, const kernels::Work& work) = 0;
    // True when kernels must be launched one by one: a step then runs without CUDA graphs.
    virtual bool needs_single_launches() const { return false; }
};

}  // namespace tutti::ops
