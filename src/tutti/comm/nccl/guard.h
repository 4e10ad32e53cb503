// comm/nccl/guard.h: keeps a rank from waiting for its GPU or inside NCCL for ever: the NCCL communicators of a rank,
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

#include "tutti/base/awake_time.h"
#include "tutti/comm/nccl/api.h"
#include "tutti/comm/world.h"

namespace tutti::comm::nccl {

class Guard {
  public:
    Guard(World& world, Device& device, double timeout_s) : world_(world), device_(device), timeout_s_(timeout_s) {}

    // A thread's turn to call NCCL, whose time poll() bounds. It must not include calls of CUDA, which may wait for the
    // GPU: if another rank is missing, the GPU's work ends only by an abort. `what` and `group` must outlive the turn.
    // Throws the failure that has ended this rank's communication.
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

    World& world() { return world_; }  // the wrapped world
    double timeout_s() const { return timeout_s_; }
    // Throws Error with NCCL's reason, or the failure that has ended this rank's communication. kInProgress is not an
    // error.
    void check(Result result, std::string_view what, const std::string& group) const;
    // Waits until the last call on `comm`, a non-blocking communicator, is complete. In a Turn.
    void settle(Comm comm, std::string_view what, const std::string& group);
    void add(Comm comm, const std::string& group);
    bool remove(Comm comm);  // false: fail() has aborted it or is about to

    // Throws the failure that has ended this rank's communication, if any.
    void check_failed() const;
    bool failed() const { return failed_; }
    // Checks NCCL, the other ranks and the time of the call in progress; throws the first error found. Not in a Turn.
    // NCCL is not polled while another thread is in a Turn: since NCCL 2.26 ncclCommGetAsyncError also joins the
    // thread of the last call on a non-blocking communicator and frees its memory, which two concurrent calls would do
    // twice.
    void poll();
    // Aborts all communicators, and makes the device's waits throw `why`. The first reason is kept. A call of NCCL in
    // progress has kCallTimeout to return; then the abort ends it, and the communicators are freed when it has
    // returned, or after another kCallTimeout. Not in a Turn.
    void fail(const std::exception_ptr& why);

  private:
    static constexpr std::chrono::seconds kCallTimeout{5};
    struct Member {
        Comm comm;
        std::string group;
    };
    struct Call {
        std::string_view what;
        const std::string* group;
        AwakeTime time;
    };
    World& world_;
    Device& device_;
    const double timeout_s_;
    std::timed_mutex calling_;  // held in a Turn
    mutable std::mutex mutex_;
    std::vector<Member> members_;
    std::optional<Call> call_;  // in progress
    std::exception_ptr failure_;
    std::atomic<bool> failed_{false};
};

}  // namespace tutti::comm::nccl
