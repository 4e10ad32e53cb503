// A stop of the whole process, as a batch system makes that suspends a job, is no time-out of what it waits for.
#include "tutti/comm/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace tutti::comm {
namespace {

constexpr double kTimeout = 0.1;  // s

// The first sleep lasts much longer than asked for, as that of a process that was stopped meanwhile.
class Stopped final : public Notifier {
  public:
    void sleep(Clock::time_point until, const std::function<bool()>&) override {
        ++sleeps;
        std::this_thread::sleep_until(sleeps == 1 ? until + std::chrono::duration<double>(3 * kTimeout) : until);
    }
    void notify() override {}
    void check_abort() const override {}
    std::chrono::nanoseconds spin_time() const override { return {}; }

    int sleeps = 0;
};

TEST(Progress, AStopOfTheProcessIsNoTimeOut) {
    const auto stopped = std::make_shared<Stopped>();
    Progress progress(stopped, kTimeout, false);
    // What is awaited was stopped too, and answers after the stop.
    progress.wait_until([&] { return stopped->sleeps == 2; }, [] { return "waiting"; });
    EXPECT_EQ(stopped->sleeps, 2);
    // Time in which this process runs counts: a rank that has died is noticed.
    EXPECT_THROW(progress.wait_until([] { return false; }, [] { return "waiting"; }), TimedOut);
}

}  // namespace
}  // namespace tutti::comm
