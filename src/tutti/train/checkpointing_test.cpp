// Checkpoints of many ranks (threads): saved by n, resumed by m; damage that one rank sees, a disk that is full for one
// rank, ranks that die on the way. The pieces are ranges of flattened tensors with uneven cuts; their values follow
// from tensor, element and step.
#include "tutti/train/checkpointing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/sample.h"
#include "tutti/checkpoint/testing/whole_slice.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/spec/toml.h"
#include "tutti/train/testing/saved_rank.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSlice;
using checkpoint::testing::contains;
using Rank = SavedRank;
using checkpoint::testing::FaultFileSystem;

const auto kNoStop = [] { return false; };

class ManyRanks : public ::testing::Test {
  protected:
    using Body = std::function<void(Rank&, int rank)>;
    void run(int ranks, const Body& body) {
        comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
            Rank rank(world, run_, directory());
            body(rank, world.rank());
        });
    }
    void save_steps(int ranks, int64_t last) {
        run(ranks, [&](Rank& rank, int) {
            for (int64_t step = 1; step <= last; ++step) rank.step_and_save(step);
            EXPECT_EQ(rank.checkpoints->failures(), 0);
            EXPECT_TRUE(contains(rank.checkpoints->newest(), concat("step-000000000", last)));
            EXPECT_EQ(rank.warnings(), "");
        });
    }
    // The step that all ranks resume from; all must agree.
    int64_t resumed_by(int ranks, const std::string& mode = "auto") {
        std::vector<int64_t> steps(to_size(ranks));
        run(ranks, [&](Rank& rank, int r) { steps[to_size(r)] = rank.resumed_step(mode); });
        EXPECT_EQ(std::count(steps.begin(), steps.end(), steps[0]), ranks);
        return steps[0];
    }
    std::string directory() const { return scratch_.path(); }
    fs::path file(int64_t step, const std::string& name) const {
        return fs::path(directory()) / concat("step-000000000", step) / name;
    }
    void flip(const fs::path& path, int64_t at) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(at);
        const char byte = static_cast<char>(f.get() ^ 4);
        f.seekp(at);
        f.put(byte);
    }
    std::vector<std::string> debris() {
        checkpoint::PosixFileSystem files;
        return checkpoint::testing::debris_in(files, directory());
    }

    ScratchFolder scratch_;
    spec::RunSpec run_ = spec::parse_text("", "test", {"model.preset=llama-tiny", "checkpoint.keep=2"});
};

TEST_F(ManyRanks, AnyNumberResumesWhatAnyNumberSaved) {
    int64_t step = 0;
    for (int saved : {1, 2, 3, 4, 8}) {
        ++step;
        run(saved, [&](Rank& rank, int) { rank.step_and_save(step); });
        int files = 0;
        for (const auto& entry : fs::directory_iterator(file(step, ""))) files += entry.path().extension() != ".json";
        EXPECT_EQ(files, saved);
        for (int resumed : {1, 2, 3, 4, 8}) EXPECT_EQ(resumed_by(resumed), step) << saved << " to " << resumed;
    }
    EXPECT_TRUE(debris().empty());
}

TEST_F(ManyRanks, OldOnesAreDeletedAndTheForegroundWritesToo) {
    run_.checkpoint.async = false;
    save_steps(3, 4);
    EXPECT_FALSE(fs::exists(file(2, "")));
    EXPECT_EQ(resumed_by(2, file(3, "").parent_path().string()), 3);  // a named one
    EXPECT_EQ(resumed_by(2), 3);                                      // the one after it was set aside
}

TEST_F(ManyRanks, DamageInAnyFileMakesAllFallBackTogether) {
    for (const char* name : {"rank-00000-of-00004.safetensors", "rank-00002-of-00004.safetensors",
                             "rank-00003-of-00004.safetensors", "MANIFEST.json"})
        for (bool strict : {true, false}) {
            fs::remove_all(directory());
            save_steps(4, 2);
            flip(file(2, name), static_cast<int64_t>(fs::file_size(file(2, name))) - 9);
            if (strict) {
                EXPECT_THROW(resumed_by(4, "strict"), checkpoint::DamagedError) << name;
                continue;
            }
            run(3, [&](Rank& rank, int r) {
                EXPECT_EQ(rank.resumed_step(), 1) << name;
                const std::string warnings = rank.warnings();
                EXPECT_EQ(warnings.find("the checkpoint of step 2 is damaged") != std::string::npos, r == 0)
                    << warnings;
            });
            EXPECT_TRUE(fs::exists(fs::path(directory()) / "step-0000000002.corrupt"));
        }
}

TEST_F(ManyRanks, AMissingFileIsDamageToo) {
    save_steps(4, 2);
    fs::remove(file(2, "rank-00001-of-00004.safetensors"));
    EXPECT_EQ(resumed_by(8), 1);
}

