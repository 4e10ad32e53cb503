// The NCCL backend over the emulated GPU and the fake library: the conformance suite, the order of sums, which work
// waits, and that nothing leaks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <climits>
#include <cmath>
#include <functional>
#include <thread>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/comm/nccl/api.h"
#include "tutti/comm/testing/conformance.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/nn/context_attention.h"

namespace tutti::comm {
namespace {

Tensor filled(Device& device, int64_t n, float value) {
    return Tensor::from_host<float>(device, {n}, std::vector<float>(static_cast<size_t>(n), value),
                                    Purpose::communication);
}

TEST(Nccl, Conforms) {
    for (const int n : {1, 2, 3, 4, 8})
        on_gpus(n, {}, [](World& world, Device& device) {
            for (const auto& check : conformance::checks()) {
                try {
                    check.body(world, device);
                } catch (const Aborted&) {
                    throw;
                } catch (const std::exception& error) {
                    throw Error(concat(check.name, ": ", error.what()));
                }
            }
        });
    EXPECT_EQ(fake_nccl().live(), 0) << "communicators that were not destroyed";
}

// Larger than the limit of one exchange and than one chunk; parts that do not divide evenly.
TEST(Nccl, LargeSumsAreTheTreesToo) {
    on_gpus(3, {}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const int64_t n = (8 << 20) + 5;  // f64: more than the scratch memory
        std::vector<double> values(static_cast<size_t>(n));
        const auto value = [](int rank, int64_t i) {
            return static_cast<double>((i * 7919 + rank * 104729) % 1000003) / static_cast<double>(3 + i % 13);
        };
        for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = value(world.rank(), i);
        const Tensor x = Tensor::from_host<double>(device, {n}, values, Purpose::communication);
        group->all_reduce(x).wait();
        const auto sums = x.to_host<double>();
        for (int64_t i = 0; i < n; ++i)
            check(sums[static_cast<size_t>(i)] == (value(0, i) + value(1, i)) + value(2, i), "element ", i);
    });
}

TEST(Nccl, FastSumsAreNcclsOwn) {
    on_gpus(3, {.order = SumOrder::fast}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        // The fake library adds from the last rank: (c + b) + a, not the tree's (a + b) + c.
        const float values[] = {1e8f, -1e8f, 1.5f};
        const Tensor x = filled(device, 3, values[world.rank()]), part = filled(device, 1, 0);
        group->all_reduce(x).wait();
        group->reduce_scatter(filled(device, 3, values[world.rank()]), part).wait();
        const float fast = (values[2] + values[1]) + values[0], tree = (values[0] + values[1]) + values[2];
        check(fast != tree, "the case tells nothing");
        check(x.to_host<float>()[2] == fast && part.to_host<float>()[0] == fast, "not NCCL's order");
        // f32 sums of 16-bit values, which NCCL lacks, follow the tree.
        const Tensor y = Tensor::from_host<bf16>(device, {3}, std::vector<bf16>(3, bf16(values[world.rank()])),
                                                 Purpose::communication);
        group->reduce_scatter(y, part).wait();
        const auto r = [&](int i) { return static_cast<float>(bf16(values[i])); };
        check(part.to_host<float>()[0] == (r(0) + r(1)) + r(2), "f32 sums of bf16");
    });
}

// The host does not wait, and kernels launched before the wait for an operation overlap with it.
TEST(Nccl, AWaitIsOfTheStream) {
    on_gpus(2, {}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        std::atomic<bool> open{false};
        const Tensor x = filled(device, 8, 1), y = filled(device, 8, 2);
        device.synchronize();
        // The rank's stream is blocked until the host proceeds.
        emulation::enqueue(static_cast<cudaStream_t>(device.stream().native), [&] {
            while (!open) std::this_thread::yield();
        });
        Work work = group->all_reduce(x);
        work.wait();
        device.copy(y.view().data, x.view().data, x.bytes());
        open = true;
        check(y.to_host<float>()[7] == 2.0f, "the copy after the wait read the sum");
    });
}

