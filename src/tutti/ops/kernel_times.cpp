#include "tutti/ops/kernel_times.h"

#include <algorithm>

namespace tutti::ops {

void KernelTimes::before_kernel(Device& device) {
    device.synchronize();
    begin_ = std::chrono::steady_clock::now();
}

void KernelTimes::after_kernel(Device& device, const char* kernel, const kernels::Work& work) {
    device.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    Row& row = rows_[{kernel, work.shape}];
    row.kernel = kernel;
    ++row.calls;
    row.seconds += seconds;
    row.work += work;
}

std::vector<KernelTimes::Row> KernelTimes::rows() const {
    std::vector<Row> all;
    for (const auto& [key, row] : rows_) all.push_back(row);
    std::stable_sort(all.begin(), all.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
    return all;
}

double KernelTimes::seconds() const {
    double sum = 0;
    for (const auto& [key, row] : rows_) sum += row.seconds;
    return sum;
}

}  // namespace tutti::ops
