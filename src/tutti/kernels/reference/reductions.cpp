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

// Bit by bit: |value| = m 2^(exponent - 53), m whole; digit k of the words counts 2^(32 k - 1074).
void exact_sum(const Stream&, View values, View words) {
    constexpr int64_t kDigits = 67;
    auto* digits = words.as<int64_t>();
    for (int64_t i = 0; i < values.numel(); ++i) {
        const double value = load(values, i);
        if (!std::isfinite(value)) {
            ++digits[kDigits];
            continue;
        }
        int exponent = 0;
        const auto m = static_cast<int64_t>(std::ldexp(std::frexp(std::abs(value), &exponent), 53));
        for (int bit = 0; bit < 53; ++bit) {
            if ((m >> bit & 1) == 0) continue;
            const int place = exponent - 53 + bit + 1074;
            digits[place / 32] += (value < 0 ? -1 : 1) * (int64_t{1} << (place % 32));
        }
        for (int64_t k = 0; k + 1 < kDigits; ++k) {  // into [0, 2^32), but for the highest
            const int64_t over = digits[k] >> 32;
            digits[k] -= over * (int64_t{1} << 32);
            digits[k + 1] += over;
        }
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
