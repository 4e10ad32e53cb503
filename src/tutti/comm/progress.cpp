#include "tutti/comm/progress.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "tutti/base/awake_time.h"
#include "tutti/base/refused.h"

namespace tutti::comm {

namespace {
constexpr std::chrono::microseconds kSpinWithoutYield{2};
constexpr double kCheckForStop = 0.1;  // s
}  // namespace

void throw_reason(const std::string& reason) {
    if (reason.starts_with(kPreempted)) throw Preempted(reason);
    throw Aborted(reason);
}

std::string for_too_long(double timeout_s) {
    return concat("for more than ", timeout_s,
                  " s (comm.timeout_s); a rank that is missing has died, hangs, or took another path");
}

std::chrono::nanoseconds spin_time_of(int ranks, int cores, bool progress_threads) {
    return std::chrono::microseconds(ranks * (progress_threads ? 2 : 1) <= cores ? 400 : 0);
}

Progress::Progress(std::shared_ptr<Notifier> notifier, double timeout_s, bool with_thread, const Stop* stop)
    : notifier_(std::move(notifier)), timeout_s_(timeout_s), stop_(stop) {
    check<UsageError>(timeout_s > 0, "comm.timeout_s must be positive, got ", timeout_s);
    if (with_thread) thread_ = start_thread("moves the data of a rank", [this] { run_thread(); });
}

Progress::~Progress() { stop(); }

void Progress::stop() {
    stopping_ = true;
    if (thread_.joinable()) {
        notifier_->notify();
        thread_.join();
    }
}

void Progress::add(std::shared_ptr<Operation> operation) {
    {
        std::lock_guard lock(list_mutex_);
        operations_.push_back(std::move(operation));
    }
    ++added_;
    if (thread_.joinable())
        notifier_->notify();
    else
        advance_all();
}

// True if an operation was completed. A thread that finds another one advancing returns at once: the other thread
// completes the awaited operation and notifies.
bool Progress::advance_all() {
    const std::unique_lock advancing(advancing_, std::try_to_lock);
    if (!advancing.owns_lock()) return false;
    std::vector<std::shared_ptr<Operation>> all;
    {
        std::lock_guard lock(list_mutex_);
        all.assign(operations_.begin(), operations_.end());
    }
    bool any = false;
    for (const auto& operation : all) {
        std::exception_ptr failure;
        try {
            if (!operation->advance()) continue;
        } catch (...) {
            failure = std::current_exception();
        }
        {
            std::lock_guard lock(list_mutex_);
            operations_.remove(operation);
        }
        operation->set_complete(failure);
        any = true;
    }
    if (any && thread_.joinable()) notifier_->notify();
    return any;
}

void Progress::wait(const Operation& operation) {
    if (!operation.complete()) {
        const TraceScope span(trace_, {.activity = Activity::wait,
                                       .name = "wait",
                                       .of = name_of(operation.collective().kind),
                                       .group = operation.group(),
                                       .number = operation.sequence()});
        wait_until([&] { return operation.complete(); },
                   [&] {
                       return concat(operation.collective().summary().text(), ", operation ", operation.sequence(),
                                     " of group ", operation.group(), ": waiting for ", operation.waits_for());
                   },
                   [&] { return operation.waits_on_waiters(); });
    }
    operation.rethrow();
}

void Progress::wait_until(const std::function<bool()>& ready, const std::function<std::string()>& what,
                          const std::function<bool()>& waits_on_waiters) {
    const Clock::time_point begin = Clock::now();
    const double last_s = 1.5 * timeout_s_;
    AwakeTime time(timeout_s_, begin);
    const auto done = [&] {
        advance_all();
        return ready();
    };
    Clock::time_point spin_until = begin + notifier_->spin_time();
    while (!done()) {
        notifier_->check_abort();
        const bool may_stop = stop_ != nullptr && !stop_->has_to_save();
        if (may_stop) stop_->check();
        const Clock::time_point now = Clock::now();
        if (now < spin_until) {
            // Most waits end at once. In a longer wait, yield: the other rank may be scheduled on this core.
            if (now - begin < kSpinWithoutYield)
                for (int i = 0; i < 16; ++i) _mm_pause();
            else
                std::this_thread::yield();
            continue;
        }
        const double passed_s = time.passed(now);
        if (passed_s >= timeout_s_) {
            const std::lock_guard lock(advancing_);  // the operation must not advance while what() describes it
            check<TimedOut>(passed_s < last_s && waits_on_waiters(), what(), ", ", for_too_long(timeout_s_));
        }
        const double left_s = (passed_s < timeout_s_ ? timeout_s_ : last_s) - passed_s;
        const double check_s = may_stop ? kCheckForStop : timeout_s_ / 8;  // of time.passed()
        notifier_->sleep(
            now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(left_s, check_s))),
            done);
    }
    waited_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

// sleep() does not block here, but reads the messages of other ranks, an abort among them.
void Progress::check_abort() {
    notifier_->sleep(Clock::now(), [] { return true; });
    notifier_->check_abort();
}

void Progress::run_thread() {
    uint64_t seen = 0;
    while (!stopping_) {
        advance_all();
        notifier_->sleep(Clock::now() + std::chrono::seconds(1), [&] {
            const bool more = added_ != seen;
            seen = added_;
            return stopping_ || more || advance_all();
        });
    }
}

}  // namespace tutti::comm
