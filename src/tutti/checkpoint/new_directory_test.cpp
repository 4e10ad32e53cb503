// A directory that appears complete or not at all: beside something, over something, and when any call fails.
#include "tutti/checkpoint/new_directory.h"

#include <gtest/gtest.h>

#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/memory_file_system.h"

namespace tutti::checkpoint {
namespace {

TEST(NewDirectory, AppearsWithCommitOnly) {
    testing::MemoryFileSystem disk;
    {
        NewDirectory made(disk, "/a/b/");
        write_file_atomically(disk, made.temporary(), {.name = "f", .head = "x"});
        EXPECT_EQ(disk.kind("/a/b"), FileKind::none);
    }
    EXPECT_EQ(disk.list("/a"), std::vector<std::string>{});  // given up: nothing stays
    {
        NewDirectory made(disk, "/a/b");
        write_file_atomically(disk, made.temporary(), {.name = "f", .head = "x"});
        made.commit();
    }
    EXPECT_EQ(disk.list("/a"), std::vector<std::string>{"b"});
    EXPECT_EQ(disk.content("/a/b/f"), "x");
}

TEST(NewDirectory, OverwritesNothing) {
    testing::MemoryFileSystem disk;
    disk.make_directory("/d");
    write_file_atomically(disk, "/d", {.name = "f", .head = "x"});
    EXPECT_THROW(NewDirectory(disk, "/d"), UsageError);
    EXPECT_THROW(NewDirectory(disk, "/d/f"), UsageError);
    EXPECT_EQ(disk.list("/"), std::vector<std::string>{"d"});
}

// A disk that fails once, at any call: an error, and neither the directory nor anything else is left.
TEST(NewDirectory, LeavesNothingWhenAnyCallFails) {
    bool failed = true;
    for (int64_t call = 0; failed; ++call) {
        testing::MemoryFileSystem disk;
        testing::FaultFileSystem faulty(disk, {.call = call, .code = ENOSPC});
        failed = false;
        bool renamed = false;
        try {
            NewDirectory made(faulty, "/d");
            write_file_atomically(faulty, made.temporary(), {.name = "f", .head = "x"});
            made.commit();
            renamed = true;
        } catch (const IoError&) {
            failed = true;
            renamed = disk.kind("/d") != FileKind::none;  // the last call makes the rename durable
        }
        EXPECT_EQ(disk.list("/"), renamed ? std::vector<std::string>{"d"} : std::vector<std::string>{}) << call;
        if (renamed) {
            EXPECT_EQ(disk.content("/d/f"), "x");
        }
        ASSERT_LT(call, 50);
    }
}

}  // namespace
}  // namespace tutti::checkpoint
