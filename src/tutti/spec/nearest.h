// spec/nearest.h: what the user probably meant, for the end of an error: the nearest name to an unknown key, choice or
// preset, and the nearest values that keep a rule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance, the first of equals; "" when there are no candidates.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Up to three of these dotted names, those with a part nearest to the word first; of "h.0.w" and "h.1.w" one.
std::vector<std::string> nearest_dotted(std::string_view word, std::vector<std::string> names);

// The sections and keys of a config.
struct Names {
    std::vector<std::string> sections;  // "train"
    std::vector<std::string> paths;     // "train.steps", "model.rope_scaling.factor"

    bool is_section(const std::string& name) const;
    bool is_key(const std::string& path) const;
    bool is_table(const std::string& path) const;  // a section or a sub-table

    // The path that the user probably meant by `key` in `section`: the same key of another section ([optimizer] lr for
    // [train] lr), else the nearest key of this section; without a section, of all keys.
    std::string meant_by(const std::string& section, const std::string& key) const;
};

Names known_names();

std::string bracketed(const std::string& path);  // "train.steps" -> "[train] steps"

// Values that keep a rule, for the end of an error: "; nearest: KEY = 6 or 10". `before` is the text before the values;
// the result is "" when the field at `path` ("train.steps") allows none of them.
std::string suggestion(const std::string& before, int64_t low, int64_t high, std::string_view path);
std::string nearest_multiples(const std::string& before, int64_t n, int64_t unit, std::string_view path);
std::string nearest_divisors(const std::string& before, int64_t n, int64_t value, std::string_view path);

}  // namespace tutti::spec
