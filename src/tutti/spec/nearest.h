// spec/nearest.h: the name that the user probably meant, and the sections and keys that exist. Errors about unknown
// keys, choices and presets end with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest distance; the first of equals. "" when there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

struct Names {
    std::vector<std::string> sections;  // "train"
    std::vector<std::string> paths;     // "train.steps", "model.rope_scaling.factor"

    bool is_section(const std::string& name) const;
    bool is_key(const std::string& path) const;
    bool is_table(const std::string& path) const;  // a section or a sub-table

    // What the user probably meant by `key` written in `section`: the same key of another section ([train] lr is meant
    // as [optimizer] lr), else the nearest key of this section; without a section, of all. A path.
    std::string meant_by(const std::string& section, const std::string& key) const;
};

Names known_names();

std::string bracketed(const std::string& path);  // "train.steps" -> "[train] steps"

}  // namespace tutti::spec
