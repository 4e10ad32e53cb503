// data/blend.h: several sources in one stream of samples, in given proportions. Arithmetic only; the sampler calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::data {

// Sample i of the stream is sample `index` of source `part`, a pure function of i: each source's samples appear in
// their own order, none left out, none twice, and after n samples source k has had n w_k / sum(w) of them within
// 1 + log2(sources).
//
// The sources are halved again and again. Where the left half has the share p, sample m goes there when floor((m + 1)
// p) > floor(m p), as its sample floor(m p); the right half gets the rest. So a place needs no history, unlike
// Megatron's rule (the source that lags most), which has the same proportions.
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

}  // namespace tutti::data
