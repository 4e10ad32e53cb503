// `tutti launch` with real processes: the run of threads bit for bit, kills of ranks, agents and the launcher, hosts
// that are lost and come back, requests to stop, and the ends that no restart cures. No test waits by a clock: each
// waits for a fact.
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "launched.h"

namespace tutti::testing {
namespace {

TEST_F(Launched, IsTheRunOfThreads) {
    // A stage under another layout ends the groups of the stage before and meets in others.
    const Words stages = {
        "stage=[{until = 4}, {until = 8, train.seq_len = 32, parallel.cp = 2, parallel.tp = 2}, "
        "{parallel.cp = 1, parallel.tp = 1, parallel.pp = 2, parallel.zero = 3}]"};
    for (const Words& set : {Words{}, stages}) {
        const std::string of = set.empty() ? "" : "-in-stages";
        Words threads = launch_arguments("threads" + of, {"--ranks", "4"}, set);
        threads.front() = "train";
        ASSERT_EQ(run(threads).exit_code, 0);
        const Result r = run(launch_arguments("processes" + of, {"-n", "4"}, set));
        ASSERT_EQ(r.exit_code, 0) << r.err;
        EXPECT_EQ(weights("processes" + of, 12), weights("threads" + of, 12));
        expect_same_steps("processes" + of, "threads" + of, 0);
        expect_contains(r.out, "step 12/12");
        EXPECT_EQ(events("processes" + of, "started").size(), 1U);
        EXPECT_EQ(events("processes" + of, "ended").back().at("text").text(), "code 0");
        expect_no_process();
    }
}

// Ranks of one host and of two are killed; the layout stays, and so do the bits.
TEST_F(Launched, KilledRanksCostNoBits) {
    const Words set = {"train.steps=60"};
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    Program program(folder_, launch_arguments("killed", hosts(), set));
    const std::vector<int> victims = {6, 0, 3, 7, 1};
    for (size_t i = 0; i < victims.size(); ++i) {
        ASSERT_TRUE(wait_for_step(program, "killed", static_cast<int64_t>(10 * i + 4)));
        kill(pid_of(victims[i]), SIGKILL);
        // Else the next one could be killed before this death was noticed.
        ASSERT_TRUE(program.wait_until([&] { return events("killed", "died").size() > i; }));
    }
    const Result r = program.wait();
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(weights("killed", 60), weights("whole", 60));
    expect_same_steps("killed", "whole", 0);
    const auto died = events("killed", "died");
    ASSERT_EQ(died.size(), victims.size());
    for (size_t i = 0; i < victims.size(); ++i)
        EXPECT_EQ(died[i].at("text").text(), "rank " + std::to_string(victims[i]) + " on host " +
                                                 (victims[i] < 5 ? "a" : "b") + " was killed by signal 9 (Killed)");
    const Result watched = run({"watch", path("killed"), "--once"});
    expect_contains(watched.out, "generation 6, started ");
    expect_contains(watched.out, "generation 5 died ");
    expect_contains(watched.out, "rank 1 on host a was killed by signal 9 (Killed)");
    expect_no_process();
}

// Copies in memory: no checkpoint is on disk before the end.
TEST_F(Launched, KilledRanksAndAgentsLoseFewStepsWithCopiesInMemory) {
    const Words set = {"train.steps=90", "checkpoint.every=0"};
    Words with_copies = set;
    with_copies.push_back("checkpoint.memory_every=2");
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    for (const bool two_hosts : {false, true}) {
        const std::string out = two_hosts ? "two" : "one", memory = path("memory-" + out);
        fs::create_directory(memory);
        setenv("TUTTI_MEMORY_ROOT", memory.c_str(), 1);
        Program program(folder_, launch_arguments(out, two_hosts ? hosts() : Words{"-n", "8"}, with_copies));
        const std::vector<int> victims = {6, 0, -1, 7};  // -1: the agent of rank 6
        for (size_t i = 0; i < victims.size(); ++i) {
            ASSERT_TRUE(program.wait_until([&] { return logged_step(out) >= static_cast<int64_t>(15 * i + 9); }));
            const pid_t victim = victims[i] < 0 ? processes().at(pid_of(6)).parent : pid_of(victims[i]);
            const int64_t step = logged_step(out);
            kill(victim, SIGKILL);
            ASSERT_TRUE(program.wait_until([&] { return events(out, "resumed").size() == i + 2; }));
            const Json resumed = events(out, "resumed").back();
            EXPECT_GE(resumed.at("step").get<int64_t>(), step - 4) << resumed.dump();  // the last may be on its way
            expect_contains(resumed.at("text").text(), "in memory");
        }
        const Result r = program.wait();
        ASSERT_EQ(r.exit_code, 0) << r.err;
        EXPECT_EQ(weights(out, 90), weights("whole", 90));
        expect_same_steps(out, "whole", 0);
        const Json spent = lines(out + "/metrics.jsonl").back().at("seconds");
        EXPECT_EQ(spent.at("from_memory").get<int64_t>(), 4);
        EXPECT_LE(spent.at("lost_steps").get<int64_t>(), 4 * 4);
        unsetenv("TUTTI_MEMORY_ROOT");
        expect_no_process();  // no guard either
        EXPECT_TRUE(fs::is_empty(memory));
    }
}

// The copy of a lost host is on the other one, and with it 5 ranks go on where 8 were. Without memory for copies the
// run goes on from disk, and says so.
TEST_F(Launched, ALostHostIsRestoredFromTheOtherOne) {
    const Words set = {"train.steps=3000", "optimizer.schedule=constant", "precision.compute=f32",
                       "checkpoint.every=1000", "checkpoint.memory_every=2"};
    Program program(folder_, launch_arguments("a", hosts({"--min-ranks", "5"}), set));
    ASSERT_TRUE(program.wait_until([&] { return logged_step("a") >= 11; }));
    const pid_t agent = processes().at(pid_of(6)).parent;
    write("down-b", "");
    const int64_t step = logged_step("a");
    kill(agent, SIGKILL);
    ASSERT_TRUE(program.wait_until([&] { return events("a", "resumed").size() == 2; }));
    const int64_t resumed = events("a", "resumed").back().at("step").get<int64_t>();
    EXPECT_GE(resumed, step - 6) << read_file(folder_ / "stderr");  // the last one that was fetched
    ASSERT_TRUE(program.wait_until([&] { return logged_step("a") >= resumed + 7; }));
    kill(pid_of(2), SIGKILL);  // and the 5 have copies of their own
    ASSERT_TRUE(program.wait_until([&] { return events("a", "resumed").size() == 3; }));
    const int64_t again = events("a", "resumed").back().at("step").get<int64_t>();
    EXPECT_GE(again, resumed + 3) << read_file(folder_ / "stderr");
    program.signal(SIGTERM);  // at once: that state is in memory alone, and must be saved
    const Result r = program.wait();
    ASSERT_EQ(r.exit_code, 75) << r.err;
    expect_steps_and_weights_of_one_start("a", {set[1], set[2]});
}

// The host that is left has the newest state in memory, and too few ranks to go on: a stop saves it by these.
TEST_F(Launched, AStopWhileNoRankRunsSavesWhatMemoryHolds) {
    const Words set = {"train.steps=3000", "optimizer.schedule=constant", "precision.compute=f32",
                       "checkpoint.every=1000", "checkpoint.memory_every=2"};
    Program program(folder_, launch_arguments("a", hosts({"--min-ranks", "8"}), set));
    ASSERT_TRUE(program.wait_until([&] { return logged_step("a") >= 11; }));
    const pid_t agent = processes().at(pid_of(6)).parent;
    write("down-b", "");
    const int64_t step = logged_step("a");
    kill(agent, SIGKILL);
    ASSERT_TRUE(program.wait_for("waiting for hosts. required: 8 ranks (--min-ranks); 5 can run"));
    EXPECT_EQ(ranks(), 0U);
    EXPECT_EQ(newest_step("a"), 0);
    program.signal(SIGTERM);
    const Result r = program.wait();
    ASSERT_EQ(r.exit_code, 75) << r.err;
    expect_contains(r.err, "is in memory alone: ranks start once more to save it");
    EXPECT_EQ(events("a", "started").back().at("ranks").get<int>(), 5);
    EXPECT_GT(newest_step("a"), step - 6) << r.err;  // a step behind the last copy that was fetched
    expect_steps_and_weights_of_one_start("a", {set[1], set[2]});
}

TEST_F(Launched, WithoutMemoryForCopiesItSaysSo) {
    setenv("TUTTI_MEMORY_ROOT", path("none").c_str(), 1);
    const Result r = run(launch_arguments("a", {"-n", "2"}, {"train.steps=4", "checkpoint.memory_every=1"}));
    unsetenv("TUTTI_MEMORY_ROOT");
    EXPECT_EQ(r.exit_code, 0) << r.err;
    expect_contains(r.err, "host localhost: no copies in memory: " + path("none") + " is no directory");
    expect_contains(r.err, "checkpoint.memory_every = 1: no copies are made: the agent of a host keeps none");
    const Result alone = run(train_arguments("b", {"train.steps=2", "checkpoint.memory_every=1"}));
    EXPECT_EQ(alone.exit_code, 0);
    expect_contains(alone.err, "no copies are made: agents of `tutti launch` keep them, and none started this run");
}

// 8 ranks, 5 while a host is away, 8 again: the same global batch, so the same run within rounding. With a cluster the
// planner chooses the layout of the 5. Stages have layouts of their own, in which 5 ranks may have no place.
struct Lost {
    std::string name;
    Words options, set;
    int ranks = 5;       // of those that are left
    std::string layout;  // a part of the text of their start
};

class Elastic : public Launched, public ::testing::WithParamInterface<Lost> {};

TEST_P(Elastic, ALostHostShrinksTheRunAndItsReturnGrowsItAgain) {
    const Lost& lost = GetParam();
    Words words = {"--min-ranks", std::to_string(lost.ranks)};
    words.insert(words.end(), lost.options.begin(), lost.options.end());
    // In f32: below it Adam turns other roundings of gradients that are nearly zero into whole updates.
    Words set = {"optimizer.schedule=constant", "precision.compute=f32"};
    set.insert(set.end(), lost.set.begin(), lost.set.end());
    Words of_whole = set;
    set.emplace_back("train.steps=3000");
    Program program(folder_, launch_arguments("elastic", hosts(words), set));
    ASSERT_TRUE(wait_for_step(program, "elastic", 6));
    const pid_t agent = processes().at(pid_of(6)).parent;
    write("down-b", "");
    kill(agent, SIGKILL);
    ASSERT_TRUE(program.wait_until([&] { return events("elastic", "started").size() == 2; }));
    const int64_t shrunk = newest_step("elastic");
    ASSERT_TRUE(wait_for_step(program, "elastic", shrunk + 4));
    EXPECT_EQ(ranks(), lost.ranks);
    fs::remove(path("down-b"));
    ASSERT_TRUE(program.wait_until([&] { return events("elastic", "started").size() == 3; }));
    const int64_t grown = newest_step("elastic");
    ASSERT_TRUE(wait_for_step(program, "elastic", grown + 4));
    EXPECT_EQ(ranks(), 8U);
    program.signal(SIGTERM);
    const Result r = program.wait();
    ASSERT_EQ(r.exit_code, 75) << r.err;
    const auto started = events("elastic", "started");
    ASSERT_EQ(started.size(), 3U) << r.err;
    EXPECT_EQ(started[1].at("ranks").get<int>(), lost.ranks);
    expect_contains(started[1].at("text").text(), lost.layout);
    EXPECT_EQ(started[2].at("ranks").get<int>(), 8);
    expect_contains(r.err, "host b: ssh: b does not answer");
    expect_no_process();

    const int64_t last = newest_step("elastic");
    of_whole.push_back("train.steps=" + std::to_string(last));
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, of_whole)).exit_code, 0);
    // The stop logs no line of its own, so the lines up to the last step of both agree.
    expect_same_steps("elastic", "whole", 1e-5);
    const std::vector<float> got = values_of(weights("elastic", last)), want = values_of(weights("whole", last));
    ASSERT_EQ(got.size(), want.size());
    ASSERT_GT(got.size(), 1000U);
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i) largest = std::max<double>(largest, std::abs(got[i] - want[i]));
    EXPECT_LE(largest, 1e-5) << "after " << last << " steps";
}

