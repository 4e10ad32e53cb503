// comm/flight_recorder.h: the last operations of a rank, kept in a ring and written out when something fails: which
// rank took another path, or stood still, can be read from the dumps. Below: collective.h. Communicators write it.
#pragma once

#include <array>
#include <mutex>
#include <string>

#include "tutti/comm/collective.h"

namespace tutti::comm {

enum class State : uint8_t { started, complete, failed };

class FlightRecorder {
  public:
    static constexpr size_t kEntries = 512;

    struct Entry {
        std::string group;
        uint64_t sequence = 0;  // of the group, from 1; messages count per pair of ranks
        Summary operation;
        State state = State::started;
        double start_s = 0, end_s = 0;  // seconds since the recorder was made
    };

    FlightRecorder();
    // Returns the entry's number, for finish().
    uint64_t start(const std::string& group, uint64_t sequence, const Summary& operation);
    void finish(uint64_t number, State state);
    // Oldest first.
    std::vector<Entry> entries() const;
    // {"rank": …, "reason": …, "operations": […]}
    std::string to_json(int rank, const std::string& reason) const;

  private:
    double now() const;
    mutable std::mutex mutex_;
    std::array<Entry, kEntries> ring_;
    uint64_t count_ = 0;
    int64_t origin_ns_ = 0;
};

}  // namespace tutti::comm
