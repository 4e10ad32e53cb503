// Copies in the memory of hosts: made by any layout over hosts and loaded by any other; every moment of making one;
// damage, lost hosts, full memory, and copies that must not be believed. Ranks are threads, hosts are folders.
#include "tutti/train/memory_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/report/run_events.h"
#include "tutti/spec/toml.h"
#include "tutti/train/testing/saved_rank.h"

namespace tutti::train::memory_copies_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::testing::FaultFileSystem;
using Layout = std::vector<int>;  // ranks of each host

// Keeps the state of a folder before every call that changes it, by any rank: what a kill of all at that moment leaves.
class Recorded final : public checkpoint::PosixFileSystem {
  public:
    Recorded(fs::path folder, fs::path states) : folder_(std::move(folder)), states_(std::move(states)) {}
    checkpoint::FileHandle create_exclusive(const std::string& path) override {
        const auto lock = record("create", path);
        return PosixFileSystem::create_exclusive(path);
    }
    int64_t pwrite(const checkpoint::FileHandle& file, std::span<const std::byte> bytes, int64_t offset) override {
        const auto lock = record("write", file.path);
        return PosixFileSystem::pwrite(file, bytes, offset);
    }
    void allocate(const checkpoint::FileHandle& file, int64_t size) override {
        const auto lock = record("allocate", file.path);
        PosixFileSystem::allocate(file, size);
    }
    void rename(const std::string& from, const std::string& to) override {
        const auto lock = record("rename", to);
        PosixFileSystem::rename(from, to);
    }
    void unlink(const std::string& path) override {
        const auto lock = record("unlink", path);
        PosixFileSystem::unlink(path);
    }
    void make_directory(const std::string& path) override {
        const auto lock = record("make directory", path);
        PosixFileSystem::make_directory(path);
    }
    void remove_directory(const std::string& path) override {
        const auto lock = record("remove directory", path);
        PosixFileSystem::remove_directory(path);
    }
    bool records = false;
    std::vector<std::string> phases;  // by state

  private:
    std::unique_lock<std::mutex> record(const char* call, const std::string& path) {
        std::unique_lock lock(mutex_);
        if (records) {
            fs::copy(folder_, states_ / std::to_string(phases.size()), fs::copy_options::recursive);
            phases.push_back(concat(call, ' ', path));
        }
        return lock;
    }
    fs::path folder_, states_;
    std::mutex mutex_;
};

class Copies : public ::testing::Test {
  protected:
    using Body = std::function<void(SavedRank&, MemoryCopies&, int rank)>;

    std::string host(int number) const { return concat(hosts_, "/h", number); }
    fs::path own(int number, int64_t step) const {
        return fs::path(host(number)) / comm::tcp::kOwnCopies / checkpoint::step_name(step);
    }