// A span begins when the operation starts on the GPU, not when the host enqueues it, and ends when it ends there.
TEST(Nccl, ATraceHasTheTimesOfTheGpu) {
    static constexpr int kLate = 40;      // milliseconds
    std::atomic<int64_t> last_opened{0};  // when the GPU of the late rank went on
    on_gpus(2, {}, [&](World& world, Device& device) {
        const auto group = world.everyone("dp");
        Trace trace(16);
        trace.open(1);
        world.recorder().trace_into(&trace);
        std::atomic<bool> open{false};
        const Tensor x = filled(device, 8, 1);
        device.synchronize();
        emulation::enqueue(static_cast<cudaStream_t>(device.stream().native), [&] {
            while (!open) std::this_thread::yield();
        });
        if (world.rank() == 1) fake_nccl().fault(FakeFault::slow, kLate);
        Work work = group->all_reduce(x);
        std::this_thread::sleep_for(std::chrono::milliseconds(kLate));
        const int64_t opened = Trace::now_ns();
        if (world.rank() == 1) last_opened = opened;
        open = true;
        work.wait();
        check(x.to_host<float>()[7] == 2.0f, "the sum");
        const int64_t computed = Trace::now_ns();
        check(trace.size() == 1, "spans: ", trace.size());
        while (trace.span(0).end_ns < 0) std::this_thread::yield();  // the polling thread writes it
        world.recorder().trace_into(nullptr);
        const Trace::Span span = trace.span(0);
        check(span.on_gpu && span.what.activity == Activity::communication, "not of the GPU");
        check(span.begin_ns >= opened && span.end_ns <= computed, "from ", span.begin_ns - opened,
              " ns after the GPU went on to ", computed - span.end_ns, " ns before the host had the sum");
        const double ended = 1e-6 * static_cast<double>(span.end_ns - last_opened);
        check(ended >= kLate, "ended ", ended, " ms after the GPU of a rank went on that was ", kLate, " ms late");
    });
}

// Released at once: the allocator reuses the memory only after the collective has read it.
TEST(Nccl, MemoryThatAnOperationUsesIsNotReused) {
    on_gpus(2, {}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const Tensor result = filled(device, 2048, 0);
        for (int round = 0; round < 50; ++round) {
            Work work;
            {
                const Tensor part = filled(device, 1024, static_cast<float>(10 * round + world.rank()));
                work = group->all_gather(part, result);
            }
            const Tensor next = filled(device, 1024, -1);  // takes the place of `part`
            work.wait();
            const auto values = result.to_host<float>();
            check(values[0] == static_cast<float>(10 * round) && values[2047] == static_cast<float>(10 * round + 1),
                  "round ", round, ": ", values[0], " and ", values[2047]);
        }
    });
}

