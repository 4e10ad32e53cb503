// train/same_run.h: before the first step, that all ranks are about to do the same: processes may have been started
// with different configs, data files or builds, and would train together without a word.
#pragma once

#include <string>

#include "tutti/comm/communicator.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

// Of this rank: the version of the program, the run directory, and every key of the config; a line "name = value" each.
std::string recipe_of(const spec::RunSpec& run, const std::string& out);

// Compares the lines "name = value" of all ranks. UsageError on each of them when some differ, with the names, the
// values, and the ranks and hosts that have them. Collective.
void check_same(comm::Communicator& ranks, const std::string& lines);

}  // namespace tutti::train
