// spec/names.cpp: the names come from the fields; nothing is listed twice.
#include "tutti/spec/names.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/nearest.h"

namespace tutti::spec {

bool Names::is_section(const std::string& name) const {
    return std::find(sections.begin(), sections.end(), name) != sections.end();
}

bool Names::is_key(const std::string& path) const { return std::find(paths.begin(), paths.end(), path) != paths.end(); }

bool Names::is_table(const std::string& path) const {
    return std::any_of(paths.begin(), paths.end(), [&](const std::string& p) { return p.starts_with(path + "."); });
}

std::string Names::meant_by(const std::string& section, const std::string& key) const {
    for (const std::string& path : paths) {
        if (path.ends_with("." + key)) return path;
    }
    if (!section.empty() && !is_section(section)) return nearest(concat(section, ".", key), paths);
    std::string best;
    for (const std::string& path : paths) {
        const std::string_view own_key = std::string_view(path).substr(path.find('.') + 1);
        if (!section.empty() && !path.starts_with(section + ".")) continue;
        const bool first = best.empty();
        if (first || edit_distance(key, own_key) < edit_distance(key, best.substr(best.find('.') + 1))) best = path;
    }
    return best;
}

Names known_names() {
    Names names;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto&) {
        names.paths.push_back(field.path());
        if (!names.is_section(std::string(field.section))) names.sections.emplace_back(field.section);
    });
    return names;
}

std::string bracketed(const std::string& path) {
    const size_t dot = path.find('.');
    return concat("[", path.substr(0, dot), "] ", path.substr(dot + 1));
}

}  // namespace tutti::spec
