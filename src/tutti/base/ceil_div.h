// base/ceil_div.h: division rounded up, and rounding up to a multiple; a >= 0, b > 0.
#pragma once

#include <cstdint>

namespace tutti {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace tutti
