// data/sampler.h: the tokens of sample i: its source (Blend), its window in a shuffled order (permute), its tokens
// (Sampler). A sample depends on (data, seed, i) only, never on a rank, a thread or earlier samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/data/data_set.h"

namespace tutti::data {

// Sample i of the stream is sample `index` of source `part`, a pure function of i. The samples of a source appear in
// order, none left out, none twice; among the first n samples, n w_k / sum(w) are of source k, to within
// 1 + log2(sources).
//
// The list of sources is halved recursively. Where the left half has the share p, sample m goes to it when
// floor((m + 1) p) > floor(m p), as its sample floor(m p); the right half gets the other samples. So no history is
// needed, unlike in Megatron's rule (the source that lags most), which has the same proportions.
class Blend {
  public:
    // Weights must be positive, in any scale.
    explicit Blend(const std::vector<double>& weights);

    struct Place {
        size_t part;
        uint64_t index;
    };
    Place place(uint64_t i) const;
    double share(size_t part) const;  // of the stream, in (0, 1]

  private:
    std::vector<double> sums_;  // weights of the sources before k
};

// Element i of a pseudo-random order of 0 .. n-1 named by `key`, 0 <= i < n <= 2^62: a bijection in i for each (key,
// n). No shuffled list exists, so resuming at any step costs nothing.
//
// A balanced Feistel network on the smallest even number of bits that holds n - 1 (Luby and Rackoff, 1988; ten rounds,
// because halves are as small as one bit here), with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002): an output of n or above is encrypted again until it falls below n. The domain is less than 4n, so
// this takes fewer than four passes on average.
int64_t permute(RandomKey key, int64_t n, int64_t i);

// The inputs of a model for one sample, T = seq_len of each.
struct SampleRows {
    std::span<int32_t> tokens;     // inputs
    std::span<int32_t> targets;    // the next token, or -1 where the loss leaves it out
    std::span<int32_t> first_key;  // where in the window the document of this input begins
};

// Windows of seq_len + 1 tokens that start every seq_len tokens: inputs are the first seq_len, targets the last
// seq_len, so each token but the first is a target exactly once per epoch. Tokens after the last whole window are left
// out. A view with a packing has windows of whole records instead, and id 0 as padding. With several views, the blend
// says whose sample comes next; each view has epochs of its own.
class Sampler {
  public:
    // Each epoch visits every window once, in its own order, a function of (seed, view, epoch); without a seed in the
    // order of the data. DataError when a view is shorter than one window.
    Sampler(TokenSet set, int64_t seq_len, std::optional<uint64_t> seed);
    // For evaluation.
    static Sampler in_order(TokenSet set, int64_t seq_len) { return Sampler(std::move(set), seq_len, std::nullopt); }

    // Samples until the first of the views starts over.
    int64_t samples_per_epoch() const;
    int64_t seq_len() const { return seq_len_; }
    bool respects_documents() const { return set_.views.front().documents().respected; }

    // The window of sample i: tokens [window * seq_len, window * seq_len + seq_len] of a view, or a window of its
    // packing.
    struct Place {
        size_t view;
        int64_t window;
    };
    Place place(uint64_t i) const;

    // Fills `tokens` (T + 1 of them, T = seq_len) with sample i. Safe to call from many threads.
    void sample(uint64_t i, std::span<int32_t> tokens) const;

    // The same as a model needs it. A target is not counted when the data masks it, and, where documents are respected,
    // when it is the first token of a document: nothing before it predicts it. Otherwise first_key is 0. Returns the
    // number of inputs that are tokens of the data; those behind them are padding.
    int64_t rows(uint64_t i, const SampleRows& out) const;

  private:
    void read(Place place, std::span<int32_t> tokens) const;
    std::vector<uint8_t> loss_mask(Place place) const;  // of the window's tokens; 0 for padding too
    std::vector<int64_t> begins(Place place, std::span<const int32_t> tokens) const;  // of documents behind the first

    TokenSet set_;
    Blend blend_;
    int64_t seq_len_;
    std::vector<int64_t> windows_;  // of each view
    std::optional<uint64_t> seed_;  // none: in order
};

}  // namespace tutti::data
