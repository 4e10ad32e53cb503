#include "tutti/base/dtype.h"

#include <algorithm>
#include <array>

#include "tutti/base/to_size.h"

namespace tutti {

namespace {
constexpr std::array<std::string_view, 11> kNames = {"f32", "bf16", "f16",  "f64",  "i32", "i64",
                                                     "u16", "u8",   "e4m3", "e5m2", "e8m0"};  // by DType
}

std::string_view name_of(DType t) { return kNames.at(to_size(t)); }

std::optional<DType> dtype_from(std::string_view name) {
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end()) return std::nullopt;
    return static_cast<DType>(found - kNames.begin());
}

}  // namespace tutti
