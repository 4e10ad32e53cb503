#include "tutti/comm/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace tutti::comm {

namespace {

int64_t clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

const char* name_of(State state) {
    return state == State::started ? "started" : state == State::complete ? "complete" : "failed";
}

}  // namespace

FlightRecorder::FlightRecorder() : origin_ns_(clock_ns()) {}

double FlightRecorder::now() const { return static_cast<double>(clock_ns() - origin_ns_) * 1e-9; }

uint64_t FlightRecorder::start(const std::string& group, uint64_t sequence, const Summary& operation) {
    std::lock_guard lock(mutex_);
    ring_[count_ % kEntries] = {.group = group, .sequence = sequence, .operation = operation, .start_s = now()};
    return count_++;
}

void FlightRecorder::finish(uint64_t number, State state) {
    std::lock_guard lock(mutex_);
    if (number + kEntries < count_) return;  // overwritten since
    ring_[number % kEntries].state = state;
    ring_[number % kEntries].end_s = now();
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
    std::lock_guard lock(mutex_);
    std::vector<Entry> all;
    for (uint64_t i = count_ > kEntries ? count_ - kEntries : 0; i < count_; ++i) all.push_back(ring_[i % kEntries]);
    return all;
}

std::string FlightRecorder::to_json(int rank, const std::string& reason) const {
    nlohmann::ordered_json operations = nlohmann::ordered_json::array();
    for (const Entry& e : entries())
        operations.push_back({{"group", e.group},
                              {"sequence", e.sequence},
                              {"operation", e.operation.text()},
                              {"bytes", e.operation.bytes},
                              {"state", name_of(e.state)},
                              {"start_s", e.start_s},
                              {"end_s", e.end_s}});
    const nlohmann::ordered_json document = {{"rank", rank}, {"reason", reason}, {"operations", operations}};
    return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tutti::comm
