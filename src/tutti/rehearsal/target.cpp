#include "tutti/rehearsal/target.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/backends.h"
#include "tutti/kernels/code_units.h"
#include "tutti/spec/nearest.h"

namespace tutti::rehearsal {

Target target_of(const engine::Machine& machine) {
    Device& device = *machine.device;
    MetaTarget meta{.name = device.name(),
                    .threads = device.stream().threads,
                    .workspace_bytes = device.stream().workspace_bytes,
                    .records = device.records(),
                    .capability = device.stream().capability};
    if (device.host_readable())
        meta.segment_bytes = host_segment_bytes;
    else
        meta.memory_bytes = device.free_bytes() + device.memory().reserved(), meta.arena = true;
    return {&machine.kernels, meta};
}

namespace {

std::vector<kernels::DeviceModel> cpu_models(int threads) { return kernels::backends().back().models(threads); }

}  // namespace

Target target_for(const hardware::Cluster& cluster, ComputeType compute_type) {
    const auto gpus = kernels::backends().first(kernels::backends().size() - 1);
    const auto own = std::find_if(gpus.begin(), gpus.end(), [&](const auto& b) { return b.vendor == cluster.vendor; });
    const kernels::Backend& backend = own == gpus.end() ? gpus.front() : *own;
    const kernels::DeviceModel model = backend.models(1).front();
    Target target{model.table(compute_type), model.device};
    target.device.name = own == gpus.end() ? concat(cluster.name, " (kernels as of ", backend.vendor, " GPUs)")
                                           : concat(cluster.vendor, ' ', cluster.name);
    target.device.memory_bytes = static_cast<int64_t>(cluster.memory);
    target.device.capability = kernels::capability_of(cluster.generation);
    return target;
}

Target target_named(const std::string& name, ComputeType compute_type, int threads,
                    const std::vector<std::string>& changes) {
    for (const kernels::DeviceModel& model : cpu_models(threads)) {
        if (name != model.name) continue;
        const kernels::KernelTable* table = model.table(compute_type);
        check<UsageError>(table != nullptr, compute_type, " needs a GPU, and the plan is for ", name,
                          "; compute in f32, bf16 or f16");
        check<UsageError>(changes.empty(), "--set-cluster ", joined(changes), ": ", name,
                          " has no data sheet to change; it changes clusters such as h100");
        return {table, model.device};
    }
    if (hardware::is_cluster(name) || name.ends_with(".toml"))
        return target_for(hardware::cluster_named(name, changes), compute_type);
    const std::vector<std::string> names = target_names();
    throw UsageError(concat("no machine is called \"", name, "\" and no file has that name; the nearest is ",
                            spec::nearest(name, names), ". Known: ", joined(names)));
}

std::optional<comm::SumOrder> device_sums(const spec::RunSpec& run, const Target& target, int ranks) {
    if (ranks == 1 || target.through_host || run.comm.gpu == "host") return std::nullopt;
    for (const kernels::Backend& backend : kernels::backends())
        for (const ComputeType type : {ComputeType::f32, ComputeType::tf32})
            if (backend.world != nullptr && backend.table(type) == target.kernels)
                return comm::sum_order_of(run.comm.order);
    return std::nullopt;
}

bool is_cpu_model(const std::string& name) {
    const auto models = cpu_models(1);
    return std::any_of(models.begin(), models.end(), [&](const auto& model) { return model.name == name; });
}

std::vector<double> parse_expert_loads(std::string_view option, const std::string& text, const spec::RunSpec& run) {
    if (text.empty()) return {};
    const int64_t experts = run.model.moe.experts;
    check<UsageError>(experts > 0, option, " ", text, ": this model has no experts");
    std::vector<double> loads;
    for (const std::string_view part : split(text, ',')) {
        const double load = parse_number<double>(part).value_or(-1);
        check<UsageError>(load >= 0 && std::isfinite(load), option, " ", text, ": \"", part,
                          "\" is not a load; required: 1.5, or one for each of ", experts, " experts: 3,1,...");
        loads.push_back(load);
    }
    if (loads.size() == 1 && experts > 1) {
        const double others = (static_cast<double>(experts) - loads[0]) / static_cast<double>(experts - 1);
        check<UsageError>(others >= 0, option, " ", text, ": of ", experts, " experts one can have ", experts,
                          " times the mean at most");
        loads.resize(to_size(experts), others);
    }
    check<UsageError>(static_cast<int64_t>(loads.size()) == experts, option, " ", text, ": ", loads.size(),
                      " loads for ", experts, " experts; required: one for each, or one number for the first");
    check<UsageError>(std::accumulate(loads.begin(), loads.end(), 0.0) > 0, option, " ", text, ": all loads are 0");
    return loads;
}

std::vector<std::string> target_names() {
    std::vector<std::string> names;
    for (const kernels::DeviceModel& model : cpu_models(1)) names.push_back(model.name);
    const std::vector<std::string> clusters = hardware::cluster_names();
    names.insert(names.end(), clusters.begin(), clusters.end());
    return names;
}

}  // namespace tutti::rehearsal
