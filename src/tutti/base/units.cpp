#include "tutti/base/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"

namespace tutti {
namespace {

// "1.5e12"
std::string scientific(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1e", value);
    std::string result = text.data();
    const size_t exponent = result.find("e+") + 1;
    return result.erase(exponent, result[exponent + 1] == '0' ? 2 : 1);
}

std::string fixed(double value, int decimals) {
    if (std::abs(value) >= 1e12) return scientific(value);
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
    return text.data();
}

// Two decimals below 10, one above; 9.996 is "10.0". Numbers beyond all units have an exponent.
std::string scaled(double value) { return value >= 99999.95 ? scientific(value) : fixed(value, value < 9.995 ? 2 : 1); }

// `value` in the largest unit in which it is at least 1 after rounding to one decimal.
std::string with_unit(double value, double base, std::span<const std::string_view> units) {
    size_t unit = 0;
    while (unit + 1 < units.size() && value >= base - 0.05) {
        value /= base;
        ++unit;
    }
    const bool whole = unit == 0 && value == std::floor(value);
    return concat(whole ? fixed(value, 0) : scaled(value), units[unit].empty() ? "" : " ", units[unit]);
}

// format(|value|) with the sign in front; "?" for NaN and infinity.
template <class Format>
std::string with_sign(double value, Format&& format) {
    if (!std::isfinite(value)) return "?";
    return value < 0 ? concat("-", format(-value)) : format(value);
}

constexpr std::array<std::string_view, 7> kByteUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
// 8B parameters and 15T tokens are the usual notation; FLOPs have SI prefixes.
constexpr std::array<std::string_view, 5> kCountUnits = {"", "k", "M", "B", "T"};
constexpr std::array<std::string_view, 9> kFlopUnits = {"FLOP",  "kFLOP", "MFLOP", "GFLOP", "TFLOP",
                                                        "PFLOP", "EFLOP", "ZFLOP", "YFLOP"};

// "2m 05s": `total` of the small unit, `per` of which make one large unit.
std::string two_units(int64_t total, int64_t per, const char* large, const char* small) {
    const int64_t rest = total % per;
    return concat(total / per, large, rest < 10 ? " 0" : " ", rest, small);
}

std::string positive_duration(double seconds) {
    constexpr int64_t kMinute = 60, kHour = 60, kDay = 24;
    if (seconds == 0) return "0 s";
    if (seconds < 999.5e-6) return fixed(seconds * 1e6, 0) + " us";
    if (seconds < 0.99995) return scaled(seconds * 1e3) + " ms";
    if (seconds < 59.95) return fixed(seconds, 1) + " s";
    if (const int64_t s = std::llround(seconds); s < kMinute * kHour) return two_units(s, kMinute, "m", "s");
    if (const int64_t m = std::llround(seconds / 60); m < kHour * kDay) return two_units(m, kHour, "h", "m");
    if (seconds > 1e9 * 86400) return "?";
    return two_units(std::llround(seconds / 3600), kDay, "d", "h");
}

std::string padding(const std::string& text, size_t width) {
    return std::string(width - std::min(width, columns_of(text)), ' ');
}

}  // namespace

std::string format_bytes(double bytes) {
    return with_sign(std::trunc(bytes), [](double b) { return with_unit(b, 1024, kByteUnits); });
}

std::string format_count(double n) {
    return with_sign(n, [](double value) { return with_unit(value, 1000, kCountUnits); });
}

std::string format_flops(double flops) {
    return with_sign(flops, [](double value) { return with_unit(value, 1000, kFlopUnits); });
}

std::string format_flop_rate(double flops_per_s) { return format_flops(flops_per_s) + "/s"; }

std::string format_rate(double per_second, std::string_view what) {
    return concat(format_count(per_second), " ", what, "/s");
}

std::string format_duration(double seconds) { return with_sign(seconds, positive_duration); }

std::string format_time(double seconds) {
    const auto in = [](double value, const char* unit) { return scaled(value) + unit; };
    if (!std::isfinite(seconds)) return "-";
    if (seconds < 0.99995e-3) return in(seconds * 1e6, " us");
    return seconds < 0.99995 ? in(seconds * 1e3, " ms") : in(seconds, " s");
}

std::string format_fixed(double value, int decimals) { return std::isfinite(value) ? fixed(value, decimals) : "-"; }

std::string format_percent(double share) {
    return with_sign(share, [](double s) { return fixed(100 * s, 1) + " %"; });
}

std::string format_difference(double share) {
    if (!std::isfinite(share)) return "?";
    const std::string size = fixed(std::abs(100 * share), 1) + " %";
    return concat(share < 0 && size != "0.0 %" ? "-" : "+", size);
}

std::string counted(int64_t n, std::string_view noun) {
    return concat(n, " ", noun, n == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

// UTF-8's continuation bytes, 10xxxxxx, take no column.
size_t columns_of(std::string_view text) {
    return to_size(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string left(const std::string& text, size_t width) { return text + padding(text, width); }

std::string right(const std::string& text, size_t width) { return padding(text, width) + text; }

std::string_view first_columns(std::string_view text, size_t columns) {
    size_t end = 0;
    for (size_t width = 0; end < text.size(); ++end)
        if ((text[end] & 0xc0) != 0x80 && ++width > columns) break;
    return text.substr(0, end);
}

std::vector<std::string> lines_of(const std::string& text, size_t columns) {
    std::vector<std::string> lines(1);
    for (const std::string_view word : split(text, ' ')) {
        std::string& line = lines.back();
        if (line.empty())
            line = word;
        else if (columns_of(line) + 1 + columns_of(word) > columns)
            lines.emplace_back(word);
        else
            line += concat(' ', word);
    }
    return lines;
}

std::string wrapped(const std::string& text, size_t indent) {
    return joined(lines_of(text, 100 - std::min<size_t>(indent, 100)), concat('\n', std::string(indent, ' ')));
}

}  // namespace tutti
