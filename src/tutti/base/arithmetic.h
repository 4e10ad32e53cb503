// base/arithmetic.h: what forward and backward compute in (precision.compute).
#pragma once

#include <optional>
#include <ostream>
#include <string_view>

#include "tutti/base/dtype.h"

namespace tutti {

// tf32: f32 but for matrix products, whose factors may be rounded to 10 bits of fraction, as GPUs since sm_80 do.
enum class Arithmetic : uint8_t { f32, tf32, bf16 };

// The type of weights and activations.
constexpr DType storage_of(Arithmetic a) { return a == Arithmetic::bf16 ? DType::bf16 : DType::f32; }

constexpr std::string_view name_of(Arithmetic a) {
    switch (a) {
        case Arithmetic::f32: return "f32";
        case Arithmetic::tf32: return "tf32";
        case Arithmetic::bf16: return "bf16";
    }
    return "";
}
inline std::ostream& operator<<(std::ostream& out, Arithmetic a) { return out << name_of(a); }

// The inverse of name_of.
constexpr std::optional<Arithmetic> arithmetic_from(std::string_view name) {
    for (const Arithmetic a : {Arithmetic::f32, Arithmetic::tf32, Arithmetic::bf16})
        if (name == name_of(a)) return a;
    return std::nullopt;
}

}  // namespace tutti
