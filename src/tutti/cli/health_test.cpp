// `tutti health` as a command: document, exit codes, refusals.
#include <gtest/gtest.h>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/testing/run.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/device/device.h"

namespace tutti::cli {
namespace {

Ran health(std::vector<std::string> words) {
    words.insert(words.begin(), "health");
    return tutti(words);
}

TEST(Health, IsOneDocument) {
    const Ran r = health({"--ranks", "3", "--device", "cpu", "--threads", "1", "--seconds", "0.01", "--json"});
    const Json d = Json::parse(r.out);
    EXPECT_EQ(r.code, d["findings"].empty() ? 0 : 1);
    EXPECT_EQ(d["healthy"], d["findings"].empty());
    ASSERT_EQ(d["ranks"].size(), 3u);
    for (int rank = 0; rank < 3; ++rank) {
        const auto& row = d["ranks"][to_size(rank)];
        EXPECT_EQ(row["rank"], rank);
        EXPECT_EQ(row["host"], host_name());
        for (const char* figure : {"bf16_products", "f32_products", "memory"})
            EXPECT_GT(row[figure].get<double>(), 0) << figure;
        EXPECT_TRUE(row["to_device"].is_null());
        EXPECT_EQ(row["wrong_rows"], 0);
        EXPECT_GE(row["repeats"].get<double>(), 6);  // three of each type
        EXPECT_EQ(row["changed"], 0);
        EXPECT_EQ(row["digest"], d["ranks"][0]["digest"]);
    }
    ASSERT_EQ(d["links"].size(), 3u);
    EXPECT_EQ(d["links"][2]["ranks"], Json({1, 2}));
    for (const auto& l : d["links"]) {
        EXPECT_GT(l["bytes_per_s"].get<double>(), 0);
        EXPECT_GT(l["latency_s"].get<double>(), 0);
        EXPECT_EQ(l["wrong_words"], 0);
    }
    EXPECT_GT(d["all_reduce"]["median_s"].get<double>(), 0);
}

TEST(Health, SaysHowItEnded) {
    // Nothing is a thousand times slower than its peers.
    const Ran r = health({"--ranks", "2", "--device", "cpu", "--threads", "1", "--seconds", "0.01", "--margin", "0.999",
                          "--one-by-one"});
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_NE(r.out.find("1 link within a host"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("Healthy: "), std::string::npos) << r.out;
}

TEST(Health, RefusesWhatCannotBe) {
    for (const auto& [words, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"--ranks", "0"}, "--ranks"},
             {{"--margin", "1"}, "--margin"},
             {{"--margin", "20%"}, "--margin"},
             {{"--seconds", "0"}, "--seconds"},
             {{"--device", "tpu"}, "--device"},
             {{"--rank", "2"}, "the nearest is --ranks"},
             {{"--launcher", "pbs"}, "pbs"},
             {{"--ranks", "65", "--device", "cpu", "--one-by-one"}, "for at most 64 ranks, got 65 with 2080 links"},
             {{"now"}, "takes no argument now"}}) {
        const Ran r = health(words);
        EXPECT_EQ(r.code, 2) << message;
        EXPECT_EQ(r.out, "") << message;
        EXPECT_NE(r.err.find(message), std::string::npos) << r.err;
    }
    if (find_gpus().found.empty()) {
        const Ran r = health({"--device", "cuda"});
        EXPECT_EQ(r.code, 2);
        EXPECT_NE(r.err.find("tutti doctor"), std::string::npos) << r.err;
    }
}

}  // namespace
}  // namespace tutti::cli
