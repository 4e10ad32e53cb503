// data/sampler.cpp: sample index -> view, epoch and position -> window -> tokens.
#include "tutti/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/permutation.h"

namespace tutti::data {

Sampler::Sampler(TokenSet set, int64_t seq_len, uint64_t seed)
    : Sampler(std::move(set), seq_len, std::optional<uint64_t>(seed)) {}

Sampler Sampler::in_order(TokenSet set, int64_t seq_len) {
    return Sampler(std::move(set), seq_len, std::optional<uint64_t>());
}

Sampler::Sampler(TokenSet set, int64_t seq_len, std::optional<uint64_t> seed)
    : set_(std::move(set)), blend_(set_.weights), seq_len_(seq_len), seed_(seed) {
    check<UsageError>(seq_len > 0, "train.seq_len must be positive, got ", seq_len);
    check(set_.views.size() == set_.weights.size(), "a set of ", set_.views.size(), " views with ", set_.weights.size(),
          " weights");
    for (const TokenView& view : set_.views) {
        check<DataError>(view.size() >= seq_len + 1, "one window of train.seq_len = ", seq_len, " needs ", seq_len + 1,
                         " tokens, got ", view.size());
        windows_.push_back((view.size() - 1) / seq_len);
    }
}

int64_t Sampler::samples_per_epoch() const {
    if (windows_.size() == 1) return windows_[0];
    double fewest = HUGE_VAL;
    for (size_t k = 0; k < windows_.size(); ++k)
        fewest = std::min(fewest, static_cast<double>(windows_[k]) / blend_.share(k));
    return static_cast<int64_t>(fewest);
}

Sampler::Place Sampler::place(uint64_t i) const {
    const auto [view, index] = blend_.place(i);
    const auto count = static_cast<uint64_t>(windows_[view]);
    const auto position = static_cast<int64_t>(index % count);
    if (!seed_) return {view, position};
    const std::string purpose = view == 0 ? "data.order" : concat("data.order.", view);
    return {view, permute(random_key(*seed_, purpose, index / count), windows_[view], position)};
}

void Sampler::read(Place place, std::span<int32_t> tokens) const {
    check(static_cast<int64_t>(tokens.size()) == seq_len_ + 1, "a sample has seq_len + 1 = ", seq_len_ + 1,
          " tokens, got room for ", tokens.size());
    set_.views[place.view].read(place.window * seq_len_, tokens);
}

void Sampler::sample(uint64_t i, std::span<int32_t> tokens) const { read(place(i), tokens); }

void Sampler::rows(uint64_t i, const SampleRows& out) const {
    const Place at = place(i);
    const TokenView& view = set_.views[at.view];
    std::vector<int32_t> window(static_cast<size_t>(seq_len_ + 1));
    read(at, window);
    std::copy(window.begin(), window.end() - 1, out.tokens.begin());
    std::copy(window.begin() + 1, window.end(), out.targets.begin());
    std::fill(out.first_key.begin(), out.first_key.end(), 0);
    if (view.source().has_mask()) {
        std::vector<uint8_t> counts(window.size());
        view.read_mask(at.window * seq_len_, counts);
        for (size_t t = 0; t < out.targets.size(); ++t)
            if (counts[t + 1] == 0) out.targets[t] = -1;
    }
    if (!view.documents().respected) return;
    for (const int64_t begin : view.document_begins(at.window * seq_len_, window)) {
        out.targets[static_cast<size_t>(begin - 1)] = -1;
        std::fill(out.first_key.begin() + begin, out.first_key.end(), static_cast<int32_t>(begin));
    }
}

}  // namespace tutti::data
