#include "tutti/kernels/backends.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/comm/nccl/nccl_world.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/cudnn_graph.h"

namespace tutti::kernels {

namespace {

// --- CPUs ------------------------------------------------------------------------------------------------------------

template <Isa isa>
const KernelTable* cpu_kernels(ComputeType compute_type) {
    return compute_type == ComputeType::tf32 ? nullptr : &cpu_table(isa);
}

template <Isa isa>
DeviceModel cpu_with(int threads) {
    const std::string name = concat("cpu-", name_of(isa));
    return {name,
            {.name = concat(name, ", ", counted(threads, "thread")),
             .threads = threads,
             .segment_bytes = host_segment_bytes},
            cpu_kernels<isa>};
}

constexpr Backend kCpu = {
    .name = "cpu",
    .table = [](ComputeType compute_type) -> const KernelTable* {
        return compute_type == ComputeType::tf32 ? nullptr : &cpu_table(chosen_isa());
    },
    .make =
        [](int threads, const LocalRank& local) {
            return make_cpu_device(threads > 0 ? threads : std::max(1, available_cores() / std::max(1, local.size)));
        },
    .models = [](int threads) -> std::vector<DeviceModel> {
        return {cpu_with<Isa::avx2>(threads), cpu_with<Isa::avx512>(threads), cpu_with<Isa::avx512_bf16>(threads),
                cpu_with<Isa::amx>(threads)};
    }};

// --- NVIDIA's GPUs ---------------------------------------------------------------------------------------------------

constexpr int64_t kWorkspace = 32 << 20;  // of cuBLASLt: device/cuda/cuda_device.cpp

const KernelTable* cuda_kernels(ComputeType compute_type) {
    return compute_type == ComputeType::tf32 ? &cuda_tf32_table() : &cuda_table();
}

std::vector<DeviceModel> nvidia_models(int) {
    return {{"", {.workspace_bytes = kWorkspace, .records = true, .arena = true}, cuda_kernels}};
}

// "580.65.06" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...".
std::string nvidia_driver() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;)
        if (word.size() > 2 && std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != word.npos)
            return word;
    return "";
}

constexpr AttentionLibrary kCudnn{"cudnn", "cuDNN", cuda::cudnn_version};

// A rank has some 10 to 30 streams. With the default of 8 hardware queues two of them share one, and the work of a
// stream that waits holds up the other stream: a hang, where ranks start the operations of several groups in different
// orders. A kernel's first launch loads it, and that may wait for all kernels that run: NCCL's wait for other ranks'
// kernels, so ranks that work together load theirs at once (CUDA C++ programming guide, "Lazy loading": concurrent
// execution).
constexpr Setting kNvidiaSettings[] = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32", false},
                                       {"CUDA_MODULE_LOADING", "EAGER", true}};

constexpr Backend kCuda = {.name = "cuda",
                           .table = cuda_kernels,
                           .make =
                               [](int, const LocalRank& local) {
                                   return make_cuda_device(local.rank % static_cast<int>(find_gpus().found.size()));
                               },
                           .models = nvidia_models,
                           .find = find_gpus,
                           .why_unfit = tutti::why_unfit,
                           .world = comm::nccl_world,
                           .vendor = "NVIDIA",
                           .communication = "nccl",
                           .driver_title = "NVIDIA driver",
                           .driver = nvidia_driver,
                           .architectures = kernel_architectures,
                           .attention_library = &kCudnn,
                           .current_gpu = current_gpu,
                           .settings = kNvidiaSettings};

constexpr Backend kBackends[] = {kCuda, kCpu};

// --- the choice of a device ------------------------------------------------------------------------------------------

const Backend& chosen(std::string_view device) {
    std::string names = "auto";
    for (const Backend& b : kBackends) {
        names += concat(", ", b.name);
        if (device != b.name && device != "auto") continue;
        if (b.find == nullptr) return b;
        const Gpus gpus = b.find();
        if (gpus.found.empty() && device == "auto") continue;
        check<UsageError>(!gpus.found.empty(), "device = \"", device, "\": ", gpus.why_none,
                          "; `tutti doctor` says what this machine has, device = \"cpu\" trains without a GPU");
        for (const Gpu& gpu : gpus.found)
            check<UsageError>(b.why_unfit(gpu).empty(), "device = \"", device, "\": ", b.why_unfit(gpu),
                              "; device = \"cpu\" trains without a GPU");
        return b;
    }
    throw UsageError(concat("a device is one of ", names, ", not ", device));
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

const Backend* backend_of(const Device& device) {
    for (const Backend& b : kBackends)
        if (device.backend() == b.name) return &b;
    return nullptr;
}

const KernelTable& table_for(const Device& device, ComputeType compute_type) {
    const Backend* backend = backend_of(device);
    check(backend != nullptr, device.name(), " computes nothing: a rehearsal names its table (meta/meta_table.h)");
    const KernelTable* table = backend->table(compute_type);
    check<UsageError>(table != nullptr, compute_type, " needs a GPU, and this rank is on ", device.name(),
                      "; compute in f32, bf16 or f16");
    table->gemm_implementations();  // a missing library ends a run here, before anything is allocated
    return *table;
}

AttentionTuning empty_attention_tuning(const Backend& backend) {
    std::string library;
    try {
        library = backend.attention_library->version();
    } catch (const UsageError&) {  // then our own kernels are compared with each other
    }
    const auto [gpu, driver] = backend.current_gpu();
    return {{gpu, driver, library}, {}, {}, false};
}

AttentionChoice attention_choice(const Device& device, const std::string& kernels, const std::string& file) {
    AttentionChoice choice{.kernels = kernels, .tuning = nullptr, .others = {}};
    const Backend* backend = backend_of(device);
    const AttentionLibrary* library = backend == nullptr ? nullptr : backend->attention_library;
    check<UsageError>(library != nullptr || kernels == "own", "[train] attention = \"", kernels,
                      "\": there is one kernel on ", device.name(), "; set attention = \"own\"");
    if (library != nullptr && kernels == library->name) library->version();
    if (!file.empty())
        choice.tuning =
            std::make_unique<AttentionTuning>(read_attention_tuning(file, empty_attention_tuning(*backend)));
    return choice;
}

int gpus_for(std::string_view device) {
    for (const Backend& b : kBackends)
        if (b.find != nullptr && (device == b.name || device == "auto"))
            if (const auto gpus = static_cast<int>(b.find().found.size()); gpus > 0) return gpus;
    return 0;
}

}  // namespace tutti::kernels

namespace tutti {

void set_device_environment(bool several_ranks) {
    for (const kernels::Backend& b : kernels::backends())
        for (const kernels::Setting& setting : b.settings)
            if (several_ranks || !setting.of_several_ranks) setenv(setting.name, setting.value, 0);
}

void check_device(std::string_view device) { kernels::chosen(device); }

std::unique_ptr<Device> make_device(std::string_view device, int threads, const LocalRank& local) {
    return kernels::chosen(device).make(threads, local);
}

}  // namespace tutti
