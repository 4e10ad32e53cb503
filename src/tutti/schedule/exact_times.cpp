// schedule/exact_times.cpp: see exact_times.h.
#include "tutti/schedule/exact_times.h"

#include <numeric>
#include <optional>
#include <string_view>

#include "tutti/base/error.h"

namespace tutti::schedule {

namespace {

constexpr int64_t kLargest = int64_t{1} << 53;  // sums up to here are exact as doubles, too

std::optional<int64_t> times(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product) || product > kLargest) return std::nullopt;
    return product;
}

struct Ratio {
    int64_t top = 0, bottom = 1;
};

// Digits with at most one point, then perhaps an exponent.
std::optional<Ratio> parse_decimal(std::string_view text) {
    Ratio value;
    bool point = false, digits = false;
    size_t i = 0;
    for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
        if (text[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (text[i] < '0' || text[i] > '9') return std::nullopt;
        digits = true;
        const auto top = times(value.top, 10), bottom = times(value.bottom, point ? 10 : 1);
        if (!top || !bottom) return std::nullopt;
        value = {*top + (text[i] - '0'), *bottom};
    }
    if (!digits) return std::nullopt;
    if (i == text.size()) return value;
    text.remove_prefix(i + 1);
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    if (text.empty() || text.size() > 2 || text.find_first_not_of("0123456789") != std::string_view::npos)
        return std::nullopt;
    for (int exponent = std::stoi(std::string(text)); exponent > 0; --exponent) {
        int64_t& grows = negative ? value.bottom : value.top;
        const auto grown = times(grows, 10);
        if (!grown) return std::nullopt;
        grows = *grown;
    }
    return value;
}

std::optional<Ratio> parse_ratio(std::string_view text) {
    const size_t slash = text.find('/');
    std::optional<Ratio> value = parse_decimal(text.substr(0, slash));
    if (value && slash != std::string_view::npos) {
        const std::optional<Ratio> by = parse_decimal(text.substr(slash + 1));
        if (!by || by->top == 0) return std::nullopt;
        const auto top = times(value->top, by->bottom), bottom = times(value->bottom, by->top);
        if (!top || !bottom) return std::nullopt;
        value = Ratio{*top, *bottom};
    }
    if (!value) return std::nullopt;
    const int64_t common = std::gcd(value->top, value->bottom);
    return Ratio{value->top / common, value->bottom / common};
}

}  // namespace

ExactTimes exact_times(const std::vector<NamedText>& texts, int64_t actions) {
    std::vector<Ratio> ratios;
    ExactTimes result;
    for (const auto& [name, text] : texts) {
        const std::optional<Ratio> ratio = parse_ratio(text);
        check<UsageError>(ratio.has_value(), name,
                          " must be a time of 0 or more, such as 1, 0.25, 3e-3 or 1/3, with at most 15 digits, got `",
                          text, "`");
        const auto unit = times(result.unit, ratio->bottom / std::gcd(result.unit, ratio->bottom));
        check<UsageError>(unit.has_value(), name, " = ", text,
                          " and the other times have no common unit that is large enough ",
                          "to count in; write them with fewer digits");
        result.unit = *unit;
        ratios.push_back(*ratio);
    }
    for (size_t i = 0; i < ratios.size(); ++i) {
        const auto count = times(ratios[i].top, result.unit / ratios[i].bottom);
        check<UsageError>(count && times(*count, actions), texts[i].name, " = ", texts[i].text,
                          " has too many digits beside the other times for an exact sum over ", actions,
                          " actions; write the times with fewer digits");
        result.counts.push_back(*count);
    }
    return result;
}

}  // namespace tutti::schedule
