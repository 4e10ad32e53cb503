#include "tutti/spec/recompute.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::spec {

Recompute recompute_of(const std::string& policy, int64_t layers) {
    if (policy == "none") return {};
    if (policy == "selective") return {.selective = true};
    if (policy == "full") return {.segment = 1};
    if (policy == "sqrt")
        return {.segment = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(layers))))};
    constexpr std::string_view kEvery = "every:";
    int64_t every = 0;
    if (policy.starts_with(kEvery)) {
        const char* end = policy.data() + policy.size();
        const auto [stop, error] = std::from_chars(policy.data() + kEvery.size(), end, every);
        if (error == std::errc() && stop == end && every >= 1) return {.segment = every};
    }
    throw UsageError(concat("recompute.policy must be none, selective, full, sqrt or every:N, got \"", policy, "\""));
}

}  // namespace tutti::spec