// Messages that were started run beside the kernel that is launched next: that kernel ends only after they have
// arrived.
TEST(Nccl, StartedMessagesRunBesideTheNextKernel) {
    on_gpus(2, {.timeout_s = 30}, [](World& world, Device& device) {
        const int me = world.rank();
        const auto group = world.everyone("cp");
        const Tensor sent = filled(device, 8, static_cast<float>(me + 1)), received = filled(device, 8, 0);
        Work send = group->send(sent, 1 - me), receive = group->receive(received, 1 - me);
        group->start_messages();
        bool arrived = false;
        emulation::enqueue(static_cast<cudaStream_t>(device.stream().native), [&] {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
            while (!receive.done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
            arrived = receive.done();
        });
        device.synchronize();
        check(arrived, "the message waited for the kernel");
        send.wait();
        receive.wait();
        check(received.to_host<float>()[7] == static_cast<float>(2 - me), "the other's message");
    });
}

// In ring attention the keys of the next hop are in flight when the attention of a hop is launched.
TEST(Nccl, RingAttentionSendsBeforeItComputes) {
    static thread_local std::vector<int64_t> started;  // messages of this rank, at each launch
    on_gpus(2, {}, [](World& world, Device& device) {
        kernels::KernelTable table = kernels::cuda_table();
        table.attention_forward = [](const tutti::Stream& stream, const kernels::AttentionForward& a) {
            started.push_back(fake_nccl().messages());
            kernels::cuda_table().attention_forward(stream, a);
        };
        ops::Context ctx{device, table};
        const auto ring = world.everyone("ring");
        nn::Batch batch;
        batch.context.ring = ring.get();
        const auto tensor = [&] {
            return Tensor::from_host<float>(device, {1, 4, 1, 8}, std::vector<float>(32, 1), Purpose::activations);
        };
        const int64_t before = fake_nccl().messages();
        const Tensor q = tensor(), k = tensor(), v = tensor();
        static_cast<void>(nn::ring_attention(ctx, q, k, v, batch, {}));
        device.synchronize();
        // This rank's keys and values and those that it receives: four calls before the first attention.
        check(!started.empty() && started.front() >= before + 4, "attention was launched after ",
              started.empty() ? 0 : started.front() - before, " messages");
    });
}

// As the ranks of a pipeline whose stages run in both directions do: each sends in one group before it receives in the
// other.
TEST(Nccl, TwoRanksMayBothSendFirst) {
    on_gpus(2, {.timeout_s = 10}, [](World& world, Device& device) {
        const int me = world.rank();
        const auto group_from = [&](int sender) { return world.group(concat("from ", sender), {sender, 1 - sender}); };
        const auto first = group_from(0), second = group_from(1);
        Communicator &out = me == 0 ? *first : *second, &in = me == 0 ? *second : *first;
        const Tensor sent = filled(device, 8, static_cast<float>(me + 1)), received = filled(device, 8, 0);
        Work send = out.send(sent, 1);
        out.start_messages();
        in.receive(received, 0).wait();
        send.wait();
        check(received.to_host<float>()[7] == static_cast<float>(2 - me), "the other's message");
    });
}

// As the ranks of a pipeline with many chunks: every message waits for a receive that its partner begins only after its
// own sends. With 16 multiprocessors each, those of nine channels would take the whole GPU and keep the receives out.
TEST(Nccl, MessagesThatWaitLeaveRoomForThoseThatTheyWaitFor) {
    constexpr int kChannels = 9;
    on_gpus(2, {.max_ctas = 16, .timeout_s = 10}, [](World& world, Device& device) {
        const int me = world.rank();
        std::vector<std::unique_ptr<Communicator>> out, in;
        std::vector<Tensor> tensors;
        std::vector<Work> works;
        for (int c = 0; c < kChannels; ++c)
            for (const int sender : {0, 1})
                (sender == me ? out : in)
                    .push_back(world.channel(concat("from ", sender, ", ", c), {sender, 1 - sender}));
        for (const auto& channel : out) {
            works.push_back(channel->send(tensors.emplace_back(filled(device, 8, static_cast<float>(me))), 1));
            channel->start_messages();
        }
        const auto ranks = world.everyone("ranks");
        while (fake_nccl().running() < 2 * (132 / 16)) std::this_thread::yield();
        ranks->barrier();
        for (const auto& channel : in) {
            works.push_back(channel->receive(tensors.emplace_back(filled(device, 8, -1)), 0));
            channel->start_messages();
        }
        wait_all(works);
        check(tensors.back().to_host<float>()[7] == static_cast<float>(1 - me), "the other's message");
    });
}

// A kernel's first launch may wait for all that runs on its GPU: here for a message that the partner sends only after
// it has heard from this rank, which is behind the launch.
TEST(Nccl, AFirstLaunchWaitsForNoMessage) {
    const ByEnvironment rules;
    on_gpus(2, {.timeout_s = 10}, [](World& world, Device& device) {
        const int me = world.rank();
        const auto channel = world.channel("pp 1>0", {0, 1});
        const auto group = world.everyone("dp");
        const Tensor sum = filled(device, 8, 1), message = filled(device, 8, static_cast<float>(me));
        Work work;
        if (me == 0) {
            work = channel->receive(message, 1);
            channel->start_messages();
        }
        Work reduced = group->all_reduce(sum);  // its last step is a kernel of ours
        group->barrier();
        if (me == 1) work = channel->send(message, 0);
        work.wait();
        reduced.wait();
        check(message.to_host<float>()[7] == 1 && sum.to_host<float>()[7] == 2, "the message and the sum");
    });
}

// Two ranks begin operations of two groups in different orders, and the streams of these groups share a queue where
// CUDA has its 8: the tree's sum of the first operation stands there behind its exchange, and in front of the operation
// that the other rank waits for first.
TEST(Nccl, GroupsInOtherOrdersNeedTheQueuesThatTheProgramAsksFor) {
    const auto run = [](double timeout_s) {
        on_gpus(2, {.timeout_s = timeout_s}, [](World& world, Device& device) {
            constexpr size_t kFirst = 0, kOther = kQueuesOfCuda / 2;  // a group has two streams
            std::vector<std::unique_ptr<Communicator>> groups;
            for (size_t i = 0; i <= kOther; ++i) groups.push_back(world.everyone(concat("group ", i)));
            const Tensor x = filled(device, 8, 1), y = filled(device, 8, 2);
            if (world.rank() == 0) {
                Work first = groups[kFirst]->all_reduce(x), other = groups[kOther]->all_reduce(y);
                first.wait();
                other.wait();
            } else {
                groups[kOther]->all_reduce(y).wait();
                groups[kFirst]->all_reduce(x).wait();
            }
            check(x.to_host<float>()[7] == 2 && y.to_host<float>()[7] == 4, "the sums");
        });
    };
    {
        const ByEnvironment rules;
        run(60);
    }
    const UnderRules rules({.alone = true, .hardware_queues = kQueuesOfCuda});
    try {
        run(2);
        ADD_FAILURE() << "the streams of the groups share no queue";
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("comm.timeout_s"), std::string::npos) << error.what();
    }
}

