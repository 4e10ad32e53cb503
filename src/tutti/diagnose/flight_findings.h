// diagnose/flight_findings.h: reads the flight records of all ranks of a failed run and says which rank went another
// way than the others, first. Plain data in, plain data out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/comm/flight_record.h"

namespace tutti::diagnose {

struct FlightFinding {
    // In the order of what they prove: a rank that fails makes others miss and wait for it, never the reverse.
    enum class Kind : uint8_t {
        different,  // ranks call different operations by the same number of a group
        failed,     // an error of the rank's own
        missing,    // left no record: it was killed, or its host is gone
        behind,     // others wait for an operation that it has not begun
        circle,     // ranks wait for one another
        level,      // all have begun the same operations
    };
    Kind kind = Kind::level;
    std::vector<int> ranks;  // at fault, of the world, rising
    std::string group;       // and sequence: where; "" and 0: nowhere
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

// The same of records that are there: exact, and in the order of FlightReading::findings.
std::vector<FlightFinding> find_divergence(const std::vector<comm::FlightRecord>& records, int ranks);

// "all_reduce of 4 f32, operation 7 of group dp, complete"; "nothing" when it recorded none.
std::string last_operation(const comm::FlightRecord& record);

}  // namespace tutti::diagnose
