#include "tutti/cli/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "tutti/base/error.h"

namespace tutti::cli {

StopSignals::StopSignals(std::function<void(int signal)> notice) : notice_(std::move(notice)) {
    sigemptyset(&waited_);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&waited_, signal);
    const int refused = pthread_sigmask(SIG_BLOCK, &waited_, &before_);
    check(refused == 0, "blocking SIGINT, SIGTERM and SIGUSR1 failed: error ", refused);
    thread_ = std::thread([this] { wait_for_signals(); });
}

StopSignals::~StopSignals() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);  // to this thread only: wakes it
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::wait_for_signals() {
    int interrupts = 0;
    for (;;) {
        int signal = 0;
        if (sigwait(&waited_, &signal) != 0) continue;
        if (ending_) return;
        if (signal == SIGINT && ++interrupts == 2) {
            std::signal(SIGINT, SIG_DFL);
            sigset_t interrupt;
            sigemptyset(&interrupt);
            sigaddset(&interrupt, SIGINT);
            pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
            kill(getpid(), SIGINT);
        }
        int none = 0;
        if (signal_.compare_exchange_strong(none, signal)) notice_(signal);
    }
}

const char* name_of_signal(int signal) {
    switch (signal) {
        case SIGINT: return "SIGINT";
        case SIGTERM: return "SIGTERM";
        case SIGUSR1: return "SIGUSR1";
        default: return "a signal";
    }
}

}  // namespace tutti::cli
