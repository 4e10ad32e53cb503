// cli/stop_signals.h: SIGINT, SIGTERM, SIGHUP and SIGUSR1 (what Slurm sends before the time is up), and the end of the
// reader of standard output, as a question that the trainer asks after each step. No handler, so no global state: the
// signals are blocked and one thread waits for them. SIGHUP stays ignored where nohup had it so.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace tutti::cli {

class StopSignals {
  public:
    // Make it before other threads start: they inherit the mask. `notice(signal)` is called once, by the waiting
    // thread, at the first signal. A second SIGINT ends the process at once, as if it had not been caught. SIGINT
    // counts also where a shell had it ignored for a background job: a stop loses nothing.
    // A pipe whose reader has ended counts as SIGPIPE, which is ignored meanwhile, and from then on.
    explicit StopSignals(std::function<void(int signal)> notice);
    ~StopSignals();  // the mask is as before
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    bool requested() const { return signal_ != 0; }
    int signal() const { return signal_; }  // the first one, 0: none

  private:
    void wait_for_signals();

    std::function<void(int)> notice_;
    sigset_t waited_{}, before_{};
    struct sigaction pipe_before_ {};
    std::atomic<int> signal_ = 0;
    std::atomic<bool> ending_ = false;
    std::thread thread_;
};

const char* name_of_signal(int signal);  // "SIGTERM"

}  // namespace tutti::cli
