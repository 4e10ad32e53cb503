// The allocator of a host's shared memory: as many groups as memory allows, and freed blocks are reused.
#include "tutti/comm/processes/shared_state.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/process_group.h"

namespace tutti::comm::processes {
namespace {

// All ranks on one host, seen from rank 0. The window is private memory, of which only touched pages are allocated.
class OneHost final : public Wire {
  public:
    explicit OneHost(int ranks, int64_t bytes_of_rank = SharedState::kBytesPerRank)
        : bytes_(SharedState::control_bytes(ranks) + ranks * bytes_of_rank),
          window_(mmap(nullptr, to_size(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0)) {
        topology_.size = ranks;
        topology_.host_of.assign(to_size(ranks), 0);
        topology_.host_names.assign(to_size(ranks), "host");
        for (int r = 0; r < ranks; ++r) topology_.locals.push_back(r);
        check(window_ != MAP_FAILED, "no memory");
        host_.emplace(*this, static_cast<std::byte*>(window_), bytes_, false);
    }
    ~OneHost() override {
        host_.reset();
        munmap(window_, to_size(bytes_));
    }
    SharedState& host() { return *host_; }
    std::unique_ptr<ProcessGroup> group(const std::string& name, const std::vector<int>& ranks) {
        return std::make_unique<ProcessGroup>(name, group_key(name, ranks, 0), ranks, 0, *this, *host_, tags_);
    }

    int highest_tag() const override { return 32767; }
    std::byte* share(int64_t) override { return nullptr; }
    void barrier_of_host() override {}
    Request send(const void*, int64_t, int, int) override { return 0; }
    Request receive(void*, int64_t, int, int) override { return 0; }
    bool done(Request) override { return true; }
    void send_abort(const std::string&) override {}
    std::optional<std::string> abort_received() override { return std::nullopt; }
    void finalize() override {}

  private:
    int64_t bytes_;
    void* window_;
    Tags tags_{32767};
    std::optional<SharedState> host_;
};

std::vector<int> range(int begin, int end, int step) {
    std::vector<int> all;
    for (int r = begin; r < end; r += step) all.push_back(r);
    return all;
}

// tp 8 x dp 3 x pp 8 on a host of 192 ranks, four stages a rank: 24 pipelines with 62 channels each, and the groups of
// collectives with their slots.
TEST(SharedState, HasMemoryForThePipelinesOf192Ranks) {
    constexpr int kRanks = 192, kTp = 8, kDp = 3, kPp = 8, kStages = 4 * kPp, kPipelines = kTp * kDp;
    OneHost one(kRanks);
    std::vector<std::unique_ptr<ProcessGroup>> groups;
    const auto with_slots = [&](const std::string& name, const std::vector<int>& ranks) {
        groups.push_back(one.group(name, ranks));
        groups.back()->allocate_slots();
    };
    for (const char* name : {"world", "everyone"}) with_slots(name, range(0, kRanks, 1));
    for (int pp = 0; pp < kPp; ++pp) {
        const int first = pp * kPipelines;
        for (int dp = 0; dp < kDp; ++dp) with_slots("tp", range(first + kTp * dp, first + kTp * (dp + 1), 1));
        for (int tp = 0; tp < kTp; ++tp)
            for (const char* name : {"dp_shard", "dp"}) with_slots(name, range(first + tp, first + kPipelines, kTp));
    }
    for (int rank = 0; rank < kRanks; ++rank) with_slots("dp_replicate", {rank});
    for (int pipeline = 0; pipeline < kPipelines; ++pipeline)
        for (int stage = 0; stage + 1 < kStages; ++stage)
            for (const auto& [from, to] : {std::pair(stage, stage + 1), std::pair(stage + 1, stage)})
                groups.push_back(one.group(concat("pp ", from, ">", to),
                                           {pipeline + from % kPp * kPipelines, pipeline + to % kPp * kPipelines}));
    EXPECT_EQ(groups.size(), 2u + 24 + 2 * 64 + 192 + 24 * 62);
}

TEST(SharedState, UsesTheMemoryOfReleasedGroupsAgain) {
    OneHost one(1, int64_t{4} << 20);  // one group at a time
    std::byte* slot = nullptr;
    for (int i = 0; i < 2000; ++i) {
        const auto group = one.group(concat("group ", i), {0});
        group->allocate_slots();
        if (slot == nullptr) slot = group->slot(0, 0);
        ASSERT_EQ(group->slot(0, 0), slot);
    }
}

TEST(SharedState, SaysThatItsMemoryIsFull) {
    OneHost one(2, int64_t{5} << 20);
    const auto first = one.group("first", {0, 1});
    first->allocate_slots();
    const auto second = one.group("second", {0, 1});
    try {
        second->allocate_slots();
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("a group needs 4096 KiB"), std::string::npos) << error.what();
    }
}

// A key names the same memory for all its members, and their counters begin at zero also where others counted before.
TEST(SharedState, GivesTheSameMemoryForAKeyAndOtherMemoryForAnother) {
    OneHost one(2);
    SharedState& host = one.host();
    std::byte* a = host.acquire(1, SharedState::Section::rings, 5000, 64, 2);
    std::byte* slots = host.acquire(1, SharedState::Section::slots, 5000, 0, 2);
    EXPECT_EQ(host.acquire(1, SharedState::Section::rings, 5000, 64, 2), a);
    EXPECT_NE(slots, a);
    EXPECT_NE(host.acquire(2, SharedState::Section::rings, 5000, 64, 2), a);
    a[63] = std::byte{7};
    host.release(1);
    EXPECT_EQ(host.acquire(1, SharedState::Section::rings, 5000, 64, 2), a) << "one member still has it";
    host.release(1);
    EXPECT_EQ(host.acquire(3, SharedState::Section::rings, 5000, 64, 1), a);
    EXPECT_EQ(a[63], std::byte{0});
    EXPECT_EQ(host.acquire(3, SharedState::Section::slots, 5000, 0, 1), slots);
}

}  // namespace
}  // namespace tutti::comm::processes
