// comm/progress.h: drives a rank's operations. They are advanced by whoever waits for one of them and, when asked for,
// by a thread of the rank's own, so that communication goes on while the rank computes. Engines supply the Notifier:
// how one sleeps until some other rank has done something.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "tutti/base/trace.h"
#include "tutti/comm/operation.h"

namespace tutti::comm {

using Clock = std::chrono::steady_clock;

// A rank stopped because another one failed; the message holds that one's reason.
class Aborted : public Error {
  public:
    using Error::Error;
};
// A wait took longer than comm.timeout_s.
class TimedOut : public Error {
  public:
    using Error::Error;
};

class Notifier {
  public:
    virtual ~Notifier() = default;
    // Sleeps until it rings (any rank has moved), `until`, or for no reason. `ready` is asked again after the sleeper
    // is known to those who ring, so that no ring is lost.
    virtual void sleep(Clock::time_point until, const std::function<bool()>& ready) = 0;
    // Wakes this rank's own sleepers: its progress thread, or who waits while that thread works.
    virtual void notify() = 0;
    // Throws Aborted when a rank has given up.
    virtual void check_abort() const = 0;
    // Time worth spinning before one sleeps; zero where ranks share cores.
    virtual std::chrono::nanoseconds spin_time() const = 0;
};

// The spin_time of ranks of one machine: threads that share cores must not spin, because the one they wait for needs
// the core. With a core each it must exceed the time of a wake-up (60 to 110 us on virtual machines): otherwise one
// rank that was late once makes the other sleep, whose waking makes the first one sleep, and so on for ever.
std::chrono::nanoseconds spin_time_of(int ranks, int cores, bool progress_threads);

class Progress {
  public:
    Progress(std::shared_ptr<Notifier> notifier, double timeout_s, bool with_thread);
    // Stops the thread. Operations still under way are left: a rank that ends well has waited for all of them.
    ~Progress();

    // Does what it can do at once: without a thread nobody looks at it again before the next wait or poll().
    void add(std::shared_ptr<Operation> operation);
    // For a rank that computes for long without a progress thread: advances everything, waits for nothing.
    void poll() { advance_all(); }
    // Advances everything until `operation` is complete; rethrows its failure. Throws TimedOut or Aborted.
    void wait(const Operation& operation);
    // The same for any condition, such as room in a mailbox; `what` completes "waited 300 s for …".
    // While `waits_on_waiters`, it waits half as long again.
    void wait_until(
        const std::function<bool()>& ready, const std::function<std::string()>& what,
        const std::function<bool()>& waits_on_waiters = [] { return false; });
    double waited_s() const { return waited_s_; }  // by the rank's own thread, in all
    // Throws Aborted when a rank has given up. Any thread may ask (WorldOptions::watched).
    void check_abort();

    // Where the rank's own thread notes its waits and begins; nullptr: nowhere.
    void trace_into(Tracer* trace) { trace_ = trace; }
    Tracer* trace() const { return trace_; }

  private:
    bool advance_all();
    void run_thread();

    std::shared_ptr<Notifier> notifier_;
    double timeout_s_;
    double waited_s_ = 0;
    Tracer* trace_ = nullptr;
    std::mutex advancing_;  // held by the thread that advances
    std::mutex list_mutex_;
    std::list<std::shared_ptr<Operation>> operations_;
    std::atomic<bool> stopping_{false};
    std::atomic<uint64_t> added_{0};
    std::thread thread_;
};

}  // namespace tutti::comm
