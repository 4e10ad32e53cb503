// simulate/published.h: runs of other systems, as papers and benchmarks publish them: rows of JSON, read into jobs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/job.h"

namespace tutti::simulate {

struct PublishedRun {
    std::string id, family;
    Job job;
    hardware::Cluster cluster;
    double seconds = 0;       // measured, of a step; 0: not given
    double memory_bytes = 0;  // measured, of a rank; 0: not given
    std::string problem;      // why the row cannot be simulated; ""
};

// {"rows": [{...}]} with the fields of tests/published/runs.json. A field that is missing or null takes the usual value
// for the software; a field of a wrong type becomes the row's problem. DataError for text that is no such document, or
// that has no rows.
std::vector<PublishedRun> read_published(std::string_view json, const std::string& source_name);

}  // namespace tutti::simulate
