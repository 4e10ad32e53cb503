// base/svg.h: elements of SVG pictures as text. The drawings of several rooms are made of them; colours come from CSS
// classes of the file or page that a picture is in.
#pragma once

#include <string>
#include <string_view>

namespace tutti {

// Escapes & < > " ' for text and attributes. Control characters that HTML forbids become U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace tutti

namespace tutti::svg {

std::string coordinate(double value);  // two decimals

// `title`, when there is one, is shown when the element is pointed at.
std::string box(std::string_view style, double x, double y, double width, double height, std::string_view title = "");
// `y` is that of the base line.
std::string text(std::string_view style, double x, double y, std::string_view words);

// The beginning of a file of its own, up to the title that is read aloud; "</svg>" ends it. On a white sheet, so that
// dark letters are legible on a page of any colour.
std::string begin_file(double width, double height, std::string_view css, std::string_view title);

}  // namespace tutti::svg
