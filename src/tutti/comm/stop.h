// comm/stop.h: a request to end a run early, made by another thread, such as the one that waits for signals. Before the
// first step there is nothing to save: every wait of a rank throws Preempted, and the other ranks are told. Later the
// run checks requested() at points where it can save.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "tutti/base/error.h"

namespace tutti::comm {

// A run was asked to stop, on this rank or on another, and has lost nothing: it may be started again. Exit code 75. The
// message begins with kPreempted, on its way to other ranks too.
class Preempted : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kPreempted; }
};
inline constexpr std::string_view kPreempted = "preempted: ";

class Stop {
  public:
    // By any thread. `by`: "SIGTERM". The first one is kept.
    void request(const std::string& by);
    bool requested() const { return requested_; }

    // Throws Preempted if a stop was requested and nothing has to be saved.
    void check() const;
    bool has_to_save() const { return has_to_save_; }
    void set_has_to_save() { has_to_save_ = true; }

    // Sets the function that tells the other ranks the reason, while all ranks are connected; nullptr: none. It must be
    // cleared before the world that it uses ends.
    void set_tell(std::function<void(const std::string& reason)> tell);
    // Calls that function, by any thread: for a process that is about to end while its ranks compute and do not wait.
    void tell();
    std::string reason() const;  // "preempted: stopped by SIGTERM before the first step: nothing was to be saved"

  private:
    std::atomic<bool> requested_{false}, has_to_save_{false};
    mutable std::mutex mutex_;
    std::string by_;
    std::function<void(const std::string&)> tell_;
};

}  // namespace tutti::comm
