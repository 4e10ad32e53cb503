// Rotary frequencies and the three published ways to stretch them over a longer context.
#include <algorithm>
#include <cmath>

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

// YaRN (Peng et al. 2023, section 3.2), with the whole-number borders of the authors' code. The pair k turns `turns`
// times in the original context where k = D ln(original / (2 pi turns)) / (2 ln theta).
double yarn(const spec::ModelSpec& spec, double f, int64_t k) {
    const spec::RopeScaling& s = spec.rope_scaling;
    const auto D = static_cast<double>(spec.head_dim);
    const auto pair_of = [&](double turns) {
        return D * std::log(static_cast<double>(s.original_max_positions) / (turns * 2 * M_PI)) /
               (2 * std::log(spec.rope_theta));
    };
    const double low = std::max(std::floor(pair_of(s.beta_fast)), 0.0);
    double high = std::min(std::ceil(pair_of(s.beta_slow)), D - 1);
    if (high == low) high += 0.001;
    const double scaled = std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0);
    return scaled * f / s.factor + (1 - scaled) * f;
}

}  // namespace

std::vector<double> rope_frequencies(const spec::ModelSpec& spec) {
    std::vector<double> frequencies;
    const spec::RopeScaling& s = spec.rope_scaling;
    for (int64_t k = 0; k < spec.head_dim / 2; ++k) {
        const double f = std::pow(spec.rope_theta, -2.0 * static_cast<double>(k) / static_cast<double>(spec.head_dim));
        frequencies.push_back(s.factor == 0        ? f
                              : s.type == "llama3" ? llama3(s, f)
                              : s.type == "yarn"   ? yarn(spec, f, k)
                                                   : f / s.factor);
    }
    return frequencies;
}

double rope_amplitude(const spec::ModelSpec& spec) {
    const spec::RopeScaling& s = spec.rope_scaling;
    if (s.factor == 0 || s.type != "yarn") return 1;
    if (s.attention_factor > 0) return s.attention_factor;
    return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

}  // namespace tutti::models
