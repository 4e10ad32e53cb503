#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::CrossEntropy;
using kernels::KernelTable;

int64_t loss_chunk_rows(int64_t rows, int64_t vocab, DType dtype) {
    constexpr int64_t kChunkBytes = 32 << 20;  // 64 and 128 MiB gained nothing
    const int64_t fit = std::max<int64_t>(64, kChunkBytes / std::max<int64_t>(1, vocab * size_of(dtype)));
    const int64_t chunks = (rows + fit - 1) / fit;
    return std::min(rows, ((rows + chunks - 1) / chunks + 63) / 64 * 64);
}

LinearCrossEntropy linear_cross_entropy(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& targets,
                                        int64_t vocab, float grad_scale, const Tensor* dw) {
    const int64_t rows = x.view().rows(), width = x.view().columns(), columns = w.dim(0);
    check(w.rank() == 2 && w.dim(1) == width && x.dtype() == w.dtype() && x.contiguous(),
          "linear_cross_entropy: x (N, C) and w (V, C) of one type, got ", x.shape(), " and ", w.shape());
    check(targets.dtype() == DType::i32 && targets.numel() == rows, "linear_cross_entropy: ", rows,
          " rows need as many i32 targets, got ", targets.shape());
    check(vocab <= columns, "linear_cross_entropy: vocab ", vocab, " exceeds the ", columns, " columns of the head");

    LinearCrossEntropy r;
    r.losses = empty(ctx, {rows}, DType::f32);
    if (dw) r.dx = empty(ctx, x.shape(), x.dtype());
    const Tensor x2 = x.reshape({rows, width}), targets1 = targets.reshape({rows});
    const Tensor dx2 = dw ? r.dx.reshape({rows, width}) : Tensor{};
    const int64_t chunk = loss_chunk_rows(rows, columns, x.dtype());
    const Tensor chunk_logits = empty(ctx, {chunk, columns}, x.dtype(), Purpose::workspace);
    for (int64_t begin = 0; begin < rows; begin += chunk) {
        const int64_t n = std::min(chunk, rows - begin);
        const Tensor x_chunk = x2.narrow(0, begin, n), logits = chunk_logits.narrow(0, 0, n);
        gemm(ctx, {.a = x_chunk, .b = w, .c = logits, .transpose_b = true});
        call(ctx, &KernelTable::cross_entropy, "cross_entropy",
             CrossEntropy{.logits = logits,
                          .targets = targets1.narrow(0, begin, n),
                          .losses = r.losses.narrow(0, begin, n),
                          .vocab = vocab,
                          .grad_scale = grad_scale,
                          .gradient = dw != nullptr});
        if (!dw) continue;
        const Tensor& dlogits = logits;  // replaced in place by the kernel
        gemm(ctx, {.a = dlogits, .b = w, .c = dx2.narrow(0, begin, n)});
        gemm(ctx, {.a = dlogits, .b = x_chunk, .c = *dw, .transpose_a = true, .accumulate = true});
    }
    return r;
}

SquaredError squared_error(Context& ctx, const Tensor& x, const Tensor& target, float grad_scale) {
    check(x.shape() == target.shape() && x.dtype() == target.dtype(), "squared_error: x ", x.shape(), " and target ",
          target.shape(), " must agree");
    SquaredError r{empty(ctx, {x.view().rows()}, DType::f32), empty(ctx, x.shape(), x.dtype())};
    call(ctx, &KernelTable::squared_error, "squared_error", x, target, grad_scale, r.losses, r.dx);
    return r;
}

}  // namespace tutti::ops
