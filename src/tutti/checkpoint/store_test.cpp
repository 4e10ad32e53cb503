// The store on a real disk: save, load, fall back, prune, resume elsewhere, two runs in one directory, a killed run.
#include "tutti/checkpoint/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tutti/base/testing/scratch.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;
using testing::newest_of;
using testing::Sample;

class StoreTest : public ::testing::Test {
  protected:
    Store open(Access access = Access::write) {
        return Store(disk, directory, access, [this](const std::string& text) { warnings.push_back(text); });
    }
    void save(Store& store, int64_t step, int variant = 0) { store.save(Sample(step, variant).snapshot); }
    std::vector<std::string> names() {
        auto all = disk.list(directory);
        std::erase(all, ".lock");
        return all;
    }
    void flip(const std::string& path, int64_t offset) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(offset);
        const auto value = static_cast<char>(file.get() ^ 0x10);
        file.seekp(offset);
        file.put(value);
        ASSERT_TRUE(file.good());
    }
    std::string step_path(int64_t step) { return join(directory, step_name(step)); }
    std::string weights_path(int64_t step) { return join(step_path(step), Sample::file_name(1)); }

    ScratchFolder scratch;
    PosixFileSystem disk;
    std::string directory = join(scratch.path(), "run/checkpoints");
    std::vector<std::string> warnings;
};

TEST_F(StoreTest, SavesAndLoadsTheNewest) {
    Store store = open();
    EXPECT_EQ(newest_of(store, OnDamage::fall_back), "nothing");
    save(store, 100);
    save(store, 200, 7);
    EXPECT_EQ(names(), (std::vector<std::string>{"step-0000000100", "step-0000000200"}));
    EXPECT_EQ(disk.list(step_path(200)), (std::vector<std::string>{"MANIFEST.json", "rank-00000-of-00002.safetensors",
                                                                   "rank-00001-of-00002.safetensors"}));
    EXPECT_EQ(newest_of(store, OnDamage::stop), "200/7");
    const Loaded loaded = store.load(step_path(100), [](const CheckpointReader& reader) {
        EXPECT_EQ(reader.manifest().config_digest, "config");
        EXPECT_EQ(reader.manifest().data_fingerprint, "data");
        EXPECT_THROW(reader.file("absent"), DataError);
    });
    EXPECT_EQ(loaded.manifest.step, 100);
    store.verify(step_path(100));
    EXPECT_TRUE(warnings.empty());
}

TEST_F(StoreTest, FilesLargerThanAChunkAreReadInAnyPieces) {
    Store store = open();
    const int64_t floats = 3 * kChunkBytes / 4 + 11;
    const Sample sample(1, 0, floats);
    store.save(sample.snapshot);
    int calls = 0;
    store.load(step_path(1), [&](const CheckpointReader& reader) {
        ++calls;
        EXPECT_TRUE(sample.equals(reader));
        const SafetensorsFile file = reader.safetensors(Sample::file_name(0));
        std::vector<std::byte> part(2 * kChunkBytes + 77);
        file.read(file.at("weight"), 1234, part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), sample.weights[0].begin() + 1234));
    });
    EXPECT_EQ(calls, 1);
    // Damage in a chunk that the loader never asks for is found all the same, and placed.
    flip(weights_path(1), 2 * kChunkBytes + 9);
    try {
        store.load(step_path(1), [](const CheckpointReader&) {});
        FAIL();
    } catch (const DamagedError& error) {
        EXPECT_TRUE(
            contains(error.what(), concat("bytes ", 2 * kChunkBytes, " to ", 3 * kChunkBytes, ": the digest is ")));
        EXPECT_TRUE(contains(error.what(), Sample::file_name(1)));
    }
    // After a bad chunk, a good one is still read right.
    const CheckpointReader reader(disk, step_path(1));
    const auto file = reader.file(Sample::file_name(1));
    std::vector<std::byte> first(100), again(100);
    file->read(500, first);
    EXPECT_THROW(file->read(2 * kChunkBytes, again), DamagedError);
    file->read(500, again);
    EXPECT_EQ(again, first);
}

