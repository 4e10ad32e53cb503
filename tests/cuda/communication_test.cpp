// Every operation of a communicator on tensors of a GPU, over threads: the results equal those in host memory.
#include <gtest/gtest.h>

#include <vector>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"

namespace tutti::comm {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kPart = 5;

std::vector<float> values(int rank, int64_t n) {
    std::vector<float> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(static_cast<float>(100 * rank + i));
    return all;
}

struct Rank {
    std::unique_ptr<Device> device = make_cuda_device(0);
    std::unique_ptr<Communicator> group;
    int rank;
    explicit Rank(World& world) : group(world.everyone("gpu")), rank(world.rank()) {}

    Tensor tensor(const std::vector<float>& of) const {
        const auto n = static_cast<int64_t>(of.size());
        return Tensor::from_host<float>(*device, {n}, of, Purpose::communication);
    }
    Tensor tensor(int64_t n) const { return tensor(values(rank, n)); }
};

void on_ranks(const std::function<void(Rank&)>& body) {
    run_ranks(kRanks, {.timeout_s = 60}, [&](World& world) {
        Rank rank(world);
        body(rank);
    });
}

// Sums of all ranks' values(rank, n) from element `begin`.
std::vector<float> sums(int64_t begin, int64_t n) {
    std::vector<float> all;
    for (int64_t i = begin; i < begin + n; ++i) all.push_back(static_cast<float>(300 + 3 * i));
    return all;
}

TEST(CommunicationOfGpus, AllReduce) {
    on_ranks([](Rank& r) {
        const Tensor x = r.tensor(kPart);
        r.group->all_reduce(x).wait();
        EXPECT_EQ(x.to_host<float>(), sums(0, kPart));
        const Tensor largest = r.tensor(kPart);
        r.group->all_reduce(largest, Reduce::max).wait();
        EXPECT_EQ(largest.to_host<float>(), values(kRanks - 1, kPart));
    });
}

// One rank copies on its GPU: nothing passes through the host, and no operation begins.
TEST(CommunicationOfGpus, AloneARankCopies) {
    run_ranks(1, {.timeout_s = 60}, [](World& world) {
        const Rank r(world);
        const Tensor x = r.tensor(kPart), sum = r.tensor(std::vector<float>(kPart)),
                     all = r.tensor(std::vector<float>(kPart)), moved = r.tensor(std::vector<float>(kPart));
        r.group->reduce_scatter(x, sum).wait();
        r.group->all_gather(x, all).wait();
        r.group->all_to_all(x, {kPart}, moved, {kPart}).wait();
        for (const Tensor& y : {sum, all, moved}) EXPECT_EQ(y.to_host<float>(), values(0, kPart));
        EXPECT_EQ(r.group->usage().operations, 0);
    });
}

TEST(CommunicationOfGpus, ReduceScatterInPlaceAndElsewhere) {
    on_ranks([](Rank& r) {
        const Tensor x = r.tensor(kRanks * kPart), part = r.tensor(kPart);
        r.group->reduce_scatter(x, part).wait();
        EXPECT_EQ(part.to_host<float>(), sums(r.rank * kPart, kPart));
        EXPECT_EQ(x.to_host<float>(), values(r.rank, kRanks * kPart)) << "the input stays";
        const Tensor own = x.narrow(0, r.rank * kPart, kPart);
        r.group->reduce_scatter(x, own).wait();
        EXPECT_EQ(own.to_host<float>(), sums(r.rank * kPart, kPart));
    });
}

TEST(CommunicationOfGpus, AllGatherInPlaceAndElsewhere) {
    on_ranks([](Rank& r) {
        std::vector<float> everyone;
        for (int rank = 0; rank < kRanks; ++rank)
            for (const float value : values(rank, kPart)) everyone.push_back(value);
        const Tensor part = r.tensor(kPart), x = r.tensor(kRanks * kPart);
        r.group->all_gather(part, x).wait();
        EXPECT_EQ(x.to_host<float>(), everyone);
        const Tensor whole = r.tensor(std::vector<float>(static_cast<size_t>(kRanks * kPart)));
        const Tensor own = whole.narrow(0, r.rank * kPart, kPart);
        const std::vector<float> mine = values(r.rank, kPart);
        r.device->copy_in(own.view().data, mine.data(), own.bytes());
        r.group->all_gather(own, whole).wait();
        EXPECT_EQ(whole.to_host<float>(), everyone);
    });
}

TEST(CommunicationOfGpus, BroadcastMessagesAndExchange) {
    on_ranks([](Rank& r) {
        const Tensor x = r.tensor(kPart);
        r.group->broadcast(x, 1).wait();
        EXPECT_EQ(x.to_host<float>(), values(1, kPart));

        const int next = (r.rank + 1) % kRanks, before = (r.rank + kRanks - 1) % kRanks;
        const Tensor sent = r.tensor(kPart), received = r.tensor(kPart);
        Work sending = r.group->send(sent, next);
        r.group->receive(received, before).wait();
        sending.wait();
        EXPECT_EQ(received.to_host<float>(), values(before, kPart));

        const Tensor from = r.tensor(kRanks), to = r.tensor(kRanks);  // element p goes to rank p
        r.group->all_to_all(from, {1, 1, 1}, to, {1, 1, 1}).wait();
        const auto own = static_cast<float>(r.rank);
        EXPECT_EQ(to.to_host<float>(), (std::vector<float>{own, 100 + own, 200 + own}));
    });
}

}  // namespace
}  // namespace tutti::comm