const Words kContext = {"stage=[{until = 5}, {train.seq_len = 64, parallel.cp = 2, parallel.zero = 1}]"};
INSTANTIATE_TEST_SUITE_P(
    , Elastic,
    ::testing::Values(
        Lost{.name = "replicas", .options = {}, .set = {}},
        Lost{.name = "planned", .options = {"--cluster", "h100"}, .set = {}},
        // 5 samples at once are no part of the 8 of each of 5 ranks.
        Lost{.name = "micro_batch_of_a_stage",
             .options = {},
             .set = {"stage=[{until = 5}, {train.micro_batch = 5, parallel.zero = 3}]"},
             .layout = "stage 2: "},
        Lost{.name = "context_of_a_stage", .options = {}, .set = kContext, .ranks = 4, .layout = "stage 2: cp 2"},
        Lost{.name = "planned_stages", .options = {"--cluster", "h100"}, .set = kContext}),
    [](const auto& lost) { return lost.param.name; });

TEST_F(Launched, NothingOutlivesTheLauncherAndTheNextOneGoesOn) {
    const Words set = {"train.steps=60"};
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    {
        Program program(folder_, launch_arguments("a", hosts(), set));
        ASSERT_TRUE(wait_for_step(program, "a", 4));
        program.signal(SIGKILL);
        EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
    }
    // At once: the ranks of the first one are still saving.
    const Result r = run(launch_arguments("a", hosts(), set));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(weights("a", 60), weights("whole", 60));
    expect_same_steps("a", "whole", 0);
    expect_no_process();
}

