// kernels/tuning_file.h: what the files of measured choices have in common: JSON with a format, a version, the GPU,
// driver and library of the measurement, and a list. A run reads such a file and never measures, so that two runs, and
// all ranks of a run, compute the same way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/kernels/measured_on.h"

namespace tutti::kernels {

struct TuningKind {
    const char *format, *list;  // "tutti matrix products", "products"
    const char* command;        // that writes it: "tutti bench step --tune"
};

std::string tuning_text(const TuningKind& kind, const MeasuredOn& on, std::vector<Json> rows);
// Calls `row` for each of the list. Throws DataError, naming the file and the place, if the file is not of this kind.
// Throws UsageError, naming both sides, if it is for another GPU, driver or library than `here`.
void read_tuning(const std::string& path, const TuningKind& kind, const MeasuredOn& here,
                 const std::function<void(const Json&)>& row);

}  // namespace tutti::kernels