    // A generation of the run.
    // `files`: of rank `whose`, or of all.
    void run(const Layout& layout, const Body& body, checkpoint::FileSystem* files = nullptr, int whose = -1) {
        ++generation_;
        const auto hosts = static_cast<int>(layout.size());
        std::vector<std::unique_ptr<comm::tcp::FileServer>> servers;
        for (int h = 0; h < hosts; ++h) {
            fs::create_directories(host(h));
            servers.push_back(std::make_unique<comm::tcp::FileServer>(host(h), comm::tcp::key_of("secret")));
        }
        std::vector<std::pair<int, int>> place;  // of a rank: host, local rank
        for (int h = 0; h < hosts; ++h)
            for (int r = 0; r < layout[to_size(h)]; ++r) place.emplace_back(h, r);
        comm::run_ranks(static_cast<int>(place.size()), {.timeout_s = 60}, [&](comm::World& world) {
            const auto [h, local] = place[to_size(world.rank())];
            comm::tcp::CopyPlaces places{.directory = host(h), .host = h, .peers = {}, .secret = "secret"};
            if (const auto holder = holders_.find(h); holder != holders_.end()) places.holder = holder->second;
            for (int other = 0; other < hosts; ++other)
                if (other != h && !lost_.contains(other))
                    places.peers.push_back({other, "127.0.0.1", servers[to_size(other)]->port()});
            MemoryCopies memory({.places = places,
                                 .out = scratch_.path(),
                                 .generation = generation_,
                                 .local_rank = local,
                                 .local_size = layout[to_size(h)],
                                 .wait_s = 600,
                                 .files = whose < 0 || whose == world.rank() ? files : nullptr});
            SavedRank rank(world, run_, disk(), nullptr, &memory);
            body(rank, memory, world.rank());
        });
    }
    // Resumes and tells the events as the trainer does; -1: nothing to continue from.
    int64_t resumed_by(const Layout& layout) {
        int64_t step = 0;
        warnings_.clear();
        run(layout, [&](SavedRank& rank, MemoryCopies&, int r) {
            const int64_t own = rank.resumed_step();
            if (r > 0) return;
            step = own;
            warnings_ = rank.warnings();
            from_memory_ = rank.checkpoints->resumed_from_memory();
        });
        report::append_event(scratch_.path(),
                             {.kind = report::kResumed, .generation = generation_, .step = std::max<int64_t>(0, step)});
        return step;
    }
    // Saves step 1 on disk, and copies the steps after it up to `last`.
    void start(const Layout& layout, int64_t last) {
        run(layout, [&](SavedRank& rank, MemoryCopies&, int) {
            rank.step_and_save(1);
            for (int64_t step = 2; step <= last; ++step) rank.step_and_copy(step);
        });
    }
    void forget() {
        fs::remove_all(hosts_);
        fs::remove_all(disk());
        fs::remove(scratch_.path("events.jsonl"));
        lost_.clear();
    }
    std::string disk() const { return scratch_.path("checkpoints"); }
    static void flip(const fs::path& path, std::mt19937& random) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        const auto at = static_cast<std::streamoff>(random() % fs::file_size(path));
        f.seekg(at);
        const char byte = static_cast<char>(f.get() ^ 4);
        f.seekp(at);
        f.put(byte);
    }

    ScratchFolder scratch_;
    std::string hosts_ = scratch_.path("hosts");
    std::set<int> lost_;
    std::map<int, int> holders_;  // by host
    int64_t generation_ = 0;
    std::string warnings_;
    bool from_memory_ = false;
    spec::RunSpec run_ = spec::parse_text("", "test", {"model.preset=llama-tiny"});
};

TEST_F(Copies, OfAnyLayoutContinueInAnyOther) {
    std::mt19937 random(62);
    const auto draw = [&] {
        Layout layout(1 + random() % 4);
        for (int& ranks : layout) ranks = static_cast<int>(random() % 4);
        layout[random() % layout.size()] += 1;
        return layout;
    };
    for (int trial = 0; trial < 25; ++trial) {
        forget();
        const Layout saved = draw();
        const int64_t last = 2 + static_cast<int64_t>(random() % 4);
        start(saved, last);
        for (size_t h = 0; h < saved.size(); ++h) {  // two slots of a host with ranks
            const auto slots =
                fs::exists(own(static_cast<int>(h), 0).parent_path())
                    ? std::distance(fs::directory_iterator(own(static_cast<int>(h), 0).parent_path()), {})
                    : 0;
            EXPECT_EQ(slots, saved[h] == 0 ? 0 : std::min<int64_t>(2, last - 1) + 1);  // and .lock
        }
        Layout resumed = draw();
        resumed.resize(std::max(saved.size(), resumed.size()));  // hosts without ranks are asked too
        EXPECT_EQ(resumed_by(resumed), last);
        EXPECT_TRUE(from_memory_);
        EXPECT_EQ(warnings_, "");
    }
}

