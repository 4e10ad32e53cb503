// comm/flight_record.h: the last operations of a rank, from which to find the cause when a run fails: the record as
// plain data and as a file, and the recorder. diagnose/flight_findings.h compares the records of all ranks.
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

// started: queued; on a GPU the operation may still wait for work of its own rank before it is running.
enum class State : uint8_t { started, complete, failed, running };
inline bool under_way(State state) { return state == State::started || state == State::running; }
std::string_view name_of(State state);

// Why the rank stopped. told: another rank had failed, or had died.
enum class Cause : uint8_t { failed, timed_out, told };
std::string_view name_of(Cause cause);
Cause cause_of(const std::exception& error);

struct FlightRecord {
    // The k-th group made with this name and these ranks has generation k.
    struct Group {
        std::string name;
        std::vector<int> ranks;  // of the world
        int generation = 0;
        uint64_t begun = 0;  // collectives that this rank has begun in it
        bool same(const Group& other) const {
            return name == other.name && ranks == other.ranks && generation == other.generation;
        }
    };
    struct Entry {
        size_t group = 0;       // in `groups`
        uint64_t sequence = 0;  // of the group, from 1; messages count per pair of ranks and direction
        Summary operation;
        State state = State::started;
        double start_s = 0, end_s = 0;  // since `started`; end_s only after the end
    };

    int rank = 0, ranks = 1;  // of the world
    Cause cause = Cause::failed;
    std::string reason;
    double started = 0, written = 0;  // Unix time in seconds; started: the recorder was created
    std::vector<Group> groups;
    std::vector<Entry> operations;  // the last ones, oldest first
    uint64_t forgotten = 0;         // earlier operations that are not in the record
};

std::string to_json(const FlightRecord& record);
// DataError with the file and the place in the file when the text is not a complete record.
FlightRecord read_flight_record(const std::filesystem::path& path);

// Keeps the last operations of a rank in a ring. Thread safe.
class FlightRecorder {
  public:
    static constexpr size_t kEntries = 512;
    using Entry = FlightRecord::Entry;

    FlightRecorder();
    // Returns the group's number, for start().
    size_t add_group(const std::string& name, const std::vector<int>& ranks);
    // Returns the entry's number, for finish().
    uint64_t start(size_t group, uint64_t sequence, const Summary& operation);
    void run(uint64_t number);  // the operation no longer waits for this rank's own work
    // `gpu_times`: for the trace, if a GPU timed the operation.
    void finish(uint64_t number, State state, const std::optional<TimeSpan>& gpu_times = std::nullopt);
    // Oldest first.
    std::vector<Entry> entries() const;
    // Operations that begin from now on become spans of this trace; nullptr: of none. The trace must outlive those
    // operations.
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
