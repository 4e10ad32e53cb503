#include "tutti/rehearsal/target.h"

#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/spec/nearest.h"

namespace tutti::rehearsal {

namespace {

constexpr kernels::Isa kIsas[] = {kernels::Isa::avx2, kernels::Isa::avx512, kernels::Isa::avx512_bf16,
                                  kernels::Isa::amx};

// Memory as nvidia-smi reports it, in MiB; the driver and a CUDA context take about 600 MiB of that.
struct GpuModel {
    const char *name, *title;
    int64_t mib;
};
constexpr GpuModel kGpus[] = {
    {"a100-40gb", "NVIDIA A100 40GB", 40960},   {"a100-80gb", "NVIDIA A100 80GB", 81920},
    {"h100", "NVIDIA H100 80GB", 81559},        {"h200", "NVIDIA H200 141GB", 143771},
    {"b200", "NVIDIA B200 180GB", 183359},      {"l40s", "NVIDIA L40S 48GB", 46068},
    {"rtx4090", "NVIDIA RTX 4090 24GB", 24564},
};
constexpr int64_t kMiB = 1 << 20, kContextMiB = 600;
constexpr int64_t kGpuWorkspace = 32 << 20;  // of cuBLASLt: device/cuda/cuda_device.cpp

std::string cpu_name(kernels::Isa isa) { return concat("cpu-", name_of(isa)); }

}  // namespace

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
    for (const kernels::Isa isa : kIsas) {
        if (name != cpu_name(isa)) continue;
        check<UsageError>(compute_type != ComputeType::tf32, "tf32 needs a GPU, and the plan is for ", name,
                          "; compute in f32 or bf16");
        return {&kernels::cpu_table(isa),
                {.name = concat(name, ", ", threads, threads == 1 ? " thread" : " threads"),
                 .threads = threads,
                 .segment_bytes = host_segment_bytes}};
    }
    for (const GpuModel& gpu : kGpus)
        if (name == gpu.name)
            return {compute_type == ComputeType::tf32 ? &kernels::cuda_tf32_table() : &kernels::cuda_table(),
                    {.name = gpu.title,
                     .memory_bytes = (gpu.mib - kContextMiB) * kMiB,
                     .workspace_bytes = kGpuWorkspace,
                     .records = true}};
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
    for (const kernels::Isa isa : kIsas) names.push_back(cpu_name(isa));
    for (const GpuModel& gpu : kGpus) names.emplace_back(gpu.name);
    return names;
}

}  // namespace tutti::rehearsal
