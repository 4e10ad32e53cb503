// spec/nearest.cpp: names are short, so the full table of edit distances is cheap; keys and limits come from the
// fields, nothing is listed twice.
#include "tutti/spec/nearest.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/spec/fields.h"

namespace tutti::spec {

int edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
    for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
    for (size_t i = 1; i <= a.size(); ++i) {
        for (size_t j = 1; j <= b.size(); ++j) {
            const int changed = a[i - 1] == b[j - 1] ? 0 : 1;
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + changed});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
            }
        }
    }
    return d[a.size()][b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const auto closer = [&](const std::string& x, const std::string& y) {
        return edit_distance(word, x) < edit_distance(word, y);
    };
    const auto best = std::min_element(candidates.begin(), candidates.end(), closer);
    return best == candidates.end() ? "" : *best;
}

std::vector<std::string> nearest_dotted(std::string_view word, std::vector<std::string> names) {
    const auto distance = [&](std::string_view name) {
        int least = edit_distance(word, name);
        for (size_t end = 0; end != std::string_view::npos && !name.empty(); name.remove_prefix(end + 1)) {
            end = name.find('.');
            least = std::min(least, edit_distance(word, name.substr(0, end)));
            if (end == std::string_view::npos) break;
        }
        return least;
    };
    const auto without_digits = [](std::string name) {
        std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
        return name;
    };
    std::stable_sort(names.begin(), names.end(),
                     [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    std::vector<std::string> best;
    for (const std::string& name : names) {
        const auto is_like = [&](const std::string& other) { return without_digits(other) == without_digits(name); };
        if (best.size() < 3 && std::none_of(best.begin(), best.end(), is_like)) best.push_back(name);
    }
    return best;
}

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
    if (dot == std::string::npos) return concat("[[", path, "]]");
    return concat("[", path.substr(0, dot), "] ", path.substr(dot + 1));
}

namespace {

// The largest value of the field's own range.
int64_t most(std::string_view path) {
    double high = 0;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto&) {
        if (field.path() == path) high = field.range.high;
    });
    return static_cast<int64_t>(high);
}

}  // namespace

std::string suggestion(const std::string& before, int64_t low, int64_t high, std::string_view path) {
    std::string values;
    if (low >= 1 && low <= most(path)) values = std::to_string(low);
    if (high != low && high <= most(path)) values += (values.empty() ? "" : " or ") + std::to_string(high);
    return values.empty() ? "" : before + values;
}

std::string nearest_multiples(const std::string& before, int64_t n, int64_t unit, std::string_view path) {
    const int64_t low = n - n % unit;
    int64_t high = 0;
    if (n % unit == 0 || __builtin_add_overflow(low, unit, &high)) high = low;
    return suggestion(before, low, high, path);
}

std::string nearest_divisors(const std::string& before, int64_t n, int64_t value, std::string_view path) {
    int64_t low = 1, high = n;
    const auto consider = [&](int64_t divisor) {
        if (divisor <= value) low = std::max(low, divisor);
        if (divisor >= value) high = std::min(high, divisor);
    };
    constexpr int64_t kMostDivisors = 1 << 20;  // complete for every n that a range allows
    for (int64_t d = 1; d <= std::min(n / d, kMostDivisors); ++d) {
        if (n % d != 0) continue;
        consider(d);
        consider(n / d);
    }
    return suggestion(before, low, high, path);
}

}  // namespace tutti::spec
