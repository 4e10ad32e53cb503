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
        {"memory", 3352}, {"link", 450}, {"host", 64}, {"network", 50}, {"pods", 50.0 / 7}};
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
