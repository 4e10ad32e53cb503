// comm/threads/thread_bell.h: one bell for all ranks of a process. Ringing costs a load when nobody sleeps. It carries
// the abort flag too, because whoever is woken must look at it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>

#include "tutti/comm/progress.h"

namespace tutti::comm::threads {

class ThreadBell final : public Bell {
  public:
    explicit ThreadBell(std::chrono::nanoseconds patience) : patience_(patience) {}

    // Either the sleeper is counted before a ringer looks, and is woken; or the ringer has published before the sleeper
    // asks `ready`, and it does not sleep. Both sides use sequentially consistent operations for that.
    void sleep(Clock::time_point until, const std::function<bool()>& ready) override {
        uint64_t seen = 0;
        {
            std::lock_guard lock(mutex_);
            seen = rings_;
        }
        ++sleepers_;
        if (!ready() && !aborted_) {
            std::unique_lock lock(mutex_);
            rung_.wait_until(lock, until, [&] { return rings_ != seen; });
        }
        --sleepers_;
    }

    void ring() override {
        if (sleepers_ == 0) return;
        {
            std::lock_guard lock(mutex_);
            ++rings_;
        }
        rung_.notify_all();
    }

    void check_abort() const override {
        if (!aborted_) return;
        std::lock_guard lock(mutex_);
        throw Aborted(reason_);
    }

    std::chrono::nanoseconds patience() const override { return patience_; }

    void abort(const std::string& reason) {
        {
            std::lock_guard lock(mutex_);
            if (!aborted_) reason_ = reason;
            ++rings_;
        }
        aborted_ = true;
        rung_.notify_all();
    }

  private:
    const std::chrono::nanoseconds patience_;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> aborted_{false};
    mutable std::mutex mutex_;
    std::condition_variable rung_;
    uint64_t rings_ = 0;
    std::string reason_;
};

}  // namespace tutti::comm::threads
