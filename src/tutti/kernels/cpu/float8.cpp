// kernels/cpu/float8.cpp: codes of 8 bits, the same code for every instruction set. A group's largest magnitude is a
// maximum and a cast is exact, so neither threads nor the order of a loop change a bit.

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/group_scale.h"

namespace tutti::kernels {

namespace {

constexpr int64_t kGrain = 16384;  // values worth a thread

template <class F>
void with_activation(DType dtype, F&& f) {
    dtype == DType::f32 ? f(float{}) : dtype == DType::bf16 ? f(bf16{}) : f(f16{});
}

template <class T>
const T* row_of(const View& x, int64_t r) {
    return x.as<const T>() + r * x.stride(0);
}

// The largest of the magnitudes' bits, of a row of n values.
int32_t largest_bits(const float* x, int64_t n, int32_t most) {
    for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
    return most;
}
int32_t largest_bits(const f16* x, int64_t n, int32_t most) {
    for (int64_t i = 0; i < n; ++i)
        most = std::max(most, std::bit_cast<int32_t>(static_cast<float>(x[i])) & 0x7fffffff);
    return most;
}
int32_t largest_bits(const bf16* x, int64_t n, int32_t most) {
    int32_t high = most >> 16;
    for (int64_t i = 0; i < n; ++i) high = std::max(high, x[i].bits & 0x7fff);
    return std::max(most, high << 16);
}

template <class T>
int32_t largest_bits(const View& x, int64_t first_row, int64_t rows, int64_t first, int64_t columns, int32_t most) {
    for (int64_t r = first_row; r < rows; ++r) most = largest_bits(row_of<T>(x, r) + first, columns - first, most);
    return most;
}

void amax(const Stream& stream, View x, View largest) {
    const int64_t R = x.shape[0], C = x.shape[1];
    const int64_t pieces = std::clamp<int64_t>(R * C / kGrain, 1, std::max(stream.threads, 1));
    std::vector<int32_t> of_pieces(static_cast<size_t>(pieces), *largest.as<int32_t>());
    const auto find = [&]<class T>(T) {
        parallel_tasks(stream, pieces, [&](int64_t i) {
            int32_t& most = of_pieces[static_cast<size_t>(i)];
            most = largest_bits<T>(x, R * i / pieces, R * (i + 1) / pieces, 0, C, most);
        });
    };
    with_activation(x.dtype, find);
    *largest.as<int32_t>() = *std::max_element(of_pieces.begin(), of_pieces.end());
}

GroupGrid grid_of(const GroupShape& group, const Shape& shape, ScaleLayout layout = ScaleLayout::rows) {
    return {group, shape[0], shape[1], layout};
}

// Writes the divisor of a group with this largest magnitude, and returns the factor of its values.
float write_divisor(const Quantize& q, int64_t at, int32_t amax) {
    const bool e8m0 = q.scales.values.dtype == DType::e8m0;
    const GroupScale scale = group_scale(amax, float8_of(q.codes.dtype), e8m0, largest_of(q.x.dtype), q.powers_of_two,
                                         q.factor.defined() ? *q.factor.as<const float>() : 0);
    if (e8m0)
        std::fill_n(q.scales.values.as<uint8_t>() + at, scale_copies(q.scales.layout), scale.code);
    else
        q.scales.values.as<float>()[at] = scale.divisor;
    return scale.factor;
}

// x (n) times the factor, to codes `step` apart.
template <int kFraction, class T>
void cast_row(const T* x, int64_t n, float factor, uint8_t* codes, int64_t step) {
    constexpr Float8 kFormat = kFraction == 3 ? kE4m3 : kE5m2;
    if (step == 1)
        for (int64_t i = 0; i < n; ++i) codes[i] = float8_code(static_cast<float>(x[i]) * factor, kFormat);
    else
        for (int64_t i = 0; i < n; ++i) codes[i * step] = float8_code(static_cast<float>(x[i]) * factor, kFormat);
}

// Adds what the casts of x (n) lose to q.lost.
template <int kFraction, class T>
void count_lost(const Quantize& q, const T* x, int64_t n, float factor) {
    if (!q.lost.defined()) return;
    constexpr Float8 kFormat = kFraction == 3 ? kE4m3 : kE5m2;
    int64_t saturated = 0, flushed = 0;
    for (int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<float>(x[i]);
        saturated += is_saturated(value * factor, kFormat);
        flushed += is_flushed(value, value * factor, kFormat);
    }
    auto* const lost = q.lost.as<int64_t>();
    if (saturated > 0) std::atomic_ref(lost[0]).fetch_add(saturated, std::memory_order_relaxed);
    if (flushed > 0) std::atomic_ref(lost[1]).fetch_add(flushed, std::memory_order_relaxed);
}

template <int kFraction, class T>
void quantize_rows(const Quantize& q, const GroupGrid& groups, int64_t first_row, int64_t rows, int64_t i) {
    auto* const codes = q.codes.as<uint8_t>();
    for (int64_t j = 0; j < groups.across(); ++j) {
        const int64_t first = j * groups.columns, columns = std::min(groups.C, first + groups.columns);
        const int32_t most =
            q.amax.defined() ? *q.amax.as<const int32_t>() : largest_bits<T>(q.x, first_row, rows, first, columns, 0);
        const float factor = write_divisor(q, groups.at(i, j, q.transposed), most);
        for (int64_t r = first_row; r < rows; ++r) {
            uint8_t* to = q.transposed ? codes + first * groups.R + r : codes + r * groups.C + first;
            cast_row<kFraction>(row_of<T>(q.x, r) + first, columns - first, factor, to, q.transposed ? groups.R : 1);
            count_lost<kFraction>(q, row_of<T>(q.x, r) + first, columns - first, factor);
        }
    }
}

template <int kFraction, class T>
void quantize_as(const Stream& stream, Quantize q) {
    const GroupGrid groups = grid_of(q.scales.group, q.x.shape, q.scales.layout);
    if (groups.down() > 1 || groups.R * groups.C < kGrain) {
        const int64_t grain = kGrain / std::max<int64_t>(groups.rows * groups.C, 1) + 1;
        return parallel_for(stream, groups.down(), grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
                quantize_rows<kFraction, T>(q, groups, i * groups.rows, std::min(groups.R, (i + 1) * groups.rows), i);
        });
    }
    // One group over all rows for each run of columns: threads share the rows. Every thread writes the same divisors.
    int32_t most = 0;
    if (!q.amax.defined() && groups.across() == 1) {
        amax(stream, q.x, View(&most, DType::i32, {1}));
        q.amax = View(&most, DType::i32, {1});
    }
    if (!q.amax.defined()) return quantize_rows<kFraction, T>(q, groups, 0, groups.R, 0);
    const float factor = write_divisor(q, 0, *q.amax.as<const int32_t>());
    parallel_for(stream, groups.R, kGrain / groups.C + 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            cast_row<kFraction>(row_of<T>(q.x, r), groups.C, factor,
                                q.codes.as<uint8_t>() + (q.transposed ? r : r * groups.C), q.transposed ? groups.R : 1);
            count_lost<kFraction>(q, row_of<T>(q.x, r), groups.C, factor);
        }
    });
}

