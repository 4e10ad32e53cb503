#include "tutti/cli/flight_summary.h"

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/diagnose/flight_findings.h"

namespace tutti::cli {

report::FlightSummary flight_summary(const std::string& run_directory) {
    report::FlightSummary summary;
    if (!std::filesystem::is_directory(run_directory + "/flight")) return summary;
    try {
        const diagnose::FlightReading reading = diagnose::read_flight(run_directory);
        summary.missing = reading.missing;
        for (const diagnose::FlightFinding& finding : reading.findings) summary.findings.push_back(finding.text);
        for (const comm::FlightRecord& record : reading.records) {
            summary.written = std::max(summary.written, record.written);
            summary.last_operations[record.rank] = diagnose::last_operation(record);
        }
    } catch (const DataError&) {  // being written, or of an earlier version
    }
    return summary;
}

}  // namespace tutti::cli
