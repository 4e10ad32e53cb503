// ops/kernel_times.h: the time of the kernels of a run, by entry of the kernel table and by shape, with their FLOPs and
// bytes (`tutti bench step --kernels`).
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

    // Timed by marks of the device; the host waits for the device once in some thousand kernels.
    void before_kernel(Device& device) override;
    void after_kernel(Device& device, const char* kernel, const kernels::Work& work) override;
    bool needs_single_launches() const override { return true; }

    std::vector<Row> rows();  // by time, the longest first

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
