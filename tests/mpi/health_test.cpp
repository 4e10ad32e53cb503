// `tutti health` of ranks that are processes.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "../program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

class MpiHealth : public ProgramTest {
  protected:
    Result run_ranks(const std::string& ranks, std::vector<std::string> arguments) const {
        std::istringstream line(TUTTI_MPIRUN_LINE);
        std::vector<std::string> launcher{std::istream_iterator<std::string>(line), {}};
        launcher.insert(launcher.end(), {"-n", ranks});
        arguments.insert(arguments.begin(), {"health", "--device", "cpu", "--threads", "1"});
        return Program(folder_, arguments, {}, launcher).wait();
    }
};

TEST_F(MpiHealth, MeasuresEveryRankAndLink) {
    // Nothing is a thousand times slower than its peers.
    const Result r = run_ranks("3", {"--seconds", "0.1", "--margin", "0.999", "--json"});
    ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
    const auto d = Json::parse(r.out);
    EXPECT_EQ(d["backend"], "mpi");
    EXPECT_EQ(d["ranks"].size(), 3u);
    EXPECT_EQ(d["links"].size(), 3u);
    EXPECT_TRUE(d["healthy"].get<bool>());
    for (const auto& rank : d["ranks"]) {
        EXPECT_EQ(rank["wrong_rows"], 0);
        EXPECT_EQ(rank["digest"], d["ranks"][0]["digest"]);
    }
    for (const auto& link : d["links"]) EXPECT_EQ(link["wrong_words"], 0);
}

TEST_F(MpiHealth, AnotherNumberOfRanksIsRefused) {
    const Result r = run_ranks("2", {"--ranks", "3"});
    EXPECT_EQ(r.exit_code, 2);
    expect_contains(r.err, "--ranks 3, but open_mpi started 2");
    expect_contains(r.err, "leave --ranks out");
}

}  // namespace
}  // namespace tutti::testing
