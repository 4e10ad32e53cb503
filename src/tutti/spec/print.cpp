// spec/print.cpp: three visitors of the fields.
#include "tutti/spec/print.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/spec/fields.h"

namespace tutti::spec {
namespace {

const char* type_name(int64_t) { return "integer"; }
const char* type_name(double) { return "number"; }
const char* type_name(bool) { return "boolean"; }
const char* type_name(const std::string&) { return "text"; }
const char* type_name(const std::vector<std::string>&) { return "list of text"; }
const char* type_name(Family) { return "text"; }

// A table cell ends at "|".
std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
    return out;
}

std::string padded(std::string text, size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
}

}  // namespace

std::string to_toml(const RunSpec& run) {
    std::string out;
    std::string_view section;
    for_each_field(run, [&](const Field& field, const auto& value) {
        if (field.section != section) out += concat(section.empty() ? "" : "\n", "[", field.section, "]\n");
        section = field.section;
        out += concat(field.key, " = ", toml_text(value), "\n");
    });
    return out;
}

std::string reference_markdown() {
    const RunSpec defaults{};
    std::string out;
    std::string_view section;
    for_each_field(defaults, [&](const Field& field, const auto& value) {
        if (field.section != section) {
            out += concat(section.empty() ? "" : "\n", "## [", field.section, "]\n\n",
                          "| key | type | default | range | meaning |\n|---|---|---|---|---|\n");
        }
        section = field.section;
        out += concat("| `", field.key, "` | ", type_name(value), " | `", cell(toml_text(value)), "` | ",
                      cell(field.range.text()), " | ", cell(field.help), " |\n");
    });
    return out;
}

std::string reference_text() {
    const RunSpec defaults{};
    size_t key_width = 0, value_width = 0;
    for_each_field(defaults, [&](const Field& field, const auto& value) {
        key_width = std::max(key_width, field.path().size());
        value_width = std::max(value_width, toml_text(value).size());
    });
    std::string out;
    for_each_field(defaults, [&](const Field& field, const auto& value) {
        const std::string range = field.range.text();
        out += concat(padded(field.path(), key_width + 2), padded(toml_text(value), value_width + 2), field.help,
                      range.empty() ? "" : concat(" (", range, ")"), "\n");
    });
    return out;
}

}  // namespace tutti::spec
