// comm/nccl/guard.h: keeps a rank from waiting for ever for its GPU or inside NCCL: the NCCL communicators of a rank,
// which are aborted together, and the reason for the abort.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/nccl/api.h"
#include "tutti/comm/world.h"

namespace tutti::comm::nccl {

class Guard {
  public:
    Guard(World& world, Device& device, double timeout_s) : world_(world), device_(device), timeout_s_(timeout_s) {}

    // A thread's turn to call NCCL, held only while it does: a CUDA call may wait for the GPU, whose work ends only by
    // an abort when another rank is missing. look() bounds the turn's time. `what` and `group` outlive the turn. Throws
    // the failure that ended this rank's communication before.
    class Turn {
      public:
        Turn(Guard& guard, std::string_view what, const std::string& group);
        ~Turn();
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

      private:
        Guard& guard_;
        const std::unique_lock<std::timed_mutex> lock_;
    };

    World& world() { return world_; }  // of the host
    double timeout_s() const { return timeout_s_; }
    // Error with NCCL's reason, or the failure that ended this rank's communication before. kInProgress is no error.
    void check(Result result, std::string_view what, const std::string& group) const;
    // Returns when the last call on `comm`, a non-blocking communicator, is complete. In a Turn.
    void settle(Comm comm, std::string_view what, const std::string& group);
    void add(Comm comm, const std::string& group);
    bool remove(Comm comm);  // false: fail() has aborted it or is doing so

    // Throws the failure that ended this rank's communication, if any.
    void check_failed() const;
    bool failed() const { return failed_; }
    // Polls NCCL, the other ranks and the time of the call in progress; throws the first error found. For a thread that
    // is not inside NCCL. While another thread is, that thread polls NCCL: ncclCommGetAsyncError also ends the last
    // call on a non-blocking communicator (from NCCL 2.26 on), joins its thread and frees its memory, and two
    // concurrent calls would do so twice.
    void look();
    // The first reason stays. Aborts all communicators, and the device's waits throw `why`. A thread inside a call of
    // NCCL has kCallTimeout to leave it; then the abort ends the call, and the communicators are freed when it has
    // returned, or after another kCallTimeout. Not in a Turn.
    void fail(const std::exception_ptr& why);

  private:
    static constexpr std::chrono::seconds kCallTimeout{5};
    struct Member {
        Comm comm;
        std::string group;
    };
    struct InProgress {
        std::string_view what;
        const std::string* group;
        Clock::time_point begin;
    };
    World& world_;
    Device& device_;
    const double timeout_s_;
    std::timed_mutex calling_;  // held in a Turn
    mutable std::mutex mutex_;
    std::vector<Member> members_;
    std::optional<InProgress> call_;
    std::exception_ptr failure_;
    std::atomic<bool> failed_{false};
};

}  // namespace tutti::comm::nccl
