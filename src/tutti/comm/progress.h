// comm/progress.h: an operation in flight, and the driver of a rank's operations. A wait for one operation advances all
// of them; an optional progress thread of the rank does so too, so that communication goes on while the rank computes.
// Backends supply the Notifier, which sleeps until another rank has done something.
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

// One communication in flight on one rank: work that can be advanced without waiting. Work (communicator.h) is the
// caller's handle.
class Operation {
  public:
    // `sequence`: of the group, from 1; messages count per pair of ranks.
    Operation(Collective collective, std::string group, uint64_t sequence)
        : collective_(std::move(collective)), group_(std::move(group)), sequence_(sequence) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Does what can be done now; true once this rank has nothing left to do and may use its buffers again. Progress
    // calls advance() from one thread at a time. An exception becomes the operation's failure.
    virtual bool advance() = 0;
    // The ranks that the operation waits for: "rank 2 (last seen at operation 11 of this group)".
    virtual std::string waits_for() const = 0;
    // True while every rank that this operation waits for is itself waiting. Those ranks can name the missing rank, so
    // this operation times out later than they do.
    virtual bool waits_on_waiters() const { return false; }

    // The GPU's times of begin and end, after the last advance(); nullopt: no GPU timed the operation.
    virtual std::optional<TimeSpan> gpu_times() const { return std::nullopt; }

    const Collective& collective() const { return collective_; }
    const std::string& group() const { return group_; }
    uint64_t sequence() const { return sequence_; }
    bool complete() const { return complete_.load(std::memory_order_acquire); }
    // After complete(): rethrows the failure, if any.
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }
    // For the rank's own thread, once no failure was rethrown: drops the tensors. A progress thread that has just
    // completed the operation may hold it longer, and memory must be free at a place of the program, as rehearsed.
    void release_tensors() { collective_.input = collective_.output = {}; }

    // Set by the communicator that started the operation. on_begin: this rank's own work before the operation is done;
    // backends that cannot tell never call on_begin.
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

// A rank stopped because another rank failed; the message has the other rank's reason. Exit code 5: one incident counts
// once among the ranks of a job.
class Aborted : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kBecauseOfOthers; }
};
// Throws Aborted with the reason of another rank, or Preempted if that rank was asked to stop (stop.h).
[[noreturn]] void rethrow_reason(const std::string& reason);
// A wait took longer than comm.timeout_s.
class TimedOut : public Error {
  public:
    using Error::Error;
};

class Notifier {
  public:
    virtual ~Notifier() = default;
    // Sleeps until a notification (any rank has made progress) or `until`; may wake spuriously. Calls `ready` once more
    // after other ranks can see that the rank sleeps, so that no notification is lost.
    virtual void sleep(Clock::time_point until, const std::function<bool()>& ready) = 0;
    // Wakes the sleeping threads of this rank: its progress thread, or the thread that waits for that thread.
    virtual void notify() = 0;
    // Throws Aborted when a rank has aborted.
    virtual void check_abort() const = 0;
    // Time to spin before sleeping; zero where ranks share cores.
    virtual std::chrono::nanoseconds spin_time() const = 0;
};

// The spin_time of ranks of one machine. Threads that share cores must not spin, because the awaited thread needs the
// core. With a core for each thread, spin_time must exceed the time of a wake-up (60 to 110 us on virtual machines):
// otherwise a late rank makes another one sleep, whose wake-up then makes the first one sleep, and so on for ever.
std::chrono::nanoseconds spin_time_of(int ranks, int cores, bool progress_threads);

class Progress {
  public:
    // `stop`: asked in every wait; nullptr: none.
    Progress(std::shared_ptr<Notifier> notifier, double timeout_s, bool with_thread, const Stop* stop = nullptr);
    // Stops the thread. Does not wait for operations: a rank that ends without error has waited for all of them.
    ~Progress();
    // Stops the thread, if there is one.
    void stop();

    // Advances the operation once. Without a progress thread, the next wait or poll() continues.
    void add(std::shared_ptr<Operation> operation);
    // Advances everything, waits for nothing: for a rank that computes for long without a progress thread.
    void poll() { advance_all(); }
    // Advances everything until `operation` is complete; rethrows its failure. Throws TimedOut or Aborted.
    void wait(const Operation& operation);
    // Like wait() for any condition, such as room in a mailbox; `what` completes "waited 300 s for …". The time-out
    // is half as long again while `waits_on_waiters` is true.
    void wait_until(
        const std::function<bool()>& ready, const std::function<std::string()>& what,
        const std::function<bool()>& waits_on_waiters = [] { return false; });
    double waited_s() const { return waited_s_; }  // total of the rank's own thread
    // Throws Aborted when a rank has aborted. Any thread may call (WorldOptions::watched).
    void check_abort();

    // The trace for the waits and begins of the rank's own thread; nullptr: none.
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
