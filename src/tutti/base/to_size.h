// base/to_size.h: an index or a size as size_t, for the containers of the standard library. Sizes are int64_t and ranks
// int elsewhere; the value must not be negative.
#pragma once

#include <concepts>
#include <cstddef>

namespace tutti {

template <std::integral T>
constexpr size_t to_size(T value) {
    return static_cast<size_t>(value);
}

}  // namespace tutti
