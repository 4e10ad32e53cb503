// base/to_size.h: converts an index, a size or an enumerator, which must not be negative, to size_t, for containers of
// the standard library. Elsewhere sizes are int64_t and ranks int.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace tutti {

template <class T>
requires std::integral<T> || std::is_enum_v<T>
constexpr size_t to_size(T value) { return static_cast<size_t>(value); }

}  // namespace tutti
