// comm/flight_recorder.h: the last operations of a rank, kept in a ring and written out when something fails: which
// rank took another path, or stood still, can be read from the records of all. Communicators write it.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/base/trace.h"
#include "tutti/comm/flight_record.h"

namespace tutti::comm {

class FlightRecorder {
  public:
    static constexpr size_t kEntries = 512;
    using Entry = FlightRecord::Entry;

    FlightRecorder();
    // Returns the group's number, for start().
    size_t add_group(const std::string& name, const std::vector<int>& ranks);
    // Returns the entry's number, for finish().
    uint64_t start(size_t group, uint64_t sequence, const Summary& operation);
    void run(uint64_t number);  // it was waiting for this rank's own work until now
    void finish(uint64_t number, State state, const std::optional<TimeSpan>& gpu_times = std::nullopt);
    // Oldest first.
    std::vector<Entry> entries() const;
    // Operations that begin from now on are spans of this trace too; nullptr: of none. It must outlive them, or be
    // taken away.
    void trace_into(Tracer* trace);
    bool traces() const;
    FlightRecord record(int rank, int ranks, Cause cause, const std::string& reason) const;

  private:
    double now() const;
    std::vector<Entry> last_entries() const;
    mutable std::mutex mutex_;
    std::vector<FlightRecord::Group> groups_;
    std::array<Entry, kEntries> ring_;
    std::array<size_t, kEntries> spans_;  // of the entries, in trace_
    Tracer* trace_ = nullptr;
    uint64_t count_ = 0;
    int64_t origin_ns_ = 0;
    double started_ = 0;
};

}  // namespace tutti::comm
