// tests/layouts/trial.h: one draw of the campaign over layouts: a small model, a run of a few steps, a layout of 2 to 8
// ranks, and with what the layout is compared. A trial is a pure function of a seed and a number.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::layouts {

using Setting = std::pair<std::string, std::string>;  // "parallel.tp", "2": as of --set
using Settings = std::vector<Setting>;

enum class Compare {
    one_rank,  // losses, norms, balancing losses and weights with those of one rank; memory with the rehearsed one
    twin,      // the same bits with settings that may not change them
    resumed,   // a first part under another layout, then this one, with one rank
    verify,    // `tutti verify` sees no difference
};
const char* name_of(Compare compare);

struct Trial {
    std::string model = {};  // "qwen2"
    Compare compare = Compare::one_rank;
    Settings run = {};     // the model and its training
    Settings layout = {};  // parallelism, recompute, offload, communication
    int ranks = 2;
    Settings other = {};  // twin: settings over `layout`; resumed: the layout of the first part
    int other_ranks = 1;
    int steps = 3;
};

// A trial that spec::validate() accepts. `attempt`: another one, when the engine refuses the layout.
Trial draw(uint64_t seed, int64_t number, int attempt, Compare compare);

// The run of these settings, later ones over earlier ones. UsageError as spec::validate().
spec::RunSpec run_of(const std::vector<Settings>& settings, int ranks);

std::string text_of(const Settings& settings);  // "--set a.b=c --set ..."

}  // namespace tutti::layouts
