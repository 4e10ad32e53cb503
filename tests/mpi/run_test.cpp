// Whole runs of processes: their first step counts what `--dry-run` predicts, processes that were not started alike do
// not train together, and a trace has all ranks on one clock.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../tiny_run.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/report/trace_read.h"

namespace {

namespace fs = std::filesystem;
using tutti::Json;

class MpiRun : public ::testing::Test {
  protected:
    MpiRun() {
        std::string name = (fs::temp_directory_path() / "tutti_mpi_run_XXXXXX").string();
        EXPECT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
        tutti::testing::write_tiny_run(folder_, "steps = 2\nglobal_batch = 16",
                                       "[checkpoint]\nevery = 0\n[comm]\ntimeout_s = 60\n");
    }
    ~MpiRun() override { fs::remove_all(folder_); }

    static int run(const std::string& line) { return WEXITSTATUS(std::system(line.c_str())); }
    static Json read(const fs::path& file) { return Json::parse(tutti::read_file(file.string())); }
    std::string arguments(const std::string& set) const { return " train " + (folder_ / "tiny.toml").string() + set; }

    fs::path folder_;
};

TEST_F(MpiRun, IsAsRehearsed) {
    int number = 0;
    for (const std::string set :
         {" --set parallel.zero=0", " --set parallel.zero=1", " --set parallel.zero=2 --set recompute.policy=full",
          " --set parallel.zero=3", " --set parallel.zero=3 --set parallel.dp_replicate=2 --set precision.compute=f32",
          " --set parallel.zero=2 --set parallel.accumulate=full --set offload.optimizer=true",
          " --set parallel.tp=2 --set parallel.cp=2", " --set parallel.pp=2 --set parallel.schedule=zb-h1"}) {
        const fs::path out = folder_ / ("run" + std::to_string(number++)), said = folder_ / "said",
                       dry = folder_ / "dry";
        ASSERT_EQ(run(std::string(TUTTI_MPIRUN_LINE) + " -n 4 " TUTTI_PROGRAM + arguments(set) + " --out " +
                      out.string() + " > " + said.string() + " 2>&1"),
                  0)
            << std::ifstream(said).rdbuf();
        std::stringstream log;
        log << std::ifstream(said).rdbuf();
        EXPECT_EQ(log.str().find('\033'), std::string::npos) << "escape codes in a redirected log";
        const Json totals = read(out / "run.json");
        ASSERT_EQ(totals.at("ranks").size(), 4u);
        for (int rank = 0; rank < 4; ++rank) {
            ASSERT_EQ(run(TUTTI_PROGRAM + arguments(set) + " --dry-run --json --ranks 4 --rank " +
                          std::to_string(rank) + " > " + dry.string() + " 2> " + said.string()),
                      0)
                << std::ifstream(said).rdbuf();
            const Json rehearsed = read(dry);
            EXPECT_EQ(totals.at("ranks")[static_cast<size_t>(rank)].at("memory"), rehearsed.at("memory"))
                << set << ", rank " << rank;
            if (rank == 0) {
                EXPECT_EQ(totals.at("communication"), rehearsed.at("communication")) << set;
            }
        }
    }
}

// Stages as processes: the bits of one rank.
TEST_F(MpiRun, APipelineIsOneRank) {
    const fs::path said = folder_ / "said", errors = folder_ / "errors";
    for (const char* schedule : {"1f1b", "zb-h2", "gpipe"}) {
        run(std::string(TUTTI_MPIRUN_LINE) + " -n 3 " TUTTI_PROGRAM " verify " + (folder_ / "tiny.toml").string() +
            " --steps 1 --json --set parallel.pp=3 --set model.tie_embeddings=false --set parallel.schedule=" +
            schedule + " > " + said.string() + " 2> " + errors.string());
        EXPECT_EQ(read(said).at("equal"), true) << schedule << std::ifstream(errors).rdbuf();
    }
}

// Stages under layouts of their own: new groups over the same connections. MPI, TCP and threads have the same bits.
TEST_F(MpiRun, StagesUnderOtherLayoutsAreThoseOfThreads) {
    const std::string set =
        " --set train.steps=6 --set train.micro_batch=1 --set log.every=1 --set \"stage=[{until = 2}, {until = 4, "
        "train.seq_len = 32, parallel.cp = 2, parallel.tp = 2}, {parallel.cp = 1, parallel.tp = 1, parallel.pp = 2, "
        "parallel.zero = 3}]\"";
    const fs::path said = folder_ / "said";
    const auto steps = [&](const std::string& name, const std::string& launcher, const std::string& more) {
        EXPECT_EQ(run(launcher + TUTTI_PROGRAM + arguments(set) + more + " --out " + (folder_ / name).string() + " > " +
                      said.string() + " 2>&1"),
                  0)
            << std::ifstream(said).rdbuf();
        std::vector<std::string> all;
        std::ifstream in(folder_ / name / "metrics.jsonl");
        for (std::string line; std::getline(in, line);) {
            const Json json = Json::parse(line);
            for (const char* key : {"step", "loss", "grad_norm", "tokens", "stage"}) all.push_back(json.at(key).dump());
        }
        return all;
    };
    const auto threads = steps("threads", "", " --ranks 4");
    ASSERT_EQ(threads.size(), 6u * 5);
    EXPECT_EQ(threads.back(), "3");
    const std::string mpirun = std::string(TUTTI_MPIRUN_LINE) + " -n 4 ";
    EXPECT_EQ(steps("mpi", mpirun, ""), threads);
    EXPECT_EQ(steps("tcp", "TUTTI_RENDEZVOUS=127.0.0.1:" + std::to_string(20000 + getpid() % 10000) + " " + mpirun,
                    " --set comm.backend=tcp"),
              threads);
}

// Exit code 2 of every process, and what differs.
TEST_F(MpiRun, RanksThatWereNotStartedAlikeAreTold) {
    std::ofstream(folder_ / "other.txt") << std::string(3000, 'x');
    const fs::path said = folder_ / "said";
    for (const auto& [set, difference] :
         {std::pair{std::string(" --set optimizer.lr=1e-2"), "optimizer.lr: 0.01 on rank 1 ("},
          {" --set data.train=" + (folder_ / "other.txt").string(), "data.train: "},
          {std::string(" --set train.seed=7"), "train.seed: 1234 on rank 0 ("},
          {" --out " + (folder_ / "elsewhere").string(), "--out: "}}) {
        const std::string out = set.find("--out") == std::string::npos ? " --out " + (folder_ / "run").string() : "";
        run(std::string(TUTTI_MPIRUN_LINE) + " -n 1 " TUTTI_PROGRAM +
            arguments(" --out " + (folder_ / "run").string()) + " : -n 1 " TUTTI_PROGRAM + arguments(set) + out +
            " > " + said.string() + " 2>&1; echo code $? >> " + said.string());
        std::ifstream in(said);
        const std::string text{std::istreambuf_iterator<char>(in), {}};
        EXPECT_NE(text.find("code 2"), std::string::npos) << text;
        EXPECT_NE(text.find(difference), std::string::npos) << set << text;
        EXPECT_NE(text.find("start all of them with the same program"), std::string::npos) << text;
    }
}

// trace.json has the spans of all ranks, each recorded by a different clock, on one clock.
TEST_F(MpiRun, ATraceHasAllRanksOnOneClock) {
    const fs::path out = folder_ / "run", said = folder_ / "said";
    ASSERT_EQ(
        run(std::string(TUTTI_MPIRUN_LINE) + " -n 3 " TUTTI_PROGRAM +
            arguments(" --set train.steps=5 --set train.global_batch=6 --set parallel.zero=3 --set log.trace=true "
                      "--set log.trace_steps=2") +
            " --out " + out.string() + " > " + said.string() + " 2>&1"),
        0)
        << std::ifstream(said).rdbuf();
    const auto trace = tutti::report::read_trace(out / "trace.json");
    ASSERT_EQ(trace.size(), 3u);
    // (group, number) -> how many ranks have it, the last begin, the first end. None ends before all have begun it.
    struct Seen {
        int ranks = 0;
        double last_begin = -1e300, first_end = 1e300;
        int64_t bytes = 0;
    };
    std::map<std::pair<std::string, int64_t>, Seen> operations;
    for (const auto& rank : trace) {
        int steps = 0, backwards = 0;
        for (const auto& s : rank.spans) {
            steps += s.activity == "step" ? 1 : 0;
            backwards += s.name.starts_with("backward") ? 1 : 0;
            if (s.activity != "communication") continue;
            Seen& seen = operations[{s.group, s.number}];
            ++seen.ranks;
            seen.last_begin = std::max(seen.last_begin, s.begin_us);
            seen.first_end = std::min(seen.first_end, s.end_us);
            EXPECT_TRUE(seen.bytes == 0 || seen.bytes == s.bytes);
            seen.bytes = s.bytes;
        }
        EXPECT_EQ(steps, 2);
        EXPECT_EQ(backwards, 2 * 2 * 5);  // steps, microbatches, units
    }
    EXPECT_GT(operations.size(), 20u);
    for (const auto& [operation, seen] : operations) {
        EXPECT_EQ(seen.ranks, 3) << operation.first << " " << operation.second;
        EXPECT_LE(seen.last_begin, seen.first_end) << operation.first << " " << operation.second;
    }
}

}  // namespace
