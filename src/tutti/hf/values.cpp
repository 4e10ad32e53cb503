#include "tutti/hf/values.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::hf {

TensorName tensor_name(spec::Family family, std::string_view parameter, bool with_prefix) {
    if (family != spec::Family::gpt2 || parameter == "lm_head.weight") return {std::string(parameter), false};
    bool conv1d = false;
    for (const std::string_view matrix :
         {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"})
        conv1d = conv1d || parameter.ends_with(matrix);
    return {concat(with_prefix ? "transformer." : "", parameter), conv1d};
}

bool is_legacy_buffer(spec::Family family, std::string_view tensor) {
    if (family == spec::Family::gpt2) return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
    return tensor.ends_with(".rotary_emb.inv_freq");
}

namespace {

template <class T>
T value_at(std::span<const std::byte> bytes, size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));  // a file promises no alignment
    return value;
}

template <class From, class To>
void convert_all(std::span<const std::byte> from, std::span<std::byte> to) {
    for (size_t i = 0; i < to.size() / sizeof(To); ++i) {
        const To value(static_cast<float>(value_at<From>(from, i)));
        std::memcpy(to.data() + i * sizeof(To), &value, sizeof(To));
    }
}

template <class From>
void convert_from(std::span<const std::byte> from, DType to_type, std::span<std::byte> to) {
    switch (to_type) {
        case DType::f32: return convert_all<From, float>(from, to);
        case DType::bf16: return convert_all<From, bf16>(from, to);
        case DType::f16: return convert_all<From, f16>(from, to);
        default: throw Error(concat("weights cannot be stored as ", to_type));
    }
}

}  // namespace

bool is_weight_type(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

void convert(DType from_type, std::span<const std::byte> from, DType to_type, std::span<std::byte> to) {
    const auto values = static_cast<int64_t>(from.size()) / size_of(from_type);
    check(static_cast<int64_t>(to.size()) == values * size_of(to_type), "convert: ", from.size(), " bytes of ",
          from_type, " do not become ", to.size(), " bytes of ", to_type);
    if (from_type == to_type) {
        std::copy(from.begin(), from.end(), to.begin());
        return;
    }
    switch (from_type) {
        case DType::f32: return convert_from<float>(from, to_type, to);
        case DType::bf16: return convert_from<bf16>(from, to_type, to);
        case DType::f16: return convert_from<f16>(from, to_type, to);
        default: throw Error(concat("weights of type ", from_type, " are not read"));
    }
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
                                static_cast<size_t>(size));
}

}  // namespace tutti::hf
