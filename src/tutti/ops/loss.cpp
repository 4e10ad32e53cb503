// ops/loss.cpp: what a model does with logits: losses with their gradients, and sampling.
#include <algorithm>

#include "tutti/base/ceil_div.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/weight_forms.h"

namespace tutti::ops {

using kernels::CrossEntropy;
using kernels::KernelTable;

int64_t loss_chunk_rows(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
    const int64_t fit = std::max<int64_t>(64, chunk_bytes / std::max<int64_t>(1, row_bytes));
    const int64_t chunks = std::max<int64_t>(1, ceil_div(rows, fit));
    return std::min(rows, round_up(ceil_div(rows, chunks), 64));
}

LinearCrossEntropy linear_cross_entropy(Context& ctx, const Tensor& x, const Operand& head, const Tensor& targets,
                                        int64_t vocab, float grad_scale, const Tensor* dw, bool accumulate,
                                        const VocabularyShard* shard, double cap) {
    const Tensor& w = numbers("linear_cross_entropy", head);
    const int64_t rows = x.view().rows(), width = x.view().columns(), columns = w.dim(0);
    check(w.rank() == 2 && w.dim(1) == width && x.dtype() == w.dtype() && x.contiguous(),
          "linear_cross_entropy: x (N, C) and w (V, C) of one type, got ", x.shape(), " and ", w.shape());
    check(targets.dtype() == DType::i32 && targets.numel() == rows, "linear_cross_entropy: ", rows,
          " rows need as many i32 targets, got ", targets.shape());
    check(shard || vocab <= columns, "linear_cross_entropy: vocab ", vocab, " exceeds the ", columns,
          " columns of the head");

    LinearCrossEntropy r;
    r.losses = empty(ctx, {rows}, DType::f32);
    if (dw) r.dx = empty(ctx, x.shape(), x.dtype());
    const Tensor x2 = x.reshape({rows, width}), targets1 = targets.reshape({rows});
    const Tensor dx2 = dw ? r.dx.reshape({rows, width}) : Tensor{};
    const int64_t chunk = loss_chunk_rows(rows, columns * size_of(x.dtype()), ctx.kernels.loss_chunk_bytes);
    const Tensor chunk_logits = empty(ctx, {chunk, columns}, x.dtype(), Purpose::workspace);
    WeightForms of_chunks;  // made once for all chunks, unless the step keeps forms
    Context products = ctx;
    const bool shares = chunk < rows && !ctx.keeps_forms;
    if (shares) products.keeps_forms = true;
    WeightForms* forms = shares ? &of_chunks : head.forms;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
        const int64_t n = std::min(chunk, rows - begin);
        const Tensor x_chunk = x2.narrow(0, begin, n), logits = chunk_logits.narrow(0, 0, n);
        multiply_by_weight(products, gemm_of(GemmRole::forward, x_chunk, w, logits), forms);
        soft_cap(ctx, logits, cap);
        CrossEntropy loss{.logits = logits,
                          .targets = targets1.narrow(0, begin, n),
                          .losses = r.losses.narrow(0, begin, n),
                          .vocab = vocab,
                          .grad_scale = grad_scale,
                          .gradient = dw != nullptr,
                          .cap = static_cast<float>(cap)};
        if (shard) {
            const Tensor partial = empty(ctx, {3, n}, DType::f32, Purpose::workspace);
            loss.first_word = shard->first_word;
            loss.partials = partial;
            call(ctx, &KernelTable::cross_entropy_partial, "cross_entropy_partial", loss);
            const Tensor partials = shard->gather(partial);
            loss.partials = partials;
            call(ctx, &KernelTable::cross_entropy_finish, "cross_entropy_finish", loss);
        } else {
            call(ctx, &KernelTable::cross_entropy, "cross_entropy", loss);
        }
        if (!dw) continue;
        const Tensor& dlogits = logits;  // replaced in place by the kernel
        multiply_by_weight(products, gemm_of(GemmRole::input_gradient, dx2.narrow(0, begin, n), w, dlogits), forms);
        if (!dw->defined()) continue;
        kernels::Gemm weight_gradient = gemm_of(GemmRole::weight_gradient, x_chunk, *dw, dlogits);
        weight_gradient.accumulate = accumulate || begin > 0;
        gemm(ctx, weight_gradient);
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

Tensor sample(Context& ctx, const Tensor& logits, const Tensor& draws, kernels::Sample how) {
    check(logits.rank() == 2 && draws.dtype() == DType::i64 && draws.numel() == logits.dim(0), "sample: logits (N, V) ",
          "and N draws in i64, got ", logits.shape(), " and ", draws.shape());
    check(how.vocab > 0 && how.vocab <= logits.dim(1), "sample: vocab ", how.vocab, " of ", logits.dim(1), " columns");
    const Tensor tokens = empty(ctx, {logits.dim(0)}, DType::i32);
    how.logits = logits;
    how.draws = draws;
    how.tokens = tokens;
    call(ctx, &KernelTable::sample, "sample", how);
    return tokens;
}

}  // namespace tutti::ops
