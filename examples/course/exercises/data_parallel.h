// Exercise 1: the all-reduce of data parallel training.
//
// Each rank has the gradient of its own samples. Make `gradient` the sum over all ranks, on every rank, with
// ranks.exchange() alone. A rank may send at most 2 (n - 1) / n of the values of a gradient, n ranks: if each sends its
// whole gradient to all others it sends n - 1 times as many, and the step of 1,024 ranks would never end.
//
// Hint 1: cut the gradient into n chunks. In a ring, rank r sends to r + 1 and receives from r - 1.
// Hint 2: in n - 1 rounds each chunk passes all ranks and is added to (reduce-scatter); then rank r has the whole sum
//         of one chunk. Which one, if rank r begins by sending chunk r?
// Hint 3: in n - 1 more rounds the finished chunks go round (all-gather).
#pragma once

#include "given.h"

// The number of values is a multiple of the number of ranks.
inline void sum_over_ranks(Ranks& ranks, Values& gradient) {
    // Your code. Until then every rank keeps the gradient of its own samples.
    (void)ranks;
    (void)gradient;
}
