// train/first_step.h: what the first step of a start showed, beside its rehearsal: the memory of each rank, the traffic
// of each group, and requests that the kernels did not compute as the config asks.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/comm/world.h"
#include "tutti/engine/engine.h"
#include "tutti/models/flops.h"
#include "tutti/parallel/groups.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/train/run_peak.h"

namespace tutti::train {

class FirstStep {
  public:
    // The rehearsal of this rank, before the step. Only the first rank keeps it whole.
    void expect(rehearsal::Rehearsal rehearsed, bool first_rank);
    void begin(const engine::Engine& engine) { before_ = engine.groups.traffic(); }
    // Reads memory and traffic behind the step; the first rank gets the memory of all. Collective.
    void end(const engine::Engine& engine, comm::World& world);

    bool has_ended() const { return !memory_of_ranks_.empty(); }  // on the first rank
    std::string comparison() const;                               // rehearsed and measured, for the console
    // The document of first_step.json, of the first rank.
    Json to_json(const engine::Engine& engine, const models::ModelCounts& counts, const RunPeak& peak) const;

  private:
    rehearsal::Rehearsal rehearsed_;
    Json rehearsed_memory_;  // of this rank
    std::vector<parallel::GroupTraffic> before_, traffic_;
    MemoryByPurpose memory_;  // at the peak
    Json memory_of_ranks_ = Json::array();
};

// A warning for each kind of request of the first step that slower or other kernels computed than the config names.
std::vector<std::string> kernel_warnings(const engine::Engine& engine);

}  // namespace tutti::train
