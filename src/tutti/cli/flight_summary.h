// cli/flight_summary.h: the flight records of a run (diagnose/flight_findings.h) as the pages of rooms below show them.
#pragma once

#include <string>

#include "tutti/report/run_history.h"

namespace tutti::cli {

// Nothing where there are no records, or damaged ones.
report::FlightSummary flight_summary(const std::string& run_directory);

}  // namespace tutti::cli
