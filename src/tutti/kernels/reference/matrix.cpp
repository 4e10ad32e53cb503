// kernels/reference/matrix.cpp: the matrix product in all its forms; rows of a table by token number; sums over blocks
// and over rows.
#include <algorithm>
#include <vector>

#include "tutti/kernels/epilogue.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

// c[m, n] = sum_k op(a)[m, k] op(b)[k, n] [+ bias[n]] [+ c[m, n]]
void gemm(const Stream& stream, const Gemm& gemm) {
    const Gemm plain = without_epilogue(gemm);
    const View &a = plain.a, &b = plain.b, &c = plain.c, &bias = plain.bias;
    const bool transpose_a = plain.transpose_a, transpose_b = plain.transpose_b;
    const int64_t M = c.shape[0], N = c.shape[1], K = transpose_a ? a.shape[0] : a.shape[1];
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) {
            double total = 0;
            for (int64_t k = 0; k < K; ++k) {
                const double left = load(a, transpose_a ? offset(a, k, m) : offset(a, m, k));
                const double right = load(b, transpose_b ? offset(b, n, k) : offset(b, k, n));
                total += left * right;
            }
            if (bias.defined()) total += load(bias, n * bias.stride(0));
            if (plain.accumulate) total += load(c, offset(c, m, n));
            store(c, offset(c, m, n), total);
        }
    apply_epilogue(reference_table(), stream, gemm);
}

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

}  // namespace

void fill_matrix(KernelTable& table) {
    table.gemm_implementations = [] { return "reference"; };
    table.gemm = gemm;
    table.gemm_workspace = [](const Stream&, const Gemm&) -> int64_t { return 0; };
    table.gemm_by_rows = true;
    table.gemm_implementation = [](const Stream&, const Gemm&) { return "reference"; };
    table.bias_backward = bias_backward;
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
    table.sums_of_squares = sums_of_squares;
    table.exact_sum = exact_sum;
}

}  // namespace tutti::kernels::reference
