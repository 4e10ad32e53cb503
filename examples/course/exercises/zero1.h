// Exercise 2: ZeRO-1. The state of the optimizer is divided among the ranks.
//
// AdamW keeps two moments for each weight; on n ranks of data parallel training that is the same state n times. Write a
// step in which a rank keeps and updates the moments of its own part of the weights only, and every rank ends with all
// weights. A step must send no more than an all-reduce of the gradient does.
//
// Hint 1: an all-reduce is a reduce-scatter and an all-gather. Something can be done between the two.
// Hint 2: rank r owns values [r N / n, (r + 1) N / n).
#pragma once

#include "given.h"

// The number of weights whose moments rank `ranks.rank()` keeps, of `weights`.
inline size_t kept(const Ranks& ranks, size_t weights) {
    (void)ranks;
    return weights;  // Your code: here, all of them.
}

// `gradient` is that of this rank's samples; `moments` has kept() values.
inline void training_step(Ranks& ranks, Values& weights, const Values& gradient, Moments& moments, int step) {
    // Your code. This is plain data parallel training.
    adamw(weights, ranks.all_reduce(gradient), moments, step);
}
