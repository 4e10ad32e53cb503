// The commands that compute, with --device cuda: their JSON, and no host pointer into device memory on the way. Linked
// with kernels of the CPU in device memory (borrowed_kernels.cpp).
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "tests/cuda/emulation/api.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/cli.h"
#include "tutti/device/cuda/architectures.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/kernels/backends.h"

namespace tutti::cli {
namespace {

Json tutti(const std::vector<const char*>& words, int exit_code = 0) {
    std::vector<const char*> argv = {"tutti"};
    argv.insert(argv.end(), words.begin(), words.end());
    argv.push_back("--json");
    std::ostringstream out, err;
    EXPECT_EQ(run(static_cast<int>(argv.size()), argv.data(), Io{out, err}), exit_code) << err.str();
    return Json::parse(out.str());
}

TEST(CudaTools, DoctorNamesTheGpu) {
    const auto section = tutti({"doctor"})["gpu"], gpus = section["gpus"];
    ASSERT_EQ(gpus.size(), 1U);
    EXPECT_EQ(gpus[0]["name"], "emulated GPU");
    EXPECT_EQ(gpus[0]["compute_capability"], "9.0");
    EXPECT_TRUE(section["cudnn"].is_boolean());
    EXPECT_TRUE(section.contains("driver"));
}

TEST(CudaTools, AGpuWithoutKernelsIsNamedAtOnce) {
    emulation::set_capability(8, 6);
    const std::string why =
        "the emulated GPU has compute capability 8.6, and the kernels of this program are compiled for 90a-real; build "
        "it with -DTUTTI_CUDA_ARCHITECTURES=86-real, or hide that GPU (CUDA_VISIBLE_DEVICES)";
    for (const char* kind : {"cuda", "auto"})
        for (const std::function<void()>& call :
             std::vector<std::function<void()>>{[&] { check_device(kind); }, [&] { make_device(kind, 1); }})
            try {
                call();
                ADD_FAILURE() << kind;
            } catch (const UsageError& error) {
                EXPECT_EQ(std::string(error.what()),
                          concat("device = \"", kind, "\": ", why, "; device = \"cpu\" trains without a GPU"));
            }
    EXPECT_EQ(make_device("cpu", 1)->backend(), "cpu");
    const auto document = tutti({"doctor"}, 4);
    EXPECT_EQ(document["gpu"]["architectures"], "90a-real");
    EXPECT_NE(document.dump().find(why), std::string::npos) << document.dump();
    emulation::set_capability(9, 0);
    EXPECT_EQ(make_device("auto", 1)->backend(), "cuda");
}

TEST(CudaTools, WhichArchitecturesRunWhere) {
    struct Row {
        const char* architectures;
        int major, minor;
        bool runs;
    };
    for (const Row& r : std::vector<Row>{{"90a-real", 9, 0, true},
                                         {"90a-real", 10, 0, false},
                                         {"90a-real", 8, 0, false},
                                         {"80-real", 8, 6, true},
                                         {"86-real", 8, 0, false},
                                         {"80-real", 9, 0, false},
                                         {"80-virtual", 9, 0, true},
                                         {"80", 12, 0, true},
                                         {"90", 8, 9, false},
                                         {"90a-virtual", 10, 0, false},
                                         {"100f-real", 10, 3, true},
                                         {"100f-virtual", 12, 0, false},
                                         {"80-real,90a-real", 9, 0, true},
                                         {"80-real,90a-real", 8, 9, true},
                                         {"80-real,100a", 9, 0, false},
                                         {"native", 8, 0, true}})
        EXPECT_EQ(cuda::runs_on(r.architectures, r.major, r.minor), r.runs)
            << r.architectures << " on " << r.major << "." << r.minor;
}

TEST(CudaTools, BenchGemm) {
    const auto document = tutti({"bench", "gemm", "--device", "cuda", "--seconds", "0.01"});
    EXPECT_EQ(document["machine"], "GPU 0 (emulated GPU)");
    EXPECT_EQ(document["rows"][0]["rows"], 512);
    // Hopper's bf16 data sheet: 132 multiprocessors x 4096 FLOP x 1830 MHz.
    EXPECT_NEAR(document["device_peak_flops_per_s"].get<double>(), 989.4e12, 0.1e12);
}

// NVIDIA's data sheets, dense bf16 with f32 sums: 1024 FLOP in a cycle of a multiprocessor on L40S, 512 on GeForce
// cards.
TEST(CudaTools, GeForceCardsHaveHalfThePeakOfProfessionalOnes) {
    const auto peak_of = [](int major, int minor, const char* name) {
        emulation::set_capability(major, minor, name);
        const double peak = make_cuda_device(0)->peak(ComputeType::bf16, 0).flops_per_s;
        emulation::set_capability(9, 0);
        return peak;
    };
    for (const auto& [major, minor] : {std::pair(8, 6), {8, 9}, {12, 0}})
        EXPECT_EQ(peak_of(major, minor, "NVIDIA GeForce RTX"), peak_of(major, minor, "NVIDIA L40S") / 2);
    EXPECT_NEAR(peak_of(8, 9, "NVIDIA L40S"), 132 * 1980e6 * 1024, 1e9);  // the emulated clock and multiprocessors
}

TEST(CudaTools, BenchStep) {
    const auto document = tutti({"bench", "step", "--device", "cuda", "--seconds", "0.01", "--kernels", "--set",
                                 "train.global_batch=2", "--set", "train.micro_batch=1", "--set", "train.seq_len=32"});
    EXPECT_GT(document["last_loss"].get<double>(), 0);
    EXPECT_FALSE(document["rows"].empty());  // of kernels
}

// Two ranks on one GPU: products and copies in its memory, links through the host's.
TEST(CudaTools, Health) {
    const auto document =
        tutti({"health", "--device", "cuda", "--ranks", "2", "--seconds", "0.01", "--margin", "0.999"});
    ASSERT_EQ(document["ranks"].size(), 2U);
    for (const auto& rank : document["ranks"]) {
        EXPECT_EQ(rank["device"], "emulated GPU, shared by 2 ranks");
        EXPECT_EQ(rank["wrong_rows"], 0);
        EXPECT_EQ(rank["changed"], 0);
        for (const char* rate : {"bf16_products", "f32_products", "memory", "to_device", "from_device"})
            EXPECT_GT(rank[rate].get<double>(), 0) << rate;
    }
    EXPECT_TRUE(document["healthy"].get<bool>());
}

}  // namespace
}  // namespace tutti::cli
