// SIGKILL at 50 random moments of a run that saves every step, and in the middle of a save by several ranks: each start
// finds a good checkpoint, and the result in the end is the run that was never killed, bit for bit.
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
        for (const char* time : {"step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes", "seconds", "time"})
            json.erase(time);
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

// What a step was, without what it took.
std::vector<std::string> steps_of(const std::string& file) {
    std::vector<std::string> steps;
    std::istringstream in(read_file(file));
    for (std::string line; std::getline(in, line);) {
        const auto json = Json::parse(line);
        std::string step;
        for (const char* key : {"step", "tokens", "loss", "grad_norm", "lr", "stage"})
            step += json.at(key).dump() + ' ';
        steps.push_back(step);
    }
    return steps;
}

// Every step is a stage under another layout than the step before, so that most of the time is that of borders: the
// save, the end of an engine, the start of the next one, and its load.
TEST_F(ProgramTest, KilledAtBordersOfStagesLosesNothing) {
    std::string stages;
    constexpr int kStages = 20;
    for (int i = 1; i <= kStages; ++i)
        stages += concat(i == 1 ? "{" : ", {", i < kStages ? concat("until = ", i, ", ") : "",
                         i % 2 == 1 ? "train.seq_len = 16, parallel.cp = 1, parallel.tp = 1, parallel.zero = 2}"
                                    : "train.seq_len = 64, parallel.cp = 2, parallel.tp = 2, parallel.zero = 0}");
    const auto arguments = [&](const std::string& out) {
        auto all = train_arguments(out, {concat("train.steps=", kStages), "train.micro_batch=1", "checkpoint.every=0",
                                         "checkpoint.keep=2", concat("stage=[", stages, "]")});
        all.insert(all.end(), {"--ranks", "4"});
        return all;
    };
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(run(arguments("whole")).exit_code, 0);
    const std::chrono::duration<double, std::milli> whole = std::chrono::steady_clock::now() - begin;
    const auto longest = std::max(200u, static_cast<unsigned>(whole.count() / 4));
    const unsigned seed = 71;
    std::mt19937 random(seed);
    int in_save = 0, behind_save = 0, killed = 0;
    for (int runs = 0; in_save < 2 || behind_save < 2; ++runs) {
        ASSERT_LT(killed, 300) << in_save << " kills while a checkpoint was written, " << behind_save << " behind it";
        const std::string out = concat("killed", runs);
        for (bool ended = false; !ended;) {
            Program program(folder_, arguments(out));
            std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % longest));
            program.signal(SIGKILL);
            const Result r = program.wait();
            ended = r.exit_code == 0;
            if (ended) break;
            ASSERT_EQ(r.exit_code, 128 + SIGKILL) << "seed " << seed << ", kill " << killed << r.err;
            ++killed;
            const auto log = steps_of(path(out + "/metrics.jsonl"));
            const int64_t logged = log.empty() ? 0 : std::stoll(log.back());
            bool writing = false, saved = false;
            std::error_code none;
            for (fs::directory_iterator i(path(out + "/checkpoints"), none), end; !none && i != end;
                 i.increment(none)) {
                const std::string name = i->path().filename();
                writing = writing || name.find(".tmp-") != std::string::npos;
                saved =
                    saved || (logged > 0 &&
                              name == concat("step-", std::string(10 - std::to_string(logged).size(), '0'), logged));
            }
            in_save += writing ? 1 : 0;
            behind_save += saved ? 1 : 0;
        }
        EXPECT_EQ(steps_of(path(out + "/metrics.jsonl")), steps_of(path("whole/metrics.jsonl"))) << "seed " << seed;
        for (int rank = 0; rank < 4; ++rank) {
            const std::string file =
                concat("checkpoints/step-00000000", kStages, "/rank-0000", rank, "-of-00004.safetensors");
            EXPECT_TRUE(read_file(folder_ / out / file) == read_file(folder_ / "whole" / file)) << "seed " << seed;
            EXPECT_FALSE(read_file(folder_ / "whole" / file).empty());
        }
    }
}

// A run with 8-bit moments under ZeRO-3 and tp, killed while it saves, goes on under another tp and ZeRO stage as the
// run does that stopped at that checkpoint by itself.
class KilledInASave : public ProgramTest {
  protected:
    std::vector<std::string> arguments(const std::string& out, int64_t steps, std::vector<std::string> layout) const {
        const std::vector<std::string> set = {"model.width=512",
                                              "model.heads=4",
                                              "model.kv_heads=4",
                                              "model.head_dim=128",
                                              "model.ffn=512",
                                              "model.layers=1",
                                              "train.micro_batch=1",
                                              "checkpoint.every=1",
                                              "optimizer.m=u8",
                                              "optimizer.v=u8",
                                              "precision.gradients=bf16",
                                              "optimizer.schedule=constant",
                                              "train.steps=" + std::to_string(steps)};
        layout.insert(layout.end(), set.begin(), set.end());
        std::vector<std::string> all = train_arguments(out, layout);
        all.insert(all.end(), {"--ranks", "4"});
        return all;
    }

    // The newest complete step; and whether one from `least` on is being written.
    std::pair<int64_t, bool> saves(const std::string& out, int64_t least) const {
        int64_t newest = 0;
        bool writing = false;
        std::error_code gone;
        for (fs::directory_iterator i(path(out + "/checkpoints"), gone), end; !gone && i != end; i.increment(gone)) {
            const std::string name = i->path().filename();
            if (!name.starts_with("step-")) continue;
            const int64_t step = std::stoll(name.substr(5));
            if (name.find(".tmp-") != std::string::npos) writing = writing || step >= least;
            if (name.find('.') == std::string::npos) newest = std::max(newest, step);
        }
        return {newest, writing};
    }

    std::string checkpoint(const std::string& out, int64_t step) const {
        char name[32];
        std::snprintf(name, sizeof name, "step-%010lld", static_cast<long long>(step));
        std::string all;
        for (int rank = 0; rank < 4; ++rank)
            all += read_file(path(out) + "/checkpoints/" + name + "/rank-0000" + std::to_string(rank) +
                             "-of-00004.safetensors");
        return all;
    }
};

TEST_F(KilledInASave, GoesOnUnderAnotherLayout) {
    const std::vector<std::string> cut = {"parallel.tp=2", "parallel.zero=3"},
                                   other = {"parallel.tp=1", "parallel.zero=1"};
    int64_t step = 0;
    std::string out;
    for (int attempt = 0; step == 0; ++attempt) {  // a run may come to its end before it is seen to save
        ASSERT_LT(attempt, 20);
        out = "killed" + std::to_string(attempt);
        Program program(folder_, arguments(out, 200, cut));
        while (!saves(out, 4).second && !program.ends_within(std::chrono::seconds(0)))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        program.signal(SIGKILL);
        if (program.wait().exit_code == 128 + SIGKILL) step = saves(out, 4).first;
    }
    const Result stopped = run(arguments("whole", step, cut));
    ASSERT_EQ(stopped.exit_code, 0) << stopped.err;
    EXPECT_EQ(checkpoint(out, step), checkpoint("whole", step)) << step;
    for (const std::string& run_directory : {out, std::string("whole")}) {
        const Result resumed = run(arguments(run_directory, step + 3, other));
        ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
        expect_contains(resumed.out, "continuing after step " + std::to_string(step));
    }
    EXPECT_FALSE(checkpoint(out, step + 3).empty());
    EXPECT_EQ(checkpoint(out, step + 3), checkpoint("whole", step + 3)) << step;
}

}  // namespace
}  // namespace tutti::testing
