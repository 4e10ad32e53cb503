// data/sampler.cpp: sample index -> view, epoch and position -> window -> tokens. Resumed runs rely on the values of
// permute(): sampler_test.cpp pins them.
#include "tutti/data/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::data {

// The share of the left half is a whole number of 2^-52, so that the products are exact.
namespace {

constexpr int kBits = 52;

__extension__ typedef unsigned __int128 Wide;  // m p with m < 2^64

uint64_t floor_of_product(uint64_t m, uint64_t share) { return static_cast<uint64_t>((Wide{m} * share) >> kBits); }

}  // namespace

Blend::Blend(const std::vector<double>& weights) : sums_{0} {
    check<UsageError>(!weights.empty(), "a blend needs a source");
    for (const double weight : weights) {
        check<UsageError>(std::isfinite(weight) && weight > 0, "the weights of a blend must be positive, got ", weight);
        sums_.push_back(sums_.back() + weight);
    }
}

double Blend::share(size_t part) const { return (sums_.at(part + 1) - sums_.at(part)) / sums_.back(); }

Blend::Place Blend::place(uint64_t i) const {
    size_t begin = 0, end = sums_.size() - 1;
    while (end - begin > 1) {
        const size_t middle = (begin + end) / 2;
        const double p = (sums_[middle] - sums_[begin]) / (sums_[end] - sums_[begin]);
        const auto share = static_cast<uint64_t>(std::llround(std::ldexp(p, kBits)));
        const uint64_t left = floor_of_product(i, share);
        if (floor_of_product(i + 1, share) > left) {
            end = middle;
            i = left;
        } else {
            begin = middle;
            i -= left;
        }
    }
    return {begin, i};
}

// The Feistel network behind the order of samples.
namespace {

constexpr size_t kRounds = 10;

std::array<uint64_t, kRounds> round_keys(RandomKey key) {
    std::array<uint64_t, kRounds> keys{};
    for (size_t r = 0; r < kRounds; r += 2) {
        const auto words = philox(key, r / 2);
        keys[r] = (uint64_t{words[0]} << 32) | words[1];
        keys[r + 1] = (uint64_t{words[2]} << 32) | words[3];
    }
    return keys;
}

}  // namespace

int64_t permute(RandomKey key, int64_t n, int64_t i) {
    check(n > 0 && n <= (int64_t{1} << 62) && 0 <= i && i < n, "permute: element ", i, " of ", n);
    if (n == 1) return 0;
    const auto limit = static_cast<uint64_t>(n);
    const int half = (std::bit_width(limit - 1) + 1) / 2;  // bits; 4^half >= n > 4^(half-1)
    const uint64_t mask = (uint64_t{1} << half) - 1;
    const auto keys = round_keys(key);

    auto x = static_cast<uint64_t>(i);
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round_key : keys) left = std::exchange(right, left ^ (mix64(round_key ^ right) & mask));
        x = (left << half) | right;
    } while (x >= limit);
    return static_cast<int64_t>(x);
}

Sampler::Sampler(TokenSet set, int64_t seq_len, std::optional<uint64_t> seed)
    : set_(std::move(set)), blend_(set_.weights), seq_len_(seq_len), seed_(seed) {
    check<UsageError>(seq_len > 0, "train.seq_len must be positive, got ", seq_len);
    check(set_.views.size() == set_.weights.size(), "a set of ", set_.views.size(), " views with ", set_.weights.size(),
          " weights");
    for (const TokenView& view : set_.views) {
        check<DataError>(view.size() >= seq_len + 1, "one window of train.seq_len = ", seq_len, " needs ", seq_len + 1,
                         " tokens, got ", view.size());
        const Packing* packing = view.packing();
        check(packing == nullptr || packing->seq_len() == seq_len, "windows of ", seq_len, " tokens from a packing of ",
              packing ? packing->seq_len() : 0);
        windows_.push_back(packing ? packing->windows() : (view.size() - 1) / seq_len);
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
    const TokenView& view = set_.views[place.view];
    if (view.packing() == nullptr) return view.read(place.window * seq_len_, tokens);
    std::span<int32_t> rest = tokens;
    for (const Packing::Piece& piece : view.packing()->window(place.window)) {
        view.read(piece.begin, rest.first(to_size(piece.count)));
        rest = rest.subspan(to_size(piece.count));
    }
    std::fill(rest.begin(), rest.end(), 0);
}

void Sampler::sample(uint64_t i, std::span<int32_t> tokens) const { read(place(i), tokens); }

std::vector<uint8_t> Sampler::loss_mask(Place place) const {
    std::vector<uint8_t> mask(to_size(seq_len_ + 1));
    const TokenView& view = set_.views[place.view];
    if (view.packing() == nullptr) {
        view.read_mask(place.window * seq_len_, mask);
        return mask;
    }
    std::span<uint8_t> rest = mask;
    for (const Packing::Piece& piece : view.packing()->window(place.window)) {
        view.read_mask(piece.begin, rest.first(to_size(piece.count)));
        if (piece.continues) rest[0] = 0;  // it was a target at the end of the piece before
        rest = rest.subspan(to_size(piece.count));
    }
    return mask;
}

std::vector<int64_t> Sampler::begins(Place place, std::span<const int32_t> tokens) const {
    const TokenView& view = set_.views[place.view];
    if (view.packing() == nullptr) return view.document_begins(place.window * seq_len_, tokens);
    std::vector<int64_t> begins;
    int64_t at = 0;
    for (const Packing::Piece& piece : view.packing()->window(place.window)) {
        at += piece.count;
        if (at <= seq_len_) begins.push_back(at);  // of the next record, or of the padding
    }
    return begins;
}

int64_t Sampler::rows(uint64_t i, const SampleRows& out) const {
    const Place at = place(i);
    const TokenView& view = set_.views[at.view];
    std::vector<int32_t> window(to_size(seq_len_ + 1));
    read(at, window);
    std::copy(window.begin(), window.end() - 1, out.tokens.begin());
    std::copy(window.begin() + 1, window.end(), out.targets.begin());
    std::fill(out.first_key.begin(), out.first_key.end(), 0);
    if (view.source().has_mask()) {
        const std::vector<uint8_t> mask = loss_mask(at);
        for (size_t t = 0; t < out.targets.size(); ++t)
            if (mask[t + 1] == 0) out.targets[t] = -1;
    }
    if (view.documents().respected)
        for (const int64_t begin : begins(at, window)) {
            out.targets[to_size(begin - 1)] = -1;
            std::fill(out.first_key.begin() + begin, out.first_key.end(), static_cast<int32_t>(begin));
        }
    if (view.packing() == nullptr) return seq_len_;
    int64_t length = 0;
    for (const Packing::Piece& piece : view.packing()->window(at.window)) length += piece.count;
    return std::min(length, seq_len_);
}

}  // namespace tutti::data
