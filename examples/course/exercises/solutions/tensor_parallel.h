// A solution of exercise 3 (Shoeybi et al. 2019): f is the identity and an all-reduce backward, g the other way round.
#pragma once

#include "given.h"

// a (F / n, C), b (C, F / n): this rank's parts, `part` = F / n.
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
    p.y = ranks.all_reduce(p.y);
    p.dx = ranks.all_reduce(p.dx);
    return p;
}