// Whatever the moment at which all processes are killed, the copy before, or the new one, can be loaded.
TEST_F(Copies, EveryMomentOfMakingOneLeavesOne) {
    for (const Layout& layout : {Layout{1}, Layout{2, 1}, Layout{1, 2, 2}}) {
        forget();
        fs::remove_all(scratch_.path("states"));
        fs::create_directories(scratch_.path("states"));
        Recorded files(hosts_, scratch_.path("states"));
        run(
            layout,
            [&](SavedRank& rank, MemoryCopies&, int r) {
                rank.step_and_save(1);
                rank.step_and_copy(2);
                rank.step_and_copy(3);
                if (r == 0) files.records = true;
                rank.checkpoints->wait();
                rank.step_and_copy(4);
            },
            &files);
        std::set<std::string> kinds;
        for (const std::string& phase : files.phases) kinds.insert(phase.substr(0, phase.find(' ')));
        EXPECT_EQ(kinds, (std::set<std::string>{"allocate", "create", "make", "remove", "rename", "unlink", "write"}));
        int64_t before = 3;
        for (size_t i = 0; i < files.phases.size(); ++i) {
            fs::remove_all(hosts_);
            fs::remove(scratch_.path("events.jsonl"));
            fs::rename(scratch_.path("states/" + std::to_string(i)), hosts_);
            const int64_t step = resumed_by(layout);
            EXPECT_TRUE(step == before || (before == 3 && step == 4)) << files.phases[i] << ": " << step;
            before = step;
            // And the next copy follows.
            run(layout, [&](SavedRank& rank, MemoryCopies&, int) {
                EXPECT_EQ(rank.resumed_step(), step);
                rank.step_and_copy(5);
            });
            EXPECT_EQ(resumed_by(layout), 5) << files.phases[i];
        }
        EXPECT_GT(files.phases.size(), 12U);
    }
}

TEST_F(Copies, DamagedOnesArePassedOver) {
    std::mt19937 random(63);
    const Layout layout = {2, 1, 1};
    for (int trial = 0; trial < 30; ++trial) {
        forget();
        start(layout, 4);
        int64_t expected = 4;
        for (int64_t step = 4; step >= 3 && random() % 3 > 0; --step) {  // the two slots, the newest first
            std::vector<fs::path> files;
            for (int h = 0; h < 3; ++h)
                for (const auto& entry : fs::directory_iterator(own(h, step)))
                    if (entry.path().extension() != ".json") files.push_back(entry.path());
            const fs::path& file = files[random() % files.size()];
            if (random() % 3 == 0)
                fs::remove(file);
            else if (random() % 2 == 0)
                fs::resize_file(file, fs::file_size(file) - 1);
            else
                flip(file, random);
            expected = step == 4 ? 3 : 1;
        }
        EXPECT_EQ(resumed_by({1, 1, 2}), expected);
        EXPECT_EQ(from_memory_, expected > 1);
        EXPECT_EQ(missing("the copy of step 4 in memory is passed over", warnings_).empty(), expected < 4);
        EXPECT_EQ(missing("the copy of step 3 in memory is passed over", warnings_).empty(), expected < 3);
    }
}

TEST_F(Copies, WithoutAnyCheckpointOnDiskDamageLeavesTheFirstWeights) {
    run({2}, [&](SavedRank& rank, MemoryCopies&, int) { rank.step_and_copy(2); });
    std::mt19937 random(64);
    for (const auto& entry : fs::directory_iterator(own(0, 2)))
        if (entry.path().extension() != ".json") flip(entry.path(), random);
    run({3}, [&](SavedRank& rank, MemoryCopies&, int) {
        rank.set(7);
        EXPECT_FALSE(rank.checkpoints->resume("auto"));
        EXPECT_TRUE(rank.holds(7));
    });
}

TEST_F(Copies, ALostHostNeedsItsSecondCopy) {
    for (const bool has_second : {true, false}) {
        forget();
        start({2, 2, 1}, 3);
        if (has_second)
            fs::copy(fs::path(host(1)) / comm::tcp::kOwnCopies, fs::path(host(2)) / comm::tcp::copies_of(1),
                     fs::copy_options::recursive);
        lost_ = {1};
        fs::remove_all(host(1));
        EXPECT_EQ(resumed_by({1, 0, 3}), has_second ? 3 : 1);
        EXPECT_EQ(from_memory_, has_second);
        if (!has_second) {
            EXPECT_EQ(missing("no host has 2 of its 5 files, such as rank-00002-of-00005", warnings_), "");
        }
    }
}

