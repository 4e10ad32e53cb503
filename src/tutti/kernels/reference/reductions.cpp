// kernels/reference/reductions.cpp: sums of all elements, and over the rows. See kernels.h.
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

void sum(const Stream&, View x, View result) {
    double total = 0;
    for (int64_t i = 0; i < x.numel(); ++i) total += load(x, i);
    store(result, 0, load(result, 0) + total);
}

void sum_of_squares(const Stream&, View x, View result) {
    double total = 0;
    for (int64_t i = 0; i < x.numel(); ++i) total += load(x, i) * load(x, i);
    store(result, 0, load(result, 0) + total);
}

// db[c] += sum_n dy[n, c]
void bias_backward(const Stream&, View dy, View db) {
    const int64_t rows = dy.rows(), columns = dy.columns();
    for (int64_t c = 0; c < columns; ++c) {
        double total = load(db, c);
        for (int64_t n = 0; n < rows; ++n) total += load(dy, n * columns + c);
        store(db, c, total);
    }
}

}  // namespace tutti::kernels::reference