TEST(Nccl, AChannelHasNoCollectives) {
    on_gpus(2, {}, [](World& world, Device& device) {
        const auto channel = world.channel("pp 0>1", {0, 1});
        const Tensor x = filled(device, 8, 1);
        try {
            channel->all_reduce(x).wait();
        } catch (const Error& error) {
            check(std::string(error.what()).find("for messages only") != std::string::npos, error.what());
            return;
        }
        check(false, "a channel reduced");
    });
}

// A step of many small layers must not wait for the host.
TEST(Nccl, ACallTakesMicrosecondsOfTheHost) {
    on_gpus(2, {}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const Tensor small = filled(device, 8, 1), large = filled(device, 1 << 17, 1),
                     part = filled(device, 1 << 16, 1);
        world.everyone("start")->barrier();
        const int64_t calls = fake_nccl().calls(), us = fake_nccl().host_us();
        group->all_reduce(small).wait();
        group->all_reduce(large).wait();
        group->reduce_scatter(large, part).wait();
        group->all_gather(part, large).wait();
        device.synchronize();
        world.everyone("end")->barrier();
        const int64_t spent = fake_nccl().host_us() - us, called = fake_nccl().calls() - calls;
        check(spent <= 10 * called, spent, " us in ", called, " calls");
    });
}

