// The backend of processes over TCP: every check of the conformance suite, the bits of threads, and what happens when a
// rank dies, hangs, never starts or starts twice. The ranks are process_ranks (tests/ranks.cpp) with the environment of
// torchrun, of pods and of Slurm; MASTER_PORT is always taken, as torchrun's agent takes it.
//
// Whole runs: their losses are those of threads, to the bit; a killed rank is named by the others, which end with 4;
// the same command afterwards continues to the end of the undisturbed run.
#include "../tiny_run.h"
#include "processes.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

using Command = std::vector<std::string>;

Command ranks(const std::string& mode, const Command& more = {}) {
    Command command = {TUTTI_RANKS, mode, "tcp"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

class Tcp : public Processes {};

TEST_F(Tcp, ConformsInsideAHost) {
    for (const int n : {1, 2, 3, 4, 8}) {
        start_all(n, ranks("conformance"));
        expect_all_well(n);
    }
}

TEST_F(Tcp, ConformsWithProgressThreads) {
    start_all(4, ranks("conformance", {"progress"}));
    expect_all_well(4);
    start_all(4, ranks("conformance", {"progress", "hosts=0,0,1,1"}));
    expect_all_well(4);
}

TEST_F(Tcp, ConformsBetweenHosts) {
    for (const std::string hosts : {"0,1", "0,0,1,1", "0,0,0,1,1,2", "0,1,0,2,1,0,1"}) {
        const int n = static_cast<int>(hosts.size() + 1) / 2;
        start_all(n, ranks("conformance", {"hosts=" + hosts}));
        expect_all_well(n);
    }
}

TEST_F(Tcp, GivesTheBitsOfThreads) {
    start_all(7, ranks("bits"));
    expect_all_well(7);
    start_all(6, ranks("bits", {"hosts=0,0,0,1,1,2"}));
    expect_all_well(6);
    start_all(8, ranks("bits", {"hosts=0,0,0,0,1,1,1,1"}));
    expect_all_well(8);
}

TEST_F(Tcp, GroupsWithEqualHashesHaveTagsOfTheirOwn) {
    start_all(4, ranks("collide", {"hosts=0,0,1,2"}));
    expect_all_well(4);
}

TEST_F(Tcp, PodsMeetAtTheMastersPort) {
    for (int rank = 0; rank < 3; ++rank) start(rank, pod(rank, 3), ranks("conformance", {"hosts=0,1,2"}));
    expect_all_well(3);
}

TEST_F(Tcp, TwoJobsMayLookThroughTheSamePorts) {
    for (int rank = 0; rank < 2; ++rank) start(rank, torchrun(rank, 2), ranks("conformance"));
    for (int rank = 0; rank < 2; ++rank) {
        Variables other = torchrun(rank, 2);
        other["TORCHELASTIC_RUN_ID"] = "another";
        start(2 + rank, other, ranks("conformance"));
    }
    expect_all_well(4);
}

TEST_F(Tcp, AnExceptionStopsTheOthersWithItsReason) {
    start_all(3, ranks("throw"));
    EXPECT_EQ(wait(1), 3);
    expect_named(3, 1, "rank 1 failed: the disk of rank 1 is gone");
    for (int rank = 0; rank < 3; ++rank) EXPECT_NE(record(rank).find("the disk of rank 1 is gone"), std::string::npos);
}

TEST_F(Tcp, TheReasonCrossesHosts) {
    start_all(4, ranks("throw", {"hosts=0,1,1,2"}));
    EXPECT_EQ(wait(1), 3);
    expect_named(4, 1, "rank 1 failed: the disk of rank 1 is gone");
}

TEST_F(Tcp, ADisagreementIsToldByAll) {
    start_all(3, ranks("disagree", {"hosts=0,1,2"}));
    expect_named(3, -1, "rank 1 calls broadcast of 8 f32 from rank 0", 4);
}

// Long before the time-out: by its closed connection, or by the mutex that it held.
TEST_F(Tcp, AKilledRankIsNamedAtOnce) {
    for (const std::string hosts : {"0,0,0,0", "0,1,1,2"})
        for (const int victim : {0, 1, 3}) {
            start_all(4, ranks("loop", {"timeout=60", "hosts=" + hosts}));
            hit(victim, SIGKILL);
            expect_named(4, victim, "rank " + std::to_string(victim) + " has died");
            EXPECT_EQ(wait(victim), 128 + SIGKILL);
            for (int rank = 0; rank < 4; ++rank) fs::remove(folder_ / ("pid-" + std::to_string(rank)));
        }
}

TEST_F(Tcp, AStoppedRankIsNamedWithinTheTimeOut) {
    for (const std::string hosts : {"0,0,0", "0,1,2"}) {
        start_all(3, ranks("loop", {"timeout=5", "hosts=" + hosts}));
        hit(1, SIGSTOP);
        expect_named(3, 1, "rank 1 of the group", 4);
        EXPECT_NE((output(0) + output(2)).find("for more than 5 s (comm.timeout_s)"), std::string::npos);
        kill(pids_.at(1), SIGKILL);
        wait(1);
        for (int rank = 0; rank < 3; ++rank) fs::remove(folder_ / ("pid-" + std::to_string(rank)));
    }
}

TEST_F(Tcp, ARankThatStaysAwayIsNamed) {
    start_all(3, ranks("absent", {"timeout=1"}));
    expect_named(3, 1, "waiting for rank 1 of the group, which has begun only operation 1", 4);
}

TEST_F(Tcp, RanksThatWereNeverStartedAreNamed) {
    for (const int rank : {0, 2}) start(rank, torchrun(rank, 4), ranks("conformance", {"timeout=5"}));
    for (const int rank : {0, 2}) {
        EXPECT_EQ(wait(rank), rank == 0 ? 4 : 5) << output(rank);  // rank 0 finds it, one incident counts once
        EXPECT_NE(output(rank).find("ranks 1, 3 of 4 ranks did not connect to the local socket tutti-"),
                  std::string::npos)
            << output(rank);
        EXPECT_NE(output(rank).find("within 5 s (comm.timeout_s)"), std::string::npos) << output(rank);
    }
}

TEST_F(Tcp, ARankZeroThatWasNeverStartedIsNamed) {
    start(1, torchrun(1, 2), ranks("conformance", {"timeout=2"}));
    EXPECT_EQ(wait(1), 4);
    EXPECT_NE(output(1).find("rank 1 of 2 has not found rank 0 at the local socket tutti-"), std::string::npos)
        << output(1);
}

TEST_F(Tcp, ARankThatComesTwiceIsRefused) {
    start(0, torchrun(0, 3), ranks("conformance"));
    for (const int process : {1, 3}) start(process, torchrun(1, 3), ranks("conformance"));
    const int refused = first_to_end({1, 3});  // whichever comes second
    EXPECT_EQ(wait(refused), 4);
    EXPECT_NE(output(refused).find("refuses rank 1: rank 1 is connected already"), std::string::npos)
        << output(refused);
    start(2, torchrun(2, 3), ranks("conformance"));  // the job goes on
    for (const int process : {0, 4 - refused, 2}) EXPECT_EQ(wait(process), 0) << output(process);
}

// --- whole runs ------------------------------------------------------------------------------------------------------

class TcpRun : public Processes {
  protected:
    TcpRun() {
        write_tiny_run(folder_, "steps = 200\nglobal_batch = 8",
                       "[parallel]\nzero = 3\n[log]\nevery = 1\n[checkpoint]\nevery = 20\n[comm]\ntimeout_s = 20\n");
    }
    std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> command = {TUTTI_PROGRAM, "train", (folder_ / "tiny.toml").string(), "--out",
                                            (folder_ / out).string()};
        command.insert(command.end(), more.begin(), more.end());
        return command;
    }
    // Loss and norm of every step, as they were printed. The last line may be half written.
    std::vector<std::string> logged(const std::string& out) const {
        std::vector<std::string> lines;
        std::ifstream file(folder_ / out / "metrics.jsonl");
        for (std::string line; std::getline(file, line) && !file.eof();) {
            const auto json = Json::parse(line);
            lines.push_back(json.at("step").dump() + " " + json.at("loss").dump() + " " + json.at("grad_norm").dump());
        }
        return lines;
    }
    void run_threads(const std::string& out) {
        start(0, {}, train(out, {"--ranks", "4"}));
        ASSERT_EQ(wait(0), 0) << output(0);
    }
};

TEST_F(TcpRun, IsTheRunOfThreads) {
    run_threads("threads");
    start_all(4, train("processes"));
    expect_all_well(4);
    ASSERT_EQ(logged("threads").size(), 200u);
    EXPECT_EQ(logged("processes"), logged("threads"));
}

// The shared memory of ranks is no file: a full /dev/shm, which containers have of 64 MiB, disturbs nothing. The mount
// needs root.
TEST_F(TcpRun, NeedsNoSpaceInDevShm) {
    start(0, {}, {"/usr/bin/unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=4k", "none", "/dev/shm"});
    if (wait(0) != 0) GTEST_SKIP() << "no mount namespaces here: " << output(0);
    run_threads("threads");
    std::vector<std::string> command = {
        "/usr/bin/unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4k none /dev/shm && exec \"$@\"", "sh"};
    for (const std::string& word : train("processes")) command.push_back(word);
    start_all(4, command);
    expect_all_well(4);
    EXPECT_EQ(logged("processes"), logged("threads"));
}

// A limit of file sizes is one of shared memory too, and its error is that of this call.
TEST_F(TcpRun, ALimitOfFileSizesIsNamed) {
    Command command = {"/bin/sh", "-c", "ulimit -f 100 && exec \"$@\"", "sh"};
    for (const std::string& word : train("limited")) command.push_back(word);
    start_all(2, command);
    for (const int rank : {0, 1}) EXPECT_NE(wait(rank), 0) << output(rank);
    EXPECT_NE(output(0).find("File too large (it counts as a file: ulimit -f unlimited)"), std::string::npos)
        << output(0);
}

// One rank hears the signal; the decision, the checkpoint and the code are those of all. A scheduler that saw 0 of some
// ranks would take those for done.
TEST_F(TcpRun, APreemptedRunEndsWithOneCode) {
    for (const int heard : {0, 2}) {
        const std::string out = "preempted" + std::to_string(heard);
        start_all(3, train(out, {"--set", "train.steps=100000", "--set", "train.global_batch=6"}));
        wait_until([&] { return logged(out).size() >= 5; });
        kill(pids_.at(heard), SIGTERM);
        for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(wait(rank), 75) << output(rank);
        EXPECT_TRUE(fs::exists(folder_ / out / "checkpoints"));
    }
}

// There is nothing to save yet: the rank ends within a second, and so do those that wait with it.
TEST_F(TcpRun, ASignalEndsRanksThatWaitForAnother) {
    for (const int heard : {0, 1}) {
        start(0, torchrun(0, 4), train("waits"));
        start(1, torchrun(1, 4), train("waits"));
        // Rank 0 holds its listener and both ends of the connections of two ranks, rank 1 its own.
        wait_until([&] { return sockets_of(0) >= 5 && sockets_of(1) >= 2; });
        kill(pids_.at(heard), SIGUSR2);
        for (const int rank : {0, 1}) {
            EXPECT_EQ(wait(rank), 75) << output(rank);
            EXPECT_NE(output(rank).find("preempted: stopped by SIGUSR2"), std::string::npos) << output(rank);
        }
    }
    start(1, torchrun(1, 2), train("alone"));  // rank 0 was never started
    wait_until([&] { return heeds(1, SIGTERM); });
    kill(pids_.at(1), SIGTERM);
    EXPECT_EQ(wait(1), 75) << output(1);
}

// torch's env://, as compose, Nomad and shell loops set it: the ranks find their places on the host when they meet.
TEST_F(TcpRun, FourVariablesAreALaunch) {
    run_threads("threads");
    for (int rank = 0; rank < 4; ++rank) {
        Variables variables = pod(rank, 4);
        variables.erase("KUBERNETES_SERVICE_HOST");
        start(rank, variables, train("processes"));
    }
    expect_all_well(4);
    EXPECT_EQ(logged("processes"), logged("threads"));
}

// A rank that refuses its command line or config, before it meets the others: they end with its reason, not at
// comm.timeout_s, which is longer here than a wait of this test.
TEST_F(TcpRun, ARefusalBeforeTheRanksMeetIsHeard) {
    struct Wrong {
        int rank;
        Command words;
        std::string reason;
    };
    const Wrong all[] = {{0, {"--set", "train.stepz=3"}, "--set train.stepz=3: unknown key"},
                         {2, {"--set", "train.stepz=3"}, "--set train.stepz=3: unknown key"},
                         {0, {"--stepz", "3"}, "unknown option --stepz of `tutti train`"},
                         {3, {"--threads", "many"}, "--threads: required a whole number"},
                         {1, {"--ranks", "2"}, "--ranks 2, but torchrun started 4"}};
    for (const Wrong& wrong : all) {
        for (int rank = 0; rank < 4; ++rank) {
            Command more = {"--set", "comm.timeout_s=1000"};
            if (rank == wrong.rank) more.insert(more.end(), wrong.words.begin(), wrong.words.end());
            start(rank, torchrun(rank, 4), train("refused", more));
        }
        EXPECT_EQ(wait(wrong.rank), 2) << output(wrong.rank);
        EXPECT_NE(output(wrong.rank).find(wrong.reason), std::string::npos) << output(wrong.rank);
        expect_named(4, wrong.rank, "rank " + std::to_string(wrong.rank) + " failed: " + wrong.reason);
        EXPECT_FALSE(fs::exists(folder_ / "refused"));
    }
    for (int rank = 0; rank < 4; ++rank)  // all refuse: each says so itself
        start(rank, torchrun(rank, 4), train("refused", {"--set", "train.stepz=3"}));
    for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(wait(rank), 2) << output(rank);
        EXPECT_NE(output(rank).find("unknown key train.stepz"), std::string::npos) << output(rank);
    }
}