TEST_F(StoreTest, ADamagedCheckpointIsKeptAsideAndTheOlderOneLoaded) {
    Store store = open();
    for (int64_t step : {100, 200, 300}) save(store, step);
    flip(weights_path(300), 700);
    std::filesystem::remove(weights_path(200));
    EXPECT_THROW(newest_of(store, OnDamage::stop), DamagedError);
    EXPECT_EQ(newest_of(store, OnDamage::fall_back), "100/0");
    EXPECT_EQ(names(),
              (std::vector<std::string>{"step-0000000100", "step-0000000200.corrupt", "step-0000000300.corrupt"}));
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_TRUE(contains(warnings[0], "the checkpoint of step 300 is damaged"));
    EXPECT_TRUE(contains(warnings[0], "the manifest says"));
    EXPECT_TRUE(contains(warnings[1], "is missing"));
    save(store, 300);
    flip(weights_path(300), 700);
    EXPECT_EQ(newest_of(store, OnDamage::fall_back), "100/0");
    EXPECT_EQ(disk.kind(step_path(300) + ".corrupt-2"), FileKind::directory);
}

// Whatever stands where a file of the checkpoint was.
TEST_F(StoreTest, WhatIsNoFileIsDamage) {
    namespace fs = std::filesystem;
    const std::pair<const char*, std::function<void(const std::string&)>> kinds[] = {
        {"nothing", [](const std::string&) {}},
        {"a folder", [](const std::string& path) { fs::create_directory(path); }},
        {"a pipe", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
        {"a link to nothing", [](const std::string& path) { fs::create_symlink("nothing", path); }},
        {"a link to itself", [](const std::string& path) { fs::create_symlink(path, path); }},
        {"a link to a folder", [](const std::string& path) { fs::create_symlink(".", path); }}};
    for (const auto& [kind, make] : kinds)
        for (const std::string& file : {Sample::file_name(0), Sample::file_name(1), std::string(kManifestName)}) {
            Store store = open();
            for (int64_t step : {100, 200}) save(store, step);
            const std::string path = join(step_path(200), file);
            fs::remove(path);
            make(path);
            EXPECT_THROW(newest_of(store, OnDamage::stop), DamagedError) << kind << ' ' << file;
            EXPECT_EQ(newest_of(store, OnDamage::fall_back), "100/0") << kind << ' ' << file;
            EXPECT_EQ(disk.kind(step_path(200)), FileKind::none);
        }
}

TEST_F(StoreTest, WithoutAGoodOneItStopsAlsoTheNextTime) {
    {
        Store store = open();
        save(store, 100);
        flip(weights_path(100), 700);
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
        Store store = open();
        try {
            newest_of(store, OnDamage::fall_back);
            FAIL() << "a run would start from nothing";
        } catch (const DataError& error) {
            EXPECT_TRUE(contains(error.what(), "damaged checkpoints and no good one"));
        }
    }
}

TEST_F(StoreTest, AReaderChangesNothing) {
    {
        Store store = open();
        save(store, 100);
        save(store, 200);
        flip(weights_path(200), 700);
        std::filesystem::create_directory(step_path(300) + ".tmp-elsewhere-1-0");
    }
    const auto before = names();
    Store reader = open(Access::read);
    EXPECT_EQ(newest_of(reader, OnDamage::fall_back), "100/0");
    EXPECT_EQ(names(), before);
    EXPECT_THROW(reader.prune(1), Error);
    EXPECT_THROW(reader.set_aside_newer(1), Error);
    EXPECT_THROW(save(reader, 5), Error);
    Store nowhere(disk, join(scratch.path(), "nowhere"), Access::read, [](const std::string&) {});
    EXPECT_EQ(newest_of(nowhere, OnDamage::fall_back), "nothing");
    EXPECT_EQ(disk.kind(join(scratch.path(), "nowhere")), FileKind::none);
}

TEST_F(StoreTest, AnErrorOfTheLoaderIsNotDamage) {
    Store store = open();
    save(store, 100);
    const auto refuse = [](const CheckpointReader&) { throw DataError("shapes differ"); };
    EXPECT_THROW(store.load_newest(refuse, OnDamage::fall_back), DataError);
    EXPECT_EQ(names(), std::vector<std::string>{"step-0000000100"});
}

TEST_F(StoreTest, AnUnreadableDiskFallsBackButRenamesNothing) {
    {
        Store store = open();
        save(store, 100);
        save(store, 200);
    }
    testing::FaultFileSystem faulty(disk, {});
    faulty.set_read_error("step-0000000200/rank-00001", EIO);
    Store store(faulty, directory, Access::write, [this](const std::string& text) { warnings.push_back(text); });
    EXPECT_THROW(newest_of(store, OnDamage::stop), IoError);
    EXPECT_EQ(newest_of(store, OnDamage::fall_back), "100/0");
    EXPECT_EQ(names(), (std::vector<std::string>{"step-0000000100", "step-0000000200"}));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(contains(warnings[0], "cannot be read"));
    EXPECT_THROW(store.prune(1), IoError);  // the newest cannot be verified: nothing is deleted
    EXPECT_EQ(store.list().size(), 2u);
    // An error that the user can fix must not cost the work since the older checkpoint.
    faulty.set_read_error("step-0000000200/rank-00001", EACCES);
    EXPECT_THROW(newest_of(store, OnDamage::fall_back), IoError);
}

// A run that goes on where nothing can be made any more would hear of it at its first save.
TEST_F(StoreTest, OpensForWritingOnlyWhatCanBeWritten) {
    {
        Store store = open();
        save(store, 100);
    }
    testing::FaultFileSystem faulty(disk, {});
    const auto ignore = [](const std::string&) {};
    for (const int code : {EACCES, EPERM, EROFS}) {
        faulty.set_unwritable(code);
        EXPECT_EQ(missing("checkpoints cannot be saved: write in",
                          message_of<UsageError>([&] { Store(faulty, directory, Access::write, ignore); })),
                  "");
        EXPECT_NO_THROW(Store(faulty, directory, Access::read, ignore));
    }
    EXPECT_EQ(names(), std::vector<std::string>{"step-0000000100"});
}

TEST_F(StoreTest, SavingAStepAgainReplacesIt) {
    Store store = open();
    save(store, 100, 0);
    save(store, 100, 1);
    EXPECT_EQ(newest_of(store, OnDamage::stop), "100/1");
    ASSERT_EQ(store.list().size(), 2u);
    EXPECT_TRUE(store.list()[1].replaced);
    flip(weights_path(100), 700);
    EXPECT_EQ(newest_of(store, OnDamage::fall_back), "100/0");  // the replaced one is still there
    save(store, 100, 2);
    save(store, 100, 3);
    store.prune(3);
    EXPECT_EQ(names(), (std::vector<std::string>{"step-0000000100", "step-0000000100.corrupt"}));
    EXPECT_EQ(newest_of(store, OnDamage::stop), "100/3");
}

TEST_F(StoreTest, PruneKeepsTheNewestAndDeletesNothingBehindABadOne) {
    Store store = open();
    for (int64_t step : {1, 2, 3, 4, 5}) save(store, step);
    store.prune(3);
    EXPECT_EQ(names(), (std::vector<std::string>{step_name(3), step_name(4), step_name(5)}));
    flip(weights_path(5), 700);
    store.prune(1);
    EXPECT_EQ(names(), (std::vector<std::string>{step_name(3), step_name(4), step_name(5)}));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(contains(warnings[0], "no older one is deleted"));
    EXPECT_THROW(store.prune(0), Error);
}

TEST_F(StoreTest, AResumeFromAnOlderStepSetsTheFutureAside) {
    Store store = open();
    for (int64_t step : {100, 200, 300}) save(store, step);
    save(store, 150);
    store.prune(1);  // step 300 is newer by number, 150 is what this run just saved
    EXPECT_EQ(names(), (std::vector<std::string>{step_name(150), step_name(300)}));
    EXPECT_EQ(store.set_aside_newer(150), 1);
    EXPECT_EQ(names(), (std::vector<std::string>{step_name(150), step_name(300) + ".set-aside"}));
    EXPECT_EQ(newest_of(store, OnDamage::stop), "150/0");
}

TEST_F(StoreTest, TwoRunsCannotShareADirectory) {
    Store store = open();
    try {
        open();
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_TRUE(contains(error.what(), "is locked by " + this_owner()));
        EXPECT_TRUE(contains(error.what(), "--out"));
    }
    open(Access::read);  // a reader may
}

TEST_F(StoreTest, RemovesOnlyWhatTheDeadLeft) {
    { open(); }
    const std::string host = this_owner().substr(0, this_owner().rfind('-'));
    const std::string running = concat("step-0000000002.tmp-", host, "-", ::getppid(), "-0");
    for (const std::string& name :
         {concat("step-0000000001.tmp-", host, "-2147483647-0"), running,
          concat("step-0000000003.tmp-", this_owner(), "-0"), std::string(".trash-step-0000000001"),
          std::string("step-0000000009.corrupt"), std::string("my-notes"), std::string("step-7")}) {
        std::filesystem::create_directory(join(directory, name));
        std::ofstream(join(join(directory, name), "file")) << "x";
    }
    const Store store = open();
    EXPECT_EQ(names(), (std::vector<std::string>{"my-notes", running, "step-0000000009.corrupt", "step-7"}));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(contains(warnings[0], "seems to run"));
    EXPECT_TRUE(store.list().empty());
}

TEST_F(StoreTest, RefusesBadSnapshotsAndLeavesNothing) {
    Store store = open();
    Snapshot snapshot;
    snapshot.files = {{"../escape", "x", {}}};
    EXPECT_THROW(store.save(snapshot), Error);
    snapshot.files = {{"a", "x", {}}, {"a", "y", {}}};
    EXPECT_THROW(store.save(snapshot), Error);
    snapshot.files = {{"MANIFEST.json", "x", {}}};
    EXPECT_THROW(store.save(snapshot), Error);
    snapshot.files.clear();
    snapshot.step = -1;
    EXPECT_THROW(store.save(snapshot), Error);
    EXPECT_TRUE(names().empty());
}

TEST(StoreNames, AreParsedStrictly) {
    EXPECT_EQ(step_name(12000), "step-0000012000");
    EXPECT_EQ(step_name(123456789012), "step-123456789012");
    const auto kind = [](std::string_view name) { return parse_store_name(name).kind; };
    EXPECT_EQ(parse_store_name("step-0000012000").step, 12000);
    EXPECT_EQ(kind("step-0000012000"), NameKind::checkpoint);
    EXPECT_EQ(kind("step-0000012000.corrupt-2"), NameKind::corrupt);
    EXPECT_EQ(parse_store_name("step-0000012000.tmp-a-b-17-3").owner, "a-b-17");
    for (const char* other : {"", "step-", "step-12000", "step-00000012000", "step--000000001", "step-0000012000x",
                              "step-0000012000.set-aside", "step-99999999999999999999", "latest"})
        EXPECT_EQ(kind(other), NameKind::other) << other;
}

// SIGKILL at any moment of a process that saves and prunes without pause.
TEST_F(StoreTest, AKilledRunResumesFromAGoodCheckpoint) {
    int64_t last = 0;
    for (int kill_number = 0; kill_number < 12; ++kill_number) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            try {
                Store store = open();
                for (int64_t step = last + 1;; ++step) {
                    save(store, step);
                    store.prune(2);
                }
            } catch (...) {  // the child must not go on with the other tests
            }
            ::_exit(1);
        }
        // Not before its first checkpoint, however slow the disk is; then at a moment that differs each time.
        const Store watch = open(Access::read);
        const auto newest_step = [&] {
            const auto stored = watch.list();
            return stored.empty() ? int64_t{0} : stored[0].step;
        };
        for (int i = 0; i < 20'000 && newest_step() <= last; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::microseconds(3'700 * kill_number));
        ASSERT_EQ(::kill(child, SIGKILL), 0);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
        Store store = open();
        const std::string newest = newest_of(store, OnDamage::stop);
        ASSERT_NE(newest, "a mix");
        const int64_t step = newest == "nothing" ? 0 : std::stoll(newest);
        EXPECT_GT(step, last);
        last = step;
        EXPECT_TRUE(testing::debris_in(disk, directory).empty());
    }
    EXPECT_GT(last, 0);
    EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace tutti::checkpoint
