// spec/validate.h: checks whether a run is possible, before anything is allocated.
#pragma once

#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// Throws one UsageError with one line per key whose value is out of its range; when there is none, one line per broken
// rule between keys: the key, its value, the rule, the nearest legal values. `ranks`: of the run, at least 1.
void validate(const RunSpec& run, int ranks);

// The same lines for a model alone; empty when it is legal.
std::vector<std::string> model_problems(const ModelSpec& model);

// dp_replicate * dp_shard, with dp_shard = -1 resolved to the ranks that the other axes leave (0 when they do not
// divide the ranks).
int64_t data_parallel_ranks(const ParallelSpec& parallel, int ranks);
int64_t data_parallel_shards(const ParallelSpec& parallel, int ranks);  // dp_shard, resolved in the same way

// Ranks of cp that exchange heads for tokens: cp_ulysses, with 0 resolved. cp / ulysses_ranks() ranks exchange keys.
int64_t ulysses_ranks(const ParallelSpec& parallel);

}  // namespace tutti::spec