TEST_F(Copies, OfAnAbandonedBranchAreNotBelieved) {
    const Layout layout = {2, 1};
    start(layout, 4);  // generation 1
    const auto resume_as = [&](int64_t generation) {
        generation_ = generation - 1;
        return resumed_by(layout);
    };
    const auto went_on = [&](int64_t generation, int64_t step) {
        report::append_event(scratch_.path(), {.kind = report::kResumed, .generation = generation, .step = step});
    };
    fs::remove(scratch_.path("events.jsonl"));
    EXPECT_EQ(resume_as(1), 1);  // by an equal or later generation: of an earlier stage
    EXPECT_EQ(warnings_, "");
    fs::remove(scratch_.path("events.jsonl"));
    went_on(2, 4);
    EXPECT_EQ(resume_as(3), 4);  // generation 2 continued from it
    fs::remove(scratch_.path("events.jsonl"));
    went_on(2, 3);
    EXPECT_EQ(resume_as(3), 3);  // generation 2 could not have step 4
    EXPECT_EQ(missing("the copy of step 4 in memory is passed over: generation 2 has gone on from step 3", warnings_),
              "");
    went_on(3, 1);
    EXPECT_EQ(resume_as(4), 1);
    EXPECT_FALSE(from_memory_);
}

TEST_F(Copies, AreUsedWhereTheyAreNewerThanTheDisk) {
    const Layout layout = {1, 2};
    run(layout, [&](SavedRank& rank, MemoryCopies&, int) {
        rank.step_and_copy(2);
        rank.step_and_save(3);
    });
    EXPECT_EQ(resumed_by(layout), 3);
    EXPECT_FALSE(from_memory_);
    EXPECT_EQ(missing("the copy of step 2 in memory is passed over: the checkpoint of step 3 is newer", warnings_), "");
    run(layout, [&](SavedRank& rank, MemoryCopies&, int) {
        EXPECT_EQ(rank.resumed_step(), 3);
        rank.step_and_copy(4);
        rank.set(4);
        EXPECT_EQ(rank.checkpoints->saved_step(), 3);  // a copy is not on disk
    });
    run(layout, [&](SavedRank& rank, MemoryCopies&, int) {
        EXPECT_EQ(rank.resumed_step(), 4);
        EXPECT_EQ(rank.checkpoints->saved_step(), 0);
        EXPECT_EQ(rank.checkpoints->save_last({.step = 4}, 5, [] { return false; }), "");
        EXPECT_EQ(rank.checkpoints->saved_step(), 4);
    });
}

// Every call of one rank that changes the memory fails once: the step has no copy, all know it, and the next one has.
TEST_F(Copies, WithoutMemoryForThemTheRunGoesOn) {
    const Layout layout = {2, 2};
    for (const int faulty : {1, 2})  // leads no host, leads one
        for (int64_t call = 0;; ++call) {
            forget();
            bool reached = false;
            checkpoint::PosixFileSystem real;
            FaultFileSystem files(real, {.call = -1, .code = ENOSPC});
            run(layout, [&](SavedRank& rank, MemoryCopies& memory, int) {
                rank.step_and_save(1);
                rank.step_and_copy(2);
                EXPECT_EQ(memory.saved_step(), 2);
            });
            run(
                layout,
                [&](SavedRank& rank, MemoryCopies& memory, int r) {
                    EXPECT_EQ(rank.resumed_step(), 2);
                    if (r == faulty) files.set_fault({.call = files.calls() + call, .code = ENOSPC});
                    rank.step_and_copy(3);
                    const bool made = memory.saved_step() == 3;
                    EXPECT_TRUE(made || memory.saved_step() == 2);
                    if (r == faulty) {
                        reached = files.fired();
                        files.disarm();
                    }
                    if (r == 0) {
                        EXPECT_EQ(made, rank.warnings().empty()) << rank.warnings();
                        EXPECT_TRUE(made || missing(concat("rank ", faulty, ": "), rank.warnings()).empty());
                    }
                    if (!made) return;
                    rank.step_and_copy(4);
                    EXPECT_EQ(memory.saved_step(), 4);
                },
                &files, faulty);
            const int64_t resumed = resumed_by(layout);
            EXPECT_TRUE(reached ? resumed >= 2 : resumed == 4) << resumed;
            if (!reached) {
                EXPECT_GT(call, faulty == 1 ? 3 : 6);
                break;
            }
        }
}

