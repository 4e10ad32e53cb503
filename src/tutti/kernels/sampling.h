// kernels/sampling.h: shared parts of the sampling kernels of the CPU and of CUDA: integer keys and weights of logits,
// and the search for a cut digit by digit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tutti/base/host_device.h"

namespace tutti::kernels {

// a < b exactly when order_key(a) < order_key(b), unless one is NaN; 0 and -0 are equal.
TUTTI_HOST_DEVICE inline uint32_t order_key(float x) {
    const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// exp((x - largest) / temperature) in multiples of 2^-40; the sum over any vocabulary fits 64 bits.
TUTTI_HOST_DEVICE inline uint64_t sampling_weight(float x, float largest, float temperature) {
    constexpr float kOne = 0x1p40f;
    if (temperature <= 0) return x == largest ? static_cast<uint64_t>(kOne) : 0;
    return static_cast<uint64_t>(std::exp((x - largest) / temperature) * kOne);
}

// `share` of a sum, rounded up to an integer of at least 1.
TUTTI_HOST_DEVICE inline uint64_t share_of(double share, uint64_t sum) {
    const double part = std::ceil(share * static_cast<double>(sum));
    if (part < 1) return 1;
    return part < static_cast<double>(sum) ? static_cast<uint64_t>(part) : sum;
}

// A cut is the largest key such that all keys from the cut on measure at least `need`. It is found digit by digit, from
// the highest: `histogram[d]` is the measure of the keys that begin with the digits found so far, followed by d.
struct Cut {
    static constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits, kKeyBits = 32;

    uint64_t need = 0;
    uint32_t prefix = 0;  // the digits found so far; in the end the cut itself
    uint64_t above = 0;   // measure of the keys with a larger prefix

    // Whether a key has the known digits above `shift + kDigitBits`.
    TUTTI_HOST_DEVICE bool matches(uint32_t key, int shift) const {
        return static_cast<uint64_t>(key) >> (shift + kDigitBits) == prefix;
    }
    TUTTI_HOST_DEVICE static uint32_t digit(uint32_t key, int shift) { return (key >> shift) & (kDigits - 1); }

    template <class Count>
    TUTTI_HOST_DEVICE void find_digit(const Count* histogram) {
        uint32_t d = kDigits - 1;
        for (; d > 0 && above + histogram[d] < need; --d) above += histogram[d];
        prefix = prefix << kDigitBits | d;
    }
};

}  // namespace tutti::kernels
