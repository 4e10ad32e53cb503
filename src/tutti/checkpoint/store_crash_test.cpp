// The power fails before every single call of a save, and the disk keeps any legal part of what was not synced.
// Afterwards the newest checkpoint must be the old or the new one, whole; nothing visible may be damaged; and what
// save() returned for must be there. Three wrong protocols prove that these tests can fail.
#include <gtest/gtest.h>

#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::CrashImage;
using testing::debris_in;
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

// What is wrong with what a crash left, or "".
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
        // was under way may.
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

}  // namespace
}  // namespace tutti::checkpoint
