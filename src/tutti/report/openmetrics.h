// report/openmetrics.h: watched runs as text for Prometheus: OpenMetrics 1.0, or the older format 0.0.4.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/report/watched_run.h"

namespace tutti::report {

enum class MetricsFormat { openmetrics, text };
// By the header field Accept of a request.
MetricsFormat format_of(std::string_view accept);
std::string_view content_type(MetricsFormat format);

struct MetricFamily {
    const char* name;  // of the family: a counter's samples end in _total, an info's in _info
    const char* type;  // "gauge", "counter", "info"
    const char* unit;  // "", or the end of the name
    const char* help;
};
// All families, in the order of the text.
const std::vector<MetricFamily>& metric_families();

// Every sample has the label `run`, the path as it was given. Numbers of a step are there only while a run goes on, so
// that no curve ends in a flat line; the state and counters stay. Ranks: see RankFigures.
std::string metrics_text(const std::vector<WatchedRun>& runs, MetricsFormat format);

}  // namespace tutti::report
