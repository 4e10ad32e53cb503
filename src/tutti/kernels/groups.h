// kernels/groups.h: the individual products of a GroupedGemm.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// Rows [first, first + rows) of a matrix; undefined stays undefined.
inline View rows_of(View x, int64_t first, int64_t rows) {
    if (x.data == nullptr) return x;
    x.data = static_cast<std::byte*>(x.data) + first * x.strides[0] * size_of(x.dtype);
    x.shape[0] = rows;
    return x;
}

// Matrix e of a contiguous (E, R, C).
inline View matrix_of(const View& x, int64_t e) {
    const int64_t R = x.shape[1], C = x.shape[2];
    return View(static_cast<std::byte*>(x.data) + e * R * C * size_of(x.dtype), x.dtype, {R, C});
}

// The product of group e, whose rows begin at row `first` of all.
inline Gemm group_of(const GroupedGemm& grouped, int64_t e, int64_t first) {
    Gemm g = grouped.all;
    const int64_t rows = grouped.rows[static_cast<size_t>(e)];
    g.a = rows_of(g.a, first, rows);
    if (g.transpose_a) {
        g.b = rows_of(g.b, first, rows);
        g.c = matrix_of(g.c, e);
        return g;
    }
    g.b = matrix_of(g.b, e);
    if (g.bias.defined()) {
        const int64_t N = g.bias.shape[1];
        g.bias = View(static_cast<std::byte*>(g.bias.data) + e * N * size_of(g.bias.dtype), g.bias.dtype, {N});
    }
    for (View* x : {&g.c, &g.x, &g.gate, &g.dup}) *x = rows_of(*x, first, rows);
    return g;
}

// Calls body(Gemm) for every group, except empty groups that leave c unchanged.
template <class Body>
void for_groups(const GroupedGemm& grouped, Body&& body) {
    const bool zeroes_empty = grouped.all.transpose_a && !grouped.all.accumulate;
    for (int64_t e = 0, first = 0; e < static_cast<int64_t>(grouped.rows.size()); ++e) {
        const int64_t rows = grouped.rows[static_cast<size_t>(e)];
        if (rows > 0 || zeroes_empty) body(group_of(grouped, e, first));
        first += rows;
    }
}

}  // namespace tutti::kernels