// Every number of ranks on a host: subtrees, one rank each, and hosts that the tree's subtrees do not match.
TEST(Nccl, SumsOverHostsAreTheTreesToo) {
    for (const auto& [ranks, of_host] : {std::pair(8, 4), {8, 2}, {8, 1}, {6, 2}, {6, 3}, {5, 4}, {16, 4}})
        for (const SumOrder order : {SumOrder::tree, SumOrder::automatic}) {
            if (order == SumOrder::automatic && !(std::has_single_bit(unsigned(of_host)) && ranks % of_host == 0))
                continue;
            on_gpus(ranks, {.order = order, .ranks_of_host = of_host}, [&, n = ranks](World& world, Device& device) {
                const auto group = world.everyone("dp");
                for (const int64_t count : {int64_t{7}, int64_t{30011}}) {
                    const int64_t whole = count * n;
                    const auto value = [&](int rank, int64_t i) {
                        return std::ldexp(static_cast<float>((i * 7919 + rank * 104729) % 4099),
                                          static_cast<int>((i + 5 * rank) % 11));
                    };
                    // The tree of tree_reduce.h, by its definition.
                    const std::function<float(int, int, int64_t)> tree = [&](int begin, int end, int64_t i) -> float {
                        if (end - begin == 1) return value(begin, i);
                        const auto half = static_cast<int>(std::bit_floor(static_cast<unsigned>(end - begin - 1)));
                        return tree(begin, begin + half, i) + tree(begin + half, end, i);
                    };
                    std::vector<float> own(static_cast<size_t>(whole));
                    for (int64_t i = 0; i < whole; ++i) own[static_cast<size_t>(i)] = value(world.rank(), i);
                    const Tensor x = Tensor::from_host<float>(device, {whole}, own, Purpose::communication);
                    const Tensor part = filled(device, count, 0);
                    group->reduce_scatter(x, part).wait();
                    group->all_reduce(x).wait();
                    const auto parts = part.to_host<float>(), sums = x.to_host<float>();
                    for (int64_t i = 0; i < whole; ++i) {
                        const float expected = tree(0, n, i);
                        check(sums[static_cast<size_t>(i)] == expected, "all_reduce, element ", i);
                        const int64_t at = i - world.rank() * count;
                        if (at >= 0 && at < count)
                            check(parts[static_cast<size_t>(at)] == expected, "reduce_scatter, ", i);
                    }
                }
            });
        }
}

// 16-bit values: the sums of hosts are not rounded on their way.
TEST(Nccl, SixteenBitSumsOverHostsAreRoundedOnce) {
    const auto sums_are_right = [](auto one) {
        using T = decltype(one);
        on_gpus(8, {.ranks_of_host = 4}, [](World& world, Device& device) {
            const auto group = world.everyone("dp");
            constexpr int64_t kCount = 40009;
            std::vector<T> own;
            std::vector<float> sums(kCount, 0);
            for (int64_t i = 0; i < kCount; ++i)
                for (int r = 0; r < 8; ++r) {
                    const T value(static_cast<float>((i * 31 + r * 17) % 257) / 256);
                    if (r == world.rank()) own.push_back(value);
                    sums[static_cast<size_t>(i)] += static_cast<float>(value);  // exact in any order
                }
            const Tensor x = Tensor::from_host<T>(device, {kCount}, own, Purpose::communication);
            group->all_reduce(x).wait();
            const auto reduced = x.template to_host<T>();
            for (int64_t i = 0; i < kCount; ++i)
                check(reduced[static_cast<size_t>(i)].bits == T(sums[static_cast<size_t>(i)]).bits, "element ", i);
        });
    };
    sums_are_right(bf16());
    sums_are_right(f16());
}

// Of the values of a whole tensor S over N hosts, (N - 1) / N S leave each host, not once per rank.
TEST(Nccl, TheTreeSendsBetweenHostsOnlyOnce) {
    on_gpus(8, {.ranks_of_host = 4}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const int64_t count = 1 << 16, bytes = 8 * count * 4;
        const Tensor x = filled(device, 8 * count, 1), part = filled(device, count, 0);
        device.synchronize();
        world.everyone("start")->barrier();
        const int64_t before = fake_nccl().bytes_between(4);
        world.everyone("begun")->barrier();
        group->reduce_scatter(x, part).wait();
        device.synchronize();
        world.everyone("end")->barrier();
        const int64_t sent = fake_nccl().bytes_between(4) - before;  // by both hosts
        check(sent == bytes, "sent ", sent, " bytes between two hosts, of a tensor of ", bytes);
    });
}

