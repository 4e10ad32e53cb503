// base/svg.h: elements of SVG pictures as text, and whole pictures. Colours and fonts come from the CSS classes of
// palette.h. Coordinates are in user units, about a pixel each.
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
// The approximate width of the words in a font of this size.
double width_of(std::string_view words, double size = 12);

struct Picture {
    double width = 0, height = 0;
    std::string title, description;  // for screen readers; the description may be empty
    std::string body;                // elements
};
// An SVG file with its styles and a background, light or dark as the viewer prefers.
std::string file(const Picture& picture);
// An <svg> element of a page with the styles of page_css(); `id` must be unique in the page.
std::string in_page(const Picture& picture, std::string_view id);

// Multiples of 1, 2 or 5 times a power of ten, the coarsest step that gives at least `least` ticks inside [low, high].
std::vector<double> linear_ticks(double low, double high, int least);
// Labels of ticks, with as few digits as distinguish them: 0.5, 20k, 3e-4.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);
// "1.5e-4" for 0.00015.
std::string scientific(double value, int digits);

}  // namespace tutti::svg
