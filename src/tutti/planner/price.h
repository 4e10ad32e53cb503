// planner/price.h: the step of a layout as ends + layers x probe (probe.h) over the timeline of its schedule: seconds,
// and bytes of the fullest rank. A few microseconds without a pipeline, under a millisecond with one.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/planner/probe.h"
#include "tutti/planner/request.h"
#include "tutti/schedule/schedule.h"
#include "tutti/simulate/machine_prices.h"

namespace tutti::planner {

struct Price {
    double seconds = 0;               // of a step
    double bytes = 0;                 // of the device of the fullest rank
    double offloaded = 0, saved = 0;  // of that rank: on the host; in a checkpoint
};

class Pricer {
  public:
    Pricer(const Request& request, const rehearsal::Target& target);
    // A run of the request that validate() accepts; nothing where its step takes longer than `limit`. UsageError for a
    // schedule that does not exist.
    std::optional<Price> price(const spec::RunSpec& run, double limit = std::numeric_limits<double>::infinity());
    size_t probes() const { return probes_.rehearsed(); }

  private:
    struct Stage {
        std::vector<const UnitProbe*> units;        // in the order of the forward
        double forward = 0, input = 0, weight = 0;  // with what data parallelism does not hide in each microbatch
        double last_reduction = 0;  // seconds that the last microbatch takes longer, to reduce gradients
        double kept = 0, kept_for_weight = 0, offloaded = 0;
        double dense = 0, experts = 0;
        std::array<double, 4> transient{};  // transient_of() F, B, I and W
        const UnitProbe* last = nullptr;    // layer
        bool has_head = false;
    };
    struct Layout;  // of one run

    Layout layout_of(const spec::RunSpec& run);
    const schedule::Schedule& schedule_of(const spec::ParallelSpec& p, int64_t microbatches);
    const std::vector<std::pair<int64_t, int64_t>>& layers_of(const spec::RunSpec& run, int stages);
    void add_data_parallelism(const Layout& layout, Stage& stage) const;
    double update(const Layout& layout, size_t rank) const;
    Price memory_of(const Layout& layout, size_t rank) const;
    double transient_of(const Layout& layout, const Stage& stage, schedule::Op op, bool splits) const;

    const Request& request_;
    rehearsal::Target target_;
    simulate::MachinePrices prices_;
    Probes probes_;
    std::vector<double> costs_;  // of the model's modules, as the engine balances stages
    std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, schedule::Schedule> schedules_;
    std::map<std::pair<int, bool>, std::vector<std::pair<int64_t, int64_t>>> layers_;  // begin, end by stage
};

}  // namespace tutti::planner
