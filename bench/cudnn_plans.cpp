// bench/cudnn_plans.cpp: what cuDNN plans for attention on an H100, asked without a GPU (bench/cudnn_plans.sh): whether
// it takes the graphs of kernels/cuda/cudnn_graph.cpp, and its workspace beside the bound that a plan counts. cuDNN
// takes a GPU's properties as JSON (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION); these are CUDA's attributes of one.
#include <cstdio>

#include "tutti/kernels/cuda/cudnn_graph.cpp"  // the graphs themselves
#include "tutti/kernels/cuda/sizes.h"

namespace tutti::kernels::cuda {
namespace {

constexpr const char* kH100 =
    R"({"deviceName": "NVIDIA H100 80GB HBM3", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
        "totalGlobalMem": 85021163520, "multiProcessorCount": 132, "smClockRateKHz": 1980000,
        "memClockRateKHz": 2619000, "memoryBusWidth": 5120, "l2CacheSize": 52428800, "warpSize": 32,
        "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024, "oversizedSharedMemoryPerBlock": 0, "pciDeviceId": 9008,
        "isTccDriver": 0, "supportCoopLaunch": 1})";

struct Request {
    const char* of;
    int64_t B, Tq, Tk, H, Hkv, D;
    bool side_by_side = true;  // q, k and v are columns of one matrix
    bool causal = true;
    int64_t window = 0;
};
constexpr Request kRequests[] = {
    {"gpt2-124m", 32, 1024, 1024, 12, 12, 64},
    {"gpt2-124m", 64, 1024, 1024, 12, 12, 64},
    {"llama3.2-1b", 4, 4096, 4096, 32, 8, 64},
    {"llama3.2-3b", 1, 4096, 4096, 24, 8, 128},
    {"llama3.2-3b", 2, 4096, 4096, 24, 8, 128},
    {"llama3-8b", 1, 8192, 8192, 32, 8, 128},
    {"llama3-8b, tp 8", 1, 8192, 8192, 4, 1, 128},
    {"llama3-8b", 1, 32768, 32768, 32, 8, 128},
    {"as many key heads", 4, 4096, 4096, 32, 32, 128, false},
    {"window", 2, 4096, 4096, 32, 8, 128, true, true, 1024},
    {"head dim 80", 2, 512, 512, 8, 8, 80},
    {"head dim 96", 2, 512, 512, 8, 8, 96},
    {"head dim 192", 1, 2048, 2048, 8, 4, 192},
    {"head dim 256", 1, 2048, 2048, 8, 4, 256},
    {"no whole tiles", 1, 1000, 1000, 8, 8, 64},
    {"no mask", 2, 512, 512, 8, 8, 64, true, false},
    {"one query", 1, 1, 1024, 32, 8, 128, false},
    {"later queries", 1, 512, 4096, 32, 8, 128, false},
};

CudnnProblem problem_of(const Request& r, bool backward) {
    const auto place = [&](int64_t heads, int64_t tokens, int64_t row) {
        return CudnnPlace{{r.B, heads, tokens, r.D}, {tokens * row, r.D, row, 1}};
    };
    const int64_t all = (r.H + 2 * r.Hkv) * r.D;
    CudnnProblem p{.scale = 0.125f, .backward = backward, .causal = r.causal, .window = r.window};
    p.bottom_right = r.Tq != r.Tk;
    p.q = p.dq = place(r.H, r.Tq, r.side_by_side ? all : r.H * r.D);
    p.k = p.v = p.dk = p.dv = place(r.Hkv, r.Tk, r.side_by_side ? all : r.Hkv * r.D);
    p.o = p.dy = place(r.H, r.Tq, r.H * r.D);
    return p;
}

// The bytes of workspace, or throws what cuDNN says.
int64_t planned(const CudnnProblem& p, const std::shared_ptr<fe::DeviceProperties>& gpu) {
    const auto check_good = [](const char* what, fe::error_t status) {
        check(status.is_good(), what, ": ", status.get_message());
    };
    const std::shared_ptr<Graph> graph = describe(p);
    graph->set_device_properties(gpu);
    check_good("the graph", graph->validate());
    check_good("its operations", graph->build_operation_graph());
    check_good("plans", graph->create_execution_plans({fe::HeurMode_t::A}));
    check_good("support", graph->check_support());
    check_good("a plan", graph->build_plans());
    int64_t bytes = 0;
    check_good("workspace", graph->get_workspace_size(bytes));
    return bytes;
}

int run() {
    std::printf("%s, H100\n", cudnn_version().c_str());  // opens the library
    const std::string properties = kH100;
    const auto gpu = std::make_shared<fe::DeviceProperties>();
    fe::error_t status = gpu->deserialize({properties.begin(), properties.end()});
    check(status.is_good(), "cuDNN refuses the properties of the GPU: ", status.get_message());
    std::printf("%-18s %3s %6s %6s %3s %4s %4s %-8s %12s %12s\n", "request", "B", "Tq", "Tk", "H", "Hkv", "D", "pass",
                "workspace", "bound");
    int wrong = 0;
    for (const Request& r : kRequests)
        for (const bool backward : {false, true}) {
            std::printf("%-18s %3ld %6ld %6ld %3ld %4ld %4ld %-8s ", r.of, r.B, r.Tq, r.Tk, r.H, r.Hkv, r.D,
                        backward ? "backward" : "forward");
            const int64_t bound = 4 * cudnn_workspace({r.B, r.Tq, r.H, r.D}, {r.B, r.Tk, r.Hkv, r.D}, backward);
            try {
                const int64_t bytes = planned(problem_of(r, backward), gpu);
                std::printf("%12ld %12ld%s\n", bytes, bound, bytes > bound ? " BEYOND" : "");
                wrong += bytes > bound;
            } catch (const Error& error) {
                std::printf("REFUSED by %s\n", error.what());
                ++wrong;
            }
            std::fflush(stdout);
        }
    std::printf("%d of %zu refused or beyond the bound\n", wrong, 2 * std::size(kRequests));
    return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tutti::kernels::cuda

int main() {
    try {
        return tutti::kernels::cuda::run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cudnn_plans: %s\n", error.what());
        return 2;
    }
}
