// Rotary frequencies and the published ways to stretch them over a longer context.
#include <algorithm>
#include <cmath>

#include "tutti/base/to_size.h"
#include "tutti/models/model.h"

namespace tutti::models {

namespace {

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended.
double llama3(const spec::RopeScaling& s, double f) {
    const double wavelength = 2 * M_PI / f, original = static_cast<double>(s.original_max_positions);
    const double blend = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    if (wavelength < original / s.high_freq_factor) return f;
    if (wavelength > original / s.low_freq_factor) return f / s.factor;
    return (1 - blend) * f / s.factor + blend * f;
}

// YaRN (Peng et al. 2023, section 3.2), with the whole-number borders of the authors' code unless `truncate` is false.
// The pair k turns `turns` times in the original context where k = n ln(original / (2 pi turns)) / (2 ln theta).
double yarn(const spec::RopeSpec& rope, double f, int64_t k) {
    const spec::RopeScaling& s = rope.scaling;
    const auto n = static_cast<double>(rope.dims);
    const auto pair_of = [&](double turns) {
        return n * std::log(static_cast<double>(s.original_max_positions) / (turns * 2 * M_PI)) /
               (2 * std::log(rope.theta));
    };
    const double first = pair_of(s.beta_fast), last = pair_of(s.beta_slow);
    const double low = std::max(s.truncate ? std::floor(first) : first, 0.0);
    double high = std::min(s.truncate ? std::ceil(last) : last, n - 1);
    if (high == low) high += 0.001;
    const double scaled = std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0);
    return scaled * f / s.factor + (1 - scaled) * f;
}

// LongRoPE (Ding et al. 2024): each frequency has a divisor of its own, from one of two lists. Phi-3 takes the long one
// for all positions of a sequence that is longer than the original context; here the longest sequence of the run
// decides.
double longrope(const spec::RopeScaling& s, double f, int64_t k, int64_t max_positions) {
    const std::string& text = max_positions > s.original_max_positions ? s.long_factors : s.short_factors;
    return f / spec::number_list(text).at(to_size(k));
}

ops::RopeTable adjacent(ops::RopeTable table, bool pairs) {
    table.adjacent = pairs;
    return table;
}

// The rows of positions p are multiplied by 1 + growth ln(1 + floor(p / original)).
void grow(ops::Context& ctx, const ops::RopeTable& table, double growth, int64_t original) {
    const int64_t positions = table.cosines.dim(0);
    for (int64_t first = original; first < positions; first += original) {
        const int64_t rows = std::min(original, positions - first);
        const double factor = 1 + growth * std::log1p(static_cast<double>(first / original));
        for (const Tensor* x : {&table.cosines, &table.sines})
            ops::scale(ctx, x->narrow(0, first, rows), static_cast<float>(factor));
    }
}

}  // namespace

std::vector<double> rope_frequencies(const spec::RopeSpec& rope, int64_t max_positions) {
    std::vector<double> frequencies;
    const spec::RopeScaling& s = rope.scaling;
    for (int64_t k = 0; k < rope.dims / 2; ++k) {
        const double f = std::pow(rope.theta, -2.0 * static_cast<double>(k) / static_cast<double>(rope.dims));
        frequencies.push_back(s.factor == 0          ? f
                              : s.type == "llama3"   ? llama3(s, f)
                              : s.type == "yarn"     ? yarn(rope, f, k)
                              : s.type == "longrope" ? longrope(s, f, k, max_positions)
                                                     : f / s.factor);
    }
    return frequencies;
}

double rope_amplitude(const spec::RopeSpec& rope) {
    const spec::RopeScaling& s = rope.scaling;
    if (s.factor == 0 || (s.type != "yarn" && s.type != "longrope")) return 1;
    if (s.attention_factor > 0) return s.attention_factor;
    if (s.factor <= 1) return 1;
    if (s.mscale > 0 && s.mscale_all_dim > 0)
        return spec::yarn_mscale(s.mscale, s.factor) / spec::yarn_mscale(s.mscale_all_dim, s.factor);
    if (s.type == "longrope")
        return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_max_positions)));
    return spec::yarn_mscale(1, s.factor);
}

RopeTables RopeOfLayers::of(const std::optional<spec::RopeSpec>& rope) {
    if (!rope) return {};
    for (const auto& [spec, tables] : made_)
        if (spec == *rope) return tables;
    const auto make = [&] {
        return adjacent(
            nn::make_rope_table(ctx_, max_positions_, rope_frequencies(*rope, max_positions_), rope_amplitude(*rope)),
            rope->adjacent);
    };
    RopeTables tables{.keys = make(), .grows = rope->query_growth > 0};
    tables.queries = tables.grows ? make() : tables.keys;
    if (tables.grows && max_positions_ > 0)
        grow(ctx_, tables.queries, rope->query_growth, rope->scaling.original_max_positions);
    return made_.emplace_back(*rope, tables).second;
}

}  // namespace tutti::models
