// cli/text.h: columns of text. Numbers with units are base/units.h.
#pragma once

#include <string>

namespace tutti::cli {

std::string left(const std::string& text, size_t width);   // padded on the right; counts code points
std::string right(const std::string& text, size_t width);  // padded on the left

}  // namespace tutti::cli
