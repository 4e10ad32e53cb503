// The allocator's counts against a hand-kept ledger, reuse of blocks, and the message when memory runs out.
#include "tutti/device/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/device/segments.h"

namespace tutti {
namespace {

// Hands out at most `limit` bytes.
class SmallMemory final : public RawMemory {
  public:
    SmallMemory(int64_t limit, int64_t& taken) : limit_(limit), taken_(taken) {}
    void* take(int64_t bytes) override {
        if (taken_ + bytes > limit_) return nullptr;
        taken_ += bytes;
        return std::malloc(to_size(bytes));
    }
    void give_back(void* data, int64_t bytes) override {
        taken_ -= bytes;
        std::free(data);
    }

  private:
    int64_t limit_;
    int64_t& taken_;
};

TEST(Allocator, CountsByPurposeAndRemembersThePeakOfTheSum) {
    int64_t taken = 0;
    {
        const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(1 << 20, taken));
        Allocator& memory = *shared;
        {
            Buffer weights(memory, 1000, Purpose::weights);
            { Buffer activations(memory, 5000, Purpose::activations); }
            Buffer gradients(memory, 3000, Purpose::gradients);
            EXPECT_EQ(memory.total().current, 4000);
        }
        EXPECT_EQ(memory.total().current, 0);
        EXPECT_EQ(memory.total().peak, 6000);  // weights and activations; gradients came later
        EXPECT_EQ(memory.at_peak()[Purpose::activations], 5000);
        EXPECT_EQ(memory.at_peak()[Purpose::gradients], 0);
        EXPECT_EQ(memory.usage(Purpose::gradients).peak, 3000);
        memory.reset_peaks();
        EXPECT_EQ(memory.total().peak, 0);
    }
    EXPECT_EQ(taken, 0);  // everything went back
}

TEST(Allocator, ReusesWhatIsFreeForBlocksOfAnySize) {
    int64_t taken = 0;
    const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(64 << 20, taken));
    Allocator& memory = *shared;
    void* first = memory.allocate(9 << 20, Purpose::activations);
    memory.release(first, 9 << 20, Purpose::activations);
    EXPECT_EQ(memory.allocate(5 << 20, Purpose::gradients), first);
    EXPECT_EQ(memory.allocate(4 << 20, Purpose::workspace), static_cast<std::byte*>(first) + (5 << 20));
    memory.release(first, 5 << 20, Purpose::gradients);
    memory.release(static_cast<std::byte*>(first) + (5 << 20), 4 << 20, Purpose::workspace);
    EXPECT_EQ(memory.allocate((9 << 20) - 1000, Purpose::activations), first);
    void* small = memory.allocate(100, Purpose::data);  // never in a segment of large ones
    EXPECT_EQ(memory.reserved(), (9 << 20) + 256);
    memory.release(first, (9 << 20) - 1000, Purpose::activations);
    memory.release(small, 100, Purpose::data);
    memory.trim();
    EXPECT_EQ(memory.reserved(), 0);
    EXPECT_EQ(taken, 0);
}

