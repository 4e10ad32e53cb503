#include <algorithm>

#include "tutti/ops/loss_chunk.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/packed_weights.h"

namespace tutti::ops {

using kernels::CrossEntropy;
using kernels::KernelTable;

LinearCrossEntropy linear_cross_entropy(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& targets,
                                        int64_t vocab, float grad_scale, const Tensor* dw, bool accumulate) {
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
    const int64_t chunk = loss_chunk_rows(rows, columns * size_of(x.dtype()));
    const Tensor chunk_logits = empty(ctx, {chunk, columns}, x.dtype(), Purpose::workspace);
    PackedWeights head;  // for all chunks, where it is not kept for longer
    Context products = ctx;
    if (chunk < rows && ctx.packed_weights == nullptr) products.packed_weights = &head;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
        const int64_t n = std::min(chunk, rows - begin);
        const Tensor x_chunk = x2.narrow(0, begin, n), logits = chunk_logits.narrow(0, 0, n);
        multiply_by_weight(products, gemm_of(Product::forward, x_chunk, w, logits));
        call(ctx, &KernelTable::cross_entropy, "cross_entropy",
             CrossEntropy{.logits = logits,
                          .targets = targets1.narrow(0, begin, n),
                          .losses = r.losses.narrow(0, begin, n),
                          .vocab = vocab,
                          .grad_scale = grad_scale,
                          .gradient = dw != nullptr});
        if (!dw) continue;
        const Tensor& dlogits = logits;  // replaced in place by the kernel
        multiply_by_weight(products, gemm_of(Product::input_gradient, dx2.narrow(0, begin, n), w, dlogits));
        kernels::Gemm weight_gradient = gemm_of(Product::weight_gradient, x_chunk, *dw, dlogits);
        weight_gradient.accumulate = accumulate || begin > 0;
        gemm(ctx, weight_gradient);
    }
    return r;
}

namespace {

CrossEntropy columns_of_words(const char* op, const Tensor& logits, const Tensor& targets, int64_t first_word,
                              int64_t vocab) {
    check(logits.rank() == 2 && logits.contiguous() && first_word >= 0, op,
          ": needs contiguous logits (N, W) of words from 0 on, got ", logits.shape(), " from ", first_word);
    check(targets.dtype() == DType::i32 && targets.numel() == logits.dim(0) && targets.contiguous(), op, ": ",
          logits.dim(0), " rows need as many i32 targets, got ", targets.shape());
    return {.logits = logits, .targets = targets.reshape({logits.dim(0)}), .vocab = vocab, .first_word = first_word};
}

}  // namespace

Tensor cross_entropy_partial(Context& ctx, const Tensor& logits, const Tensor& targets, int64_t first_word,
                             int64_t vocab) {
    CrossEntropy c = columns_of_words("cross_entropy_partial", logits, targets, first_word, vocab);
    const Tensor partials = empty(ctx, {3, logits.dim(0)}, DType::f32);
    c.partials = partials;
    call(ctx, &KernelTable::cross_entropy_partial, "cross_entropy_partial", c);
    return partials;
}

Tensor cross_entropy_finish(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& partials,
                            int64_t first_word, int64_t vocab, float grad_scale, bool gradient) {
    CrossEntropy c = columns_of_words("cross_entropy_finish", logits, targets, first_word, vocab);
    check(partials.rank() == 3 && partials.dim(1) == 3 && partials.dim(2) == logits.dim(0) &&
              partials.dtype() == DType::f32 && partials.contiguous(),
          "cross_entropy_finish: logits ", logits.shape(), " need partials (ranks, 3, ", logits.dim(0), ") f32, got ",
          partials.shape(), " ", partials.dtype());
    const Tensor losses = empty(ctx, {logits.dim(0)}, DType::f32);
    c.losses = losses;
    c.partials = partials;
    c.grad_scale = grad_scale;
    c.gradient = gradient;
    call(ctx, &KernelTable::cross_entropy_finish, "cross_entropy_finish", c);
    return losses;
}

SquaredError squared_error(Context& ctx, const Tensor& x, const Tensor& target, float grad_scale) {
    check(x.shape() == target.shape() && x.dtype() == target.dtype(), "squared_error: x ", x.shape(), " and target ",
          target.shape(), " must agree");
    SquaredError r{empty(ctx, {x.view().rows()}, DType::f32), empty(ctx, x.shape(), x.dtype())};
    call(ctx, &KernelTable::squared_error, "squared_error", x, target, grad_scale, r.losses, r.dx);
    return r;
}

}  // namespace tutti::ops
