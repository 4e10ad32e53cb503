// cli/text.h: columns of text. Numbers with units are base/units.h.
#pragma once

#include <string>

namespace tutti::cli {

std::string left(const std::string& text, size_t width);   // padded on the right; counts code points
std::string right(const std::string& text, size_t width);  // padded on the left
std::string fixed(double value, int decimals);             // "12.30"; "-" when not finite
// Seconds in the unit that gives three or four digits: "41.2 us", "8.31 ms", "2.05 s".
std::string short_time(double seconds);

}  // namespace tutti::cli
