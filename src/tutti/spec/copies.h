// spec/copies.h: how many copies of what a rank saves lie in the memory of hosts: one number for the checks before a
// run, the rehearsal and the plan.
#pragma once

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// For each rank of a host (checkpoint.memory_every): two slots of its own, two of a rank of another host, and the state
// from which one is written while training goes on (checkpoint.async).
constexpr int copies_in_memory(const RunSpec& run, bool on_several_hosts) {
    if (run.checkpoint.memory_every == 0) return 0;
    return (on_several_hosts ? 4 : 2) + (run.checkpoint.async ? 1 : 0);
}

}  // namespace tutti::spec
