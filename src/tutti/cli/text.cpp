#include "tutti/cli/text.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace tutti::cli {

namespace {

size_t code_points(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padding(const std::string& text, size_t width) {
    const size_t length = code_points(text);
    return std::string(length < width ? width - length : 0, ' ');
}

}  // namespace

std::string left(const std::string& text, size_t width) { return text + padding(text, width); }

std::string right(const std::string& text, size_t width) { return padding(text, width) + text; }

std::string fixed(double value, int decimals) {
    if (!std::isfinite(value)) return "-";
    std::ostringstream text;
    text << std::fixed << std::setprecision(decimals) << value;
    return text.str();
}

std::string short_time(double seconds) {
    const auto with_unit = [](double value, const char* unit) { return fixed(value, value < 9.995 ? 2 : 1) + unit; };
    if (!std::isfinite(seconds)) return "-";
    if (seconds < 0.99995e-3) return with_unit(seconds * 1e6, " us");
    return seconds < 0.99995 ? with_unit(seconds * 1e3, " ms") : with_unit(seconds, " s");
}

}  // namespace tutti::cli
