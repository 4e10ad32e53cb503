// data/permutation.h: a pseudo-random order of 0 .. n-1, one element at a time in O(1) memory. Stands on base/philox.h;
// the sampler draws its epochs from it. No shuffled list exists, so resuming at any step costs nothing.
#pragma once

#include <cstdint>

#include "tutti/base/philox.h"

namespace tutti::data {

// The i-th element of the order of 0 .. n-1 that `key` names: a bijection in i for each (key, n). 0 <= i < n <= 2^62.
//
// A balanced Feistel network on the smallest even number of bits that holds n - 1 (Luby and Rackoff, 1988; ten rounds,
// because halves are as small as one bit here), with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002): an output of n or above is fed in again until it falls below n. The domain is less than 4n, so that
// takes fewer than four passes on average.
int64_t permute(RandomKey key, int64_t n, int64_t i);

}  // namespace tutti::data