// Ranks of a chat wait for each other as long as a person thinks.
TEST_F(TcpRun, ARefusalBeforeAChatIsHeard) {
    for (const Command& command :
         {Command{"chat", "run"}, Command{"generate", "run", "--prompt", "x"}, Command{"bench", "comm"}}) {
        for (int rank = 0; rank < 3; ++rank) {
            Command line = command;
            line.insert(line.begin(), TUTTI_PROGRAM);
            if (rank == 1) line.insert(line.end(), {"--set", "parallel.pp=3"});  // no option of bench
            start(rank, torchrun(rank, 3), line);
        }
        EXPECT_EQ(wait(1), 2) << output(1);
        for (const int rank : {0, 2}) {  // by the refusal of rank 1, or because there is no such run
            const int code = wait(rank);
            EXPECT_TRUE(code == 5 || code == 3) << code << output(rank);
        }
    }
}

// Such as that of a node whose GPUs are gone.
TEST_F(TcpRun, ARefusalBeforeHealthIsMeasuredIsHeard) {
    for (int rank = 0; rank < 3; ++rank) {
        Command line = {TUTTI_PROGRAM, "health", "--seconds", "1000", "--launcher", "torchrun"};
        Variables variables = torchrun(rank, 3);
        if (rank == 1) {
            line.insert(line.end(), {"--device", "cuda"});
            variables["CUDA_VISIBLE_DEVICES"] = "";
        }
        start(rank, variables, line);
    }
    EXPECT_EQ(wait(1), 2) << output(1);
    for (const int rank : {0, 2}) EXPECT_EQ(wait(rank), 5) << output(rank);
}

