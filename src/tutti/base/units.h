// base/units.h: numbers formatted for people; metrics and JSON have plain numbers.
//
// Scaled values have two decimals below 10 and one above: "1.16 GiB", "474.7 MiB". A value that rounds up to the next
// unit is written in that unit ("1.00 M", never "1000.0 k"). From 100,000 of the largest unit on, the number has an
// exponent: "1.0e5 T". A value that is not finite is written "?".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

std::string format_bytes(double bytes);                             // binary units: "512 B", "37.0 MiB", "1.16 GiB"
std::string format_count(double n);                                 // "512", "8.19 k", "124.4 M", "405.9 B" (billion)
std::string format_flops(double flops);                             // "798.1 MFLOP", "1.02 PFLOP"
std::string format_flop_rate(double flops_per_s);                   // "312.4 GFLOP/s"
std::string format_rate(double per_second, std::string_view what);  // "12.3 k tokens/s"
std::string format_duration(double seconds);  // "350 us", "41.2 ms", "7.5 s", "2m 05s", "1h 02m", "3d 04h"
// Measured seconds with three or four digits: "41.2 us", "8.31 ms", "2.05 s"; "-" if not finite.
std::string format_time(double seconds);
std::string format_fixed(double value, int decimals);   // "12.30"; "-" if not finite
std::string format_percent(double share);               // 0.372 -> "37.2 %"
std::string format_difference(double share);            // 0.012 -> "+1.2 %", always with a sign
std::string counted(int64_t n, std::string_view noun);  // "1 rank", "2 ranks": for nouns with a regular plural

// UTF-8 text in columns; a code point takes one column.
size_t columns_of(std::string_view text);
std::string left(const std::string& text, size_t width);   // padded on the right
std::string right(const std::string& text, size_t width);  // padded on the left
std::string_view first_columns(std::string_view text, size_t columns);
// `text` broken at blanks into lines of at most `columns`. A longer word has a line of its own.
std::vector<std::string> lines_of(const std::string& text, size_t columns);
// The same in one text of at most 100 columns. The first line begins at column `indent`; the others are indented to it.
std::string wrapped(const std::string& text, size_t indent = 0);

}  // namespace tutti
