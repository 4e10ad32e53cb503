#include "tutti/base/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"
#include "tutti/base/units.h"

namespace tutti {

std::string escape_html(std::string_view text) {
    std::string safe;
    safe.reserve(text.size());
    for (const char c : text) {
        switch (c) {
            case '&': safe += "&amp;"; break;
            case '<': safe += "&lt;"; break;
            case '>': safe += "&gt;"; break;
            case '"': safe += "&quot;"; break;
            case '\'': safe += "&#39;"; break;
            default:
                const bool forbidden = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' && c != '\r';
                safe += forbidden ? std::string("\xef\xbf\xbd") : std::string(1, c);
        }
    }
    return safe;
}

}  // namespace tutti

namespace tutti::svg {

namespace {

std::string printed(const char* format, int precision, double value) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), format, precision, value);
    return text.data();
}

// The opening tag, the title and the description.
std::string opened(const Picture& picture, std::string_view attributes, std::string_view title_attributes,
                   std::string_view description_attributes) {
    const std::string description = picture.description.empty() ? ""
                                                                : concat("<desc", description_attributes, '>',
                                                                         escape_html(picture.description), "</desc>");
    return concat("<svg ", attributes, " viewBox=\"0 0 ", coordinate(picture.width), ' ', coordinate(picture.height),
                  "\" role=\"img\"><title", title_attributes, '>', escape_html(picture.title), "</title>", description);
}

}  // namespace

std::string coordinate(double value) { return printed("%.*f", 2, value); }

std::string box(std::string_view style, double x, double y, double width, double height, std::string_view title) {
    const std::string rect = concat("<rect class=\"", style, "\" x=\"", coordinate(x), "\" y=\"", coordinate(y),
                                    "\" width=\"", coordinate(width), "\" height=\"", coordinate(height), "\"");
    return title.empty() ? rect + "/>" : concat(rect, "><title>", escape_html(title), "</title></rect>");
}

std::string text(std::string_view style, double x, double y, std::string_view words) {
    return concat("<text", style.empty() ? "" : concat(" class=\"", style, "\""), " x=\"", coordinate(x), "\" y=\"",
                  coordinate(y), "\">", escape_html(words), "</text>");
}

std::string line(std::string_view style, double x1, double y1, double x2, double y2) {
    return concat("<line class=\"", style, "\" x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1), "\" x2=\"",
                  coordinate(x2), "\" y2=\"", coordinate(y2), "\"/>");
}

double width_of(std::string_view words, double size) { return 0.57 * size * static_cast<double>(columns_of(words)); }

std::string file(const Picture& picture) {
    const std::string size = concat("xmlns=\"http://www.w3.org/2000/svg\" width=\"", coordinate(picture.width),
                                    "\" height=\"", coordinate(picture.height), '"');
    return concat(opened(picture, size, "", ""), "\n<style>", picture_css(), "</style>\n",
                  "<rect class=\"paper\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n", picture.body, "</svg>\n");
}

std::string in_page(const Picture& picture, std::string_view id) {
    return concat(
        opened(picture,
               concat("aria-labelledby=\"", id, "-t", picture.description.empty() ? "" : concat(' ', id, "-d"), '"'),
               concat(" id=\"", id, "-t\""), concat(" id=\"", id, "-d\"")),
        picture.body, "</svg>");
}

std::string scientific(double value, int digits) {
    auto exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
    std::string mantissa = printed("%.*g", digits, value / std::pow(10.0, exponent));
    if (mantissa == "10" || mantissa == "-10") {
        mantissa.pop_back();
        ++exponent;
    }
    return concat(mantissa, "e", exponent);
}

std::vector<double> linear_ticks(double low, double high, int least) {
    check(std::isfinite(low) && std::isfinite(high) && low < high && least >= 2,
          "linear_ticks: required finite low < high and at least 2 ticks, got ", low, " to ", high, ", ", least);
    constexpr std::array<double, 3> kSteps{5, 2, 1};
    for (int power = static_cast<int>(std::ceil(std::log10(high - low)));; --power) {
        for (const double mantissa : kSteps) {
            const double step = mantissa * std::pow(10.0, power);
            // The slack keeps a bound that is a tick itself, in spite of rounding.
            const double first = std::ceil(low / step - 1e-9);
            const double last = std::floor(high / step + 1e-9);
            if (last - first + 1 < least) continue;
            std::vector<double> ticks;
            for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0 : i * step);
            return ticks;
        }
    }
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
    double largest = 0;
    for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
    std::vector<std::string> labels;
    if (largest > 0 && largest < 1e-3) {
        for (const double tick : ticks) labels.push_back(tick == 0 ? "0" : scientific(tick, 4));
        return labels;
    }
    double unit = 1;
    std::string_view suffix;
    for (const auto& [size, name] :
         {std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "k"}}) {
        if (largest < (size == 1e3 ? 1e4 : size)) continue;
        unit = size;
        suffix = name;
        break;
    }
    int digits = 0;
    const auto is_exact = [&](double tick) {
        const double shifted = tick / unit * std::pow(10.0, digits);
        return std::abs(shifted - std::round(shifted)) < 1e-6 * std::max(1.0, std::abs(shifted));
    };
    while (digits < 9 && !std::all_of(ticks.begin(), ticks.end(), is_exact)) ++digits;
    for (const double tick : ticks)
        labels.push_back(tick == 0 ? "0" : printed("%.*f", digits, tick / unit) + std::string(suffix));
    return labels;
}

}  // namespace tutti::svg
