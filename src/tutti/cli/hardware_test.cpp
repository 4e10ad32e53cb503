// `tutti hardware`: figures of data sheets and of the Llama 3 report, computed here.
#include <gtest/gtest.h>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/cli/testing/run.h"
#include "tutti/hardware/cluster.h"

namespace tutti::cli {
namespace {

struct Hardware : CommandTest {
    Json answer(std::vector<std::string> words) {
        words.emplace_back("--json");
        EXPECT_EQ(run_words("hardware", words), 0) << err;
        return out.empty() ? Json() : Json::parse(out);
    }
};

TEST_F(Hardware, TheLadderOfAnH100FallsFromItsMemoryToThePods) {
    const Json h100 =
        answer({"h100", "--set-cluster", "network.pod=3072", "--set-cluster", "network.oversubscription=7"});
    const std::vector<std::pair<const char*, double>> gigabytes = {
        {"L1", 31000}, {"L2", 12000}, {"memory", 3352}, {"host memory", 2 * 8 * 4.8 * 8},  // channels, GT/s, bytes
        {"link", 450}, {"host", 64},  {"network", 50},  {"pods", 50.0 / 7}};
    ASSERT_EQ(h100["ladder"].size(), gigabytes.size());
    for (size_t i = 0; i < gigabytes.size(); ++i) {
        EXPECT_EQ(h100["ladder"][i]["name"], gigabytes[i].first);
        EXPECT_NEAR(h100["ladder"][i]["bytes_per_s"].get<double>(), gigabytes[i].second * 1e9, 1e3);
        EXPECT_NEAR(h100["ladder"][i]["slower_than_memory"].get<double>(), 3352 / gigabytes[i].second, 1e-6);
    }
}

// Llama 3 was trained on a cluster of 24,576: 24.3 EFLOP/s; 132 multiprocessors and 80 GB each.
TEST_F(Hardware, TotalsOfACluster) {
    const Json total = answer({"h100", "--devices", "24576"})["total"];
    EXPECT_NEAR(total["flops_per_s"].get<double>(), 24576 * 989.4e12, 1e9);
    EXPECT_NEAR(total["memory_bytes"].get<double>(), 1.96608e15, 1e6);
    EXPECT_EQ(total["processors"].get<int64_t>(), 3244032);
    EXPECT_EQ(total["cores"].get<int64_t>(), 415236096);  // "415 M cores, 13 M tensor cores" of a lecture
    EXPECT_EQ(total["tensor_cores"].get<int64_t>(), 12976128);
    EXPECT_EQ(run_words("hardware", {"h100", "--devices", "24576"}), 0);
    EXPECT_NE(out.find("24.3 EFLOP/s"), std::string::npos) << out;
}

TEST_F(Hardware, WhatManyDevicesStandIn) {
    const auto parts = [&](const char* name, const char* devices) {
        return answer({name, "--devices", devices})["total"]["parts"].dump();
    };
    EXPECT_EQ(parts("h100-llama3", "24576"), R"({"nodes":3072,"racks":1536,"pods":8})");  // of the Llama 3 report
    EXPECT_EQ(parts("gb200", "2048"), R"({"nodes":512,"racks":32})");
    EXPECT_EQ(parts("trainium2-ultra", "65"), R"({"nodes":5,"racks":2})");
    EXPECT_EQ(parts("tpu-v4", "8192"), R"({"nodes":2048,"domains":2})");
    EXPECT_EQ(run_words("hardware", {"gb200", "--devices", "2048"}), 0);
    EXPECT_TRUE(says("32 racks of 72 of which a job takes 64")) << out;
}

TEST_F(Hardware, EveryDeviceOfTheCatalogIsListed) {
    EXPECT_EQ(answer({})["devices"].size(), hardware::cluster_names().size());
    EXPECT_EQ(run_words("hardware", {}), 0);
    for (const std::string& name : hardware::cluster_names()) EXPECT_NE(out.find(name), std::string::npos) << name;
    ASSERT_EQ(run_words("hardware", {"--html", path("years.html")}), 0) << err;
    const std::string page = read_file(path("years.html"));
    for (const std::string& name : hardware::cluster_names()) EXPECT_NE(page.find(name), std::string::npos) << name;
    EXPECT_EQ(run_words("hardware", {"--devices", "8"}), 2);
    EXPECT_EQ(run_words("hardware", {"h100", "--html", path("x.html")}), 2);
    EXPECT_EQ(run_words("hardware", {"h1000"}), 2);
    EXPECT_TRUE(says("h100")) << err;
}

}  // namespace
}  // namespace tutti::cli
