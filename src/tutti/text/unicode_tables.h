// text/unicode_tables.h: properties of code points as short lists, which scripts/make_unicode_tables.py
// writes into unicode_tables.cpp. unicode.h expands them to fast tables.
#pragma once

#include <cstdint>
#include <span>

namespace tutti::text {

// Bits of a code point's class.
constexpr uint8_t kLetter = 1;  // \p{L}
constexpr uint8_t kMark = 2;    // \p{M}
constexpr uint8_t kNumber = 4;  // \p{N}
constexpr uint8_t kSpace = 8;   // \s
constexpr uint8_t kWord = 16;   // \w

struct ClassRange {
    uint32_t first, last;
    uint8_t classes;
};
struct CombiningRange {
    uint32_t first, last;
    uint8_t combining_class;  // canonical; code points in no range have 0
};
// One step of the canonical decomposition; applied again to `first` until nothing changes. Hangul is arithmetic.
struct Decomposition {
    uint32_t composed, first, second = 0;  // second = 0: one code point becomes another
};

std::span<const ClassRange> class_ranges();  // ascending, as are the others
std::span<const CombiningRange> combining_ranges();
std::span<const Decomposition> decompositions();
std::span<const uint32_t> composition_exclusions();  // the composed code points whose pair NFC does not compose

}  // namespace tutti::text
