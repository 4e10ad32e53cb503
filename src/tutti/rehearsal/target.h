// rehearsal/target.h: the machine that a rehearsal assumes, this one or another. Sizes of workspaces depend on its
// kernels, its threads and the shapes alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/device/meta/meta_device.h"
#include "tutti/engine/engine.h"
#include "tutti/hardware/cluster.h"

namespace tutti::rehearsal {

struct Target {
    const kernels::KernelTable* kernels = nullptr;
    MetaTarget device;          // memory_bytes 0: not known
    bool through_host = false;  // ranks communicate in the memory of their host, whatever [comm] gpu says
    // Choices of each expert of a mixture relative to the others, on every rank and in every layer; empty: even.
    std::vector<double> expert_loads = {};
};

// The machine of an existing rank.
Target target_of(const engine::Machine& machine);

// A device of a cluster, with its memory. Devices that have no kernels here are rehearsed with those of the GPUs that
// have, and the name says so.
Target target_for(const hardware::Cluster& cluster, ComputeType compute_type);

// The machine of a name: "cpu-avx2", "cpu-avx512", "cpu-avx512_bf16", "cpu-amx" with `threads` threads and memory of
// any size; or a cluster's device (hardware::cluster_named, with its changes). UsageError for an unknown name, with the
// nearest, and for tf32 on a CPU.
Target target_named(const std::string& name, ComputeType compute_type, int threads,
                    const std::vector<std::string>& changes = {});
// The order in which the devices of `ranks` ranks add; none where they communicate in the memory of the host.
std::optional<comm::SumOrder> device_sums(const spec::RunSpec& run, const Target& target, int ranks);
bool is_cpu_model(const std::string& name);
std::vector<std::string> target_names();

// "1.5": the first expert has 1.5 times the mean load and the others share the rest evenly. "3,1,1,1": the load of each
// expert. "" gives {}. UsageError, naming `option`, for any other text, and for a model without experts.
std::vector<double> parse_expert_loads(std::string_view option, const std::string& text, const spec::RunSpec& run);

}  // namespace tutti::rehearsal
