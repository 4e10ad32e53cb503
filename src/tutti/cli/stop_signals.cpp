#include "tutti/cli/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/comm/stop.h"
#include "tutti/launch/process.h"

namespace tutti::cli {

StopSignals::StopSignals(std::function<void(int signal)> notice, std::function<void()> later)
    : notice_(std::move(notice)), later_(std::move(later)) {
    sigemptyset(&waited_);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    for (const int signal : launch::kStopSignals)
        if (signal != SIGHUP || hangup.sa_handler != SIG_IGN) sigaddset(&waited_, signal);
    const int refused = pthread_sigmask(SIG_BLOCK, &waited_, &before_);
    check(refused == 0, "blocking the signals that stop a run failed: error ", refused);
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &pipe_before_);
    thread_ = start_thread("waits for signals", [this] { wait_for_signals(); });
}

StopSignals::~StopSignals() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);  // wakes the thread
    thread_.join();
    // Discards signals that arrived after the end of the run, which would kill the process once unblocked.
    const timespec no_pause{};
    while (sigtimedwait(&waited_, nullptr, &no_pause) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    if (signal_ != SIGPIPE) sigaction(SIGPIPE, &pipe_before_, nullptr);  // else the last output would kill the process
}

void StopSignals::throw_if_requested() const {
    const int signal = signal_;
    if (signal != 0 && signal != SIGPIPE)
        throw comm::Preempted(concat("stopped by ", name_of_signal(signal), ": nothing is written"));
}

void StopSignals::wait_for_signals() {
    using Clock = std::chrono::steady_clock;
    int interrupts = 0;
    std::optional<Clock::time_point> later;
    for (;;) {
        const timespec pause{.tv_sec = 0, .tv_nsec = later ? 20'000'000 : 200'000'000};
        int signal = sigtimedwait(&waited_, nullptr, &pause);
        if (ending_) return;
        if (later && Clock::now() >= *later) {
            later.reset();
            later_();
        }
        if (signal < 0 && launch::reader_has_ended()) signal = SIGPIPE;
        if (signal < 0) continue;
        if (signal == SIGINT && ++interrupts == 2) {
            std::signal(SIGINT, SIG_DFL);
            sigset_t interrupt;
            sigemptyset(&interrupt);
            sigaddset(&interrupt, SIGINT);
            pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
            kill(getpid(), SIGINT);
        }
        int none = 0;
        if (!signal_.compare_exchange_strong(none, signal)) continue;
        notice_(signal);
        if (later_) later = Clock::now() + std::chrono::milliseconds(300);
    }
}

const char* name_of_signal(int signal) {
    switch (signal) {
        case SIGINT: return "SIGINT";
        case SIGTERM: return "SIGTERM";
        case SIGUSR1: return "SIGUSR1";
        case SIGUSR2: return "SIGUSR2";
        case SIGXCPU: return "SIGXCPU";
        case SIGHUP: return "SIGHUP";
        case SIGPIPE: return "SIGPIPE (standard output has no reader any more)";
        default: return "a signal";
    }
}

}  // namespace tutti::cli
