// comm/flight_record.h: what a rank leaves behind when a run fails: its last operations, as plain data, and the file of
// it. FlightRecorder makes it, diagnose/flight_findings.h reads those of all ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/comm/collective.h"

namespace tutti::comm {

// started: put in order; on a GPU it may still wait there for work of the rank's own, until it is running.
enum class State : uint8_t { started, complete, failed, running };
inline bool under_way(State state) { return state == State::started || state == State::running; }
std::string_view name_of(State state);

// Why the rank stopped. told: another rank had failed, or had died.
enum class Cause : uint8_t { failed, timed_out, told };
std::string_view name_of(Cause cause);
Cause cause_of(const std::exception& error);

struct FlightRecord {
    // The k-th group that was made with this name and these ranks has generation k.
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
        double start_s = 0, end_s = 0;  // since `started`; end_s only when it has ended
    };

    int rank = 0, ranks = 1;  // of the world
    Cause cause = Cause::failed;
    std::string reason;
    double started = 0, written = 0;  // Unix time in seconds; started: the rank came into being
    std::vector<Group> groups;
    std::vector<Entry> operations;  // the last ones, oldest first
    uint64_t forgotten = 0;         // that came before them
};

std::string to_json(const FlightRecord& record);
// DataError with the file and the place in it when it is not a whole record.
FlightRecord read_flight_record(const std::filesystem::path& path);

}  // namespace tutti::comm