void quantize(const Stream& stream, const Quantize& q) {
    with_activation(q.x.dtype, [&]<class T>(T) {
        q.codes.dtype == DType::e4m3 ? quantize_as<3, T>(stream, q) : quantize_as<2, T>(stream, q);
    });
}

// visit(first, end, group) of the elements [begin, end) of a run that lie in one row of one group.
template <class Visit>
void for_each_piece(const QuantizeRun& q, int64_t begin, int64_t end, const Visit& visit) {
    const GroupGrid groups = grid_of(q.group, q.matrix);
    while (begin < end) {
        const int64_t r = (q.first + begin) / groups.C, c = (q.first + begin) % groups.C;
        const int64_t columns = std::min(groups.C, (c / groups.columns + 1) * groups.columns) - c;
        const int64_t to = std::min(end, begin + columns);
        visit(begin, to, groups.at(r / groups.rows, c / groups.columns, false));
        begin = to;
    }
}

void amax_of_run(const Stream& stream, const QuantizeRun& q) {
    const auto find = [&]<class T>(T) {
        parallel_for(stream, q.x.shape[0], kGrain, [&](int64_t begin, int64_t end) {
            for_each_piece(q, begin, end, [&](int64_t from, int64_t to, int64_t group) {
                const std::atomic_ref most(q.amaxes.as<int32_t>()[group]);
                int32_t before = most.load(std::memory_order_relaxed);
                const int32_t mine = largest_bits(q.x.as<const T>() + from, to - from, before);
                while (mine > before && !most.compare_exchange_weak(before, mine, std::memory_order_relaxed)) {
                }
            });
        });
    };
    with_activation(q.x.dtype, find);
}

