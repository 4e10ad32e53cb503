#include "tutti/ops/kernel_times.h"

#include <algorithm>

namespace tutti::ops {

namespace {
constexpr size_t kMostSpans = 4096;
}

void KernelTimes::before_kernel(Device& device) { begin_ = device.mark_time(); }

void KernelTimes::after_kernel(Device& device, const char* kernel, const kernels::Work& work) {
    auto end = device.mark_time();
    Row& row = rows_[{kernel, work.shape}];
    row.kernel = kernel;
    ++row.calls;
    row.work += work;
    spans_.push_back({&row, std::move(begin_), std::move(end)});
    if (spans_.size() >= kMostSpans) add_spans();
}

void KernelTimes::add_spans() {
    for (const Span& span : spans_) span.row->seconds += span.end->seconds_since(*span.begin);
    spans_.clear();
}

std::vector<KernelTimes::Row> KernelTimes::rows() {
    add_spans();
    std::vector<Row> all;
    for (const auto& [key, row] : rows_) all.push_back(row);
    std::stable_sort(all.begin(), all.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
    return all;
}

}  // namespace tutti::ops
