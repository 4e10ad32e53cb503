// comm/progress.h: an operation in flight, and the progress engine of a rank. A wait for one operation advances all of
// them; so does an optional progress thread, so that communication goes on while the rank computes. Backends implement
// the Notifier, which sleeps until another rank has made progress.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/base/trace.h"
#include "tutti/comm/collective.h"
#include "tutti/comm/stop.h"

namespace tutti::comm {

using Clock = std::chrono::steady_clock;

// A collective or message in flight on one rank, which advances without blocking. Work (communicator.h) is the caller's
// handle.
class Operation {
  public:
    // `sequence`: as in FlightRecord::Entry.
    Operation(Collective collective, std::string group, uint64_t sequence)
        : collective_(std::move(collective)), group_(std::move(group)), sequence_(sequence) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Does what can be done now; true once the operation is complete on this rank and its buffers may be reused. Never
    // called by two threads at once. An exception becomes the operation's failure.
    virtual bool advance() = 0;
    // The ranks that the operation waits for: "rank 2 (last seen at operation 11 of this group)".
    virtual std::string waits_for() const = 0;
    // True while every rank that this operation waits for waits itself. Those ranks can name the missing rank, so this
    // operation times out later than theirs.
    virtual bool waits_on_waiters() const { return false; }

    // Begin and end on the GPU, after the last advance(); nullopt: no GPU timed the operation.
    virtual std::optional<TimeSpan> gpu_times() const { return std::nullopt; }

    const Collective& collective() const { return collective_; }
    const std::string& group() const { return group_; }
    uint64_t sequence() const { return sequence_; }
    bool complete() const { return complete_.load(std::memory_order_acquire); }
    // After complete(): rethrows the failure, if any.
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }
    // Releases the tensors, in the rank's own thread after rethrow(). A progress thread that has just completed the
    // operation may hold it longer, but memory must be freed at a fixed point of the program, as it is rehearsed.
    void release_tensors() { collective_.input = collective_.output = {}; }

    // on_begin: this rank's earlier work is done; backends that cannot tell never call it.
    std::function<void()> on_begin;
    std::function<void(bool failed)> on_complete;

  private:
    friend class Progress;
    void set_complete(std::exception_ptr failure) {
        failure_ = std::move(failure);
        if (on_complete) on_complete(failure_ != nullptr);
        complete_.store(true, std::memory_order_release);
    }
    Collective collective_;
    const std::string group_;
    const uint64_t sequence_;
    std::exception_ptr failure_;
    std::atomic<bool> complete_{false};
};

// A rank stopped because another rank failed, whose reason the message has. Exit code 5, so that of all ranks of a job
// only the rank at fault ends with the code of the failure.
class Aborted : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kBecauseOfOthers; }
};
// Throws Aborted with the reason of another rank, or Preempted if that rank was asked to stop (stop.h).
[[noreturn]] void throw_reason(const std::string& reason);
// A wait took longer than comm.timeout_s.
class TimedOut : public Error {
  public:
    using Error::Error;
};
// The end of its message: "for more than 300 s (comm.timeout_s); a rank that is missing has died, ...".
std::string for_too_long(double timeout_s);

class Notifier {
  public:
    virtual ~Notifier() = default;
    // Sleeps until any rank notifies, or `until`; may wake spuriously. Calls `ready` once the other ranks can see that
    // this rank sleeps, and returns if it is true, so that no notification is lost.
    virtual void sleep(Clock::time_point until, const std::function<bool()>& ready) = 0;
    // Wakes all sleeping threads of the ranks that share this notifier.
    virtual void notify() = 0;
    // Throws Aborted if a rank has aborted.
    virtual void check_abort() const = 0;
    // Time to spin before sleeping; zero if ranks share cores.
    virtual std::chrono::nanoseconds spin_time() const = 0;
};

// The spin_time of `ranks` on a machine. Threads that share cores must not spin, because the awaited thread needs the
// core. With a core for each thread, spin_time must exceed the latency of a wake-up (60 to 110 us on virtual machines):
// otherwise a late rank makes another one sleep, whose late wake-up makes the first one sleep, and so on.
std::chrono::nanoseconds spin_time_of(int ranks, int cores, bool progress_threads);

class Progress {
  public:
    // `stop`: checked in every wait; nullptr: none. UsageError unless timeout_s > 0.
    Progress(std::shared_ptr<Notifier> notifier, double timeout_s, bool with_thread, const Stop* stop = nullptr);
    // Stops the thread. Does not wait for operations: a rank that ends without error has waited for all of them.
    ~Progress();
    // Stops the progress thread, if there is one.
    void stop();

    // Advances the operation at once if there is no progress thread; the next wait or poll() continues.
    void add(std::shared_ptr<Operation> operation);
    // Advances all operations without blocking: for a rank that computes for long without a progress thread.
    void poll() { advance_all(); }
    // Advances all operations until `operation` is complete; rethrows its failure. Throws TimedOut or Aborted.
    void wait(const Operation& operation);
    // Like wait(), until `ready`. `what`: the beginning of the message of TimedOut. The time-out is half as long again
    // while `waits_on_waiters` is true.
    void wait_until(
        const std::function<bool()>& ready, const std::function<std::string()>& what,
        const std::function<bool()>& waits_on_waiters = [] { return false; });
    double waited_s() const { return waited_s_; }  // by the rank's own thread so far
    // Throws Aborted if a rank has aborted. By any thread if WorldOptions::watched is set.
    void check_abort();

    // The trace of the waits and begins of the rank's own thread; nullptr: none.
    void trace_into(Tracer* trace) { trace_ = trace; }
    Tracer* trace() const { return trace_; }

  private:
    bool advance_all();
    void run_thread();

    std::shared_ptr<Notifier> notifier_;
    double timeout_s_;
    const Stop* stop_;
    double waited_s_ = 0;
    Tracer* trace_ = nullptr;
    std::mutex advancing_;  // held by the thread that advances operations
    std::mutex list_mutex_;
    std::list<std::shared_ptr<Operation>> operations_;
    std::atomic<bool> stopping_{false};
    std::atomic<uint64_t> added_{0};
    std::thread thread_;
};

}  // namespace tutti::comm
