// comm/flight_record.h: the flight record of a rank: its last operations, from which to find why a run failed; as plain
// data, as a file, and its recorder. diagnose/flight_findings.h compares the records of all ranks.
#pragma once

#include <array>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/trace.h"
#include "tutti/comm/collective.h"

namespace tutti::comm {

// started: queued. On a GPU the operation runs only after earlier work of its own rank.
enum class State : uint8_t { started, complete, failed, running };
inline bool in_flight(State state) { return state == State::started || state == State::running; }
std::string_view name_of(State state);

// Why the rank stopped. told: another rank had failed or died.
enum class Cause : uint8_t { failed, timed_out, told };
std::string_view name_of(Cause cause);
Cause cause_of(const std::exception& error);

struct FlightRecord {
    // The k-th group made with this name and these ranks has generation k.
    struct Group {
        std::string name;
        std::vector<int> ranks;  // of the world
        int generation = 0;
        uint64_t begun = 0;  // collectives that this rank has begun in the group
        bool same(const Group& other) const {
            return name == other.name && ranks == other.ranks && generation == other.generation;
        }
    };
    struct Entry {
        size_t group = 0;       // in `groups`
        uint64_t sequence = 0;  // of the group, from 1; messages count per pair of ranks and direction
        Summary operation;
        State state = State::started;
        double start_s = 0, end_s = 0;  // since FlightRecord::started; end_s: 0 while in flight
    };

    int rank = 0, ranks = 1;  // of the world
    Cause cause = Cause::failed;
    std::string reason;
    double started = 0, written = 0;  // Unix time in seconds of the recorder's creation and of this record
    std::vector<Group> groups;
    std::vector<Entry> operations;  // the last ones, oldest first
    uint64_t forgotten = 0;         // earlier operations, overwritten
};

std::string to_json(const FlightRecord& record);
// DataError, with the path and what is wrong, if the file is not a complete record.
FlightRecord read_flight_record(const std::filesystem::path& path);

// Keeps the last operations of a rank in a ring buffer. Thread safe.
class FlightRecorder {
  public:
    static constexpr size_t kEntries = 512;
    using Entry = FlightRecord::Entry;

    FlightRecorder();
    // Returns the group's index, for start().
    size_t add_group(const std::string& name, const std::vector<int>& ranks);
    // Returns the entry's number, for run() and finish().
    uint64_t start(size_t group, uint64_t sequence, const Summary& operation);
    void run(uint64_t number);  // this rank's earlier work is done
    // `gpu_times`: for the trace, if a GPU timed the operation.
    void finish(uint64_t number, State state, const std::optional<TimeSpan>& gpu_times = std::nullopt);
    // Oldest first.
    std::vector<Entry> entries() const;
    // Records operations that begin from now on as spans of this trace, which must outlive them; nullptr: no trace.
    void trace_into(Tracer* trace);
    bool traces() const;
    FlightRecord record(int rank, int ranks, Cause cause, const std::string& reason) const;

  private:
    double now() const;
    std::vector<Entry> last_entries() const;
    mutable std::mutex mutex_;
    std::vector<FlightRecord::Group> groups_;
    std::array<Entry, kEntries> ring_;
    std::array<size_t, kEntries> spans_;  // by entry, in trace_
    Tracer* trace_ = nullptr;
    uint64_t count_ = 0;  // entries so far
    double origin_s_;     // of the entries' times, on the steady clock
    double started_;
};

}  // namespace tutti::comm
