// kernels/reference/embedding.cpp: rows of a table by token number. See kernels.h.
#include <vector>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

// y[n] = weight[tokens[n] - first_row], or zeros without such a row
void embedding_forward(const Stream&, View tokens, View weight, int64_t first_row, View y) {
    const int64_t N = tokens.numel(), V = weight.shape[0], C = weight.columns();
    for (int64_t n = 0; n < N; ++n) {
        const int64_t row = load_index(tokens, n) - first_row;
        const bool held = row >= 0 && row < V;
        for (int64_t c = 0; c < C; ++c) store(y, n * C + c, held ? load(weight, row * C + c) : 0);
    }
}

// dweight[v] += sum of dy[n] over the n with tokens[n] = first_row + v
void embedding_backward(const Stream&, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t N = tokens.numel(), V = dweight.shape[0], C = dweight.columns();
    std::vector<double> row(static_cast<size_t>(C));
    for (int64_t v = 0; v < V; ++v) {
        for (int64_t c = 0; c < C; ++c) row[static_cast<size_t>(c)] = load(dweight, v * C + c);
        for (int64_t n = 0; n < N; ++n) {
            if (load_index(tokens, n) != first_row + v) continue;
            for (int64_t c = 0; c < C; ++c) row[static_cast<size_t>(c)] += load(dy, n * C + c);
        }
        for (int64_t c = 0; c < C; ++c) store(dweight, v * C + c, row[static_cast<size_t>(c)]);
    }
}

}  // namespace tutti::kernels::reference
