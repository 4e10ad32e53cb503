// Every state-changing call of a save fails once, or from there on; every bit of a checkpoint is flipped; every file of
// it is cut at every length. (SQLite's anomaly tests are the model.)
#include <gtest/gtest.h>

#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;
using testing::debris_in;
using testing::Fault;
using testing::FaultFileSystem;
using testing::MemoryFileSystem;
using testing::newest_of;
using testing::Sample;

constexpr const char* kDirectory = "/checkpoints";

void ignore(const std::string&) {}

struct Outcome {
    bool saved = false, pruned = false;
    std::string error;
    int64_t calls = 0;
};

// Step 1 is there; save `step`/`variant` and prune on a disk with this fault.
Outcome save_with(FileSystem& disk, Fault fault, int64_t step, int variant) {
    {
        Store store(disk, kDirectory, Access::write, ignore);
        store.save(Sample(1, 0).snapshot);
    }
    FaultFileSystem faulty(disk, fault);
    Store store(faulty, kDirectory, Access::write, ignore);
    Outcome outcome;
    try {
        store.save(Sample(step, variant).snapshot);
        outcome.saved = true;
        store.prune(1);
        outcome.pruned = true;
    } catch (const DataError& error) {
        outcome.error = error.what();
    }
    outcome.calls = faulty.calls();
    return outcome;
}

void sweep(int64_t step, int variant) {
    const std::string fresh = concat(step, "/", variant);
    int64_t cases = 0;
    for (int code : {EIO, ENOSPC, 0})
        for (bool sticky : {false, true})
            for (int64_t call = 0;; ++call) {
                const std::string where = concat("call ", call, " code ", code, sticky ? " sticky" : " once");
                MemoryFileSystem disk;
                const Outcome outcome = save_with(disk, {call, code, sticky}, step, variant);
                ++cases;
                if (call >= outcome.calls) break;  // beyond the last call
                EXPECT_EQ(outcome.saved && outcome.pruned, code == 0) << where << outcome.error;

                // As the next process finds it, and as it is after a power cut.
                const auto lost = disk.after_crash({});
                for (MemoryFileSystem* after : {&disk, lost.get()}) {
                    Store store(*after, kDirectory, Access::write, ignore);
                    const std::string found = newest_of(store, OnDamage::stop);
                    EXPECT_TRUE(found == fresh || (!outcome.saved && found == "1/0")) << where << " found " << found;
                    if (after == &disk && !sticky) {  // where it can be, the older one is put back under its own name
                        EXPECT_FALSE(store.list()[0].replaced) << where;
                    }
                    store.save(Sample(9, 0).snapshot);
                    store.prune(1);
                    EXPECT_EQ(newest_of(store, OnDamage::stop), "9/0") << where;
                    EXPECT_EQ(debris_in(*after, kDirectory), std::vector<std::string>{}) << where;
                    EXPECT_EQ(store.list().size(), 1u) << where;
                }
            }
    EXPECT_GT(cases, 6 * 25);
}

TEST(Fault, OfAnyCallOfASaveKeepsTheOldOrTheNew) { sweep(2, 0); }
TEST(Fault, OfAnyCallOfASaveOfTheSameStepKeepsTheOldOrTheNew) { sweep(1, 1); }

TEST(Fault, AFailedSaveRemovesItsFilesAndSaysWhatHappened) {
    int64_t failed = 0;
    for (int64_t call = 0;; ++call) {
        MemoryFileSystem disk;
        const Outcome outcome = save_with(disk, {call, ENOSPC, false}, 2, 0);
        if (outcome.saved) break;
        ++failed;
        EXPECT_TRUE(debris_in(disk, kDirectory).empty()) << call;
        EXPECT_TRUE(contains(outcome.error, "No space left on device"));
        // The last call of a save is the fsync behind the rename.
        const bool in_place = disk.kind(join(kDirectory, "step-0000000002")) == FileKind::directory;
        EXPECT_TRUE(contains(outcome.error,
                             in_place ? "may not outlive a power cut" : "the checkpoint of step 2 was not saved"));
    }
    EXPECT_GT(failed, 15);
}

