// spec/fields.cpp: how one value is written and what its range allows.
#include "tutti/spec/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/spec/nearest.h"

namespace tutti::spec {

namespace {

bool contains(const std::vector<std::string>& all, const std::string& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
}

constexpr double kLeastPower = 0x1p-126, kMostPower = 0x1p127;  // of two, normal in f32

// A limit in plain digits: 1, -1, 2147483647, never 2.14748e+09.
std::string limit_text(double x) {
    if (std::abs(x) > 0x1p53 || x != std::floor(x)) return toml_text(x);
    return toml_text(static_cast<int64_t>(x));
}

std::string wrong(const Field& field, const std::string& value, const std::string& why) {
    return concat(field.name(), " = ", value, ": ", why);
}

std::optional<std::string> number_problem(const Field& field, double value, const std::string& text) {
    const Range& r = field.range;
    if (!std::isfinite(value)) return wrong(field, text, "must be a finite number");
    const bool low_ok = r.low_open ? value > r.low : value >= r.low;
    const bool high_ok = r.high_open ? value < r.high : value <= r.high;
    if (low_ok && high_ok) return std::nullopt;
    return wrong(field, text, concat("must be ", r.text()[0] == '[' ? "in " : "", r.text()));
}

}  // namespace

std::string Field::name() const { return key.empty() ? concat("[[", section, "]]") : concat("[", section, "] ", key); }
std::string Field::path() const { return key.empty() ? std::string(section) : concat(section, ".", key); }

std::string Range::text() const {
    if (!choices.empty()) return joined(choices, " | ") + (or_power_of_two ? " | a power of two" : "");
    const bool has_low = std::isfinite(low), has_high = std::isfinite(high);
    if (has_low && has_high) return concat("[", limit_text(low), ", ", limit_text(high), high_open ? ")" : "]");
    if (has_low) return concat(low_open ? "> " : ">= ", limit_text(low));
    return "";
}

bool is_power_of_two(double x) {
    int exponent = 0;
    return x >= kLeastPower && x <= kMostPower && std::frexp(x, &exponent) == 0.5;
}

std::string nearest_powers_of_two(double x) {
    if (!(x > kLeastPower)) return concat("; nearest: ", limit_text(kLeastPower));
    if (x >= kMostPower) return concat("; nearest: ", limit_text(kMostPower));
    const double below = std::exp2(std::floor(std::log2(x)));
    return concat("; nearest: ", limit_text(below), " or ", limit_text(2 * below));
}

std::optional<double> fixed_loss_scale(const RunSpec& run) {
    const std::string& given = run.precision.loss_scale;
    const bool f16 = compute_type_of(run) == ComputeType::f16;
    if (given == "auto") return f16 ? std::nullopt : std::optional(1.0);
    return parse_number<double>(given);
}

std::string toml_text(int64_t value) { return std::to_string(value); }

std::string toml_text(double value) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    std::string text(buffer, end);
    if (!std::isfinite(value)) return text;  // inf, -inf, nan are TOML too
    const size_t e = text.find('e');
    if (e == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
    // to_chars pads the exponent as printf does: 3e-04 -> 3e-4, 1e+20 -> 1e20.
    std::string exponent = text.substr(e + 1);
    const bool negative = exponent[0] == '-';
    exponent.erase(0, exponent.find_first_not_of("+-0"));
    return text.substr(0, e) + (negative ? "e-" : "e") + exponent;
}

std::string toml_text(bool value) { return value ? "true" : "false"; }

std::string toml_text(const std::string& value) {
    std::string out = "\"";
    for (const char c : value) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            constexpr char kHex[] = "0123456789ABCDEF";
            out += "\\u00";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        } else {
            out += c;
        }
    }
    out += '"';
    return out;
}

std::string toml_text(const std::vector<std::string>& value) {
    return concat('[', joined(value, ", ", [](const std::string& item) { return toml_text(item); }), ']');
}

std::string toml_text(Family value) { return toml_text(std::string(name_of(value))); }

std::string toml_text(const std::vector<ParameterGroup>& value) {
    return concat('[',
                  joined(value, ", ",
                         [](const ParameterGroup& g) {
                             const std::string decay =
                                 g.weight_decay ? concat(", weight_decay = ", toml_text(*g.weight_decay)) : "";
                             return concat("{match = ", toml_text(g.match), decay,
                                           ", lr_scale = ", toml_text(g.lr_scale), '}');
                         }),
                  ']');
}

