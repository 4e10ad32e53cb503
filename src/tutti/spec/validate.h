// spec/validate.h: checks whether a run is possible, before anything is allocated.
#pragma once

#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// Throws one UsageError with one line per key whose value is out of its range; when there is none, one line per broken
// rule between keys: the key, its value, the rule, the nearest legal values. Each stage is checked as a run, and
// named where not all have a problem. `ranks`: of the run, at least 1.
void validate(const RunSpec& run, int ranks);

// The same lines for a model alone; empty when it is legal.
std::vector<std::string> model_problems(const ModelSpec& model);

}  // namespace tutti::spec