// A scheduler that starts a dying run again and again must come to an end.
TEST_F(TcpRun, StartsWithoutACheckpointAreCounted) {
    const Variables in_a_job = {{"SLURM_JOB_ID", "7"}};
    const auto command = train("dies", {"--set", "checkpoint.every=0", "--set", "train.steps=100000"});
    for (int i = 0; i < 3; ++i) {
        fs::remove(folder_ / "dies" / "metrics.jsonl");
        start(0, in_a_job, command);
        wait_until([&] { return !logged("dies").empty(); });
        kill(pids_.at(0), SIGKILL);
        EXPECT_EQ(wait(0), 128 + SIGKILL);
    }
    start(0, in_a_job, command);
    EXPECT_EQ(wait(0), 70);
    EXPECT_NE(output(0).find("the last 3 starts of this run died before a checkpoint"), std::string::npos) << output(0);
    start(0, in_a_job, train("dies", {"--set", "checkpoint.every=0", "--set", "train.steps=3", "--force"}));
    EXPECT_EQ(wait(0), 0) << output(0);
    EXPECT_FALSE(fs::exists(folder_ / "dies" / "starts.json"));
}

TEST_F(TcpRun, AKilledRankIsNamedAndTheRunGoesOn) {
    run_threads("undisturbed");
    start_all(4, train("run"));
    wait_until([&] { return logged("run").size() >= 50; });
    kill(pids_.at(2), SIGKILL);
    expect_named(4, 2, "rank 2 has died");
    EXPECT_EQ(wait(2), 128 + SIGKILL);
    ASSERT_LT(logged("run").size(), 200u) << "it was over before the kill";
    start_all(4, train("run"));
    expect_all_well(4);
    EXPECT_EQ(logged("run"), logged("undisturbed"));
}

}  // namespace
}  // namespace tutti::testing
