// comm/stop.h: a request to end a run early, made by another thread, such as the one that waits for signals. Before the
// first step there is nothing to save: every wait of a rank then throws Preempted, and the other ranks are told. Later
// the run itself asks requested() where it can save.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "tutti/base/error.h"

namespace tutti::comm {

// A run was asked to stop, on this rank or on another one, and has lost nothing: start it again. Exit code 75. The
// message begins with kPreempted, also on its way to other ranks.
class Preempted : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kPreempted; }
};
inline constexpr std::string_view kPreempted = "preempted: ";

class Stop {
  public:
    // Any thread. `by`: "SIGTERM".
    void request(const std::string& by);
    bool requested() const { return requested_; }

    // Throws Preempted when a stop was requested and nothing has to be saved.
    void check() const;
    bool has_to_save() const { return has_to_save_; }
    void set_has_to_save() { has_to_save_ = true; }

    // What tells the other ranks the reason; between the meeting of the ranks and their end. Another rank's world must
    // not end while tell() runs: clear with nullptr first.
    void set_tell(std::function<void(const std::string& reason)> tell);
    // Any thread: for a process that is about to leave while its ranks compute and ask nothing.
    void tell();
    std::string reason() const;  // "preempted: stopped by SIGTERM before the first step: nothing was to be saved"

  private:
    std::atomic<bool> requested_{false}, has_to_save_{false};
    mutable std::mutex mutex_;
    std::string by_;
    std::function<void(const std::string&)> tell_;
};

}  // namespace tutti::comm
