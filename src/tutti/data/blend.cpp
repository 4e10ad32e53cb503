// data/blend.cpp: the share of the left half as a whole number of 2^-52, so that the products are exact.
#include "tutti/data/blend.h"

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::data {

namespace {

constexpr int kBits = 52;

__extension__ typedef unsigned __int128 Wide;  // m p with m < 2^64

uint64_t floor_of_product(uint64_t m, uint64_t share) { return static_cast<uint64_t>((Wide{m} * share) >> kBits); }

}  // namespace

Blend::Blend(const std::vector<double>& weights) : sums_{0} {
    check<UsageError>(!weights.empty(), "a blend needs a source");
    for (const double weight : weights) {
        check<UsageError>(std::isfinite(weight) && weight > 0, "the weights of a blend must be positive, got ", weight);
        sums_.push_back(sums_.back() + weight);
    }
}

double Blend::share(size_t part) const { return (sums_.at(part + 1) - sums_.at(part)) / sums_.back(); }

Blend::Place Blend::place(uint64_t i) const {
    size_t begin = 0, end = sums_.size() - 1;
    while (end - begin > 1) {
        const size_t middle = (begin + end) / 2;
        const double p = (sums_[middle] - sums_[begin]) / (sums_[end] - sums_[begin]);
        const auto share = static_cast<uint64_t>(std::llround(std::ldexp(p, kBits)));
        const uint64_t left = floor_of_product(i, share);
        if (floor_of_product(i + 1, share) > left) {
            end = middle;
            i = left;
        } else {
            begin = middle;
            i -= left;
        }
    }
    return {begin, i};
}

}  // namespace tutti::data
