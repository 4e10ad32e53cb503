// SIGKILL at 50 random moments of a run that saves every step: each start finds a good checkpoint, and the result in
// the end is the run that was never killed, bit for bit.
#include <algorithm>
#include <random>

#include "program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

std::vector<std::string> metrics(const std::string& file) {
    std::vector<std::string> lines;
    std::istringstream in(read_file(file));
    for (std::string line; std::getline(in, line);) {
        auto json = Json::parse(line);
        for (const char* time : {"step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes"}) json.erase(time);
        lines.push_back(json.dump());
    }
    return lines;
}

class FiftyKills : public ProgramTest {
  protected:
    void expect_the_run_that_was_never_killed(const std::string& out) const {
        EXPECT_EQ(metrics(path(out + "/metrics.jsonl")), metrics(path("whole/metrics.jsonl"))) << out;
        const char* weights = "checkpoints/step-0000000400/rank-00000-of-00001.safetensors";
        EXPECT_EQ(read_file(folder_ / out / weights), read_file(folder_ / "whole" / weights)) << out;
        EXPECT_FALSE(read_file(folder_ / "whole" / weights).empty());
    }
};

TEST_F(FiftyKills, LoseNothing) {
    const std::vector<std::string> set = {"train.steps=400", "checkpoint.every=1", "checkpoint.keep=2",
                                          "log.trace=true"};
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(train("whole", set).exit_code, 0);
    const std::chrono::duration<double, std::milli> whole = std::chrono::steady_clock::now() - begin;
    // Kills fall into a quarter of what a whole run takes here, since a sanitizer's start alone is longer than 250 ms.
    const auto longest = std::max(250u, static_cast<unsigned>(whole.count() / 4));
    const unsigned seed = 20261121;
    std::mt19937 random(seed);  // printed on failure
    // On a fast machine a run comes to its end between kills: then it is compared, and the next one is killed.
    int killed = 0, resumed = 0, traced = 0, runs = 0;
    while (killed < 50) {
        const std::string out = "killed" + std::to_string(runs);
        Program program(folder_, train_arguments(out, set));
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % longest));
        program.signal(SIGKILL);
        const Result r = program.wait();
        resumed += r.out.find("continuing after step") != std::string::npos ? 1 : 0;
        const std::string trace = read_file(path(out) + "/trace.json");  // whole or absent
        EXPECT_TRUE(trace.empty() || Json::try_parse(trace).has_value()) << "seed " << seed << ", kill " << killed;
        traced += trace.empty() ? 0 : 1;
        EXPECT_EQ(r.out.find("corrupt"), std::string::npos) << "seed " << seed << ", kill " << killed << r.out;
        if (r.exit_code == 128 + SIGKILL) {
            ++killed;
            continue;
        }
        ASSERT_EQ(r.exit_code, 0) << "seed " << seed << ", kill " << killed << r.err;
        expect_the_run_that_was_never_killed(out);
        ++runs;
    }
    EXPECT_GE(resumed, 10);  // else nothing was proved
    EXPECT_GE(traced, 5);
    const std::string out = "killed" + std::to_string(runs);
    const Result last = train(out, set);
    ASSERT_EQ(last.exit_code, 0) << last.err;
    expect_the_run_that_was_never_killed(out);
}

}  // namespace
}  // namespace tutti::testing
