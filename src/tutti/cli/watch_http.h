// cli/watch_http.h: `tutti watch --http`: watched runs as a page (report/live_page.h) and for Prometheus
// (report/openmetrics.h), by the server of http/server.h.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tutti/cli/io.h"
#include "tutti/report/watched_run.h"

namespace tutti::cli {

// Serves until `asked`. `update` reads what is new of the runs. `listen`: as http::parse_address has it, "": a free
// port of this machine alone. Returns the URL. UsageError where the address cannot be had.
std::string serve_runs(const std::string& listen, std::vector<report::WatchedRun>& runs,
                       const std::function<void()>& update, const std::atomic<bool>& asked, const Io& io);

}  // namespace tutti::cli
