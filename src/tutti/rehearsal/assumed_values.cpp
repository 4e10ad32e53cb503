#include "tutti/rehearsal/assumed_values.h"

#include <cmath>
#include <numeric>

namespace tutti::rehearsal {

std::vector<int32_t> AssumedValues::choices(const Tensor& experts, int64_t all) const {
    const int64_t N = experts.dim(0), k = experts.dim(1);
    std::vector<int32_t> choices(static_cast<size_t>(N * k));
    if (loads_.empty()) {
        for (size_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<int32_t>(i % static_cast<size_t>(all));
        return choices;
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
        // Choice j of row r has number j N + r. The choices of an expert are at most N consecutive numbers, so their
        // rows differ.
        for (; at < end; ++at) choices[static_cast<size_t>(at % N * k + at / N)] = static_cast<int32_t>(e);
    }
    return choices;
}

std::vector<int32_t> AssumedValues::of_ranks(const Tensor& values, const std::vector<int32_t>& own) const {
    std::vector<int32_t> all(static_cast<size_t>(values.numel()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = own[i % own.size()];
    return all;
}

}  // namespace tutti::rehearsal