TEST_F(ManyRanks, AllThrowWhatOneMeets) {
    save_steps(2, 1);
    const auto errors = [&](const spec::RunSpec& other, const std::string& mode) {
        std::vector<std::string> texts(3);
        comm::run_ranks(3, {.timeout_s = 60}, [&](comm::World& world) {
            Rank rank(world, other, directory());
            try {
                rank.checkpoints->resume(mode);
            } catch (const UsageError& e) {
                texts[to_size(world.rank())] = e.what();
            }
        });
        return texts;
    };
    spec::RunSpec other = run_;
    other.train.seed += 1;
    const auto expect = [&](const std::vector<std::string>& texts, const std::string& said) {
        for (const std::string& text : texts) {
            EXPECT_TRUE(contains(text, said)) << text;
            EXPECT_EQ(text, texts[0]);  // the first one to be thrown is printed
        }
    };
    expect(errors(other, "auto"), "belongs to another run");
    expect(errors(run_, "never"), "--resume is never");
}

TEST_F(ManyRanks, AnotherRunInTheDirectoryStopsAllRanks) {
    checkpoint::PosixFileSystem files;
    const checkpoint::Store owner(files, directory(), checkpoint::Access::write, [](const std::string&) {});
    std::atomic<int> refused = 0;
    comm::run_ranks(3, {.timeout_s = 60}, [&](comm::World& world) {
        try {
            Rank rank(world, run_, directory());
        } catch (const UsageError&) {
            ++refused;
        }
    });
    EXPECT_EQ(refused, 3);
}

// Every call of one rank that changes the disk fails once.
TEST_F(ManyRanks, AFullDiskOfOneRankCostsThatCheckpointOnly) {
    for (int faulty : {0, 2})
        for (int64_t call = 0;; ++call) {
            fs::remove_all(directory());
            save_steps(3, 1);
            std::atomic<bool> reached = false;
            comm::run_ranks(3, {.timeout_s = 60}, [&](comm::World& world) {
                checkpoint::PosixFileSystem real;
                // The lock and the cleaning at the start change nothing: counting begins with the save.
                FaultFileSystem files(real, {.call = world.rank() == faulty ? call : -1, .code = ENOSPC});
                Rank rank(world, run_, directory(), &files);
                EXPECT_EQ(rank.resumed_step(), 1);
                rank.step_and_save(2);
                if (world.rank() == faulty && files.calls() > call) reached = true;
                files.disarm();
                const bool failed = rank.checkpoints->failures() > 0;
                const std::string warnings = rank.warnings();
                const auto count = [&](const std::string& part) {
                    size_t n = 0;
                    for (size_t at = warnings.find(part); at != std::string::npos; at = warnings.find(part, at + 1))
                        ++n;
                    return n;
                };
                if (world.rank() != 0) {
                    EXPECT_EQ(warnings, "");
                }
                if (world.rank() == 0 && failed) {
                    EXPECT_EQ(count("a checkpoint could not be written"), 1u) << warnings;
                    EXPECT_TRUE(contains(warnings, concat("rank ", faulty, ": ")));
                    EXPECT_TRUE(contains(warnings, "No space left on device"));
                }
                EXPECT_TRUE(contains(rank.checkpoints->newest(), failed ? "step-0000000001" : "step-0000000002"));
                rank.step_and_save(3);  // there is room again
                EXPECT_TRUE(contains(rank.checkpoints->newest(), "step-0000000003"));
                EXPECT_LE(rank.checkpoints->failures(), 1);
            });
            EXPECT_TRUE(debris().empty()) << "rank " << faulty << " call " << call;
            EXPECT_EQ(resumed_by(2), 3);
            if (!reached) {
                EXPECT_GT(call, faulty == 0 ? 8 : 4);
                break;
            }
        }
}

TEST_F(ManyRanks, ARankThatDiesBeforeTheCommitLeavesThePreviousCheckpoint) {
    for (int dies : {0, 1, 3}) {
        fs::remove_all(directory());
        save_steps(4, 1);
        try {
            run(4, [&](Rank& rank, int r) {
                EXPECT_EQ(rank.resumed_step(), 1);
                rank.set(2);
                rank.checkpoints->save({.step = 2});  // all write
                if (r == dies) throw DataError("this rank dies");
                rank.checkpoints->wait();
                ADD_FAILURE() << "rank " << r << " believes in the checkpoint";
            });
            FAIL();
        } catch (const DataError& e) {
            EXPECT_TRUE(contains(e.what(), "this rank dies"));
        }
        EXPECT_FALSE(debris().empty());  // of the dead
        EXPECT_EQ(resumed_by(3), 1);
        EXPECT_TRUE(debris().empty());
        save_steps(2, 2);
        EXPECT_EQ(resumed_by(4), 2);
    }
}