std::string toml_text(const StageSpec::Value& value) {
    return std::visit([](const auto& x) { return toml_text(x); }, value);
}

namespace {

// "until = 5", "train.seq_len = 8"
std::vector<std::string> lines_of(const StageSpec& stage) {
    std::vector<std::string> lines;
    if (stage.until != 0) lines.push_back(concat("until = ", stage.until));
    for (const auto& [path, value] : stage.set) lines.push_back(concat(path, " = ", toml_text(value)));
    return lines;
}

}  // namespace

std::string toml_text(const std::vector<StageSpec>& value) {
    return concat('[', joined(value, ", ", [](const StageSpec& s) { return concat('{', joined(lines_of(s)), '}'); }),
                  ']');
}

std::string toml_tables(const std::vector<StageSpec>& value) {
    std::string text;
    for (const StageSpec& stage : value) {
        text += "\n[[stage]]\n";
        for (const std::string& line : lines_of(stage)) text += line + '\n';
    }
    return text;
}

std::optional<std::string> range_problem(const Field& field, int64_t value) {
    return number_problem(field, static_cast<double>(value), toml_text(value));
}

std::optional<std::string> range_problem(const Field& field, double value) {
    return number_problem(field, value, toml_text(value));
}

std::optional<std::string> range_problem(const Field&, bool) { return std::nullopt; }

std::optional<std::string> range_problem(const Field& field, const std::string& value) {
    const auto& choices = field.range.choices;
    if (choices.empty() || contains(choices, value)) return std::nullopt;
    if (const auto number = parse_number<double>(value); field.range.or_power_of_two && number) {
        if (is_power_of_two(*number)) return std::nullopt;
        return wrong(field, toml_text(value), concat("must be ", field.range.text(), nearest_powers_of_two(*number)));
    }
    if (choices.size() == 1)
        return wrong(field, toml_text(value), concat("must be ", choices[0], ", the only one that this build has"));
    return wrong(field, toml_text(value),
                 concat("must be one of ", field.range.text(), "; the nearest is \"", nearest(value, choices), "\""));
}

std::optional<std::string> range_problem(const Field& field, const std::vector<std::string>& value) {
    if (std::find(value.begin(), value.end(), "") == value.end()) return std::nullopt;
    return wrong(field, toml_text(value), "an element is empty; every element must name a file");
}

std::optional<std::string> range_problem(const Field& field, const std::vector<ParameterGroup>& value) {
    for (const ParameterGroup& g : value) {
        const auto problem = [&](const auto&... why) { return wrong(field, toml_text(value), concat(why...)); };
        try {
            const std::regex expression(g.match);
        } catch (const std::regex_error&) {
            return problem("match = ", toml_text(g.match), " must be a regular expression (ECMAScript)");
        }
        if (g.match.empty()) return problem("an empty match is found in every name; set the keys of [optimizer]");
        const std::pair<const char*, double> numbers[] = {{"weight_decay", g.weight_decay.value_or(0)},
                                                          {"lr_scale", g.lr_scale}};
        for (const auto& [key, number] : numbers)
            if (!std::isfinite(number) || number < 0) return problem(key, " = ", toml_text(number), " must be >= 0");
    }
    return std::nullopt;
}

std::optional<std::string> range_problem(const Field& field, const std::vector<StageSpec>& value) {
    int64_t before = 0;
    for (size_t i = 0; i < value.size(); ++i) {
        const int64_t until = value[i].until;
        const auto problem = [&](const auto&... why) {
            return std::optional(concat(field.name(), " = ", toml_text(value), ": stage ", i + 1, why...));
        };
        if (i + 1 == value.size() && until != 0)
            return problem(": until = ", until,
                           ": the last stage ends with the run; leave it out, and set train.steps");
        if (i + 1 < value.size() && until <= before)
            return problem(until == 0 ? concat(" needs until, its last step") : concat(": until = ", until),
                           until == 0 ? "" : concat(": must be above ", before, ", which the stage before it reaches"));
        before = until;
    }
    return std::nullopt;
}

std::optional<std::string> range_problem(const Field& field, Family value) {
    return range_problem(field, std::string(name_of(value)));  // "" for a number that is no family
}

}  // namespace tutti::spec
