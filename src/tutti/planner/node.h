// planner/node.h: the layouts of one node of the search (search.h): its pipelines with a first estimate, and all data
// parallelism of a pipeline. Nothing here depends on other nodes, so that several are estimated side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tutti/planner/price.h"
#include "tutti/planner/request.h"
#include "tutti/planner/rules.h"

namespace tutti::planner {

// What changes a layer.
struct Node {
    int64_t tp = 1, cp = 1, ep = 1, etp = 1;
    ContextMethod how;
    size_t micro_batch = 0;  // in micro_batches_of()
    int recompute = 0;       // in kPolicies
    bool offloads = false, splits = false;
    auto operator<=>(const Node&) const = default;
};
inline constexpr int kMostExpertTp = 8;
std::vector<int> micro_batches_of(const Request& r);

// What was seen of the memory while layouts were estimated.
struct MemorySeen {
    double least = 0;     // bytes of the smallest layout; 0: none was estimated
    bool scarce = false;  // a layout needs most of the memory, or more
    bool host = false;    // a layout fits the device, and what it offloads does not fit the host
    void add(const MemorySeen& other);
};

// A pipeline of a node.
struct PipelineEstimate {
    Node node;
    int64_t pp = 1;
    std::string_view schedule;
    int64_t virtual_stages = 1;
    int64_t layouts = 0;  // its data parallelism, with offload of state
    double passes = 0;    // seconds without data parallelism; a layout takes no less
    // Seconds with the data parallelism that is tried first: no less than these; once estimated, if that fits.
    double least = 0;
    std::optional<double> seconds;
    MemorySeen seen;
};
struct NodePipelines {
    std::vector<PipelineEstimate> pipelines;
    int64_t against_rules = 0;  // layouts
};

// One way of data parallelism with a pipeline.
struct DataEstimate {
    int zero = 0, replicas = 1;
    bool offloads_weights = false, offloads_optimizer = false;
    int reductions = 1;
    double seconds = 0, bytes = 0;
};
struct DataEstimates {
    std::vector<DataEstimate> fitting;  // to kSlack of the memory
    // Layouts: against a rule, too large, or with an offload that is not needed.
    int64_t against_rules = 0, too_large = 0, not_needed = 0;
    MemorySeen seen;
};

class NodeLayouts {
  public:
    NodeLayouts(const Request& r, Pricer& pricer, double capacity);

    // Takes up a node: its layers in run(). Whether the rules allow such layers.
    bool set(const Node& node);
    // Takes up a pipeline of a node, and data parallelism with it.
    void set(const PipelineEstimate& pipeline);
    void set(const DataEstimate& data);
    const spec::RunSpec& run() const { return run_; }  // the current layout

    // The pipelines that the rules allow, those that may be fastest first. `any`: of all schedules, else of
    // those that match the node's backward and offload.
    NodePipelines pipelines(const Node& node, const LayerProbe& probe, bool any);
    // Seconds of a pipeline with ZeRO-1, or where that is too large with ZeRO-2 or 3, or with all its state on the
    // host. Of what takes longer than `limit`, seconds and bytes are lower bounds, the seconds above the limit.
    void estimate(PipelineEstimate& pipeline, const LayerProbe& probe, double limit);
    DataEstimates data_parallel(const PipelineEstimate& pipeline, double limit);

    bool on_host(const spec::RunSpec& run, const Price& price) const;
    int64_t layouts_of_space() const;
    bool may_offload(std::string_view schedule, bool activations) const;
    bool may_shard(int zero) const;  // by this stage of ZeRO

  private:
    void set_pipeline(int64_t pp, std::string_view schedule, int64_t virtual_stages);
    void replicate(int64_t dp, int64_t replicas);
    // What is tried first: a ring of all ranks takes a latency for each of them, which would hide a good pipeline of
    // many ranks. So groups of a few nodes shard the state, and all ranks where that is too large.
    std::vector<int64_t> first_replicas(int64_t dp) const;
    bool groups_fit() const;
    int64_t data_layouts(int64_t dp, std::string_view schedule) const;
    template <class Visit>
    void for_each_pipeline(int64_t pp, Visit visit) const;
    Price estimate(const LayerProbe& probe, double limit, MemorySeen& seen);

    const Request& r_;
    Pricer& pricer_;
    double capacity_;
    std::vector<int> micro_batches_;
    spec::RunSpec run_;
};

}  // namespace tutti::planner
