// jinja/case_tables.h: upper and lower case outside of ASCII, as Python's str.upper() and str.lower() have them.
#pragma once

#include <cstdint>
#include <span>

namespace tutti::jinja {

// The code points first, first + stride, ... (`count` of them) become themselves plus delta.
struct CaseRun {
    char32_t first;
    uint16_t count, stride;
    int32_t delta;
};
// A code point whose upper case is several.
struct CaseExpansion {
    char32_t code;
    const char32_t* text;
};

// Each in the order of code points.
std::span<const CaseRun> upper_runs();
std::span<const CaseRun> lower_runs();
std::span<const CaseExpansion> upper_expansions();
std::span<const char32_t> own_titles();  // whose title case is another than the upper case

}  // namespace tutti::jinja
