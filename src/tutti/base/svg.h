// base/svg.h: elements of SVG pictures as text, and whole pictures. Colours and letters come from the CSS classes of
// palette.h. Coordinates are the picture's own units, about a pixel each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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
std::string line(std::string_view style, double x1, double y1, double x2, double y2);
// About the width of these words in letters of this size.
double width_of(std::string_view words, double size = 12);

struct Picture {
    double width = 0, height = 0;
    std::string title, description;  // screen readers read them in place of the picture; description may be empty
    std::string body;                // elements
};
// A file of its own, on paper, with its styles. It follows the reader's choice of light or dark.
std::string file(const Picture& picture);
// An <svg> element of a page that has the styles of page_css(); `id` is unique in the page.
std::string in_page(const Picture& picture, std::string_view id);

// Multiples of 1, 2 or 5 times a power of ten, the coarsest step that gives at least `least` ticks inside [low, high].
std::vector<double> linear_ticks(double low, double high, int least);
// Labels of the ticks with only the digits that tell them apart: 0.5 | 20k | 3e-4.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);
// 0.00015 -> "1.5e-4", the usual notation of learning rates.
std::string scientific(double value, int digits);

}  // namespace tutti::svg
