#include "tutti/train/memory_check.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "tutti/base/units.h"

namespace tutti::train {

namespace {

std::vector<MemoryNeed> needs_under(const std::vector<MemoryLimit>& limits, int64_t bytes) {
    std::vector<MemoryNeed> needs;
    for (const MemoryLimit& limit : limits) needs.push_back({limit, bytes});
    return needs;
}

// Of all ranks under one limit.
struct Total {
    int64_t needed = 0, available = 0;
    int ranks = 0;
    double share() const { return static_cast<double>(needed) / static_cast<double>(std::max<int64_t>(available, 1)); }
};

// By "host, origin of the limit", from lines "needed available host, origin".
std::map<std::string, Total> totals_of(const std::vector<std::string>& texts) {
    std::map<std::string, Total> totals;
    for (const std::string& text : texts) {
        std::map<std::string, Total> of_rank;
        std::istringstream lines(text);
        int64_t needed = 0, available = 0;
        for (std::string limit; lines >> needed >> available && std::getline(lines >> std::ws, limit);) {
            Total& own = of_rank[limit];
            own.needed += needed;
            own.available = available;
        }
        for (const auto& [limit, own] : of_rank) {
            Total& total = totals.try_emplace(limit, Total{0, own.available, 0}).first->second;
            total.needed += own.needed;
            total.available = std::min(total.available, own.available);
            ++total.ranks;
        }
    }
    return totals;
}

}  // namespace

std::vector<MemoryNeed> needs_of(const plan::MemoryPlan& plan, Device& device) {
    constexpr int64_t kBegun = 4 << 20;  // huge pages that are used in part: one of small blocks, one of large ones
    if (device.host_readable()) return needs_under(device.memory_limits(), plan.peak() + kBegun);
    std::vector<MemoryNeed> needs =
        needs_under(device.memory_limits(), plan.reserved - device.memory().reserved());  // its workspace is there
    for (const MemoryNeed& on_host : needs_under(host_memory_limits(), plan.offloaded)) needs.push_back(on_host);
    return needs;
}

std::vector<MemoryNeed> needs_of(const spec::RunSpec& run, const plan::MemoryPlan& plan, Device& device) {
    std::vector<MemoryNeed> needs = needs_of(plan, device);
    const bool in_background =
        run.checkpoint.async && run.checkpoint.every > 0 && run.checkpoint.every <= run.train.steps;
    if (!in_background && device.host_readable()) return needs;
    for (const MemoryNeed& copies : needs_under(host_memory_limits(), plan.saved)) needs.push_back(copies);
    return needs;
}

void check_memory(comm::Communicator& ranks, const std::vector<MemoryNeed>& of_rank, bool force,
                  const std::function<void(const std::string&)>& warn) {
    constexpr double kClose = 0.9;
    std::string lines;
    for (const MemoryNeed& need : of_rank)
        lines += concat(need.bytes, ' ', need.limit.available, ' ', host_name(), ", ", need.limit.origin, '\n');
    const auto totals = totals_of(comm::gather_texts(ranks, lines));
    const auto tightest = std::max_element(
        totals.begin(), totals.end(), [](const auto& a, const auto& b) { return a.second.share() < b.second.share(); });
    if (tightest == totals.end() || tightest->second.share() <= kClose) return;
    const auto& [limit, total] = *tightest;
    const std::string found = concat(total.ranks == 1 ? "a rank needs " : concat(total.ranks, " ranks together need "),
                                     format_bytes(total.needed), " of memory, saves included, and ",
                                     format_bytes(total.available), " are available (", limit, ")");
    if (total.share() <= 1) return warn(concat("memory is short: ", found));
    check<UsageError>(force, "this run does not fit: ", found,
                      "; try a smaller train.micro_batch, recompute.policy = \"full\", parallel.zero = 3 over more "
                      "hosts, [offload], or a smaller model; --force starts it nevertheless");
    warn(concat("this run does not fit and may be killed (--force): ", found));
}

}  // namespace tutti::train
