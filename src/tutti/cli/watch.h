// cli/watch.h: watched runs on a page, and what reports and pages show of the flight records of a run
// (diagnose/flight_findings.h).
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tutti/cli/io.h"
#include "tutti/report/watched_run.h"

namespace tutti::cli {

// `tutti watch --http`: watched runs as a page (report/live_page.h) and for Prometheus (report/openmetrics.h), by the
// server of http/server.h. Serves until `asked` is set. `update` reads the runs' files. `listen`: an address of
// http::parse_address; "": a free loopback port. Returns the URL. UsageError when the address cannot be bound.
std::string serve_runs(const std::string& listen, std::vector<report::WatchedRun>& runs,
                       const std::function<void()>& update, const std::atomic<bool>& asked, const Io& io);

// The flight records of a run as pages show them. Nothing where there are no records, or damaged ones.
report::FlightSummary flight_summary(const std::string& run_directory);

}  // namespace tutti::cli
