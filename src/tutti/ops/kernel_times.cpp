#include "tutti/ops/kernel_times.h"

#include <algorithm>

namespace tutti::ops {

void KernelTimes::add(const std::string& name, const kernels::Work& work, double seconds) {
    Row& row = rows_[{name, work.shape}];
    row.kernel = name;
    row.shape = work.shape;
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
