// spec/recompute.h: what recompute.policy means; the trainer and the plan read it here.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::spec {

struct Recompute {
    int64_t segment = 0;     // blocks that are run again together in the backward, from their input; 0: none
    bool selective = false;  // norms and activation functions alone are: cheap, and a third of what a block saves
};

// "none", "selective", "full" (segments of 1), "every:N" (of N), "sqrt" (of round(sqrt(layers))). Throws UsageError for
// any other policy.
Recompute recompute_of(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
