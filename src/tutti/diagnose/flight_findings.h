// diagnose/flight_findings.h: reads the flight records of all ranks of a failed run and finds the rank that diverged
// first. Plain data in, plain data out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/comm/flight_record.h"

namespace tutti::diagnose {

struct FlightFinding {
    // From cause to effect: a failing rank makes other ranks miss its operations and wait, never the reverse.
    enum class Kind : uint8_t {
        different,  // ranks call different operations under the same number of a group
        failed,     // the rank failed with an error, not because another rank failed
        missing,    // the rank left no record: it was killed, or its host is gone
        behind,     // other ranks wait for an operation that the rank has not begun
        circle,     // ranks wait for one another
        level,      // all ranks have begun the same operations
    };
    Kind kind = Kind::level;
    std::vector<int> ranks;  // at fault, of the world, ascending
    std::string group;       // and sequence: the operation; "" and 0: none
    uint64_t sequence = 0;
    std::string text;  // a sentence for people
};
std::string_view name_of(FlightFinding::Kind kind);

struct FlightReading {
    int ranks = 0;                            // of the run
    std::vector<comm::FlightRecord> records;  // by rank
    std::vector<int> missing;                 // ranks without a record
    std::vector<std::string> left_out;        // files of an earlier session of the run
    std::vector<FlightFinding> findings{};    // at least one; the first is the first cause
};

// `directory`: of a run, or its flight/. DataError when there are no records, or one of them is damaged.
FlightReading read_flight(const std::filesystem::path& directory);

// The findings from these records alone, in the order of FlightReading::findings.
std::vector<FlightFinding> find_divergence(const std::vector<comm::FlightRecord>& records, int ranks);

// "all_reduce of 4 f32, operation 7 of group dp, complete"; "nothing" for a record without operations.
std::string last_operation(const comm::FlightRecord& record);

}  // namespace tutti::diagnose
