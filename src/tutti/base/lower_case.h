// base/lower_case.h: names that are compared whatever their case.
#pragma once

#include <string>

namespace tutti {

// 'A' to 'Z' as 'a' to 'z' in any locale; all other bytes, those of UTF-8 too, stay.
inline std::string lower_case(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
}

}  // namespace tutti