TEST(Fault, TheSameStoreSavesAgainAfterAFailure) {
    MemoryFileSystem disk;
    FaultFileSystem faulty(disk, {3, ENOSPC, false});
    disk.make_directory(kDirectory);
    Store store(faulty, kDirectory, Access::write, ignore);
    EXPECT_THROW(store.save(Sample(1, 0).snapshot), DataError);
    EXPECT_EQ(newest_of(store, OnDamage::stop), "nothing");
    store.save(Sample(2, 0).snapshot);
    EXPECT_EQ(newest_of(store, OnDamage::stop), "2/0");
}

TEST(Fault, AFullDiskShowsBeforeAnyByteIsWritten) {
    MemoryFileSystem disk;
    // Calls: mkdir, create, allocate, create, allocate.
    const auto before = [&] {
        return std::count_if(disk.calls.begin(), disk.calls.end(), [](const std::string& call) {
            return call.starts_with("write") && contains(call, "step-0000000002");
        });
    };
    EXPECT_FALSE(save_with(disk, {4, ENOSPC, true}, 2, 0).saved);
    EXPECT_EQ(before(), 0);
}

class DamageTest : public ::testing::Test {
  protected:
    DamageTest() {
        Store store(disk, kDirectory, Access::write, ignore);
        path = store.save(Sample(1, 0, 20).snapshot);
    }
    // Each rank's file and the manifest, whether the loader reads all of a file or nothing.
    void expect_damage(const std::string& where) {
        for (bool read_all : {true, false}) try {
                const Store store(disk, kDirectory, Access::read, ignore);
                store.load(path, [&](const CheckpointReader& reader) {
                    if (read_all) expect_right_bytes(reader);
                });
                ADD_FAILURE() << where << ": not noticed";
            } catch (const DamagedError&) {
            }
    }
    static void expect_right_bytes(const CheckpointReader& reader) {
        EXPECT_TRUE(Sample(1, 0, 20).equals(reader)) << "wrong bytes were handed out";
    }

    MemoryFileSystem disk;
    std::string path;
};

TEST_F(DamageTest, EveryFlippedBitIsNoticed) {
    int64_t flips = 0;
    for (const std::string& name : disk.list(path)) {
        std::string& content = disk.content(join(path, name));
        for (size_t at = 0; at < content.size(); ++at)
            for (int bit = 0; bit < 8; ++bit, ++flips) {
                const char kept = content[at];
                content[at] = static_cast<char>(kept ^ (1 << bit));
                expect_damage(concat(name, " byte ", at, " bit ", bit));
                content[at] = kept;
            }
    }
    EXPECT_GT(flips, 8000);
    Store(disk, kDirectory, Access::read, ignore).verify(path);
}

TEST_F(DamageTest, EveryTruncationIsNoticed) {
    for (const std::string& name : disk.list(path)) {
        std::string& content = disk.content(join(path, name));
        const std::string whole = content;
        for (size_t size = 0; size < whole.size(); ++size) {
            content = whole.substr(0, size);
            expect_damage(concat(name, " cut to ", size));
            content = std::string(whole).replace(size, std::string::npos, whole.size() - size, '\0');
            if (content != whole) expect_damage(concat(name, " zeroed from ", size));
        }
        content = whole + '\0';
        expect_damage(name + " one byte longer");
        content = whole;
    }
}

TEST_F(DamageTest, SwappedAndMissingFilesAreNoticed) {
    std::string &first = disk.content(join(path, Sample::file_name(0))),
                &second = disk.content(join(path, Sample::file_name(1)));
    std::swap(first, second);
    expect_damage("swapped");
    std::swap(first, second);
    for (const std::string& name : disk.list(path)) {
        disk.rename(join(path, name), join(path, "elsewhere"));
        expect_damage(name + " is missing");
        disk.rename(join(path, "elsewhere"), join(path, name));
    }
}

TEST_F(DamageTest, ACheckpointUnderAnotherStepsNameIsNoticed) {
    disk.rename(path, join(kDirectory, "step-0000000005"));
    Store store(disk, kDirectory, Access::write, ignore);
    EXPECT_THROW(newest_of(store, OnDamage::stop), DamagedError);
}

}  // namespace
}  // namespace tutti::checkpoint
