// Exercise 3: column and row parallel linear layers.
//
// y = relu(x A^T) B^T with x (T, C), A (F, C), B (C, F). Rank r of n has rows [r F / n, (r + 1) F / n) of A, which are
// columns of the output of the first layer, and the same columns of B. x, y and their gradients are whole on every
// rank. Complete forward and backward with as few all-reduces as possible: two in all.
//
// Hint 1: which of the products below is a sum over F, and which over C? A rank has a part of F only.
// Hint 2: the relu needs no communication, since a rank has whole columns. (It would if A were cut along C.)
#pragma once

#include "given.h"

// a (F / n, C), b (C, F / n): this rank's parts, `part` = F / n. Passes: y and dx (T, C), da and db like a and b.
inline Passes mlp(Ranks& ranks, const Values& x, const Values& a, const Values& b, const Values& dy, size_t tokens,
                  size_t width, size_t part) {
    Passes p;
    const Values before = product_t(x, a, tokens, part);  // (T, F / n)
    const Values h = relu(before);
    p.y = product_t(h, b, tokens, width);
    p.db = t_product(dy, h, width, part);
    const Values dbefore = relu_backward(product(dy, b, tokens, part), before);
    p.da = t_product(dbefore, x, part, width);
    p.dx = product(dbefore, a, tokens, width);
    // Your code: two of these are partial sums.
    (void)ranks;
    return p;
}
