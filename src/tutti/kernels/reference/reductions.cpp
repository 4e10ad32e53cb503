// kernels/reference/reductions.cpp: sums over blocks, and over the rows. See kernels.h.
#include <algorithm>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

void sums_of_squares(const Stream&, View x, View sums) {
    for (int64_t b = 0; b < sums.numel(); ++b) {
        double total = 0;
        for (int64_t i = b * kSumBlock; i < std::min(x.numel(), (b + 1) * kSumBlock); ++i)
            total += load(x, i) * load(x, i);
        store(sums, b, total);
    }
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
