// tests/cuda/emulation/stream.h: what a stream was given, and who runs it when (StreamRules in api.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "tests/cuda/emulation/api.h"

namespace tutti::emulation {

// A queue of the hardware, which several streams may share.
class HardwareQueue {
  public:
    int64_t enter();                       // the place of an item
    void wait_until_first(int64_t place);  // until all items before have begun
    void begin(int64_t place);

  private:
    std::mutex mutex_;
    std::map<int64_t, std::condition_variable> not_begun_;  // by place, with what its thread waits at
    int64_t next_ = 0;
};

// The work of a stream. Any thread may run the next item; the others wait for it.
class Late {
  public:
    enum class Kind : uint8_t { work, wait };  // a wait for an event begins when it ends

    Late() = default;
    ~Late();
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
    void share(std::shared_ptr<HardwareQueue> queue) { queue_ = std::move(queue); }
    void work_alone(uint64_t seed);  // 0: an item starts kLateness after the stream was given the newest

    int64_t add(std::function<void()> item, Kind kind = Kind::work);  // returns the place after the item
    int64_t end() const;
    bool done_until(int64_t place) const;
    void run_until(int64_t place);  // rethrows an exception of an item
    void run_all() { run_until(end()); }
    void finish();  // run_all, but an exception stays for the next who waits

  private:
    using Clock = std::chrono::steady_clock;
    struct Item {
        std::function<void()> work;
        Kind kind;
        int64_t place;  // in the hardware's queue
    };

    int64_t given() const { return done_ + (busy_ ? 1 : 0) + static_cast<int64_t>(waiting_.size()); }
    void wait(std::unique_lock<std::mutex>& lock, int64_t place);
    void run_next(std::unique_lock<std::mutex>& lock);
    void run_alone();

    static constexpr std::chrono::microseconds kLateness{2000};
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> waiting_;
    int64_t done_ = 0;  // of all items ever queued
    bool busy_ = false, ending_ = false;
    Clock::time_point newest_;
    std::chrono::microseconds lateness_ = kLateness;
    std::minstd_rand random_;
    bool draws_ = false;
    std::exception_ptr failure_;
    std::shared_ptr<HardwareQueue> queue_;
    std::thread worker_;
};

// A stream of the calling thread's GPU, by the rules. `priority`: it goes on by itself in any case.
std::shared_ptr<Late> make_stream(int gpu, bool priority);
// Waits for all streams of a GPU, whichever threads made them, as cudaFree does.
void finish_gpu(int gpu);
bool first_launch(int gpu, const void* kernel);  // and modules are loaded at the first launch

}  // namespace tutti::emulation
