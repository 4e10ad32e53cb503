#include "tutti/comm/flight_recorder.h"

#include <algorithm>
#include <chrono>

namespace tutti::comm {

namespace {

int64_t clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

FlightRecorder::FlightRecorder() : origin_ns_(clock_ns()), started_(unix_time()) {}

double FlightRecorder::now() const { return static_cast<double>(clock_ns() - origin_ns_) * 1e-9; }

size_t FlightRecorder::add_group(const std::string& name, const std::vector<int>& ranks) {
    std::lock_guard lock(mutex_);
    const auto generation = std::count_if(groups_.begin(), groups_.end(), [&](const FlightRecord::Group& group) {
        return group.name == name && group.ranks == ranks;
    });
    groups_.push_back({.name = name, .ranks = ranks, .generation = static_cast<int>(generation)});
    return groups_.size() - 1;
}

uint64_t FlightRecorder::start(size_t group, uint64_t sequence, const Summary& operation) {
    std::lock_guard lock(mutex_);
    ring_[count_ % kEntries] = {.group = group, .sequence = sequence, .operation = operation, .start_s = now()};
    if (trace_ != nullptr)
        spans_[count_ % kEntries] = trace_->begin({.activity = Activity::communication,
                                                   .name = name_of(operation.kind),
                                                   .of = name_of(operation.dtype),
                                                   .group = groups_[group].name,
                                                   .number = sequence,
                                                   .bytes = operation.bytes});
    if (!is_message(operation.kind)) groups_[group].begun = sequence;
    return count_++;
}

void FlightRecorder::run(uint64_t number) {
    std::lock_guard lock(mutex_);
    if (number + kEntries >= count_) ring_[number % kEntries].state = State::running;
}

void FlightRecorder::finish(uint64_t number, State state, const std::optional<TimeSpan>& gpu_times) {
    std::lock_guard lock(mutex_);
    if (number + kEntries < count_) return;  // overwritten since
    ring_[number % kEntries].state = state;
    ring_[number % kEntries].end_s = now();
    if (trace_ == nullptr) return;
    const size_t span = spans_[number % kEntries];
    gpu_times ? trace_->end_on_gpu(span, *gpu_times) : trace_->end(span);
}

bool FlightRecorder::traces() const {
    const std::lock_guard lock(mutex_);
    return trace_ != nullptr;
}

void FlightRecorder::trace_into(Tracer* trace) {
    std::lock_guard lock(mutex_);
    trace_ = trace;
    spans_.fill(Tracer::kNone);
}

std::vector<FlightRecorder::Entry> FlightRecorder::last_entries() const {
    std::vector<Entry> all;
    for (uint64_t i = count_ > kEntries ? count_ - kEntries : 0; i < count_; ++i) all.push_back(ring_[i % kEntries]);
    return all;
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
    std::lock_guard lock(mutex_);
    return last_entries();
}

FlightRecord FlightRecorder::record(int rank, int ranks, Cause cause, const std::string& reason) const {
    std::lock_guard lock(mutex_);
    return {.rank = rank,
            .ranks = ranks,
            .cause = cause,
            .reason = reason,
            .started = started_,
            .written = unix_time(),
            .groups = groups_,
            .operations = last_entries(),
            .forgotten = count_ > kEntries ? count_ - kEntries : 0};
}

}  // namespace tutti::comm