template <int kFraction, class T>
void quantize_run_as(const Stream& stream, const QuantizeRun& q) {
    const float given = q.factor.defined() ? *q.factor.as<const float>() : 0;
    parallel_for(stream, q.x.shape[0], kGrain, [&](int64_t begin, int64_t end) {
        for_each_piece(q, begin, end, [&](int64_t from, int64_t to, int64_t group) {
            const GroupScale scale = group_scale(q.amaxes.as<const int32_t>()[group], float8_of(q.codes.dtype), false,
                                                 largest_of(q.x.dtype), q.powers_of_two, given);
            cast_row<kFraction>(q.x.as<const T>() + from, to - from, scale.factor, q.codes.as<uint8_t>() + from, 1);
        });
    });
}

void quantize_run(const Stream& stream, const QuantizeRun& q) {
    with_activation(q.x.dtype, [&]<class T>(T) {
        q.codes.dtype == DType::e4m3 ? quantize_run_as<3, T>(stream, q) : quantize_run_as<2, T>(stream, q);
    });
}

template <int kFraction>
constexpr std::array<float, 256> values_of_codes() {
    std::array<float, 256> values{};
    for (size_t code = 0; code < 256; ++code)
        values[code] = float8_value(static_cast<uint8_t>(code), kFraction == 3 ? kE4m3 : kE5m2);
    return values;
}
constexpr std::array<float, 256> kValuesOfE4m3 = values_of_codes<3>(), kValuesOfE5m2 = values_of_codes<2>();

template <class T>
void dequantize_as(const Stream& stream, const Dequantize& d) {
    const GroupGrid groups = grid_of(d.scales.group, d.y.shape, d.scales.layout);
    const std::array<float, 256>& values = d.codes.dtype == DType::e4m3 ? kValuesOfE4m3 : kValuesOfE5m2;
    const auto* const codes = d.codes.as<const uint8_t>();
    const auto divisor = [&](int64_t at) {
        return d.scales.values.dtype == DType::e8m0 ? e8m0_value(d.scales.values.as<const uint8_t>()[at])
                                                    : d.scales.values.as<const float>()[at];
    };
    parallel_for(stream, groups.R, kGrain / std::max<int64_t>(groups.C, 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            T* const to = d.y.as<T>() + r * d.y.stride(0);
            for (int64_t j = 0; j < groups.across(); ++j) {
                const float times = divisor(groups.at(r / groups.rows, j, d.transposed));
                const int64_t first = j * groups.columns, last = std::min(groups.C, first + groups.columns);
                if (d.transposed)
                    for (int64_t c = first; c < last; ++c) to[c] = T(values[codes[c * groups.R + r]] * times);
                else
                    for (int64_t c = first; c < last; ++c) to[c] = T(values[codes[r * groups.C + c]] * times);
            }
        }
    });
}

void dequantize(const Stream& stream, const Dequantize& d) {
    with_activation(d.y.dtype, [&]<class T>(T) { dequantize_as<T>(stream, d); });
}

}  // namespace

void fill_float8(KernelTable& table) {
    table.amax = amax;
    table.quantize = quantize;
    table.amax_of_run = amax_of_run;
    table.quantize_run = quantize_run;
    table.dequantize = dequantize;
}

}  // namespace tutti::kernels
