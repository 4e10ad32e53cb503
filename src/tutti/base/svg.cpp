#include "tutti/base/svg.h"

#include <array>
#include <cstdio>

#include "tutti/base/error.h"

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

std::string coordinate(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f", value);
    return text.data();
}

std::string box(std::string_view style, double x, double y, double width, double height, std::string_view title) {
    const std::string rect = concat("<rect class=\"", style, "\" x=\"", coordinate(x), "\" y=\"", coordinate(y),
                                    "\" width=\"", coordinate(width), "\" height=\"", coordinate(height), "\"");
    return title.empty() ? rect + "/>" : concat(rect, "><title>", escape_html(title), "</title></rect>");
}

std::string text(std::string_view style, double x, double y, std::string_view words) {
    return concat("<text", style.empty() ? "" : concat(" class=\"", style, "\""), " x=\"", coordinate(x), "\" y=\"",
                  coordinate(y), "\">", escape_html(words), "</text>");
}

std::string begin_file(double width, double height, std::string_view css, std::string_view title) {
    return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", coordinate(width), ' ',
                  coordinate(height), "\" width=\"", coordinate(width), "\" height=\"", coordinate(height),
                  "\" role=\"img\">\n<title>", escape_html(title), "</title>\n<style>", css,
                  "</style>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#fff\"/>\n");
}

}  // namespace tutti::svg
