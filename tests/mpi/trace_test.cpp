// trace.json of a run of processes: `tutti train` under mpirun, each rank with a clock of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tutti/report/trace_read.h"

namespace {

namespace fs = std::filesystem;

TEST(MpiTrace, HasAllRanksOnOneClock) {
    std::string name = (fs::temp_directory_path() / "tutti_mpi_trace_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    const fs::path folder = name;
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 300; ++i) text << "line " << i * i << " of a text that repeats itself\n";
    text.close();
    std::ofstream(folder / "tiny.toml")
        << "[model]\npreset = \"llama-tiny\"\nwidth = 32\nlayers = 2\nheads = 2\nkv_heads = 2\nhead_dim = 16\nffn = "
           "48\n"
        << "[data]\ntrain = [\"" << (folder / "text.txt").string() << "\"]\n"
        << "[train]\nsteps = 5\nseq_len = 16\nglobal_batch = 6\nmicro_batch = 1\nthreads = 1\n[parallel]\nzero = 3\n"
        << "[log]\ntrace = true\ntrace_steps = 2\n[checkpoint]\nevery = 0\n[comm]\ntimeout_s = 60\n";
    const std::string line = std::string(TUTTI_MPIRUN_LINE) + " -n 3 " TUTTI_PROGRAM " train " +
                             (folder / "tiny.toml").string() + " --out " + (folder / "run").string() + " > " +
                             (folder / "output").string() + " 2>&1";
    const int status = std::system(line.c_str());
    ASSERT_EQ(WEXITSTATUS(status), 0) << std::ifstream(folder / "output").rdbuf();

    const auto trace = tutti::report::read_trace(folder / "run" / "trace.json");
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
        EXPECT_EQ(backwards, 2 * 2 * 4);  // steps, microbatches, units
    }
    EXPECT_GT(operations.size(), 20u);
    for (const auto& [operation, seen] : operations) {
        EXPECT_EQ(seen.ranks, 3) << operation.first << " " << operation.second;
        EXPECT_LE(seen.last_begin, seen.first_end) << operation.first << " " << operation.second;
    }
    fs::remove_all(folder);
}

}  // namespace
