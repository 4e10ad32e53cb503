// SIGKILL at 50 random moments of a run that saves every step: each start finds a good checkpoint, and what comes out
// in the end is the run that was never killed, bit for bit.
#include <nlohmann/json.hpp>
#include <random>

#include "program.h"

namespace tutti::testing {
namespace {

using Kill = ProgramTest;

std::vector<std::string> metrics(const std::string& file) {
    std::vector<std::string> lines;
    std::istringstream in(read_file(file));
    for (std::string line; std::getline(in, line);) {
        auto json = nlohmann::json::parse(line);
        for (const char* time : {"step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes"}) json.erase(time);
        lines.push_back(json.dump());
    }
    return lines;
}

TEST_F(Kill, AtFiftyRandomMoments) {
    const std::vector<std::string> set = {"train.steps=400", "checkpoint.every=1", "checkpoint.keep=2"};
    ASSERT_EQ(train("whole", set).exit_code, 0);
    const unsigned seed = 20261121;
    std::mt19937 random(seed);  // printed on failure
    int killed = 0, resumed = 0;
    for (int i = 0; i < 50; ++i) {
        Program program(folder_, train_arguments("killed", set));
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 250));
        program.signal(SIGKILL);
        const Result r = program.wait();
        killed += r.exit_code == 128 + SIGKILL ? 1 : 0;
        resumed += r.out.find("continuing after step") != std::string::npos ? 1 : 0;
        EXPECT_TRUE(r.exit_code == 128 + SIGKILL || r.exit_code == 0) << "seed " << seed << ", kill " << i << r.err;
        EXPECT_EQ(r.out.find("corrupt"), std::string::npos) << "seed " << seed << ", kill " << i << r.out;
    }
    EXPECT_GE(killed, 20);  // else the run was over too soon to prove anything
    EXPECT_GE(resumed, 10);
    const Result last = train("killed", set);
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(metrics(path("killed/metrics.jsonl")), metrics(path("whole/metrics.jsonl")));
    const char* weights = "checkpoints/step-0000000400/rank-00000-of-00001.safetensors";
    EXPECT_EQ(read_file(folder_ / "killed" / weights), read_file(folder_ / "whole" / weights));
    EXPECT_FALSE(read_file(folder_ / "whole" / weights).empty());
}

}  // namespace
}  // namespace tutti::testing
