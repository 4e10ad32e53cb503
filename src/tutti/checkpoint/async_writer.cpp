#include "tutti/checkpoint/async_writer.h"

#include <exception>
#include <utility>

#include "tutti/base/refused.h"

namespace tutti::checkpoint {

namespace {

// The error of the job, or nothing. The job and the snapshot that it owns are destroyed before this returns.
std::optional<std::string> error_of(AsyncWriter::Job job) {  // NOLINT(performance-unnecessary-value-param): ends here
    try {
        job();
        return std::nullopt;
    } catch (const std::exception& error) {
        return error.what();
    } catch (...) {
        return "the background save failed with an unknown exception";
    }
}

}  // namespace

AsyncWriter::AsyncWriter(std::function<void(const std::string&)> unclaimed)
    : unclaimed_(std::move(unclaimed)), thread_(start_thread("writes checkpoints", [this] { run(); })) {}

AsyncWriter::~AsyncWriter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    for (const std::string& error : errors_) {
        try {
            unclaimed_(error);
        } catch (...) {  // a destructor has nowhere to throw to
        }
    }
}

void AsyncWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return waiting_.has_value() || stopping_; });
        if (!waiting_) return;
        Job job = std::move(*waiting_);
        waiting_.reset();
        lock.unlock();
        auto error = error_of(std::move(job));
        lock.lock();
        if (error) errors_.push_back(std::move(*error));
        running_ = false;
        changed_.notify_all();
    }
}

void AsyncWriter::submit(Job job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_; });
    running_ = true;
    waiting_ = std::move(job);
    changed_.notify_all();
}

bool AsyncWriter::busy() const {
    const std::lock_guard lock(mutex_);
    return running_;
}

void AsyncWriter::wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_; });
}

void AsyncWriter::wait_for(std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return !running_; });
}

std::optional<std::string> AsyncWriter::poll_error() {
    const std::lock_guard lock(mutex_);
    if (errors_.empty()) return std::nullopt;
    std::string error = std::move(errors_.front());
    errors_.pop_front();
    return error;
}

}  // namespace tutti::checkpoint
