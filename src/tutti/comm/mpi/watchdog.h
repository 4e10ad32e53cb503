// comm/mpi/watchdog.h: ends the process when something that cannot be given a time-out, such as MPI_Init, takes too
// long. Called by mpi_world.cpp.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace tutti::comm::mpi {

class Watchdog {
  public:
    // Unless it is destroyed within `seconds`: prints `message` and exits with 4, as a failed rank does.
    Watchdog(double seconds, std::string message)
        : thread_([this, seconds, text = "tutti: " + std::move(message) + "\n"] {
              std::unique_lock lock(mutex_);
              if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
              std::fputs(text.c_str(), stderr);
              _exit(4);
          }) {}
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            done_ = true;
        }
        ended_.notify_one();
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::thread thread_;  // last: it uses the others
};

}  // namespace tutti::comm::mpi
