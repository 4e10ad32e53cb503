// ops/kernel_times.h: how long the kernels of a run take, by entry of the table and by shape, beside the least that
// they can cost (`tutti bench step --kernels`).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/ops/context.h"

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

    // By the device's own marks: the host waits for it only when marks are many.
    void before_kernel(Device& device) override;
    void after_kernel(Device& device, const char* kernel, const kernels::Work& work) override;
    bool needs_single_launches() const override { return true; }

    std::vector<Row> rows();  // those that took longest first
    double seconds();         // of all

  private:
    struct Span {
        Row* row;
        std::unique_ptr<TimeMark> begin, end;
    };
    void add_spans();

    std::unique_ptr<TimeMark> begin_;
    std::vector<Span> spans_;  // not yet in `rows_`
    std::map<std::pair<std::string, kernels::ProblemShape>, Row> rows_;
};

}  // namespace tutti::ops