TEST_F(Launched, AgentsThatAreKilledTakeTheirRanksAlong) {
    Program program(folder_, launch_arguments("a", hosts({"--max-restarts", "0"}), {"train.steps=100000"}));
    ASSERT_TRUE(wait_for_step(program, "a", 4));
    kill(processes().at(pid_of(6)).parent, SIGKILL);
    EXPECT_EQ(program.wait().exit_code, 4);  // no restart was allowed
    expect_contains(events("a", "host").front().at("text").text(), "host b is lost: its agent has ended");
    expect_no_process();
}

// An agent that stands still, as under a debugger or on a machine that is out of memory: its host counts as lost, the
// next agent of that host kills it, and its ranks with it.
TEST_F(Launched, AnAgentThatStandsStillIsReplaced) {
    const Words set = {"train.steps=60"};
    ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
    // `exec` would let the launcher kill the agent itself; behind ssh it cannot.
    write("ssh", "#!/bin/sh\nshift\nexec 3<&0\nsetsid sh -c \"$*\" <&3 3<&- &\nexec 3<&- </dev/null\nwait $!\n");
    Words words = launch_arguments("a", hosts(), set);
    Program program(folder_, words);
    ASSERT_TRUE(wait_for_step(program, "a", 4));
    const pid_t agent = processes().at(pid_of(6)).parent;
    kill(agent, SIGSTOP);
    const Result r = program.wait();
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_GE(events("a", "started").size(), 2U);
    EXPECT_EQ(weights("a", 60), weights("whole", 60));
    expect_same_steps("a", "whole", 0);
    expect_no_process();
}

