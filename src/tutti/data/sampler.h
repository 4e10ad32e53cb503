// data/sampler.h: which tokens are sample i. Stands on data_set.h and permutation.h; trainer and evaluation call it.
// A sample depends on (data, seed, i) only, never on a rank, a thread or what was read before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/data/blend.h"
#include "tutti/data/data_set.h"

namespace tutti::data {

// What a model is given of a sample: T = seq_len of each.
struct SampleRows {
    std::span<int32_t> tokens;     // inputs
    std::span<int32_t> targets;    // the next token, or -1 when it is not counted
    std::span<int32_t> first_key;  // where in the window the document of this input begins
};

// Windows of seq_len + 1 tokens that start every seq_len tokens: inputs are the first seq_len, targets the last
// seq_len, so each token but the first is a target exactly once per epoch. Tokens after the last whole window are left
// out. With several views, the blend says whose sample comes next; each view has epochs of its own.
class Sampler {
  public:
    // Each epoch visits every window once, in an order of its own named by (seed, view, epoch).
    // Throws DataError when a view is shorter than one window.
    Sampler(TokenSet set, int64_t seq_len, uint64_t seed);

    // For evaluation: sample i of a view is window i, starting over after the last.
    static Sampler in_order(TokenSet set, int64_t seq_len);

    // Samples until the first of the views starts over.
    int64_t samples_per_epoch() const;
    int64_t seq_len() const { return seq_len_; }
    bool respects_documents() const { return set_.views.front().documents().respected; }

    // What sample i shows: tokens [window * seq_len, window * seq_len + seq_len] of a view.
    struct Place {
        size_t view;
        int64_t window;
    };
    Place place(uint64_t i) const;

    // Fills `tokens` (T + 1 of them, T = seq_len) with sample i. Safe to call from many threads.
    void sample(uint64_t i, std::span<int32_t> tokens) const;

    // The same as a model needs it. A target is not counted when the data masks it, and, where documents are respected,
    // when it is the first token of a document: nothing before it tells what it is. Otherwise first_key is 0.
    void rows(uint64_t i, const SampleRows& out) const;

  private:
    Sampler(TokenSet set, int64_t seq_len, std::optional<uint64_t> seed);
    void read(Place place, std::span<int32_t> tokens) const;

    TokenSet set_;
    Blend blend_;
    int64_t seq_len_;
    std::vector<int64_t> windows_;  // of each view
    std::optional<uint64_t> seed_;  // none: in order
};

}  // namespace tutti::data
