#include "tutti/train/step_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tutti/base/to_size.h"
#include "tutti/device/device.h"

namespace tutti::train {

std::vector<StepMetrics::Comm> comm_per_step(const std::vector<parallel::GroupUsage>& before,
                                             const std::vector<parallel::GroupUsage>& now, int64_t steps) {
    std::vector<StepMetrics::Comm> mean;
    for (size_t g = 0; g < now.size(); ++g) {
        const auto &a = before[g].usage, &b = now[g].usage;
        const auto n = static_cast<double>(steps);
        mean.push_back({now[g].group, static_cast<double>(b.operations - a.operations) / n,
                        static_cast<double>(b.sent - a.sent) / n, 1000 * (b.waited_s - a.waited_s) / n});
    }
    return mean;
}

std::vector<report::RankFigures> chosen_figures(std::vector<report::RankFigures> all) {
    if (all.size() <= report::kMostRanks) return all;
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.wait_ms < b.wait_ms; });
    return {all.front(), all[all.size() / 2], all.back()};
}

std::vector<report::RankFigures> gather_figures(comm::Communicator& ranks, int64_t mem_peak_bytes,
                                                const std::vector<StepMetrics::Comm>& comm) {
    std::vector<report::RankFigures> all;
    if (ranks.size() == 1) return all;
    double wait_ms = 0;
    for (const StepMetrics::Comm& group : comm) wait_ms += group.wait_ms;
    const auto device = make_cpu_device(1);
    const std::array<int64_t, 2> own = {std::llround(wait_ms * 1000), mem_peak_bytes};
    const Tensor part = Tensor::from_host<int64_t>(*device, {2}, own, Purpose::communication);
    const Tensor gathered = Tensor::empty(*device, {2 * int64_t{ranks.size()}}, DType::i64, Purpose::communication);
    ranks.all_gather(part, gathered).wait();
    const auto values = gathered.to_host<int64_t>();
    for (int rank = 0; rank < ranks.size(); ++rank)
        all.push_back({rank, static_cast<double>(values[to_size(2 * rank)]) / 1000,
                       static_cast<double>(values[to_size(2 * rank + 1)])});
    return chosen_figures(std::move(all));
}

}  // namespace tutti::train
