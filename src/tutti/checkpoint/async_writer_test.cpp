// The background writer: one job at a time, every error is reported, nothing is left running.
#include "tutti/checkpoint/async_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

#include "tutti/base/to_size.h"

namespace tutti::checkpoint {
namespace {

void unexpected(const std::string& error) { FAIL() << "unclaimed: " << error; }

TEST(AsyncWriter, RunsOneJobAtATimeAndInOrder) {
    AsyncWriter writer(unexpected);
    std::atomic<int> inside = 0, most = 0;
    std::vector<int> order;  // written by one job at a time, read after wait()
    for (int i = 0; i < 20; ++i)
        writer.submit([&, i] {
            most = std::max(most.load(), ++inside);
            order.push_back(i);
            --inside;
        });
    writer.wait();
    EXPECT_FALSE(writer.busy());
    EXPECT_EQ(most, 1);
    ASSERT_EQ(order.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(order[to_size(i)], i);
}

TEST(AsyncWriter, SubmitReturnsWhileTheJobRuns) {
    AsyncWriter writer(unexpected);
    std::promise<void> go;
    writer.submit([ready = go.get_future().share()] { ready.wait(); });
    EXPECT_TRUE(writer.busy());
    go.set_value();
    writer.wait();
    EXPECT_FALSE(writer.busy());
}

TEST(AsyncWriter, HandsOutEveryErrorOnceOldestFirst) {
    AsyncWriter writer(unexpected);
    EXPECT_EQ(writer.poll_error(), std::nullopt);
    writer.submit([] { throw std::runtime_error("first"); });
    writer.submit([] {});
    writer.submit([] { throw 7; });
    writer.wait();
    EXPECT_EQ(writer.poll_error(), "first");
    EXPECT_EQ(writer.poll_error(), "the background save failed with an unknown exception");
    EXPECT_EQ(writer.poll_error(), std::nullopt);
}

TEST(AsyncWriter, DestructorWaitsAndReportsUnclaimedErrors) {
    std::vector<std::string> unclaimed;
    bool ended = false;
    {
        AsyncWriter writer([&](const std::string& error) { unclaimed.push_back(error); });
        writer.submit([] { throw std::runtime_error("polled"); });
        writer.wait();
        EXPECT_EQ(writer.poll_error(), "polled");
        writer.submit([] { throw std::runtime_error("disk full"); });
        writer.submit([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            ended = true;
        });
    }
    EXPECT_TRUE(ended);
    EXPECT_EQ(unclaimed, std::vector<std::string>{"disk full"});
}

TEST(AsyncWriter, DestroysTheSnapshotWhenTheJobEnds) {
    AsyncWriter writer(unexpected);
    auto snapshot = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = snapshot;
    writer.submit([held = std::move(snapshot)] {});
    writer.wait();
    EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace tutti::checkpoint
