#include "tutti/ops/ops.h"

namespace tutti::ops {

Tensor sample(Context& ctx, const Tensor& logits, const Tensor& draws, kernels::Sample how) {
    check(logits.rank() == 2 && draws.dtype() == DType::i64 && draws.numel() == logits.dim(0), "sample: logits (N, V) ",
          "and N draws in i64, got ", logits.shape(), " and ", draws.shape());
    check(how.vocab > 0 && how.vocab <= logits.dim(1), "sample: vocab ", how.vocab, " of ", logits.dim(1), " columns");
    const Tensor tokens = empty(ctx, {logits.dim(0)}, DType::i32);
    how.logits = logits;
    how.draws = draws;
    how.tokens = tokens;
    call(ctx, &kernels::KernelTable::sample, "sample", how);
    return tokens;
}

}  // namespace tutti::ops
