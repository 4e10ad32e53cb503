// spec/nearest.h: the name that the user probably meant. Errors about unknown keys, choices and presets end with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest distance; the first of equals. "" when there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tutti::spec
