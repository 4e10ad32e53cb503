// Generations: one process takes each number, and an older one commits nothing any more.
#include "tutti/checkpoint/generation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/checkpoint/store.h"

namespace tutti::checkpoint {
namespace {

TEST(Generation, EachNumberIsTakenOnce) {
    const ScratchFolder folder;
    const std::string run = folder.path("run");
    std::filesystem::create_directories(run);
    EXPECT_EQ(newest_generation(run), 0);
    for (int64_t number = 1; number <= 20; ++number) {
        std::atomic<int> taken = 0;
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] {
                try {
                    Generation::take(run, number, "x\n");
                    ++taken;
                } catch (const UsageError&) {
                }
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(taken, 1);
        EXPECT_EQ(newest_generation(run), number);
    }
}

TEST(Generation, AnOlderOneIsRefused) {
    const ScratchFolder folder;
    const std::string run = folder.path("run");
    std::filesystem::create_directories(run);
    const Generation first = Generation::take(run, 1, "a\n");
    std::ofstream(run + "/generations/notes.txt") << "no generation\n";
    first.require_newest();
    Generation::take(run, 12, "b\n");
    EXPECT_EQ(newest_generation(run), 12);  // by number, not by name: "12" < "2"
    try {
        first.require_newest();
        ADD_FAILURE() << "generation 1 was not refused";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("generation 12 of this run was started elsewhere"), std::string::npos);
    }
    EXPECT_THROW(Generation::take(run, 2, "c\n"), UsageError);
}

TEST(Generation, AnOlderOneCommitsNothing) {
    const ScratchFolder folder;
    const std::string run = folder.path("run");
    std::filesystem::create_directories(run);
    PosixFileSystem files;
    Store store(files, run + "/checkpoints", Access::write, [](const std::string&) {});
    const Generation mine = Generation::take(run, 1, "a\n");
    store.set_fence([&] { mine.require_newest(); });
    const Snapshot first{.step = 1, .config_digest = "c", .data_fingerprint = "d", .state = "{}"};
    store.save(first);
    Generation::take(run, 2, "b\n");
    Snapshot second = first;
    second.step = 2;
    EXPECT_THROW(store.save(second), UsageError);
    const auto stored = store.list();
    ASSERT_EQ(stored.size(), 1U);
    EXPECT_EQ(stored.front().step, 1);
    for (const std::string& name : files.list(run + "/checkpoints"))  // the unfinished one is gone too
        EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
}

}  // namespace
}  // namespace tutti::checkpoint
