#include "tutti/hf/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/spec/hf_config.h"

namespace tutti::hf {

namespace {

TensorName gpt2_name(std::string_view parameter, bool with_prefix) {
    if (parameter == "lm_head.weight") return {std::string(parameter), false};
    bool conv1d = false;
    for (const std::string_view matrix :
         {".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"})
        conv1d = conv1d || parameter.ends_with(matrix);
    return {concat(with_prefix ? "transformer." : "", parameter), conv1d};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string mixtral_name(std::string name) {
    name = replaced(std::move(name), ".mlp.", ".block_sparse_moe.");
    for (const auto& [ours, theirs] :
         {std::pair{".gate_proj.", ".w1."}, {".up_proj.", ".w3."}, {".down_proj.", ".w2."}})
        name = replaced(std::move(name), ours, theirs);
    return name;
}

}  // namespace

std::vector<TensorName> tensor_names(const spec::ModelSpec& spec, std::string_view parameter, bool with_prefix) {
    if (spec.family == spec::Family::gpt2) return {gpt2_name(parameter, with_prefix)};
    std::string name(parameter);
    if (spec.moe.experts > 0 && spec::hf_model_type(spec) == "mixtral") name = mixtral_name(std::move(name));
    constexpr std::string_view kExperts = ".experts.";
    if (name.find(kExperts) == std::string::npos) return {{name}};
    std::vector<TensorName> names;
    for (int64_t e = 0; e < spec.moe.experts; ++e)
        names.push_back({replaced(name, kExperts, concat(kExperts, e, "."))});
    return names;
}

bool is_legacy_buffer(spec::Family family, std::string_view tensor) {
    if (family == spec::Family::gpt2) return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
    return tensor.ends_with(".rotary_emb.inv_freq");
}

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
    return visit_type(dtype, [&]<class T>(T) { return float_at<T>(values, static_cast<size_t>(index)); });
}

std::optional<int64_t> first_not_finite(DType dtype, std::span<const std::byte> values) {
    return visit_type(dtype, [&]<class T>(T) -> std::optional<int64_t> {
        for (size_t i = 0; i < values.size() / sizeof(T); ++i)
            if (!std::isfinite(float_at<T>(values, i))) return static_cast<int64_t>(i);
        return std::nullopt;
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
                                static_cast<size_t>(size));
}

}  // namespace tutti::hf
