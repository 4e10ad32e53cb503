// Ranks as threads: the conformance checks for several numbers of ranks, with and without progress threads; ranks that
// fail, hang, or call other operations than the others.
#include "tutti/comm/threads/thread_world.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include "tutti/base/to_size.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/testing/conformance.h"

namespace tutti::comm {
namespace {

struct Setting {
    int ranks;
    bool progress_thread;
};

class Threads : public testing::TestWithParam<Setting> {};

TEST_P(Threads, Conforms) {
    for (const auto& check : conformance::checks()) {
        SCOPED_TRACE(check.name);
        EXPECT_NO_THROW(run_ranks(GetParam().ranks, {.timeout_s = 60, .progress_thread = GetParam().progress_thread},
                                  [&](World& world) { check.body(world, *make_cpu_device(1)); }));
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads,
                         testing::Values(Setting{1, false}, Setting{2, false}, Setting{3, false}, Setting{4, false},
                                         Setting{8, false}, Setting{1, true}, Setting{2, true}, Setting{5, true},
                                         Setting{8, true}),
                         [](const auto& setting) {
                             return std::to_string(setting.param.ranks) +
                                    (setting.param.progress_thread ? "_with_progress" : "");
                         });

// Simulates a limit of threads or memory by stacks that do not fit the address space. The ranks that were started wait
// for the others, and must end.
TEST(ThreadWorld, RanksThatCannotBeStartedAreAnError) {
    pthread_attr_t before, huge;
    ASSERT_EQ(pthread_getattr_default_np(&before), 0);
    ASSERT_EQ(pthread_attr_init(&huge), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 44), 0);
    ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
    std::string message = "nothing was thrown";
    try {
        run_ranks(200, {.timeout_s = 60}, [](World& world) { world.everyone("all")->barrier(); });
    } catch (const std::exception& error) {
        message = error.what();
    }
    EXPECT_EQ(pthread_setattr_default_np(&before), 0);
    EXPECT_NE(message.find("of 200 cannot be started as a thread ("), std::string::npos) << message;
    pthread_attr_destroy(&huge);
    pthread_attr_destroy(&before);
}

// The begin of an operation does not block, however many are in flight, since a schedule may send ahead in a loop.
// Otherwise two ranks could wait for each other's receives.
TEST(ThreadWorld, BeginningAnOperationNeverWaits) {
    constexpr int kMany = 500;
    run_ranks(2, {.timeout_s = 10}, [](World& world) {
        const auto group = world.everyone("all");
        const auto device = make_cpu_device(1);
        const int other = 1 - world.rank();
        std::vector<Tensor> sent, received, sums;
        std::vector<Work> work;
        const auto value = [&](int v) {
            const float number = static_cast<float>(v);
            return Tensor::from_host<float>(*device, {1}, {&number, 1}, Purpose::communication);
        };
        for (int i = 0; i < kMany; ++i) {  // both ranks, before either receives
            sent.push_back(value(1000 * world.rank() + i));
            work.push_back(group->send(sent.back(), other));
        }
        for (int i = 0; i < kMany; ++i) {
            received.push_back(value(-1));
            work.push_back(group->receive(received.back(), other));
            sums.push_back(value(i + world.rank()));
            work.push_back(group->all_reduce(sums.back()));
        }
        for (Work& w : work) w.wait();
        for (int i = 0; i < kMany; ++i) {
            EXPECT_EQ(received[to_size(i)].to_host<float>()[0], static_cast<float>(1000 * other + i));
            EXPECT_EQ(sums[to_size(i)].to_host<float>()[0], static_cast<float>(2 * i + 1));
        }
    });
}

std::string error_of(int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
    try {
        run_ranks(ranks, options, body);
    } catch (const std::exception& e) {
        return e.what();
    }
    return "";
}

TEST(ThreadFailure, AnExceptionStopsTheOthersAndIsTheOneThatIsReported) {
    std::atomic<int> stopped = 0;
    const std::string error = error_of(4, {.timeout_s = 60}, [&](World& world) {
        const auto group = world.everyone("dp");
        group->barrier();
        if (world.rank() == 2) throw DataError("the disk of rank 2 is gone");
        try {
            group->barrier();
        } catch (const Aborted& e) {
            EXPECT_STREQ(e.what(), "rank 2 failed: the disk of rank 2 is gone");
            ++stopped;
            throw;
        }
    });
    EXPECT_EQ(error, "the disk of rank 2 is gone");
    EXPECT_EQ(stopped, 3);
}

// A rank that fails leaves operations in flight, whose buffers are freed with its world, when no progress thread of
// another rank may access them any more.
TEST(ThreadFailure, RanksMayEndWithOperationsInFlight) {
    const auto fail = [](World& world) {
        const auto group = world.everyone("all");
        const auto device = make_cpu_device(1);
        std::vector<Work> work;
        for (int n = 0; n < 4; ++n)
            work.push_back(group->all_reduce(Tensor::empty(*device, {1 << 18}, DType::f32, Purpose::communication)));
        throw Error("before they are over");
    };
    for (int i = 0; i < 100; ++i) EXPECT_THROW(run_ranks(4, {.timeout_s = 10, .progress_thread = true}, fail), Error);
}

TEST(ThreadFailure, ARankThatStaysAwayIsNamedWithGroupOperationAndNumber) {
    const std::string error = error_of(3, {.timeout_s = 0.2}, [](World& world) {
        const auto group = world.everyone("dp");
        const auto device = make_cpu_device(1);
        const Tensor x = Tensor::from_host<float>(*device, {3}, std::vector<float>{1, 2, 3}, Purpose::communication);
        group->all_reduce(x).wait();
        if (world.rank() == 1) return;
        group->all_reduce(x).wait();
    });
    EXPECT_EQ(error,
              "all_reduce of 3 f32, operation 2 of group dp: waiting for rank 1 of the group, which has begun only "
              "operation 1, for more than 0.2 s (comm.timeout_s); a rank that is missing has died, hangs, or took "
              "another path");
}

TEST(ThreadFailure, RanksThatDisagreeAreToldWhoCallsWhat) {
    const std::string error = error_of(3, {.timeout_s = 60}, [](World& world) {
        const auto group = world.everyone("dp");
        const auto device = make_cpu_device(1);
        const Tensor x = Tensor::empty(*device, {world.rank() == 2 ? 5 : 4}, DType::f32, Purpose::communication);
        group->all_reduce(x).wait();
    });
    EXPECT_EQ(error,
              "the ranks of group dp disagree on its operation 1: rank 0 calls all_reduce of 4 f32, rank 2 calls "
              "all_reduce of 5 f32");
}

TEST(ThreadFailure, AMessageOfAnotherSizeIsRefused) {
    const std::string error = error_of(2, {.timeout_s = 60}, [](World& world) {
        const auto group = world.everyone("dp");
        const auto device = make_cpu_device(1);
        const Tensor x = Tensor::empty(*device, {world.rank() + 4}, DType::f32, Purpose::communication);
        (world.rank() == 0 ? group->send(x, 1) : group->receive(x, 0)).wait();
    });
    EXPECT_EQ(error,
              "message 1 of group dp: receive of 5 f32 from rank 0 does not fit the message: send of 4 f32 to rank 1");
}

TEST(ThreadFailure, WrongSizesAreRefusedBeforeAnythingIsPublished) {
    const std::string error = error_of(2, {.timeout_s = 60}, [](World& world) {
        const auto group = world.everyone("dp");
        const auto device = make_cpu_device(1);
        const Tensor x = Tensor::empty(*device, {5}, DType::f32, Purpose::communication);
        group->all_gather(x, x).wait();
    });
    EXPECT_EQ(error, "all_gather over 2 ranks of group dp: parts of 5 f32 need an output of 10, got 5 f32");
}

TEST(ThreadFailure, APartAtAnotherRanksPlaceIsRefused) {
    for (const bool gather : {true, false}) {
        const std::string error = error_of(2, {.timeout_s = 60}, [&](World& world) {
            const auto group = world.everyone("dp");
            const auto device = make_cpu_device(1);
            const Tensor x = Tensor::empty(*device, {10}, DType::f32, Purpose::communication);
            const Tensor part = x.narrow(0, 5 * world.rank(), 5), first = x.narrow(0, 0, 5);
            if (gather) {
                group->all_gather(part, x).wait();
                group->all_gather(first, x).wait();
            } else {
                group->reduce_scatter(x, part).wait();
                group->reduce_scatter(x, first).wait();
            }
        });
        EXPECT_EQ(error,
                  concat(gather ? "all_gather" : "reduce_scatter",
                         " of group dp: the part of rank 1 lies inside the whole tensor at byte 0, where other ranks "
                         "read or write; required byte 20, or a tensor of its own"));
    }
}

// Buffers of a failed rank live until the last read by another rank (checked by the sanitizers).
TEST(ThreadFailure, MemoryOutlivesTheRankThatFailsInTheMiddle) {
    for (int round = 0; round < 20; ++round) {
        const std::string error = error_of(4, {.timeout_s = 60}, [&](World& world) {
            const auto group = world.everyone("dp");
            const auto device = make_cpu_device(1);
            std::vector<Tensor> xs;
            std::vector<Work> works;
            for (int k = 0; k < 10; ++k) {
                xs.push_back(Tensor::empty(*device, {20000}, DType::i32, Purpose::communication));
                std::fill_n(xs.back().view().as<int32_t>(), 20000, 1);
                works.push_back(group->all_reduce(xs.back()));
            }
            if (world.rank() == round % 4) throw Error("lost");
            for (Work& work : works) work.wait();
        });
        EXPECT_EQ(error, "lost");
    }
}

TEST(FlightRecorder, TellsWhatARankDidLast) {
    std::vector<FlightRecorder::Entry> last;
    error_of(2, {.timeout_s = 0.1}, [&](World& world) {
        const auto group = world.everyone("dp");
        group->barrier();
        if (world.rank() == 1) return;
        try {
            group->sum(1);
        } catch (const TimedOut&) {
            last = world.recorder().entries();
            const std::string json = to_json(world.recorder().record(0, 2, Cause::timed_out, "why"));
            EXPECT_NE(json.find("\"operation\": \"all_reduce of 1 f64\""), std::string::npos) << json;
            EXPECT_NE(json.find("\"state\": \"started\""), std::string::npos) << json;
            throw;
        }
    });
    ASSERT_EQ(last.size(), 2u);
    EXPECT_EQ(last[0].operation.text(), "barrier");
    EXPECT_EQ(last[0].state, State::complete);
    EXPECT_EQ(last[1].sequence, 2u);
    EXPECT_EQ(last[1].state, State::started);
}

TEST(TreeReduce, BytesOnLinksAreThoseOfTheLiterature) {
    EXPECT_EQ(bytes_sent(Kind::all_reduce, 4000, 4), 6000);
    EXPECT_EQ(bytes_sent(Kind::reduce_scatter, 4000, 4), 3000);
    EXPECT_EQ(bytes_sent(Kind::all_gather, 4000, 4), 3000);
    EXPECT_EQ(bytes_sent(Kind::all_reduce, 4000, 1), 0);
}

TEST(GatherTexts, EveryRankGetsAllOfThem) {
    for (int n : {1, 2, 5}) {
        run_ranks(n, {.timeout_s = 60}, [&](World& world) {
            std::vector<std::string> expected;
            for (int r = 0; r < n; ++r)
                expected.push_back(std::string(to_size(r * r * 1000), static_cast<char>('a' + r)) +
                                   std::string("\0\xff", 2));
            const auto group = world.everyone("dp");
            EXPECT_EQ(gather_texts(*group, expected[to_size(world.rank())]), expected);
            EXPECT_EQ(gather_texts(*group, ""), std::vector<std::string>(to_size(n)));
        });
    }
}

// A wait releases the tensors of its operation, even if a progress thread still holds the operation, so that memory is
// freed at a fixed point of the program, as rehearsed.
TEST(ThreadWorld, TensorsAreFreeAfterTheWait) {
    for (const bool progress_thread : {false, true})
        run_ranks(2, {.timeout_s = 60, .progress_thread = progress_thread}, [](World& world) {
            const auto group = world.everyone("all");
            const auto device = make_cpu_device(1);
            const int other = 1 - world.rank();
            for (int i = 0; i < 3000; ++i) {
                Tensor x = Tensor::empty(*device, {64}, DType::f32, Purpose::communication);
                Tensor y = Tensor::empty(*device, {64}, DType::f32, Purpose::communication);
                std::vector<Work> work;
                work.push_back(group->all_reduce(x));
                if (world.rank() == 0) work.push_back(group->send(y, other));
                if (world.rank() == 1) work.push_back(group->receive(y, other));
                x = y = {};
                wait_all(work);
                ASSERT_EQ(device->memory().usage(Purpose::communication).current, 0) << i;
            }
        });
}

}  // namespace
}  // namespace tutti::comm
