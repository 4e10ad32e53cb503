// data/sampler.cpp: sample index -> epoch and position -> window -> tokens.
#include "tutti/data/sampler.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/permutation.h"

namespace tutti::data {

Sampler::Sampler(TokenView view, int64_t seq_len, uint64_t seed)
    : Sampler(std::move(view), seq_len, std::optional<uint64_t>(seed)) {}

Sampler Sampler::in_order(TokenView view, int64_t seq_len) {
    return Sampler(std::move(view), seq_len, std::optional<uint64_t>());
}

Sampler::Sampler(TokenView view, int64_t seq_len, std::optional<uint64_t> seed)
    : view_(std::move(view)), seq_len_(seq_len), windows_(0), seed_(seed) {
    check<UsageError>(seq_len > 0, "train.seq_len must be positive, got ", seq_len);
    check<DataError>(view_.size() >= seq_len + 1, "one window of train.seq_len = ", seq_len, " needs ", seq_len + 1,
                     " tokens, got ", view_.size());
    windows_ = (view_.size() - 1) / seq_len;
}

int64_t Sampler::window(uint64_t i) const {
    const auto count = static_cast<uint64_t>(windows_);
    const auto position = static_cast<int64_t>(i % count);
    if (!seed_) return position;
    return permute(random_key(*seed_, "data.order", i / count), windows_, position);
}

void Sampler::sample(uint64_t i, std::span<int32_t> tokens) const {
    check(static_cast<int64_t>(tokens.size()) == seq_len_ + 1, "a sample has seq_len + 1 = ", seq_len_ + 1,
          " tokens, got room for ", tokens.size());
    view_.read(window(i) * seq_len_, tokens);
}

}  // namespace tutti::data
