// kernels/reference/gemm.cpp: the matrix product in all its forms. See kernels.h.
#include "tutti/kernels/epilogue.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

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

}  // namespace tutti::kernels::reference
