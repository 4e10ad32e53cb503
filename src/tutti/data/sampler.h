// data/sampler.h: which tokens are sample i. Stands on data_set.h and permutation.h; trainer and evaluation call it.
// A sample depends on (data, seed, i) only, never on a rank, a thread or what was read before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tutti/base/philox.h"
#include "tutti/data/data_set.h"

namespace tutti::data {

// Windows of seq_len + 1 tokens that start every seq_len tokens: inputs are the first seq_len, targets the last
// seq_len, so each token but the first is a target exactly once per epoch. Tokens after the last whole window are left
// out.
class Sampler {
  public:
    // Each epoch visits every window once, in an order of its own named by (seed, epoch).
    // Throws DataError when the view is shorter than one window.
    Sampler(TokenView view, int64_t seq_len, uint64_t seed);

    // For evaluation: sample i is window i, starting over after the last.
    static Sampler in_order(TokenView view, int64_t seq_len);

    int64_t samples_per_epoch() const { return windows_; }
    int64_t seq_len() const { return seq_len_; }

    // The window, in [0, samples_per_epoch()), that sample i shows: tokens [window * seq_len, window * seq_len +
    // seq_len].
    int64_t window(uint64_t i) const;

    // Fills `tokens` (T + 1 of them, T = seq_len) with sample i. Safe to call from many threads.
    void sample(uint64_t i, std::span<int32_t> tokens) const;

  private:
    Sampler(TokenView view, int64_t seq_len, std::optional<uint64_t> seed);

    TokenView view_;
    int64_t seq_len_;
    int64_t windows_;
    std::optional<uint64_t> seed_;  // none: in order
};

}  // namespace tutti::data
