// A solution of exercise 1: a ring (Patarasuk and Yuan 2009).
#pragma once

#include <algorithm>

#include "given.h"

inline void sum_over_ranks(Ranks& ranks, Values& gradient) {
    const int n = ranks.size(), next = (ranks.rank() + 1) % n, previous = (ranks.rank() + n - 1) % n;
    const size_t size = gradient.size() / static_cast<size_t>(n);
    const auto chunk = [&](int i) { return gradient.begin() + static_cast<ptrdiff_t>(size) * ((i % n + n) % n); };
    const auto pass_on = [&](int i) {  // sends chunk i and returns the one before
        return ranks.exchange(Values(chunk(i), chunk(i) + static_cast<ptrdiff_t>(size)), next, previous, size);
    };
    for (int round = 0; round < n - 1; ++round) {
        const Values received = pass_on(ranks.rank() - round);
        const auto mine = chunk(ranks.rank() - round - 1);
        for (size_t i = 0; i < size; ++i) mine[static_cast<ptrdiff_t>(i)] += received[i];
    }
    for (int round = 0; round < n - 1; ++round) {
        const Values received = pass_on(ranks.rank() + 1 - round);
        std::copy(received.begin(), received.end(), chunk(ranks.rank() - round));
    }
}
