#include "tutti/rehearsal/assumed_values.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/base/to_size.h"

namespace tutti::rehearsal {

using Counts = ops::ShapingValues::Counts;

Counts AssumedValues::loads(Counts counts, int64_t N, int64_t k) const {
    if (loads_.empty()) {
        const auto E = static_cast<int64_t>(counts.size());
        for (int64_t e = 0; e < E; ++e) counts[to_size(e)] = N * k / E + (e < N * k % E ? 1 : 0);
        return counts;
    }
    const double sum = std::accumulate(loads_.begin(), loads_.end(), 0.0);
    const auto largest = static_cast<double>(N) * (1 + 1e-9);
    double up_to = 0;  // choices of the experts so far
    int64_t at = 0;
    for (size_t e = 0; e < loads_.size(); ++e) {
        const double mine = static_cast<double>(N * k) * loads_[e] / sum;
        check<UsageError>(mine <= largest, "a load of ", loads_[e] / sum * static_cast<double>(loads_.size()),
                          " times the mean for expert ", e, " of ", loads_.size(), ": at ",
                          static_cast<double>(loads_.size()) / static_cast<double>(k), " times, with ", k,
                          " choices of a token, every token chooses it");
        up_to += mine;
        const int64_t end = e + 1 == loads_.size() ? N * k : std::min<int64_t>(N * k, std::llround(up_to));
        counts[e] = end - std::exchange(at, end);
    }
    return counts;
}

Counts AssumedValues::accepted(Counts counts, const Counts& load, int64_t capacity, int64_t P) const {
    for (size_t e = 0; e < counts.size(); ++e) counts[e] = std::min(load[e], capacity / P);
    return counts;
}

Counts AssumedValues::of_ranks(Counts counts, const Counts& own) const {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = own[i % own.size()];
    return counts;
}

}  // namespace tutti::rehearsal
