// ops/kernel_times.h: how long the kernels of a run take, by entry of the table and by shape, beside the least that
// they can cost (`tutti bench step --kernels`).
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ops/meter.h"

namespace tutti::ops {

class KernelTimes final : public Meter {
  public:
    struct Row {
        std::string kernel;
        int64_t calls = 0;
        double seconds = 0;
        kernels::Work work;  // of all calls together
        std::string shape() const { return work.shape.text(); }
    };

    // The device is idle before and after each kernel.
    void before_kernel(Device& device) override;
    void after_kernel(Device& device, const char* kernel, const kernels::Work& work) override;
    bool needs_single_launches() const override { return true; }

    std::vector<Row> rows() const;  // those that took longest first
    double seconds() const;         // of all

  private:
    std::chrono::steady_clock::time_point begin_;
    std::map<std::pair<std::string, kernels::ProblemShape>, Row> rows_;
};

}  // namespace tutti::ops