// Steps go on while a copy waits for the host that fetches the one before.
TEST_F(Copies, AreMadeBesideTheStepsAndWaitForTheirHolders) {
    holders_ = {{0, 1}, {1, 0}};
    run({2, 1}, [&](SavedRank& rank, MemoryCopies& memory, int r) {
        rank.step_and_copy(2);
        EXPECT_EQ(memory.saved_step(), 2);
        rank.set(3);
        rank.checkpoints->copy({.step = 3, .updates = 3, .tokens = 30});
        for (int64_t step = 4; step < 20; ++step) {
            rank.set(step);
            rank.checkpoints->poll();
            EXPECT_EQ(memory.saved_step(), 2);
        }
        if (r == 0)
            for (const auto& [host_of_ranks, holder] : holders_)
                fs::copy(fs::path(host(host_of_ranks)) / comm::tcp::kOwnCopies,
                         fs::path(host(holder)) / comm::tcp::copies_of(host_of_ranks), fs::copy_options::recursive);
        rank.checkpoints->wait();
        EXPECT_EQ(memory.saved_step(), 3);
    });
    EXPECT_EQ(resumed_by({1, 2}), 3);  // with the values of step 3
    EXPECT_TRUE(from_memory_);
}

// One holder has the newest copy of its host, the other has not: the copy before, which both have, is the only one that
// outlives a host.
TEST_F(Copies, AreKeptUntilEveryHolderHasTheNext) {
    holders_ = {{0, 1}, {1, 0}};
    const auto fetch = [&](int from, int64_t step) {
        const fs::path to =
            fs::path(host(holders_.at(from))) / comm::tcp::copies_of(from) / checkpoint::step_name(step);
        fs::create_directories(to.parent_path());
        fs::copy(own(from, step), to, fs::copy_options::recursive);
    };
    run({2, 1}, [&](SavedRank& rank, MemoryCopies& memory, int r) {
        rank.step_and_copy(2);
        if (r == 0) fetch(0, 2);
        if (r == 2) fetch(1, 2);
        rank.step_and_copy(3);
        EXPECT_EQ(memory.saved_step(), 3);
        if (r == 0) fetch(0, 3);
        rank.set(4);
        rank.checkpoints->copy({.step = 4, .updates = 4, .tokens = 40});
        for (int i = 0; i < 20; ++i) rank.checkpoints->poll();
        EXPECT_EQ(memory.saved_step(), 3);
        if (r == 0) fs::copy(hosts_, scratch_.path("then"), fs::copy_options::recursive);
        rank.checkpoints->poll();  // all wait for rank 0
        if (r == 2) fetch(1, 3);
        rank.checkpoints->wait();
        EXPECT_EQ(memory.saved_step(), 4);
        EXPECT_FALSE(r == 0 && fs::exists(own(0, 2)));
    });
    fs::remove_all(hosts_);
    fs::rename(scratch_.path("then"), hosts_);
    fs::remove_all(host(1));
    lost_ = {1};
    EXPECT_EQ(resumed_by({3, 0}), 2);
    EXPECT_TRUE(from_memory_);
}

TEST_F(Copies, FailuresInARowAreSaidOnce) {
    checkpoint::PosixFileSystem real;
    FaultFileSystem files(real, {.call = -1, .code = ENOSPC, .sticky = true});
    run(
        {2, 1},
        [&](SavedRank& rank, MemoryCopies& memory, int r) {
            rank.step_and_copy(1);
            if (r == 2) files.fail_from_now_on();
            for (int64_t step = 2; step <= 4; ++step) rank.step_and_copy(step);
            EXPECT_EQ(memory.saved_step(), 1);
            if (r == 2) files.disarm();
            rank.step_and_copy(5);
            EXPECT_EQ(memory.saved_step(), 5);
            const std::string said = rank.warnings();
            EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), r == 0 ? 2 : 0) << said;
            if (r > 0) return;
            EXPECT_EQ(missing("the state of step 2 could not be copied in memory: rank 2: ", said), "");
            EXPECT_EQ(missing("the state is copied in memory again, at step 5", said), "");
        },
        &files, 2);
}

TEST_F(Copies, BelongToTheirRun) {
    start({2}, 3);
    run_.train.seed += 1;
    int refused = 0;
    std::mutex mutex;
    run({2}, [&](SavedRank& rank, MemoryCopies&, int) {
        const std::string text = message_of<UsageError>([&] { rank.checkpoints->resume("auto"); });
        const std::lock_guard lock(mutex);
        refused += missing("belongs to another run", text).empty() ? 1 : 0;
    });
    EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace tutti::train::memory_copies_test
