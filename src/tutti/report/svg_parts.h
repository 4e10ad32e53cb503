// report/svg_parts.h: the few shapes that every drawing of the report is made of.
#pragma once

#include <string>
#include <string_view>

namespace tutti::report::svg {

std::string coordinate(double value);
std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view style = "");
std::string segment(std::string_view style, double x1, double y1, double x2, double y2);
// Up to its title and description, which are read aloud in place of the picture.
std::string open(std::string_view id, int width, int height, std::string_view title, std::string_view description);

}  // namespace tutti::report::svg
