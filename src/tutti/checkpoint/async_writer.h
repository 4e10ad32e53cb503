// checkpoint/async_writer.h: one background thread that runs one save at a time while training goes on. A job owns what
// it needs: its snapshot and its use of the Store.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace tutti::checkpoint {

class AsyncWriter {
  public:
    using Job = std::function<void()>;
    // When the writer is destroyed, `unclaimed` gets each error that was not polled.
    explicit AsyncWriter(std::function<void(const std::string&)> unclaimed);
    ~AsyncWriter();  // waits for the job in flight
    AsyncWriter(const AsyncWriter&) = delete;
    AsyncWriter& operator=(const AsyncWriter&) = delete;

    // Waits until the previous job has ended, then starts this one and returns.
    void submit(Job job);
    bool busy() const;
    void wait() const;
    void wait_for(std::chrono::milliseconds limit) const;  // until the writer is idle, at most `limit`
    // The oldest error that was not returned yet. A failed job does not stop later ones.
    std::optional<std::string> poll_error();

  private:
    void run();

    std::function<void(const std::string&)> unclaimed_;
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::optional<Job> waiting_;  // submitted, not yet taken by the thread
    bool running_ = false, stopping_ = false;
    std::deque<std::string> errors_;
    std::thread thread_;  // last member: starts when all others exist
};

}  // namespace tutti::checkpoint
