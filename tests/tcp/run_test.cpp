// Whole runs of processes without MPI: their losses are those of threads, to the bit; a killed rank is named by the
// others, which end with 4; the same command afterwards goes on to the undisturbed run's end.

#include "processes.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

class TcpRun : public Processes {
  protected:
    TcpRun() {
        std::ofstream text(folder_ / "text.txt");
        for (int i = 0; i < 300; ++i) text << "line " << i * i << " of a text that repeats itself\n";
        std::ofstream(folder_ / "tiny.toml")
            << "[model]\npreset = \"llama-tiny\"\nwidth = 32\nlayers = 3\nheads = 2\nkv_heads = 2\nhead_dim = 16\n"
               "ffn = 48\n[data]\ntrain = [\""
            << (folder_ / "text.txt").string()
            << "\"]\n[train]\nsteps = 200\nseq_len = 16\nglobal_batch = 8\nmicro_batch = 1\nthreads = 1\n"
               "[parallel]\nzero = 3\n[log]\nevery = 1\n[checkpoint]\nevery = 20\n[comm]\ntimeout_s = 20\n";
    }
    std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> command = {TUTTI_PROGRAM, "train", (folder_ / "tiny.toml").string(), "--out",
                                            (folder_ / out).string()};
        command.insert(command.end(), more.begin(), more.end());
        return command;
    }
    // Loss and norm of every step, as they were printed.
    std::vector<std::string> logged(const std::string& out) const {
        std::vector<std::string> lines;
        std::ifstream file(folder_ / out / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) {
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

TEST_F(TcpRun, AKilledRankIsNamedAndTheRunGoesOn) {
    run_threads("undisturbed");
    start_all(4, train("run"));
    for (int i = 0; i < 60000 && logged("run").size() < 50; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(logged("run").size(), 50u) << output(0);
    kill(pids_.at(2), SIGKILL);
    expect_named(4, 2, "rank 2 has died", 20);
    EXPECT_EQ(wait(2), 128 + SIGKILL);
    ASSERT_LT(logged("run").size(), 200u) << "it was over before the kill";
    start_all(4, train("run"));
    expect_all_well(4);
    EXPECT_EQ(logged("run"), logged("undisturbed"));
}

}  // namespace
}  // namespace tutti::testing
