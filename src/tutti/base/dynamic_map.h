// base/dynamic_map.h: the dynamic map of 8-bit optimizer states (Dettmers et al., "8-bit optimizers via block-wise
// quantization", 2022). A code is the index of the nearest of 256 values; the state is that value times the largest
// magnitude of its block. The values are those of bitsandbytes, bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace tutti {

struct DynamicMap {
    // 0, 1, and the centres of cells in seven decades down from 1: the decade of 10^-i has 2^(6-i) equal cells per
    // sign, twice as many without signs.
    consteval explicit DynamicMap(bool has_sign) {
        constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
        size_t n = 0;
        for (size_t i = 0; i < 7; ++i) {
            const int cells = 1 << (i + (has_sign ? 0 : 1));
            const float step = (1.0f - 0.1f) / static_cast<float>(cells);
            // As torch.linspace(0.1, 1, cells + 1): computed from the nearer end by a fused multiply-add.
            const auto edge = [&](int k) {
                return k < (cells + 1) / 2 ? static_cast<float>(double{0.1f} + double{step} * k)
                                           : static_cast<float>(1.0 - double{step} * (cells - k));
            };
            for (int k = 0; k < cells; ++k) {
                const float value = kDecades[i] * ((edge(k) + edge(k + 1)) / 2);
                values[n++] = value;
                if (has_sign) values[n++] = -value;
            }
        }
        values[n++] = 0;
        values[n++] = 1;
        std::sort(std::begin(values), std::end(values));
        for (size_t i = 0; i < 255; ++i) midpoints[i] = (values[i] + values[i + 1]) / 2;
    }

    float values[256] = {};     // ascending
    float midpoints[255] = {};  // between them

    // The code of the nearest value; of the smaller one in a tie.
    constexpr uint8_t code_of(float x) const {
        return static_cast<uint8_t>(std::lower_bound(std::begin(midpoints), std::end(midpoints), x) - midpoints);
    }
    // The code of x in a block with this largest magnitude. Without signs, x > 0 never gets the code of 0.
    constexpr uint8_t code_of(double x, double largest) const {
        const uint8_t code = code_of(largest > 0 ? static_cast<float>(x / largest) : 0.0f);
        return code == 0 && values[0] == 0 && x > 0 ? uint8_t{1} : code;
    }
};

inline constexpr DynamicMap kSignedMap{true}, kUnsignedMap{false};

}  // namespace tutti
