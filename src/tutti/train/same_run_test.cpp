#include "tutti/train/same_run.h"

#include <gtest/gtest.h>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/device.h"
#include "tutti/spec/toml.h"

namespace tutti::train {
namespace {

std::string message_of(const std::vector<std::string>& lines) {
    try {
        comm::run_ranks(static_cast<int>(lines.size()), {.timeout_s = 60}, [&](comm::World& world) {
            check_same(*world.everyone("recipe"), lines[static_cast<size_t>(world.rank())]);
        });
    } catch (const UsageError& e) {
        return e.what();
    }
    return "";
}

TEST(SameRun, EqualRanksAreFine) { EXPECT_EQ(message_of({"a = 1\nb = 2\n", "a = 1\nb = 2\n"}), ""); }

TEST(SameRun, NamesKeysValuesRanksAndHosts) {
    const std::string host = host_name();
    EXPECT_EQ(message_of({"a = 1\nb = 2\n", "a = 1\nb = 3\n", "a = 1\nb = 2\nc = x = y\n"}),
              "the ranks of this run were not started alike:\n  b: 2 on ranks 0 (" + host + "), 2 (" + host +
                  "); 3 on rank 1 (" + host + ")\n  c: x = y on rank 2 (" + host +
                  "); the others have none\nstart all of them with the same program, config and data");
}

TEST(SameRun, ARecipeHasEveryKeyOfTheConfig) {
    const spec::RunSpec run = spec::parse_text("", "test", {"optimizer.lr=0.01", "data.train=a.txt"});
    const std::string recipe = recipe_of(run, "runs/a");
    for (const char* line : {"--out = runs/a\n", "optimizer.lr = 0.01\n", "train.seed = 1234\n", "model.width = "})
        EXPECT_NE(recipe.find(line), std::string::npos) << line << "\n" << recipe;
}

}  // namespace
}  // namespace tutti::train
