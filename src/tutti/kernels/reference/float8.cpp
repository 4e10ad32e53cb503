// kernels/reference/float8.cpp: codes of 8 bits, by their definition: the number nearest to x times the factor among
// all numbers of the format, and the even code of two that are equally near.
#include "tutti/base/float8.h"

#include <algorithm>
#include <vector>

#include "tutti/base/ceil_div.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"
#include "tutti/kernels/scale_layout.h"

namespace tutti::kernels::reference {

namespace {

struct Format {
    std::vector<double> values;  // of the codes without a sign, rising
    bool infinity;               // is the next code
    explicit Format(DType t) : infinity(t == DType::e5m2) {
        const int fraction = t == DType::e4m3 ? 3 : 2, bias = t == DType::e4m3 ? 7 : 15;
        for (int code = 0; code < (t == DType::e4m3 ? 127 : 124); ++code) {
            const int exponent = code >> fraction, rest = code & ((1 << fraction) - 1);
            const int whole = exponent == 0 ? rest : rest + (1 << fraction);
            values.push_back(std::ldexp(whole, std::max(exponent, 1) - bias - fraction));
        }
    }

    uint8_t nearest(float x) const {
        if (std::isnan(x)) return 0x7f;
        const double magnitude = std::abs(static_cast<double>(x));
        size_t code = 0;
        while (code + 1 < values.size() && values[code + 1] <= magnitude) ++code;
        if (code + 1 < values.size()) {
            const double below = magnitude - values[code], above = values[code + 1] - magnitude;
            if (above < below || (above == below && code % 2 == 1)) ++code;
        }
        return static_cast<uint8_t>(code + (std::signbit(x) ? 0x80 : 0));
    }
    double number(uint8_t code) const {
        const size_t magnitude = code & 0x7f;
        const double value = magnitude < values.size()                ? values[magnitude]
                             : infinity && magnitude == values.size() ? INFINITY
                                                                      : std::nan("");
        return code < 0x80 ? value : -value;
    }
};

float float_at(const View& x, int64_t r, int64_t c) { return static_cast<float>(load(x, offset(x, r, c))); }

// NaN above infinity above all numbers.
float larger(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::max(a, b); }

void amax(const Stream&, View x, View largest) {
    float most = std::bit_cast<float>(*largest.as<int32_t>());
    for (int64_t r = 0; r < x.shape[0]; ++r)
        for (int64_t c = 0; c < x.shape[1]; ++c) most = larger(most, std::abs(float_at(x, r, c)));
    *largest.as<int32_t>() = std::bit_cast<int32_t>(std::isnan(most) ? std::nanf("") : most);
}

// Rows and columns of a group, of a matrix of this shape.
GroupShape sizes_of(const GroupShape& group, const Shape& shape) {
    return {group.rows > 0 ? group.rows : std::max<int64_t>(shape[0], 1),
            group.columns > 0 ? group.columns : std::max<int64_t>(shape[1], 1)};
}

double divisor_at(const View& divisors, int64_t at) {
    return divisors.dtype == DType::e8m0 ? e8m0_value(divisors.as<const uint8_t>()[at])
                                         : divisors.as<const float>()[at];
}

void quantize(const Stream&, const Quantize& q) {
    const int64_t R = q.x.shape[0], C = q.x.shape[1];
    const GroupShape group = sizes_of(q.scales.group, q.x.shape);
    const Format format(q.codes.dtype);
    const Float8& numbers = float8_of(q.codes.dtype);
    const auto swapped = [&](int64_t i, int64_t j) { return q.transposed ? std::pair{j, i} : std::pair{i, j}; };
    for (int64_t first_row = 0; first_row < R; first_row += group.rows)
        for (int64_t first_column = 0; first_column < C; first_column += group.columns) {
            const int64_t rows = std::min(R, first_row + group.rows),
                          columns = std::min(C, first_column + group.columns);
            float most = q.amax.defined() ? std::bit_cast<float>(*q.amax.as<int32_t>()) : 0;
            for (int64_t r = first_row; r < rows && !q.amax.defined(); ++r)
                for (int64_t c = first_column; c < columns; ++c) most = larger(most, std::abs(float_at(q.x, r, c)));
            const auto [i, j] = swapped(first_row / group.rows, first_column / group.columns);
            const auto [down, across] = swapped(ceil_div(R, group.rows), ceil_div(C, group.columns));
            const int64_t at = scale_place(q.scales.layout, i, j, down, across);
            const bool finite = std::isfinite(most);
            float factor = 1;
            if (q.scales.values.dtype == DType::e8m0) {
                const uint8_t code = e8m0_divisor(most, numbers);
                factor = e8m0_factor(code);
                for (int64_t copy = 0; copy < scale_copies(q.scales.layout); ++copy)
                    q.scales.values.as<uint8_t>()[at + copy] = code;
            } else {
                if (finite)
                    factor = q.factor.defined() ? *q.factor.as<float>()
                                                : float8_factor(most, numbers, largest_of(q.x.dtype), q.powers_of_two);
                q.scales.values.as<float>()[at] = finite ? 1 / factor : std::nanf("");
            }
            for (int64_t r = first_row; r < rows; ++r)
                for (int64_t c = first_column; c < columns; ++c) {
                    const auto [k, l] = swapped(r, c);
                    const float x = float_at(q.x, r, c), scaled = x * factor;
                    const uint8_t code = format.nearest(scaled);
                    q.codes.as<uint8_t>()[offset(q.codes, k, l)] = code;
                    if (!q.lost.defined()) continue;
                    q.lost.as<int64_t>()[0] += std::abs(scaled) > numbers.largest;
                    q.lost.as<int64_t>()[1] += x != 0 && (code & 0x7f) == 0;
                }
        }
}

// visit(number of the element in x, of its group).
template <class Visit>
void for_each_of_run(const QuantizeRun& q, const Visit& visit) {
    const GroupShape group = sizes_of(q.group, q.matrix);
    const int64_t across = ceil_div(q.matrix[1], group.columns);
    for (int64_t i = 0; i < q.x.shape[0]; ++i) {
        const int64_t r = (q.first + i) / q.matrix[1], c = (q.first + i) % q.matrix[1];
        visit(i, r / group.rows * across + c / group.columns);
    }
}

void amax_of_run(const Stream&, const QuantizeRun& q) {
    for_each_of_run(q, [&](int64_t i, int64_t group) {
        int32_t& most = q.amaxes.as<int32_t>()[group];
        const float largest = larger(std::bit_cast<float>(most), std::abs(static_cast<float>(load(q.x, i))));
        most = std::bit_cast<int32_t>(std::isnan(largest) ? std::nanf("") : largest);
    });
}

void quantize_run(const Stream&, const QuantizeRun& q) {
    const Format format(q.codes.dtype);
    for_each_of_run(q, [&](int64_t i, int64_t group) {
        const float most = std::bit_cast<float>(q.amaxes.as<const int32_t>()[group]);
        float factor = 1;
        if (std::isfinite(most))
            factor = q.factor.defined()
                         ? *q.factor.as<float>()
                         : float8_factor(most, float8_of(q.codes.dtype), largest_of(q.x.dtype), q.powers_of_two);
        q.codes.as<uint8_t>()[i] = format.nearest(static_cast<float>(load(q.x, i)) * factor);
    });
}

void dequantize(const Stream&, const Dequantize& d) {
    const int64_t R = d.y.shape[0], C = d.y.shape[1];
    const GroupShape group = sizes_of(d.scales.group, d.y.shape);
    const Format format(d.codes.dtype);
    for (int64_t r = 0; r < R; ++r)
        for (int64_t c = 0; c < C; ++c) {
            const int64_t i = r / group.rows, j = c / group.columns;
            const uint8_t code = d.codes.as<const uint8_t>()[d.transposed ? c * R + r : r * C + c];
            const int64_t down = ceil_div(R, group.rows), across = ceil_div(C, group.columns);
            const double divisor =
                divisor_at(d.scales.values, d.transposed ? scale_place(d.scales.layout, j, i, across, down)
                                                         : scale_place(d.scales.layout, i, j, down, across));
            store(d.y, offset(d.y, r, c), format.number(code) * divisor);
        }
}

}  // namespace

void fill_float8(KernelTable& table) {
    table.amax = amax;
    table.quantize = quantize;
    table.amax_of_run = amax_of_run;
    table.quantize_run = quantize_run;
    table.dequantize = dequantize;
}

}  // namespace tutti::kernels::reference
