// kernels/reference/experts.cpp: rows on their way to experts and back, and the products of experts. See kernels.h.
#include "tutti/kernels/groups.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

// y[m] = x[rows[m]], or zeros
void gather_rows(const Stream&, View x, View rows, View y) {
    const int64_t C = y.columns();
    for (int64_t m = 0; m < rows.numel(); ++m) {
        const int64_t from = load_index(rows, m);
        for (int64_t c = 0; c < C; ++c) store(y, m * C + c, from < 0 ? 0 : load(x, from * C + c));
    }
}

// y[n] = sum_j weights[n, j] x[rows[n, j]]
void combine_rows(const Stream&, View x, View rows, View weights, View y) {
    const int64_t N = rows.shape[0], k = rows.shape[1], C = y.columns();
    for (int64_t n = 0; n < N; ++n)
        for (int64_t c = 0; c < C; ++c) {
            double sum = 0;
            for (int64_t i = n * k; i < (n + 1) * k; ++i)
                if (const int64_t from = load_index(rows, i); from >= 0)
                    sum += (weights.defined() ? load(weights, i) : 1) * load(x, from * C + c);
            store(y, n * C + c, sum);
        }
}

// dx[rows[n, j]] = weights[n, j] dy[n];  dweights[n, j] = dy[n] . x[rows[n, j]]
void combine_rows_backward(const Stream&, View dy, View x, View rows, View weights, View dx, View dweights) {
    const int64_t N = rows.shape[0], k = rows.shape[1], C = dx.columns();
    for (int64_t i = 0; i < dx.numel(); ++i) store(dx, i, 0);
    for (int64_t i = 0; i < N * k; ++i) {
        const int64_t n = i / k, row = load_index(rows, i);
        double product = 0;
        for (int64_t c = 0; row >= 0 && c < C; ++c) {
            const double d = load(dy, n * C + c);
            store(dx, row * C + c, (weights.defined() ? load(weights, i) : 1) * d);
            if (dweights.defined()) product += d * load(x, row * C + c);
        }
        if (dweights.defined()) store(dweights, i, product);
    }
}

void grouped_gemm(const Stream& stream, const GroupedGemm& grouped) {
    for_groups(grouped, [&](const Gemm& g) { gemm(stream, g); });
}

}  // namespace tutti::kernels::reference