TEST_F(Launched, EverySignalStopsAllRanksWithACheckpoint) {
    int64_t step = 0;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
        Program program(folder_, launch_arguments("a", hosts(), {"train.steps=100000"}));
        ASSERT_TRUE(wait_for_step(program, "a", step + 3));
        program.signal(signal);
        const Result r = program.wait();
        EXPECT_EQ(r.exit_code, 75) << strsignal(signal) << r.err;
        expect_contains(r.err, "all ranks finish their step and save");
        step = newest_step("a");
    }
    // Of a rank alone, as a machine that goes away sends it: the decision is that of all.
    Program program(folder_, launch_arguments("a", hosts(), {"train.steps=100000"}));
    ASSERT_TRUE(wait_for_step(program, "a", step + 3));
    kill(pid_of(4), SIGTERM);
    EXPECT_EQ(program.wait().exit_code, 75);
    expect_no_process();
}

// Agents would take a launcher that stands still for dead.
TEST_F(Launched, ASuspensionByTheTerminalIsNotFollowed) {
    Program program(folder_, launch_arguments("a", {"-n", "2"}, {"train.steps=20"}));
    ASSERT_TRUE(wait_for_step(program, "a", 2));
    program.signal(SIGTSTP);
    EXPECT_TRUE(program.wait_for("Ctrl-Z does not suspend a launched run"));
    EXPECT_EQ(program.wait().exit_code, 0);
    EXPECT_EQ(events("a", "started").size(), 1U);
}

