// base/exact_sum.h: a sum of doubles that is rounded once, at the end, so that the result depends neither on the order
// of the terms nor on their distribution over threads and ranks.
//
// A fixed-point number that covers the whole range of double, in 32-bit digits stored in 64-bit words (Kulisch's long
// accumulator; Neal, "Fast exact summation using small and large superaccumulators", 2015). Words of several sums may
// be added as integers, by an all_reduce for example.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tutti/base/host_device.h"

namespace tutti {

class ExactSum {
  public:
    // Digit k is a multiple of 2^(32 k - 1074). The last word counts terms that were not finite.
    static constexpr uint32_t kDigits = 67, kWords = kDigits + 1;
    using Words = std::array<int64_t, kWords>;

    static constexpr int64_t kAddsBeforeCarry = int64_t{1} << 30;

    // The contribution of a term to three consecutive words.
    struct Addend {
        uint32_t first;  // index of the first word
        int64_t digits[3];
    };
    TUTTI_HOST_DEVICE static Addend addend(double term) {
        const auto bits = std::bit_cast<uint64_t>(term);
        const auto exponent = static_cast<uint32_t>(bits >> 52 & 0x7ff);
        if (exponent == 0x7ff) return {kWords - 3, {0, 0, 1}};  // infinite or NaN
        const uint64_t mantissa = (bits & 0xfffffffffffffu) | (exponent > 0 ? uint64_t{1} << 52 : 0);
        const uint32_t position = exponent > 0 ? exponent - 1 : 0;  // of the mantissa's last bit
        const uint32_t shift = position % 32;
        const uint64_t low = mantissa << shift, high = mantissa >> 32 >> (32 - shift);  // shift may be 0
        const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
        return {position / 32,
                {sign * static_cast<int64_t>(low & 0xffffffffu), sign * static_cast<int64_t>(low >> 32),
                 sign * static_cast<int64_t>(high)}};
    }

    void add(double term) {
        const Addend a = addend(term);
        for (size_t i = 0; i < 3; ++i) words_[a.first + i] += a.digits[i];
        if (++adds_ == kAddsBeforeCarry) carry();
    }

    // Digits are in [0, 2^32), except the highest, so up to 2^30 sums may be added word by word.
    const Words& words() {
        carry();
        return words_;
    }
    static ExactSum of(const Words& words) {
        ExactSum sum;
        sum.words_ = words;
        return sum;
    }

    // The sum, rounded to nearest, ties to even. Scaling all terms by a power of two scales it exactly. NaN if a term
    // was not finite.
    double value() {
        if (words_[kDigits] != 0) return std::numeric_limits<double>::quiet_NaN();
        carry();
        const bool negative = words_[kDigits - 1] < 0;
        Words magnitude = words_;
        if (negative) {
            for (int64_t& word : magnitude) word = -word;
            carry(magnitude);
        }
        size_t top = kDigits - 1;
        while (top > 0 && magnitude[top] == 0) --top;
        // The 64 highest bits, of which the last is 1 if any lower bit is ("round to odd", Boldo and Melquiond 2008),
        // so that the conversion to double is the only rounding.
        const auto digit = [&](size_t below) {
            return below <= top ? static_cast<uint64_t>(magnitude[top - below]) : 0;
        };
        uint64_t head = digit(0) << 32 | digit(1);
        const int shift = std::countl_zero(head | 1);
        head <<= shift;
        if (shift > 0 && shift < 32) head |= digit(2) >> (32 - shift);
        bool rest = shift < 32 && (digit(2) << shift & 0xffffffffu) != 0;
        for (size_t below = 3; below <= top; ++below) rest = rest || digit(below) != 0;
        const double total =
            std::ldexp(static_cast<double>(head | (rest ? 1 : 0)), 32 * (static_cast<int>(top) - 1) - 1074 - shift);
        return negative ? -total : total;
    }

  private:
    static void carry(Words& words) {
        for (size_t k = 0; k + 1 < kDigits; ++k) {
            const int64_t over = words[k] >> 32;  // floor: digits become non-negative
            words[k] -= over * (int64_t{1} << 32);
            words[k + 1] += over;
        }
    }
    void carry() {
        carry(words_);
        adds_ = 0;
    }

    Words words_{};
    int64_t adds_ = 0;
};

}  // namespace tutti
