#include "tutti/hf/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::hf {

namespace {

// visit(T{}) for the C++ type T of weights in `dtype`.
template <class Visit>
auto visit_type(DType dtype, const Visit& visit) {
    switch (dtype) {
        case DType::f32: return visit(float{});
        case DType::bf16: return visit(bf16{});
        case DType::f16: return visit(f16{});
        default: throw Error(concat("weights are f32, bf16 or f16, not ", dtype));
    }
}

template <class T>
float float_at(std::span<const std::byte> bytes, size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));  // a file promises no alignment
    return static_cast<float>(value);
}

template <class From, class To>
Loss convert_all(std::span<const std::byte> from, std::span<std::byte> to) {
    Loss loss;
    for (size_t i = 0; i < to.size() / sizeof(To); ++i) {
        const auto x = float_at<From>(from, i);
        const To value(x);
        const auto y = static_cast<float>(value);
        loss.infinite += std::isinf(y) && !std::isinf(x) ? 1 : 0;
        loss.zero += y == 0 && x != 0 ? 1 : 0;
        std::memcpy(to.data() + i * sizeof(To), &value, sizeof(To));
    }
    return loss;
}

}  // namespace

bool is_weight_type(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

Loss convert(DType from_type, std::span<const std::byte> from, DType to_type, std::span<std::byte> to) {
    const auto values = static_cast<int64_t>(from.size()) / size_of(from_type);
    check(static_cast<int64_t>(to.size()) == values * size_of(to_type), "convert: ", from.size(), " bytes of ",
          from_type, " do not become ", to.size(), " bytes of ", to_type);
    if (from_type == to_type) {
        std::copy(from.begin(), from.end(), to.begin());
        return {};
    }
    return visit_type(from_type, [&]<class From>(From) {
        return visit_type(to_type, [&]<class To>(To) { return convert_all<From, To>(from, to); });
    });
}

float value_at(DType dtype, std::span<const std::byte> values, int64_t index) {
    return visit_type(dtype, [&]<class T>(T) { return float_at<T>(values, to_size(index)); });
}

std::optional<int64_t> first_not_finite(DType dtype, std::span<const std::byte> values) {
    return visit_type(dtype, [&]<class T>(T) -> std::optional<int64_t> {
        for (size_t i = 0; i < values.size() / sizeof(T); ++i)
            if (!std::isfinite(float_at<T>(values, i))) return static_cast<int64_t>(i);
        return std::nullopt;
    });
}

int64_t count_not_finite(DType dtype, std::span<const std::byte> values) {
    return visit_type(dtype, [&]<class T>(T) {
        int64_t count = 0;
        for (size_t i = 0; i < values.size() / sizeof(T); ++i) count += std::isfinite(float_at<T>(values, i)) ? 0 : 1;
        return count;
    });
}

void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns, int64_t size, std::span<std::byte> to) {
    check(static_cast<int64_t>(from.size()) == rows * columns * size && to.size() == from.size(), "transpose: (", rows,
          ", ", columns, ") values of ", size, " bytes are not ", from.size(), " bytes");
    // Tiles, so that a line of the cache is used before it is lost.
    constexpr int64_t kTile = 32;
    for (int64_t r0 = 0; r0 < rows; r0 += kTile)
        for (int64_t c0 = 0; c0 < columns; c0 += kTile)
            for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
                for (int64_t c = c0; c < std::min(columns, c0 + kTile); ++c)
                    std::memcpy(to.data() + (c * rows + r) * size, from.data() + (r * columns + c) * size,
                                to_size(size));
}

}  // namespace tutti::hf
