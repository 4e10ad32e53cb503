// base/ceil_div.h: how many parts of `b` hold `a`; a >= 0, b > 0.
#pragma once

#include <cstdint>

namespace tutti {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tutti
