// spec/recompute.h: what recompute.policy means; the trainer and the plan read it here.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::spec {

// Blocks per recomputed segment: "none" 0, "full" 1, "every:N" N, "sqrt" round(sqrt(layers)). Throws
// UsageError for any other policy.
int64_t recompute_segment(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
