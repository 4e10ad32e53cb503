// The commands that compute, with --device cuda: their JSON, and no host pointer into device memory on the way. Linked
// with kernels of the CPU in device memory (borrowed_kernels.cpp).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tutti/cli/cli.h"

namespace tutti::cli {
namespace {

nlohmann::json tutti(const std::vector<const char*>& words) {
    std::vector<const char*> argv = {"tutti"};
    argv.insert(argv.end(), words.begin(), words.end());
    argv.push_back("--json");
    std::ostringstream out, err;
    EXPECT_EQ(run(static_cast<int>(argv.size()), argv.data(), Io{out, err}), 0) << err.str();
    return nlohmann::json::parse(out.str());
}

TEST(CudaTools, DoctorNamesTheGpu) {
    const auto section = tutti({"doctor"})["gpu"], gpus = section["gpus"];
    ASSERT_EQ(gpus.size(), 1U);
    EXPECT_EQ(gpus[0]["name"], "emulated GPU");
    EXPECT_EQ(gpus[0]["compute_capability"], "9.0");
    EXPECT_TRUE(section["cudnn"].is_boolean());
    EXPECT_TRUE(section.contains("driver"));
}

TEST(CudaTools, BenchGemm) {
    const auto document = tutti({"bench", "gemm", "--device", "cuda", "--seconds", "0.01"});
    EXPECT_EQ(document["machine"], "GPU 0 (emulated GPU)");
    EXPECT_EQ(document["rows"][0]["rows"], 512);
    // Hopper's bf16 data sheet: 132 multiprocessors x 4096 FLOP x 1830 MHz.
    EXPECT_NEAR(document["device_peak_flops_per_s"].get<double>(), 989.4e12, 0.1e12);
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