TEST(Allocator, GivesTheCacheBackBeforeItFails) {
    int64_t taken = 0;
    const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(100'000, taken));
    Allocator& memory = *shared;
    void* cached = memory.allocate(60'000, Purpose::activations);
    memory.release(cached, 60'000, Purpose::activations);
    void* other = memory.allocate(90'000, Purpose::weights);  // fits only after the cached block is gone
    try {
        memory.allocate(50'000, Purpose::gradients);
        FAIL();
    } catch (const Error& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find("50000 bytes for gradients on top of 90000 in use"), std::string::npos) << message;
    }
    memory.release(other, 90'000, Purpose::weights);
}

// An offloaded buffer counts on the offload device, keeps its values, and is not to be used.
// Work whose join takes a while.
class SlowWork final : public SideWork {
  public:
    void join() override {
        joining = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        joined = true;
    }
    bool begun() override { return true; }
    bool done() override { return false; }
    std::atomic<bool> joining{false}, joined{false};
};

class CountedWork final : public SideWork {
  public:
    void join() override { ++joins; }
    bool begun() override { return true; }
    bool done() override { return false; }
    int joins = 0;
};

// A block is handed out when the work on every byte of it has been joined, and no other work; each work once.
constexpr int64_t kMiB = 1 << 20;

TEST(Allocator, CutsLargeBlocksFromBothEndsOfItsArena) {
    int64_t taken = 0;
    {
        const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(64 * kMiB, taken));
        Allocator& memory = *shared;
        memory.open_arena(10 * kMiB);
        EXPECT_EQ(memory.reserved(), 10 * kMiB);
        EXPECT_EQ(memory.arena_bytes(), 10 * kMiB);
        EXPECT_THROW(memory.open_arena(kMiB), Error);
        auto* const begin = static_cast<std::byte*>(memory.allocate(4 * kMiB, Purpose::weights));
        void* const gradients = memory.allocate(3 * kMiB, Purpose::gradients);
        EXPECT_EQ(gradients, begin + 7 * kMiB);
        void* const activations = memory.allocate(2 * kMiB, Purpose::activations);
        EXPECT_EQ(activations, begin + 4 * kMiB);
        EXPECT_EQ(memory.reserved(), 10 * kMiB);

        // What has no place there comes from segments: large blocks, small ones, those of a pool.
        void* const large = memory.allocate(2 * kMiB, Purpose::gradients);
        void* const small = memory.allocate(100, Purpose::data);
        EXPECT_EQ(memory.reserved(), 12 * kMiB + 256);
        memory.release(activations, 2 * kMiB, Purpose::activations);
        Pool pool(memory);
        void* pooled = nullptr;
        {
            const Pool::Use use(pool);
            pooled = memory.allocate(kMiB, Purpose::activations);
        }
        EXPECT_EQ(memory.reserved(), 13 * kMiB + 256);
        EXPECT_EQ(memory.allocate(3 * kMiB, Purpose::workspace), begin + 4 * kMiB);

        memory.release(pooled, kMiB, Purpose::activations);
        memory.release(large, 2 * kMiB, Purpose::gradients);
        memory.release(small, 100, Purpose::data);
        memory.release(begin + 4 * kMiB, 3 * kMiB, Purpose::workspace);
        memory.release(gradients, 3 * kMiB, Purpose::gradients);
        memory.release(begin, 4 * kMiB, Purpose::weights);
        EXPECT_EQ(memory.total().current, 0);
        memory.trim();
        EXPECT_EQ(memory.reserved(), 11 * kMiB);  // the arena, and the pool's segment
        EXPECT_EQ(memory.allocate(10 * kMiB, Purpose::gradients), begin);
        memory.release(begin, 10 * kMiB, Purpose::gradients);
    }
    EXPECT_EQ(taken, 0);
}

TEST(Allocator, HasNoArenaThatTheSystemLacksMemoryFor) {
    int64_t taken = 0;
    const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(10 * kMiB, taken));
    shared->open_arena(0);
    shared->open_arena(11 * kMiB);
    EXPECT_EQ(shared->reserved(), 0);
    shared->release(shared->allocate(2 * kMiB, Purpose::weights), 2 * kMiB, Purpose::weights);
    EXPECT_EQ(shared->reserved(), 2 * kMiB);
    shared->open_arena(8 * kMiB);
    EXPECT_EQ(shared->arena_bytes(), 8 * kMiB);
}

// A rehearsal's memory, in which an arena has what its blocks need and no more.
TEST(MetaDevice, CountsAnArenaThatGrows) {
    const auto device = make_meta_device({.memory_bytes = 10 * kMiB, .workspace_bytes = 2 * kMiB, .arena = true});
    Allocator& memory = device->memory();
    EXPECT_EQ(memory.reserved(), 2 * kMiB);  // the workspace, which a device has before its arena
    void* const first = memory.allocate(2 * kMiB, Purpose::activations);
    void* const second = memory.allocate(kMiB, Purpose::weights);
    void* const gradients = memory.allocate(3 * kMiB, Purpose::gradients);
    EXPECT_EQ(memory.arena_bytes(), 6 * kMiB);
    memory.release(first, 2 * kMiB, Purpose::activations);
    void* const third = memory.allocate(kMiB, Purpose::activations);
    EXPECT_EQ(third, first);  // and a gap of 1 MiB behind it
    memory.release(gradients, 3 * kMiB, Purpose::gradients);
    void* const fourth = memory.allocate(3 * kMiB, Purpose::activations);
    EXPECT_EQ(memory.arena_bytes(), 6 * kMiB);
    EXPECT_EQ(memory.reserved(), 8 * kMiB);
    EXPECT_THROW(memory.allocate(3 * kMiB, Purpose::activations), OutOfMemory);
    void* const last = memory.allocate(2 * kMiB, Purpose::gradients);
    EXPECT_EQ(memory.reserved(), 10 * kMiB);
    EXPECT_THROW(memory.allocate(100, Purpose::data), OutOfMemory);
    for (const auto& [data, bytes, purpose] :
         {std::tuple(second, 1, Purpose::weights), std::tuple(third, 1, Purpose::activations),
          std::tuple(fourth, 3, Purpose::activations), std::tuple(last, 2, Purpose::gradients)})
        memory.release(data, bytes * kMiB, purpose);
}

TEST(Allocator, JoinsTheWorkOnTheMemoryThatItHandsOut) {
    int64_t taken = 0;
    const auto memory = std::make_shared<Allocator>(std::make_unique<SmallMemory>(1 << 20, taken));
    struct Block {
        std::byte* data;
        int64_t bytes;
    };
    std::vector<Block> blocks;
    std::vector<std::pair<Block, std::shared_ptr<CountedWork>>> released;  // not joined yet
    std::mt19937 random(7);
    int joined = 0;
    for (int step = 0; step < 4000; ++step) {
        if (blocks.size() < 40 && random() % 2 == 0) {
            const int64_t bytes = random() % 8 == 0 ? 0 : static_cast<int64_t>(1 + random() % 5000);
            const Block block{static_cast<std::byte*>(memory->allocate(bytes, Purpose::data)), bytes};
            blocks.push_back(block);
            const int64_t whole = std::max<int64_t>((bytes + 255) / 256 * 256, 256);
            std::erase_if(released, [&](const auto& old) {
                const auto& [place, work] = old;
                const bool overlaps = place.data < block.data + whole && block.data < place.data + place.bytes;
                EXPECT_EQ(work->joins, overlaps) << "in step " << step;
                joined += work->joins;
                return overlaps;
            });
        } else if (!blocks.empty()) {
            std::swap(blocks[random() % blocks.size()], blocks.back());
            const Block block = blocks.back();
            blocks.pop_back();
            std::vector<std::shared_ptr<SideWork>> work;
            for (size_t i = random() % 4; i < 3 && block.bytes > 0; ++i) {
                const auto one = std::make_shared<CountedWork>();
                work.push_back(one);
                released.push_back({block, one});
            }
            memory->release(block.data, block.bytes, Purpose::data, work);
        }
    }
    EXPECT_GT(joined, 1000);
    for (const Block& block : blocks) memory->release(block.data, block.bytes, Purpose::data);
}

// The progress thread of a rank reads the address of a buffer while the rank's own thread does.
TEST(Buffer, NoThreadHasTheAddressBeforeTheWorkIsJoined) {
    const auto device = make_cpu_device(1);
    Buffer buffer(device->memory(), 64, Purpose::weights);
    for (int round = 0; round < 5; ++round) {
        const auto work = std::make_shared<SlowWork>();
        buffer.used_by(work);
        std::thread other([&] { buffer.data(); });
        while (!work->joining) std::this_thread::yield();
        buffer.data();
        EXPECT_TRUE(work->joined);
        other.join();
    }
}

TEST(FileDevice, KeepsWhatIsSentAway) {
    const auto device = make_cpu_device(1);
    const auto offload_device = make_file_device(testing::TempDir() + "tutti_offload", 1);
    Buffer buffer(device->memory(), 10000, Purpose::activations);
    auto* bytes = static_cast<unsigned char*>(buffer.data());
    for (int i = 0; i < 10000; ++i) bytes[i] = static_cast<unsigned char>(i * 7);
    buffer.offload(*device, *offload_device);
    EXPECT_EQ(device->memory().usage(Purpose::activations).current, 0);
    EXPECT_EQ(offload_device->memory().usage(Purpose::activations).current, 10000);
    EXPECT_THROW(buffer.data(), Error);
    buffer.will_need();
    buffer.fetch(*device);
    buffer.fetch(*device);  // it is here
    EXPECT_EQ(offload_device->memory().usage(Purpose::activations).current, 0);
    bytes = static_cast<unsigned char*>(buffer.data());
    for (int i = 0; i < 10000; ++i) ASSERT_EQ(bytes[i], static_cast<unsigned char>(i * 7));
    { Buffer gone(device->memory(), 10, Purpose::data), also(offload_device->memory(), 10, Purpose::data); }
    buffer.offload(*device, *offload_device);  // and may end there
}

TEST(FileDevice, LeavesNoFileAndNamesTheDirectoryThatItCannotUse) {
    const std::string directory = testing::TempDir() + "tutti_offload_empty";
    {
        const auto offload_device = make_file_device(directory, 1);
        Buffer buffer(offload_device->memory(), 1 << 20, Purpose::optimizer);
        static_cast<char*>(buffer.data())[5000] = 1;
        EXPECT_TRUE(std::filesystem::is_empty(directory));
    }
    const auto refused = [](const std::string& where) {
        try {
            make_file_device(where, 1);
            return std::string("no error");
        } catch (const UsageError& e) {
            return std::string(e.what());
        }
    };
    EXPECT_TRUE(refused("/proc/tutti").starts_with("offload.dir /proc/tutti: cannot be made"))
        << refused("/proc/tutti");
    EXPECT_TRUE(refused("/proc/self").starts_with("offload.dir /proc/self: no file can be made there"));
}

// A recording's memory: apart while it exists, also when it is released at another time; counted when it runs again.
TEST(Pool, KeepsItsBlocksToItself) {
    int64_t taken = 0;
    const auto shared = std::make_shared<Allocator>(std::make_unique<SmallMemory>(1 << 20, taken));
    Allocator& memory = *shared;
    void* late = nullptr;
    {
        Pool pool(memory);
        void* inside = nullptr;
        {
            const Pool::Use use(pool);
            inside = memory.allocate(1000, Purpose::activations);
            late = memory.allocate(1000, Purpose::data);
            memory.release(inside, 1000, Purpose::activations);
            EXPECT_THROW({ const Pool::Use twice(pool); }, Error);
        }
        memory.release(late, 1000, Purpose::data);
        void* const outside = memory.allocate(1000, Purpose::weights);
        EXPECT_NE(outside, inside);
        EXPECT_NE(outside, late);
        memory.trim();  // the pool's blocks are not spare
        EXPECT_EQ(memory.reserved(), 3 * 1024);

        memory.reset_peaks();
        EXPECT_EQ(memory.total().peak, 1000);
        pool.count_again();
        EXPECT_EQ(memory.total().peak, 3000);
        EXPECT_EQ(memory.total().current, 1000);
        EXPECT_EQ(memory.usage(Purpose::activations).peak, 1000);
        EXPECT_EQ(memory.at_peak()[Purpose::data], 1000);
        EXPECT_EQ(memory.at_peak()[Purpose::weights], 1000);
        {
            const Pool::Use use(pool);
            late = memory.allocate(1000, Purpose::data);
            EXPECT_TRUE(late == inside || memory.reserved() == 3 * 1024);
        }
        memory.release(outside, 1000, Purpose::weights);
    }
    memory.release(late, 1000, Purpose::data);  // after its pool
    memory.trim();
    EXPECT_EQ(taken, 0);
}

// The free ranges of segments: random takes and returns against gaps found by hand, and the smallest cases.

TEST(Segments, CutRangesAndLetThemGrowTogetherAgain) {
    std::vector<std::byte> a(100), b(40);
    Segments segments;
    segments.add(a.data(), 100);
    segments.add(b.data(), 40);
    EXPECT_EQ(segments.take(90), a.data());  // leaves 10 there
    EXPECT_EQ(segments.take(30), b.data());
    EXPECT_EQ(segments.take(10), a.data() + 90);
    EXPECT_EQ(segments.take(11), nullptr);
    EXPECT_EQ(segments.take(10), b.data() + 30);
    segments.give_back(a.data() + 90);
    segments.give_back(a.data());
    EXPECT_EQ(segments.take(100), a.data());
    segments.give_back(b.data());
    EXPECT_TRUE(segments.remove_unused().empty());  // both are in use
    segments.give_back(b.data() + 30);
    const auto unused = segments.remove_unused();
    ASSERT_EQ(unused.size(), 1u);
    EXPECT_EQ(unused[0].data, b.data());
    EXPECT_EQ(unused[0].bytes, 40);
    EXPECT_EQ(segments.take(1), nullptr);
    EXPECT_THROW(segments.give_back(b.data()), Error);
    segments.give_back(a.data());
    EXPECT_THROW(segments.give_back(a.data()), Error);
}

// Each take looks at one path of a tree: along a list of all free ranges these would be 10^11 comparisons.
TEST(Segments, FindAPlaceBehindAnyNumberOfGapsThatAreTooSmall) {
    constexpr int64_t kGaps = 300'000, kSize = 3;
    std::vector<std::byte> memory(kSize * kGaps * 2);
    Segments segments;
    segments.add(memory.data(), static_cast<int64_t>(memory.size()));
    for (int64_t i = 0; i < kGaps; ++i) ASSERT_EQ(segments.take(kSize), memory.data() + i * kSize);
    for (int64_t i = 0; i < kGaps; i += 2) segments.give_back(memory.data() + i * kSize);
    for (int64_t i = 0; i < kGaps / 2; ++i)
        ASSERT_EQ(segments.take(kSize + 1), memory.data() + kGaps * kSize + i * (kSize + 1));
    EXPECT_EQ(segments.take(kSize), memory.data());
}

// Two segments that happen to be adjacent stay two: each is returned to the system separately.
TEST(Segments, NeverGrowTogether) {
    std::vector<std::byte> memory(64);
    Segments segments;
    segments.add(memory.data() + 32, 32);
    segments.add(memory.data(), 32);
    EXPECT_EQ(segments.take(33), nullptr);
    EXPECT_EQ(segments.remove_unused().size(), 2u);
}

TEST(Segments, TakeOverThoseOfOthers) {
    std::vector<std::byte> a(100), b(40);
    Segments segments, other;
    segments.add(a.data(), 100);
    other.add(b.data(), 40);
    ASSERT_EQ(other.take(30), b.data());
    segments.absorb(other);
    EXPECT_EQ(other.take(1), nullptr);
    EXPECT_EQ(segments.take(100), a.data());
    EXPECT_EQ(segments.take(10), b.data() + 30);
    segments.give_back(b.data());
    segments.give_back(b.data() + 30);
    EXPECT_EQ(segments.take(40), b.data());
}

// The first gap of `bytes` between held blocks.
std::byte* by_hand(std::vector<std::vector<std::byte>>& memory, const std::vector<Segments::Range>& held,
                   int64_t bytes) {
    for (auto& segment : memory) {
        std::byte* const end = segment.data() + segment.size();
        std::vector<Segments::Range> inside;
        for (const auto& h : held)
            if (h.data >= segment.data() && h.data < end) inside.push_back(h);
        std::sort(inside.begin(), inside.end(), [](auto& x, auto& y) { return x.data < y.data; });
        inside.push_back({end, 0});
        std::byte* at = segment.data();
        for (const auto& h : inside) {
            if (h.data - at >= bytes) return at;
            at = h.data + h.bytes;
        }
    }
    return nullptr;
}

TEST(Segments, NeverHandOutAByteTwiceAndLoseNone) {
    constexpr int64_t kSize = 1000, kSegments = 3;
    std::mt19937 random(7);
    std::vector<std::vector<std::byte>> memory(kSegments, std::vector<std::byte>(kSize));
    Segments segments;
    for (auto& m : memory) segments.add(m.data(), kSize);
    std::vector<Segments::Range> held;
    for (int i = 0; i < 20'000; ++i) {
        if (random() % 2 == 0 || held.empty()) {
            const auto bytes = static_cast<int64_t>(1 + random() % (random() % 8 == 0 ? 700 : 60));
            auto* const data = static_cast<std::byte*>(segments.take(bytes));
            ASSERT_EQ(data, by_hand(memory, held, bytes));
            if (data == nullptr) continue;
            for (const auto& h : held) ASSERT_TRUE(data + bytes <= h.data || h.data + h.bytes <= data);
            held.push_back({data, bytes});
        } else {
            const size_t which = random() % held.size();
            segments.give_back(held[which].data);
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        }
    }
    for (const auto& h : held) segments.give_back(h.data);
    int64_t all = 0;
    for (const auto& segment : segments.remove_unused()) all += segment.bytes;
    EXPECT_EQ(all, kSegments * kSize);
}

}  // namespace

}  // namespace tutti
