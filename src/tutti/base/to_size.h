// base/to_size.h: an index, a size or the number of an enumerator as size_t, for the containers of the standard
// library. Sizes are int64_t and ranks int elsewhere; the value must not be negative.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace tutti {

template <class T>
requires std::integral<T> || std::is_enum_v<T>
constexpr size_t to_size(T value) { return static_cast<size_t>(value); }

}  // namespace tutti