TEST(Nccl, AnOrderForHostsThatAreNoSubtreesIsTheLibrarys) {
    on_gpus(3, {.order = SumOrder::automatic, .ranks_of_host = 2}, [](World& world, Device& device) {
        const float values[] = {1e8f, -1e8f, 1.5f};
        const Tensor x = filled(device, 3, values[world.rank()]);
        world.everyone("dp")->all_reduce(x).wait();
        check(x.to_host<float>()[2] == (values[2] + values[1]) + values[0], "not NCCL's order");
    });
}

TEST(Nccl, RanksThatShareAGpuHaveItsIdentity) {
    fake_nccl();  // and its GPUs
    run_ranks(3, {.timeout_s = 60}, [](World& world) {
        const auto ranks = world.everyone("all");
        const auto own = make_cuda_device(world.rank()), shared = make_cuda_device(world.rank() / 2);
        const auto apart = device_identities(*ranks, *own), together = device_identities(*ranks, *shared);
        check(apart[0] != apart[1] && apart[0] != apart[2] && apart[1] != apart[2], "each has its own");
        check(together[0] == together[1] && together[1] != together[2], "two share one");
    });
}

// Both communicators of a group: a power of two, since NCCL takes the next one for messages, of which a sum is made
// too; 0 leaves the field unset, which means NCCL's own choice.
TEST(Nccl, IsToldHowManyMultiprocessorsItMayTake) {
    for (const auto& [most, of_messages, collectives, messages] : std::vector<std::array<int, 4>>{
             {8, 4, 8, 4}, {24, 4, 16, 4}, {4, 3, 4, 2}, {3, 4, 2, 2}, {0, 4, INT_MIN, 4}}) {
        on_gpus(2, {.max_ctas = most, .message_ctas = of_messages}, [](World& world, Device& device) {
            const auto group = world.everyone("dp");
            group->all_reduce(filled(device, 8, 1)).wait();
            device.synchronize();
        });
        EXPECT_EQ(fake_nccl().ctas(0), collectives) << most;
        EXPECT_EQ(fake_nccl().ctas(1), messages) << of_messages << " of " << most;
    }
}

// Ten messages of twelve multiprocessors each, as asked for: with the sixteen that NCCL would take the last two would
// not begin until another ends, and none ends before all have begun.
TEST(Nccl, MessagesTakeNoMoreMultiprocessorsThanTheyMay) {
    constexpr int kChannels = 10;
    on_gpus(2, {.max_ctas = 12, .message_ctas = 12, .timeout_s = 10}, [](World& world, Device& device) {
        std::vector<std::unique_ptr<Communicator>> channels;
        std::vector<Tensor> tensors;
        std::vector<Work> works;
        for (int c = 0; c < kChannels; ++c) channels.push_back(world.channel(concat("pp ", c), {0, 1}));
        const auto ranks = world.everyone("ranks");
        for (const auto& channel : channels) {
            if (world.rank() == 1) break;
            works.push_back(channel->send(tensors.emplace_back(filled(device, 8, 1)), 1));
            channel->start_messages();
        }
        while (world.rank() == 0 && fake_nccl().running() < kChannels)
            device.synchronize();  // throws after the time-out
        ranks->barrier();
        for (const auto& channel : channels) {
            if (world.rank() == 0) break;
            works.push_back(channel->receive(tensors.emplace_back(filled(device, 8, 0)), 0));
            channel->start_messages();
        }
        wait_all(works);
        check(tensors.back().to_host<float>()[7] == 1, "a message");
    });
}

TEST(Nccl, SaysItsVersion) {
    fake_nccl();
    EXPECT_EQ(nccl_library(), "NCCL 2.18.1");
}

}  // namespace
}  // namespace tutti::comm
