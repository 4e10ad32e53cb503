// spec/identity.h: which runs may continue one another's checkpoints: those that agree on every key that fixes the
// meaning of a checkpoint's numbers. Field::identity says which keys these are.
#pragma once

#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// TOML with one line "section.key = value" for each key of the identity; keys that are part of it unless they have
// their default are left out where they do. Of a stage (stages.h) also which of the data's samples a step reads, unless
// that is as without stages.
std::string identity_of(const RunSpec& run);

// Why `run` is not the run of `identity`, a text of identity_of() in this version or another; empty: it is. One line a
// key, with both values: "model.width = 64, in the checkpoint 128". UsageError when `identity` is no TOML.
std::vector<std::string> identity_problems(const RunSpec& run, const std::string& identity);

// The keys in which a run differs from a config in TOML: "train.steps = 20 (was 10), optimizer.lr = 0.001 (was 0.003)",
// or "". Keys that only one of them has belong to another version of Tutti and are left out.
std::string changed_keys(const RunSpec& run, const std::string& config);

}  // namespace tutti::spec