// A run that was killed between its last save and the pruning has nothing more to save.
TEST_F(ManyRanks, WhatAKillLeftUnprunedGoesAtTheEnd) {
    run_.checkpoint.keep = 10;
    save_steps(2, 5);
    for (const int64_t keep : {2, 1}) {
        run_.checkpoint.keep = keep;
        run(3, [&](Rank& rank, int) {
            EXPECT_EQ(rank.resumed_step(), 5);
            EXPECT_EQ(rank.checkpoints->save_last({.step = 5}, 0, kNoStop), "");
        });
        for (const int64_t step : {1, 2, 3}) EXPECT_FALSE(fs::exists(file(step, ""))) << step;
        for (const int64_t step : {4, 5}) EXPECT_TRUE(fs::exists(file(step, ""))) << step;
    }
}

// The disk is full when a run ends, and room is made after the first failed attempt.
TEST_F(ManyRanks, TheLastSaveIsTriedAgain) {
    for (const int n : {1, 3}) {
        const std::string place = directory() + std::to_string(n);
        comm::run_ranks(n, {.timeout_s = 60}, [&](comm::World& world) {
            checkpoint::PosixFileSystem posix;
            FaultFileSystem files(posix, {.call = -1, .code = ENOSPC, .sticky = true});
            Rank rank(world, run_, place, &files);
            rank.step_and_save(1);
            rank.checkpoints->wait();
            EXPECT_EQ(rank.checkpoints->saved_step(), 1);
            rank.set(2);
            files.fail_from_now_on();
            EXPECT_NE(rank.checkpoints->save_last({.step = 2}, 0, kNoStop).find("No space left"), std::string::npos);
            EXPECT_EQ(rank.checkpoints->saved_step(), 1);
            rank.on_warning = [&] { files.disarm(); };
            if (world.rank() > 0) files.disarm();
            EXPECT_EQ(rank.checkpoints->save_last({.step = 2}, 5, kNoStop), "");
            EXPECT_EQ(rank.checkpoints->saved_step(), 2);
            EXPECT_EQ(rank.checkpoints->save_last({.step = 2}, 5, kNoStop), "");  // nothing left to do
            rank.set(-1);
            EXPECT_EQ(rank.checkpoints->resume("auto")->step, 2);
            EXPECT_TRUE(rank.holds(2));
        });
    }
}

// A signal to one rank ends the wait of all, after one more try.
TEST_F(ManyRanks, AStopEndsTheTriesOfTheLastSave) {
    for (const int n : {1, 3}) {
        const std::string place = directory() + std::to_string(n);
        for (const bool mended : {false, true}) {
            comm::run_ranks(n, {.timeout_s = 60}, [&](comm::World& world) {
                checkpoint::PosixFileSystem posix;
                FaultFileSystem files(posix, {.call = -1, .code = EROFS, .sticky = true});
                Rank rank(world, run_, place, &files);
                rank.set(1);
                files.fail_from_now_on();
                std::vector<int> all(to_size(n));
                std::iota(all.begin(), all.end(), 0);
                const auto group = world.group("stops", all);
                int asked = 0;
                const auto stop = [&] {
                    const bool last = ++asked == 2;
                    if (last && mended) files.disarm();
                    return group->max(last && world.rank() == n - 1 ? 1 : 0) > 0;
                };
                const std::string failure = rank.checkpoints->save_last({.step = 1}, 1e6, stop);
                EXPECT_EQ(asked, 2);
                EXPECT_EQ(failure.find("Read-only file system (mount it for writing") != std::string::npos, !mended)
                    << failure;
                EXPECT_EQ(rank.checkpoints->saved_step(), mended ? 1 : 0);
            });
        }
    }
}

// Ranks that do not save the same state, or leave a part out.
TEST_F(ManyRanks, WhatNobodyOwnsIsNotCommitted) {
    comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        std::vector<int> ranks = {0, 1};
        const auto group = world.group("dp", ranks);
        const Tensor values = Tensor::from_host<float>(*device, {2}, std::vector<float>{1, 2}, Purpose::weights);
        std::string warning;
        bool owned = false;
        Checkpointing checkpoints({.run = run_,
                                   .directory = directory(),
                                   .data_fingerprint = [](int64_t) { return "data"; },
                                   .slices =
                                       [&] {
                                           TensorSlice piece = checkpoint::testing::whole_slice("w", values);
                                           piece.owned = owned;
                                           return std::vector<TensorSlice>{piece};
                                       },
                                   .warn = [&](const std::string& text) { warning += text; },
                                   .ranks = group.get()});
        owned = true;  // both ranks
        checkpoints.save({.step = 1});
        checkpoints.wait();
        EXPECT_EQ(checkpoints.failures(), 1);
        if (world.rank() == 0) {
            EXPECT_TRUE(contains(warning, "overlap"));
        }
        owned = world.rank() == 1;
        checkpoints.save({.step = 2});
        checkpoints.wait();
        EXPECT_EQ(checkpoints.failures(), 1);
        values.view().as<float>()[0] = 7;
        EXPECT_EQ(checkpoints.resume("auto")->step, 2);  // replicated: both load what one saved
        EXPECT_EQ(values.to_host<float>(), (std::vector<float>{1, 2}));
    });
}

}  // namespace
}  // namespace tutti::train
