// base/svg.h: elements of SVG pictures as text. Colours come from CSS classes of the surrounding file or page.
#pragma once

#include <string>
#include <string_view>

namespace tutti {

// Escapes & < > " ' for text and attributes. Control characters that HTML forbids become U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace tutti

namespace tutti::svg {

std::string coordinate(double value);  // two decimals

// `title`, unless empty, is the element's tooltip.
std::string box(std::string_view style, double x, double y, double width, double height, std::string_view title = "");
// `y` is the position of the base line.
std::string text(std::string_view style, double x, double y, std::string_view words);

// The beginning of an SVG file, up to the title for screen readers; "</svg>" ends the file. The background is white, so
// that dark letters are legible on a page of any colour.
std::string begin_file(double width, double height, std::string_view css, std::string_view title);

}  // namespace tutti::svg
