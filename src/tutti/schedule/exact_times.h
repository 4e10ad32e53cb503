// schedule/exact_times.h: times as people write them ("1.5", "1/3", "2e-3"), counted in their common unit, so that a
// timeline of them is exact: no sum is rounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::schedule {

struct ExactTimes {
    std::vector<int64_t> counts;  // one for each text
    int64_t unit = 1;             // how many counts are one
};

// UsageError, with the text and the name of its option, for what is no number, is negative, or is too long for sums
// over so many actions to be exact.
struct NamedText {
    std::string name, text;
};
ExactTimes exact_times(const std::vector<NamedText>& texts, int64_t actions);

}  // namespace tutti::schedule
