// plan/recompute.h: what a recompute policy means for the plan.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::plan {

// Blocks per recomputed segment: "none" 0, "full" 1, "every:N" N, "sqrt" round(sqrt(layers)). The rule of
// models::recompute_segment, which this room may not include. Throws UsageError for any other policy.
int64_t recompute_segment(const std::string& policy, int64_t layers);

}  // namespace tutti::plan
