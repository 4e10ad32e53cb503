#include "tutti/rehearsal/target.h"

#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/kernels/backends.h"
#include "tutti/spec/nearest.h"

namespace tutti::rehearsal {

Target target_of(const engine::Machine& machine) {
    Device& device = *machine.device;
    MetaTarget meta{.name = device.name(),
                    .threads = device.stream().threads,
                    .workspace_bytes = device.stream().workspace_bytes,
                    .records = device.records()};
    if (device.host_readable())
        meta.segment_bytes = host_segment_bytes;
    else
        meta.memory_bytes = device.free_bytes() + device.memory().reserved();
    return {&machine.kernels, meta};
}

Target target_named(std::string_view name, ComputeType compute_type, int threads) {
    for (const kernels::Backend& backend : kernels::backends())
        for (const kernels::DeviceModel& model : backend.models(threads)) {
            if (name != model.name) continue;
            const kernels::KernelTable* table = model.table(compute_type);
            check<UsageError>(table != nullptr, compute_type, " needs a GPU, and the plan is for ", name,
                              "; compute in f32 or bf16");
            return {table, model.device};
        }
    const std::vector<std::string> names = target_names();
    throw UsageError(concat("no machine is called \"", name, "\"; the nearest is ",
                            spec::nearest(std::string(name), names), ". Known: ", joined(names)));
}

std::vector<double> parse_expert_loads(std::string_view option, const std::string& text, const spec::RunSpec& run) {
    if (text.empty()) return {};
    const int64_t experts = run.model.moe.experts;
    check<UsageError>(experts > 0, option, " ", text, ": this model has no experts");
    std::vector<double> loads;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        double load = -1;
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), load);
        const bool is_number = error == std::errc() && end == part.data() + part.size() && std::isfinite(load);
        check<UsageError>(is_number && load >= 0, option, " ", text, ": \"", part,
                          "\" is not a load; required: 1.5, or one for each of ", experts, " experts: 3,1,...");
        loads.push_back(load);
    }
    if (loads.size() == 1 && experts > 1) {
        const double others = (static_cast<double>(experts) - loads[0]) / static_cast<double>(experts - 1);
        check<UsageError>(others >= 0, option, " ", text, ": of ", experts, " experts one can have ", experts,
                          " times the mean at most");
        loads.resize(static_cast<size_t>(experts), others);
    }
    check<UsageError>(static_cast<int64_t>(loads.size()) == experts, option, " ", text, ": ", loads.size(),
                      " loads for ", experts, " experts; required: one for each, or one number for the first");
    check<UsageError>(std::accumulate(loads.begin(), loads.end(), 0.0) > 0, option, " ", text, ": all loads are 0");
    return loads;
}

std::vector<std::string> target_names() {
    std::vector<std::string> names;
    const auto all = kernels::backends();
    for (auto backend = all.rbegin(); backend != all.rend(); ++backend)
        for (const kernels::DeviceModel& model : backend->models(1)) names.push_back(model.name);
    return names;
}

}  // namespace tutti::rehearsal
