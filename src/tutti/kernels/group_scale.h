// kernels/group_scale.h: the factor and the divisor of a group of values that quantize() stores in 8 bits, for the
// kernels of every processor.
#pragma once

#include "tutti/base/ceil_div.h"
#include "tutti/base/float8.h"
#include "tutti/kernels/scale_layout.h"

namespace tutti::kernels {

struct GroupScale {
    float factor;
    float divisor;  // NaN of a group with an infinity or NaN
    uint8_t code;   // of an e8m0 divisor
};

// `amax`: the bits of the group's largest magnitude; `given`: a factor in place of the one that follows; 0: none.
constexpr GroupScale group_scale(int32_t amax, const Float8& format, bool e8m0, float of_type, bool powers_of_two,
                                 float given) {
    const float largest = std::bit_cast<float>(amax);
    if (e8m0) {
        const uint8_t code = e8m0_divisor(largest, format);
        return {e8m0_factor(code), e8m0_value(code), code};
    }
    if (amax >= 0x7f800000) return {1, std::bit_cast<float>(0x7fc00000), 0};
    const float factor = given > 0 ? given : float8_factor(largest, format, of_type, powers_of_two);
    return {factor, 1 / factor, 0};
}

// Whether a value of a group is lost in its code: beyond the largest number, or not 0 and flushed to it.
constexpr bool is_saturated(float scaled, const Float8& format) {
    return scaled > format.largest || scaled < -format.largest;
}
constexpr bool is_flushed(float x, float scaled, const Float8& format) {
    const float least = largest_flushed(format);
    return x != 0 && scaled >= -least && scaled <= least;
}

// Rows and columns of the groups of a matrix, and where their divisors are.
struct GroupGrid {
    int64_t rows, columns, R, C;  // of a group, of the matrix
    ScaleLayout layout;

    constexpr GroupGrid(const GroupShape& group, int64_t R_, int64_t C_, ScaleLayout layout_ = ScaleLayout::rows)
        : rows(group.rows > 0 ? group.rows
               : R_ > 0       ? R_
                              : 1),
          columns(group.columns > 0 ? group.columns
                  : C_ > 0          ? C_
                                    : 1),
          R(R_),
          C(C_),
          layout(layout_) {}
    constexpr int64_t down() const { return ceil_div(R, rows); }
    constexpr int64_t across() const { return ceil_div(C, columns); }
    constexpr int64_t at(int64_t i, int64_t j, bool transposed) const {
        return transposed ? scale_place(layout, j, i, across(), down()) : scale_place(layout, i, j, down(), across());
    }
};

}  // namespace tutti::kernels
