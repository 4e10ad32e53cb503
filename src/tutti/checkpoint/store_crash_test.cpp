// Saves that are interrupted.
//
// The power fails before every single call of a save, and the disk keeps any legal part of the unsynced data.
// Afterwards the newest checkpoint must be the old or the new one, whole; nothing visible may be damaged; and what
// save() returned for must be there. Three wrong protocols prove that these tests can fail.
#include <gtest/gtest.h>

#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;
using testing::CrashImage;
using testing::debris_in;
using testing::Fault;
using testing::FaultFileSystem;
using testing::MemoryFileSystem;
using testing::newest_of;
using testing::PowerCut;
using testing::Sample;
using testing::Survives;

constexpr const char* kDirectory = "/checkpoints";

void ignore(const std::string&) {}

std::vector<CrashImage> images() {
    std::vector<CrashImage> all;
    for (Survives data : {Survives::nothing, Survives::everything, Survives::zeros})
        for (Survives names : {Survives::nothing, Survives::everything}) all.push_back({data, names, 0});
    for (uint32_t seed = 1; seed <= 12; ++seed) all.push_back({Survives::random, Survives::random, seed});
    for (uint32_t seed = 1; seed <= 4; ++seed) all.push_back({Survives::random, Survives::everything, seed});
    return all;
}

struct Scenario {
    std::vector<std::pair<int64_t, int>> before,
        during;  // (step, variant) of the saves; each is followed by prune(keep)
    int64_t keep = 1;
};

std::string text_of(const std::pair<int64_t, int>& save) { return concat(save.first, "/", save.second); }

void run_saves(Store& store, const std::vector<std::pair<int64_t, int>>& saves, int64_t keep, size_t& done) {
    for (const auto& [step, variant] : saves) {
        store.save(Sample(step, variant).snapshot);
        ++done;
        store.prune(keep);
    }
}

// The problem of the files after a crash, or "".
std::string problem_of(MemoryFileSystem& after, const std::vector<std::string>& allowed) {
    try {
        Store store(after, kDirectory, Access::write, ignore);
        const std::string found = newest_of(store, OnDamage::stop);
        if (std::find(allowed.begin(), allowed.end(), found) == allowed.end()) return "found " + found;
        for (const StoredCheckpoint& visible : store.list()) store.verify(visible.path);
        store.save(Sample(99, 0).snapshot);
        store.prune(1);
        if (newest_of(store, OnDamage::stop) != "99/0") return "the next save is not the newest";
        if (!debris_in(after, kDirectory).empty()) return "left " + debris_in(after, kDirectory)[0];
        if (store.list().size() != 1) return "prune left more than one";
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// All violations over every crash point and image.
template <class Disk>
std::vector<std::string> violations(const Scenario& scenario, int64_t* cases = nullptr) {
    std::vector<std::string> found;
    for (int64_t crash_after = 0;; ++crash_after) {
        Disk disk;
        size_t saved = 0;
        bool cut = false;
        {
            disk.make_directory(kDirectory);
            disk.fsync_directory("/");
            Store store(disk, kDirectory, Access::write, ignore);
            size_t before = 0;
            run_saves(store, scenario.before, scenario.keep, before);
            disk.crash_at = static_cast<int64_t>(disk.calls.size()) + crash_after;
            try {
                run_saves(store, scenario.during, scenario.keep, saved);
            } catch (const PowerCut&) {
                cut = true;
            }
        }
        // Before the cut `saved` saves had returned: nothing older than the last of them may come back, but one that
        // was in progress may.
        std::vector<std::string> allowed;
        const std::string old = scenario.before.empty() ? "nothing" : text_of(scenario.before.back());
        allowed.push_back(saved == 0 ? old : text_of(scenario.during[saved - 1]));
        if (saved < scenario.during.size()) allowed.push_back(text_of(scenario.during[saved]));
        for (const CrashImage& image : images()) {
            const auto after = disk.after_crash(image);
            const std::string problem = problem_of(*after, allowed);
            if (cases != nullptr) ++*cases;
            if (!problem.empty())
                found.push_back(concat("cut before call ", crash_after, " (after ", disk.calls.back(), "), image data ",
                                       static_cast<int>(image.data), " names ", static_cast<int>(image.names), " seed ",
                                       image.seed, ": ", problem));
        }
        if (!cut) return found;  // the whole scenario ran
    }
}

const Scenario kNext{{{1, 0}}, {{2, 0}, {3, 0}}, 1};
const Scenario kFirst{{}, {{1, 0}}, 1};
const Scenario kSameStep{{{1, 0}}, {{1, 1}, {1, 2}}, 1};
const Scenario kKeepTwo{{{1, 0}, {2, 0}}, {{3, 0}}, 2};

TEST(Crash, AtAnyCallLeavesTheOldOrTheNewCheckpoint) {
    for (const Scenario& scenario : {kNext, kFirst, kSameStep, kKeepTwo}) {
        int64_t cases = 0;
        const auto wrong = violations<MemoryFileSystem>(scenario, &cases);
        EXPECT_TRUE(wrong.empty()) << wrong.size() << " of " << cases << ", the first: " << wrong[0];
        EXPECT_GT(cases, 400);
    }
}

struct NoFileSync final : MemoryFileSystem {
    void fsync(const FileHandle&) override {}
};
struct NoParentSync final : MemoryFileSystem {
    void fsync_directory(const std::string& path) override {
        if (path != kDirectory) MemoryFileSystem::fsync_directory(path);
    }
};
struct NoInnerDirectorySync final : MemoryFileSystem {
    void fsync_directory(const std::string& path) override {
        if (path == kDirectory || path == "/") MemoryFileSystem::fsync_directory(path);
    }
};
// The directory gets its final name before the manifest is in it.
struct ManifestLast final : MemoryFileSystem {
    void rename(const std::string& from, const std::string& to) override {
        if (last_name_of(to) == kManifestName) {
            held_ = true;
            return;
        }
        MemoryFileSystem::rename(from, to);
        if (!held_) return;
        held_ = false;
        const std::string manifest = join(to, kManifestName);
        MemoryFileSystem::rename(manifest + ".tmp", manifest);
        MemoryFileSystem::fsync_directory(to);
    }
    bool held_ = false;
};

TEST(Crash, WrongProtocolsAreCaught) {
    EXPECT_FALSE(violations<NoFileSync>(kNext).empty());
    EXPECT_FALSE(violations<NoParentSync>(kNext).empty());
    EXPECT_FALSE(violations<NoInnerDirectorySync>(kNext).empty());
    EXPECT_FALSE(violations<ManifestLast>(kNext).empty());
}

// Every state-changing call of a save fails once, or from there on; every bit of a checkpoint is flipped; every file of
// it is cut at every length. (SQLite's anomaly tests are the model.)

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