TEST_F(Launched, WhatNoRestartCuresEndsIt) {
    // A wrong config before any process; a damaged text in every start; a run that always dies before a checkpoint.
    Result r = run(launch_arguments("a", {"-n", "3"}, {}));
    EXPECT_EQ(r.exit_code, 2);
    expect_contains(r.err, "global_batch = 40");
    EXPECT_FALSE(fs::exists(path("a")));
    r = run(launch_arguments("b", {"-n", "2"}, {"data.train=" + path("missing.bin")}));
    EXPECT_EQ(r.exit_code, 3) << r.err;
    EXPECT_FALSE(fs::exists(path("b"))) << r.err;  // nor of a start that is refused
    const Words hopeless = {"optimizer.lr=1e30",        "train.max_skipped=2",  "optimizer.clip=0",
                            "optimizer.warmup_steps=0", "checkpoint.every=100", "train.steps=100"};
    r = run(launch_arguments("c", {"-n", "2", "--max-restarts", "1"}, hopeless));
    EXPECT_EQ(r.exit_code, 70) << r.err;
    EXPECT_EQ(events("c", "started").size(), 2U) << r.err;
    expect_contains(r.err, "the last 2 starts of this run died before a checkpoint");
    r = run(launch_arguments("d", {"--hosts", path("hosts"), "--ssh", path("no-such-program")}, {}));
    EXPECT_EQ(r.exit_code, 4);
    expect_contains(r.err, "host a: its agent has ended: tutti: cannot run " + path("no-such-program"));
    EXPECT_FALSE(fs::exists(path("d")));
    expect_no_process();
}

TEST_F(Launched, OptionsForLostHostsNeedMoreThanThisHost) {
    for (const Words& words : {Words{"--min-ranks", "1"}, Words{"--cluster", "h100"}, Words{"--grow-after", "9"}}) {
        const Result r = run(launch_arguments("a", words, {}));
        EXPECT_EQ(r.exit_code, 2) << r.err;
        expect_contains(r.err, words[0] + " is for a run that loses hosts, and this host alone runs it");
    }
}

TEST_F(Launched, TwoLaunchersDoNotShareADirectory) {
    Program program(folder_, launch_arguments("a", {"-n", "2"}, {"train.steps=100000"}));
    ASSERT_TRUE(wait_for_step(program, "a", 2));
    fs::create_directory(path("other"));
    Program other(path("other"), launch_arguments("a", {"-n", "2"}, {"train.steps=100000"}));
    const Result refused = other.wait();
    EXPECT_EQ(refused.exit_code, 2);
    expect_contains(refused.err, "launch.lock is locked by");
    // A launcher that does not see the lock, as after a partition: the newer generation writes, the older one ends.
    const int64_t generation = 1;
    write("a/generations/" + std::to_string(generation + 1), "elsewhere\n");
    const Result fenced = program.wait();
    EXPECT_EQ(fenced.exit_code, 2) << fenced.err;
    expect_contains(fenced.err, "generation 2 of this run was started elsewhere; this is generation 1");
    EXPECT_EQ(events("a", "started").size(), 1U);
    expect_no_process();
}

TEST_F(Launched, AnAgentWithoutALauncherEnds) {
    const Result r = run({"agent"});  // the end of its standard input
    EXPECT_EQ(r.exit_code, 5) << r.err;
}

}  // namespace
}  // namespace tutti::testing
