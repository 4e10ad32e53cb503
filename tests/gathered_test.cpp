// `tutti launch` as another launcher starts it, one process a host: the first is the launcher, the others dial in. The
// environment is that of srun, set by the test; hosts are processes of this machine. No test waits by a clock.
#include <cmath>

#include "launched.h"

namespace tutti::testing {
namespace {

class Gathered : public Launched {
  protected:
    static constexpr int kHosts = 3;

    // `nodes`: of one host: local sockets; of several: TCP.
    std::unique_ptr<Program> start(int number, const std::string& out, const Words& options, const Words& set,
                                   const std::map<std::string, std::string>& more = {}) const {
        const fs::path folder = folder_ / ("task" + std::to_string(number));
        fs::create_directories(folder);
        std::map<std::string, std::string> environment = {{"SLURM_JOB_ID", std::to_string(getpid())},
                                                          {"SLURM_STEP_ID", "0"},
                                                          {"SLURM_STEP_NODELIST", nodes_},
                                                          {"SLURM_STEP_NUM_TASKS", std::to_string(kHosts)},
                                                          {"SLURM_PROCID", std::to_string(number)},
                                                          {"SLURM_LOCALID", "0"}};
        for (const auto& [name, value] : more) environment[name] = value;
        return std::make_unique<Program>(folder, launch_arguments(out, options, set), [environment] {
            for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        });
    }
    using Tasks = std::vector<std::unique_ptr<Program>>;
    Tasks start_all(const std::string& out, const Words& options, const Words& set) const {
        Tasks tasks;
        for (int i = 0; i < kHosts; ++i) tasks.push_back(start(i, out, options, set));
        return tasks;
    }
    static void expect_codes(Tasks& tasks, int code) {
        for (size_t i = 0; i < tasks.size(); ++i) {
            const Result r = tasks[i]->wait();
            EXPECT_EQ(r.exit_code, code) << "task " << i << ": " << r.err;
        }
    }
    static Words quick(const Words& more = {}, const std::string& silence = "4") {
        Words words = {"-n", "8", "--silence", silence, "--grow-after", "0"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    std::string nodes_ = "localhost";
};

// 3, 3 and 2 ranks.
TEST_F(Gathered, IsTheRunOfOneHost) {
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, {})).exit_code, 0);
    for (const char* nodes : {"localhost", "localhost,elsewhere"}) {
        nodes_ = nodes;
        const std::string out = nodes_ == "localhost" ? "locally" : "tcp";
        Tasks tasks = start_all(out, quick(), {});
        expect_codes(tasks, 0);
        EXPECT_EQ(weights(out, 12), weights("whole", 12));
        expect_same_steps(out, "whole", 0);
        EXPECT_EQ(events(out, "started").size(), 1U);
        // The output of all ranks is the launcher's.
        expect_contains(read_file(folder_ / "task0/stdout"), "step 12/12");
        EXPECT_EQ(read_file(folder_ / "task1/stdout"), "");
        expect_no_process();
    }
}

// As srun --no-kill leaves the others, and as a pod starts it again.
TEST_F(Gathered, AKilledAgentIsALostHostUntilItDialsInAgain) {
    const Words set = {"train.steps=3000", "optimizer.schedule=constant", "precision.compute=f32",
                       "checkpoint.memory_every=2"};
    nodes_ = "localhost,elsewhere";
    Tasks tasks = start_all("a", quick({"--min-ranks", "5"}), set);
    ASSERT_TRUE(wait_for_step(*tasks[0], "a", 6));
    tasks[2]->signal(SIGKILL);
    ASSERT_TRUE(tasks[0]->wait_until([&] { return events("a", "started").size() == 2; }));
    const int64_t shrunk = newest_step("a");
    ASSERT_TRUE(wait_for_step(*tasks[0], "a", shrunk + 4));
    EXPECT_EQ(ranks(), 5U);
    tasks[2] = start(2, "a", quick({"--min-ranks", "5"}), set);
    ASSERT_TRUE(tasks[0]->wait_until([&] { return events("a", "started").size() == 3; }));
    const int64_t grown = newest_step("a");
    ASSERT_TRUE(wait_for_step(*tasks[0], "a", grown + 4));
    EXPECT_EQ(ranks(), 8U);
    tasks[1]->signal(SIGTERM);  // of one host: the decision is that of all
    expect_codes(tasks, 75);
    const auto started = events("a", "started"), lost = events("a", "host");
    ASSERT_EQ(started.size(), 3U);
    EXPECT_EQ(started[1].at("ranks").get<int>(), 5);
    EXPECT_EQ(started[2].at("ranks").get<int>(), 8);
    expect_contains(lost.front().at("text").text(), "is lost: its agent has ended");
    expect_steps_and_weights_of_one_start("a", {set[1], set[2]});
}

TEST_F(Gathered, KilledRanksCostNoBits) {
    const Words set = {"train.steps=40"};
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    Tasks tasks = start_all("a", quick(), set);
    const std::vector<int> victims = {7, 0, 4};
    for (size_t i = 0; i < victims.size(); ++i) {
        ASSERT_TRUE(wait_for_step(*tasks[0], "a", static_cast<int64_t>(10 * i + 4)));
        kill(pid_of(victims[i]), SIGKILL);
        ASSERT_TRUE(tasks[0]->wait_until([&] { return events("a", "died").size() > i; }));
    }
    expect_codes(tasks, 0);
    EXPECT_EQ(weights("a", 40), weights("whole", 40));
    expect_same_steps("a", "whole", 0);
    expect_no_process();
}

// Agents end with a launcher that is gone, and go on with the next one.
TEST_F(Gathered, TheLaunchersDeathEndsTheRanksAndTheNextOneFindsTheAgents) {
    const Words set = {"train.steps=60"};
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    Tasks tasks = start_all("a", quick({}, "30"), set);
    ASSERT_TRUE(wait_for_step(*tasks[0], "a", 4));
    tasks[0]->signal(SIGKILL);
    EXPECT_EQ(tasks[0]->wait().exit_code, 128 + SIGKILL);
    tasks[0] = start(0, "a", quick({}, "30"), set);
    expect_codes(tasks, 0);
    EXPECT_EQ(weights("a", 60), weights("whole", 60));
    expect_same_steps("a", "whole", 0);

    tasks = start_all("b", quick(), {"train.steps=100000"});
    ASSERT_TRUE(wait_for_step(*tasks[0], "b", 4));
    tasks[0]->signal(SIGKILL);
    tasks[0]->wait();
    tasks.erase(tasks.begin());
    expect_codes(tasks, 5);
    expect_contains(read_file(folder_ / "task1/stderr"), "the launcher has ended");
    expect_no_process();
}

TEST_F(Gathered, AnEarlyAgentWaitsAndSaysSo) {
    const auto early = start(2, "a", quick(), {});
    ASSERT_TRUE(early->wait_for("tutti launch, agent 2: the launcher at the local socket"));
    expect_contains(read_file(folder_ / "task2/stderr"),
                    "(SLURM_STEP_NODELIST, SLURM_JOB_ID) has not answered agent 2 "
                    "of 3: ");
    early->signal(SIGTERM);  // nothing to save
    EXPECT_EQ(early->wait().exit_code, 75);
    // The launcher waits likewise, and says for whom.
    const auto launcher = start(0, "a", quick(), {});
    ASSERT_TRUE(launcher->wait_for("waiting for agents; host agent 1: "));
    const auto stranger = start(1, "a", quick(), {}, {{"TUTTI_SECRET", "another secret of a job"}});
    ASSERT_TRUE(stranger->wait_for("has closed the connection; waiting for up to 10 min"));
    launcher->signal(SIGTERM);
    EXPECT_EQ(launcher->wait().exit_code, 75);
    stranger->signal(SIGTERM);
    EXPECT_EQ(stranger->wait().exit_code, 75);
    expect_no_process();
}

TEST_F(Gathered, WhatCannotBeServedIsRefused) {
    const auto refused = [&](const Words& options, const Words& set,
                             const std::map<std::string, std::string>& environment) {
        const Result r = start(0, "a", options, set, environment)->wait();
        EXPECT_EQ(r.exit_code, 2) << r.err;
        return r.err;
    };
    expect_contains(refused(hosts(), {}, {}),
                    "--hosts names hosts to reach over ssh, but slurm has started 3 of it (SLURM_PROCID=0, "
                    "SLURM_STEP_NUM_TASKS=3)");
    expect_contains(refused({"-n", "8"}, {"comm.secret=none"}, {}), "need a shared secret");
    expect_contains(refused({"-n", "8"}, {}, {{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "3"}, {"TUTTI_GENERATION", "1"}}),
                    "tutti launch cannot be a rank of tutti launch");
    expect_contains(refused({"-n", "3"}, {}, {}), "global_batch = 40");
    expect_contains(refused({"-n", "8"}, {}, {{"PET_NNODES", "2"}, {"SLURM_STEP_ID", ""}}),
                    "PET_NNODES=2 is set, but PET_NODE_RANK is not");
    expect_no_process();
}

}  // namespace
}  // namespace tutti::testing
