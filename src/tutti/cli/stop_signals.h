// cli/stop_signals.h: stop requests as a flag to poll: SIGINT, SIGTERM, SIGHUP, the signals that schedulers send before
// a time limit (SIGUSR1, SIGUSR2 of LSF and SGE, SIGXCPU), and a closed pipe at standard output. The signals are
// blocked and one thread waits for them: there is no handler and no global state. SIGHUP stays ignored under nohup.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace tutti::cli {

class StopSignals {
  public:
    // Construct before other threads start, which inherit the mask. The waiting thread calls `notice(signal)` at the
    // first signal, and `later` 0.3 s after it, if the object still lives. A second SIGINT kills the process. SIGINT is
    // not ignored in background jobs of a shell, since a stop loses nothing.
    // A pipe without a reader counts as SIGPIPE, which stays ignored then.
    explicit StopSignals(std::function<void(int signal)> notice, std::function<void()> later = {});
    ~StopSignals();  // restores the mask
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    bool requested() const { return signal_ != 0; }
    int signal() const { return signal_; }  // the first one, 0: none
    // For work whose unfinished files an exception removes: comm::Preempted at a request, but for that of a pipe.
    void throw_if_requested() const;

  private:
    void wait_for_signals();

    std::function<void(int)> notice_;
    std::function<void()> later_;
    sigset_t waited_{}, before_{};
    struct sigaction pipe_before_ {};
    std::atomic<int> signal_ = 0;
    std::atomic<bool> ending_ = false;
    std::thread thread_;
};

const char* name_of_signal(int signal);  // "SIGTERM"

}  // namespace tutti::cli
