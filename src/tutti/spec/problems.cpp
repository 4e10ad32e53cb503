#include "tutti/spec/problems.h"

#include <algorithm>
#include <limits>

#include "tutti/spec/fields.h"

namespace tutti::spec {

int64_t product(std::initializer_list<int64_t> factors) {
    int64_t all = 1;
    for (const int64_t factor : factors) {
        if (__builtin_mul_overflow(all, factor, &all)) return std::numeric_limits<int64_t>::max();
    }
    return all;
}

namespace {

// The largest value that the field by itself allows.
int64_t most(std::string_view path) {
    double high = 0;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto&) {
        if (field.path() == path) high = field.range.high;
    });
    return static_cast<int64_t>(high);
}

}  // namespace

std::string suggestion(const std::string& before, int64_t low, int64_t high, std::string_view path) {
    std::string values;
    if (low >= 1 && low <= most(path)) values = std::to_string(low);
    if (high != low && high <= most(path)) values += (values.empty() ? "" : " or ") + std::to_string(high);
    return values.empty() ? "" : before + values;
}

std::string nearest_multiples(const std::string& before, int64_t n, int64_t unit, std::string_view path) {
    const int64_t low = n - n % unit;
    int64_t high = 0;
    if (n % unit == 0 || __builtin_add_overflow(low, unit, &high)) high = low;
    return suggestion(before, low, high, path);
}

std::string nearest_divisors(const std::string& before, int64_t n, int64_t value, std::string_view path) {
    int64_t low = 1, high = n;
    const auto consider = [&](int64_t divisor) {
        if (divisor <= value) low = std::max(low, divisor);
        if (divisor >= value) high = std::min(high, divisor);
    };
    constexpr int64_t kPatience = 1 << 20;  // complete for every n inside its range; n may be far outside of it
    for (int64_t d = 1; d <= std::min(n / d, kPatience); ++d) {
        if (n % d != 0) continue;
        consider(d);
        consider(n / d);
    }
    return suggestion(before, low, high, path);
}

}  // namespace tutti::spec
