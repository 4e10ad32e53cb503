// comm/operation.h: one communication under way on one rank, as an engine sees it: something that can be advanced
// without ever waiting. Work (communicator.h) is the caller's handle on it; Progress drives it.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "tutti/base/trace.h"
#include "tutti/comm/collective.h"

namespace tutti::comm {

class Operation {
  public:
    // `sequence`: of the group, from 1; messages count per pair of ranks.
    Operation(Collective collective, std::string group, uint64_t sequence)
        : collective_(std::move(collective)), group_(std::move(group)), sequence_(sequence) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Does what can be done now; true once this rank has nothing left to do and its buffers are its own again. One
    // thread at a time calls it (Progress sees to that). What it throws becomes the operation's failure.
    virtual bool advance() = 0;
    // Who keeps it from going on: "rank 2 (last seen at operation 11 of this group)".
    virtual std::string waits_for() const = 0;
    // True while it waits only for ranks that wait themselves: those know better who is missing, and give up first.
    virtual bool waits_on_waiters() const { return false; }

    // When a GPU began and ended it, after the last advance(); nullopt: the host knows best.
    virtual std::optional<TimeSpan> gpu_times() const { return std::nullopt; }

    const Collective& collective() const { return collective_; }
    const std::string& group() const { return group_; }
    uint64_t sequence() const { return sequence_; }
    bool complete() const { return complete_.load(std::memory_order_acquire); }
    // After complete(): rethrows what went wrong.
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

    // Set by the communicator that started it. begin: what it waits for on this rank is done; engines that cannot tell
    // never call it.
    std::function<void()> on_begin;
    std::function<void(bool failed)> on_complete;

  private:
    friend class Progress;
    void set_complete(std::exception_ptr failure) {
        failure_ = std::move(failure);
        if (on_complete) on_complete(failure_ != nullptr);
        complete_.store(true, std::memory_order_release);
    }
    const Collective collective_;
    const std::string group_;
    const uint64_t sequence_;
    std::exception_ptr failure_;
    std::atomic<bool> complete_{false};
};

}  // namespace tutti::comm
