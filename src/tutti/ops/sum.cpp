// ops/sum.cpp: sums that are added exactly, where their terms are.
#include <algorithm>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

constexpr int64_t kMostTerms = int64_t{1} << 30;  // at once: more could overflow a word

void set_to_zero(Context& ctx, const Tensor& words) {
    const View bits(words.view().data, DType::f32, {2 * words.numel()});
    call(ctx, &KernelTable::fill, "fill", bits, 0.0f);
}

}  // namespace

Sum::Sum(Context& ctx) : ctx_(ctx), words_(empty(ctx, {ExactSum::kWords}, DType::i64, Purpose::workspace)) {
    set_to_zero(ctx_, words_);
}

void Sum::add(const Tensor& terms) {
    check(terms.contiguous() && (terms.dtype() == DType::f32 || terms.dtype() == DType::f64),
          "the terms of a sum must be contiguous f32 or f64, got ", terms.shape(), " ", terms.dtype());
    check<SizeError>(terms.numel() <= kMostTerms, "a sum takes at most ", kMostTerms, " terms at once, got ",
                     terms.numel(), "; choose smaller microbatches");
    call(ctx_, &KernelTable::exact_sum, "exact_sum", terms, words_);
}

void Sum::add_squares(const Tensor& x) {
    if (x.dtype() == DType::bf16) {  // in parts, so that few values are in memory twice
        constexpr int64_t kPart = 1024 * kernels::kSumBlock;
        for (int64_t begin = 0; begin < x.numel(); begin += kPart)
            add_squares(
                cast(ctx_, x.narrow(0, begin, std::min(kPart, x.numel() - begin)), DType::f32, Purpose::workspace));
        return;
    }
    const int64_t blocks = ceil_div(x.numel(), kernels::kSumBlock);
    const Tensor sums = empty(ctx_, {blocks}, DType::f64, Purpose::workspace);
    call(ctx_, &KernelTable::sums_of_squares, "sums_of_squares", x, sums);
    add(sums);
}

void Sum::send() {
    sent_ = ctx_.device.copy_to_host_async(words_.view().data, words_.bytes());
    set_to_zero(ctx_, words_);
}

ExactSum Sum::take() {
    if (!sent_) send();
    const auto copy = std::exchange(sent_, nullptr);
    const auto values = copy->values<int64_t>();
    ExactSum::Words words;
    std::copy(values.begin(), values.end(), words.begin());
    return ExactSum::of(words);
}

}  // namespace tutti::ops
