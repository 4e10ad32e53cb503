#include "tests/cuda/emulation/stream.h"

#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

namespace tutti::emulation {

int64_t HardwareQueue::enter() {
    const std::lock_guard lock(mutex_);
    not_begun_.try_emplace(next_);
    return next_++;
}

void HardwareQueue::wait_until_first(int64_t place) {
    std::unique_lock lock(mutex_);
    not_begun_.at(place).wait(lock, [&] { return not_begun_.begin()->first == place; });
}

void HardwareQueue::begin(int64_t place) {
    const std::lock_guard lock(mutex_);
    not_begun_.erase(place);
    if (!not_begun_.empty()) not_begun_.begin()->second.notify_one();
}

Late::~Late() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
    for (const Item& item : waiting_)
        if (queue_) queue_->begin(item.place);
}

void Late::work_alone(uint64_t seed) {
    draws_ = seed != 0;
    random_.seed(static_cast<unsigned>(seed));
    worker_ = std::thread([this] { run_alone(); });
}

int64_t Late::add(std::function<void()> item, Kind kind) {
    int64_t place = 0;
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back({std::move(item), kind, queue_ ? queue_->enter() : 0});
        newest_ = Clock::now();
        place = given();
    }
    changed_.notify_all();
    return place;
}

int64_t Late::end() const {
    const std::lock_guard lock(mutex_);
    return given();
}

bool Late::done_until(int64_t place) const {
    const std::lock_guard lock(mutex_);
    return done_ >= place;
}

void Late::wait(std::unique_lock<std::mutex>& lock, int64_t place) {
    while (done_ < place) {
        if (busy_) {
            changed_.wait(lock);
            continue;
        }
        run_next(lock);
    }
}

void Late::run_until(int64_t place) {
    std::unique_lock lock(mutex_);
    wait(lock, place);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Late::finish() {
    std::unique_lock lock(mutex_);
    wait(lock, given());
}

void Late::run_next(std::unique_lock<std::mutex>& lock) {
    const Item item = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr thrown;
    if (queue_) queue_->wait_until_first(item.place);
    if (queue_ && item.kind == Kind::work) queue_->begin(item.place);
    try {
        item.work();
    } catch (...) {
        thrown = std::current_exception();
    }
    if (queue_ && item.kind == Kind::wait) queue_->begin(item.place);
    lock.lock();
    if (thrown && !failure_) failure_ = thrown;
    busy_ = false;
    ++done_;
    changed_.notify_all();
}

void Late::run_alone() {
    constexpr int kDrawn[] = {0, 0, 100, 1000, 4000};  // us
    std::unique_lock lock(mutex_);
    while (!ending_) {
        if (busy_ || waiting_.empty()) {
            changed_.wait(lock);
        } else if (Clock::now() < newest_ + lateness_) {
            changed_.wait_until(lock, newest_ + lateness_);
        } else {
            run_next(lock);
            if (draws_) lateness_ = std::chrono::microseconds(kDrawn[random_() % std::size(kDrawn)]);
        }
    }
}

namespace {

// TUTTI_EMULATED_STREAMS=seed: all streams of a program go on by themselves, at drawn times.
StreamRules rules_of_environment() {
    const char* const seed = std::getenv("TUTTI_EMULATED_STREAMS");
    return seed == nullptr ? StreamRules{} : StreamRules{.alone = true, .seed = std::strtoull(seed, nullptr, 10)};
}

// A global, because threads share the emulated GPUs.
struct Shared {
    std::mutex mutex;
    StreamRules rules = rules_of_environment();
    std::map<int, std::vector<std::weak_ptr<Late>>> streams;  // by GPU
    std::map<int, std::vector<std::shared_ptr<HardwareQueue>>> queues;
    std::map<int, size_t> made;  // streams, ever
    std::set<std::pair<int, const void*>> loaded;
};
Shared& shared() {
    static Shared* const all = new Shared;  // static objects of tests free memory after main()
    return *all;
}

}  // namespace

void set_rules(const StreamRules& rules) {
    const std::lock_guard lock(shared().mutex);
    shared().rules = rules;
    shared().queues.clear();
    shared().made.clear();
    shared().loaded.clear();
}

std::shared_ptr<Late> make_stream(int gpu, bool priority) {
    Shared& all = shared();
    const std::lock_guard lock(all.mutex);
    const auto late = std::make_shared<Late>();
    const size_t number = all.made[gpu]++;
    if (const int count = all.rules.hardware_queues; count > 0) {
        auto& queues = all.queues[gpu];
        while (queues.size() < static_cast<size_t>(count)) queues.push_back(std::make_shared<HardwareQueue>());
        late->share(queues[number % queues.size()]);
    }
    const uint64_t seed = all.rules.seed;
    if (priority || all.rules.alone) late->work_alone(seed == 0 ? 0 : seed * 1000 + number);
    auto& streams = all.streams[gpu];
    std::erase_if(streams, [](const auto& stream) { return stream.expired(); });
    streams.push_back(late);
    return late;
}

void finish_gpu(int gpu) {
    std::vector<std::shared_ptr<Late>> streams;
    {
        const std::lock_guard lock(shared().mutex);
        for (const auto& stream : shared().streams[gpu])
            if (auto late = stream.lock()) streams.push_back(std::move(late));
    }
    for (const auto& stream : streams) stream->finish();
}

bool first_launch(int gpu, const void* kernel) {
    const std::lock_guard lock(shared().mutex);
    return shared().rules.lazy_modules && shared().loaded.insert({gpu, kernel}).second;
}

}  // namespace tutti::emulation
