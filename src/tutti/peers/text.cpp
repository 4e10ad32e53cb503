#include "tutti/peers/text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"

namespace tutti::peers {

namespace {

constexpr const char* kNameLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

std::string quoted_unless_plain(const std::string& value) {
    const std::optional<double> number = parse_number<double>(value);
    const bool plain =
        value == "true" || value == "false" || value.starts_with('[') || (number && std::isfinite(*number));
    return plain ? value : Json(value).dump();
}

// Of whole numbers between '*', each as value_of() makes it from its text. Nothing where one is none, or for a product
// beyond 64 bits.
std::optional<int64_t> product_of(const std::string& factors, auto value_of) {
    int64_t product = 1;
    std::istringstream in(factors);
    for (std::string factor; std::getline(in, factor, '*');) {
        std::erase(factor, ' ');
        const std::optional<int64_t> number = parse_number<int64_t>(value_of(factor));
        if (!number || __builtin_mul_overflow(product, *number, &product)) return std::nullopt;
    }
    return product;
}

// Without blanks around it, and without quotes.
std::string trimmed(std::string value) {
    value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
    value.erase(value.find_last_not_of(" \t\r") + 1);
    const bool quoted = value.size() > 1 && (value[0] == '"' || value[0] == '\'');
    return quoted ? value.substr(1, value.size() - 2) : value;
}

bool is_option(const std::string& word) {
    return word.starts_with("--") && word.size() > 2 && std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

void put(Json& object, const std::string& path, const std::string& value) {
    const size_t dot = path.find('.');
    if (dot == std::string::npos) {
        const std::optional<Json> plain = Json::try_parse(value);
        object[path] = plain ? *plain : Json(value);
        return;
    }
    put(object[path.substr(0, dot)], path.substr(dot + 1), value);
}

}  // namespace

void flatten(const Json& json, const std::string& path, Values& into) {
    if (json.is_object()) {
        for (const Json::Member& m : json.items()) flatten(m.value, path.empty() ? m.key : path + "." + m.key, into);
        return;
    }
    into[path] = json.is_string() ? json.text() : json.dump();
}

std::string to_arguments(const Values& options) {
    std::string text = "ARGS=(\n";
    for (const auto& [name, value] : options) text += concat("    ", name, value.empty() ? "" : " ", value, '\n');
    return text + ")\n";
}

std::string to_toml_text(const Values& options) {
    std::string text, section;
    for (const auto& [path, value] : options) {
        const size_t dot = path.rfind('.');
        if (path.substr(0, dot) != section) {
            section = path.substr(0, dot);
            text += concat(text.empty() ? "[" : "\n[", section, "]\n");
        }
        text += concat(path.substr(dot + 1), " = ", quoted_unless_plain(value), '\n');
    }
    return text;
}

std::string to_yaml(const Values& options) {
    std::string text;
    std::vector<std::string> open;
    for (const auto& [path, value] : options) {
        std::vector<std::string> keys;
        std::istringstream in(path);
        for (std::string key; std::getline(in, key, '.');) keys.push_back(key);
        size_t same = 0;
        while (same < open.size() && same + 1 < keys.size() && open[same] == keys[same]) ++same;
        for (size_t i = same; i + 1 < keys.size(); ++i) text += concat(std::string(2 * i, ' '), keys[i], ":\n");
        open.assign(keys.begin(), keys.end() - 1);
        text += concat(std::string(2 * open.size(), ' '), keys.back(), ": ", value, '\n');
    }
    return text;
}

Values from_yaml(std::string_view text) {
    Values values;
    std::vector<std::pair<size_t, std::string>> open;  // indentation, key
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) {
        const size_t indent = line.find_first_not_of(' '), colon = line.find(':');
        if (indent == std::string::npos || line[indent] == '#' || line[indent] == '-' || colon == std::string::npos)
            continue;
        while (!open.empty() && open.back().first >= indent) open.pop_back();
        line.resize(std::min(line.find(" #", colon), line.size()));
        const std::string value = trimmed(line.substr(colon + 1));
        const std::string key = line.substr(indent, colon - indent);
        if (value.empty()) {
            open.emplace_back(indent, key);
            continue;
        }
        std::string path;
        for (const auto& [at, name] : open) path += name + ".";
        values[path + key] = value;
    }
    return values;
}

std::string to_json_text(const Values& options) {
    Json document = Json::object();
    for (const auto& [path, value] : options) put(document, path, value);
    return document.dump(2) + '\n';
}

std::string to_python(const Values& options) {
    std::string text;
    for (const auto& [name, value] : options) {
        const bool word = value == "True" || value == "False";
        text += concat(name, " = ", word ? value : quoted_unless_plain(value), '\n');
    }
    return text;
}

Values from_python(std::string_view text) {
    Values values;
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) {
        line.resize(std::min(line.find('#'), line.size()));
        const size_t equals = line.find('='), name = line.find_first_not_of(kNameLetters);
        if (equals == std::string::npos || name == 0 || line.find_first_not_of(" \t", name) != equals) continue;
        const std::string value = trimmed(line.substr(equals + 1));
        const bool has_factors = value.find('*') != std::string::npos;
        const std::optional<int64_t> product = has_factors ? product_of(value, std::identity{}) : std::nullopt;
        values[line.substr(0, name)] = product ? std::to_string(*product) : value;
    }
    for (const auto& [name, value] : Script(text).options()) {
        std::string plain = name.substr(2);
        std::replace(plain.begin(), plain.end(), '-', '_');
        values[plain] = value;
    }
    return values;
}

Script::Script(std::string_view text) {
    std::string line;
    std::istringstream lines{std::string(text)};
    std::string logical;
    while (std::getline(lines, line)) {
        if (line.ends_with('\r')) line.pop_back();
        if (const size_t comment = line.find(" #"); comment != std::string::npos) line.resize(comment);
        if (line.starts_with('#')) continue;
        if (line.ends_with('\\')) {
            logical += line.substr(0, line.size() - 1) + " ";
            continue;
        }
        read(logical + line);
        logical.clear();
    }
    read(logical);
}

// NAME=VALUE, with a value that is no list, is a variable. Other words are kept.
void Script::read(const std::string& line) {
    for (const std::string& word : split(line)) {
        const size_t equals = word.find('=');
        const bool name = equals != std::string::npos && equals > 0 && !word.starts_with('-') &&
                          word.find_first_not_of(kNameLetters) == equals;
        if (!name) {
            // An option and its value in one pair of quotes, as the elements of an array that is used without quotes.
            if (is_option(word) && word.find(' ') < word.find('='))
                for (const std::string& inner : split(word)) words_.push_back(inner);
            else
                words_.push_back(word);
            continue;
        }
        const std::string value = word.substr(equals + 1);
        // A quoted list of options, as older scripts have it: GPT_ARGS="--num-layers 2 --hidden-size 8".
        if (value.find("--") != std::string::npos)
            for (const std::string& inner : split(value)) words_.push_back(inner);
        else
            variables_.try_emplace(word.substr(0, equals), value);
    }
}

std::vector<std::string> Script::split(const std::string& line) const {
    std::vector<std::string> words;
    std::string word;
    char quote = 0;
    bool any = false;
    const auto end_word = [&] {
        if (any) words.push_back(expanded(word));
        word.clear();
        any = false;
    };
    int depth = 0;  // of ${...} and $(...)
    for (size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quote != 0 && c == quote) {
            quote = 0;
        } else if (quote == 0 && (c == '"' || c == '\'')) {
            quote = c;
            any = true;
        } else if (quote == 0 && depth == 0 && (c == ' ' || c == '\t' || c == ';')) {
            end_word();
        } else if (quote == 0 && depth == 0 && (c == '(' || c == ')') && (i == 0 || line[i - 1] != '$')) {
            // Of an array: NAME=( and NAME+=( are not values.
            if (c == '(' && word.ends_with('=')) word.clear(), any = false;
            end_word();
        } else {
            if ((c == '{' || c == '(') && (depth > 0 || (i > 0 && line[i - 1] == '$'))) ++depth;
            if ((c == '}' || c == ')') && depth > 0) --depth;
            word += c;
            any = true;
        }
    }
    end_word();
    return words;
}

// $NAME, ${NAME}, ${NAME:-DEFAULT} and $((A * B)) of what is known; others stay as they are.
std::string Script::expanded(const std::string& word) const {
    std::string text;
    for (size_t i = 0; i < word.size();) {
        if (word[i] != '$' || i + 1 == word.size()) {
            text += word[i++];
            continue;
        }
        if (word.compare(i, 3, "$((") == 0) {
            const size_t close = word.find("))", i);
            if (close == std::string::npos) return word;
            text += product(word.substr(i + 3, close - i - 3));
            i = close + 2;
            continue;
        }
        const bool braces = word[i + 1] == '{';
        const size_t begin = i + (braces ? 2 : 1);
        size_t end = std::min(word.find_first_not_of(kNameLetters, begin), word.size());
        const std::string name = word.substr(begin, end - begin);
        std::string otherwise = concat("$", name);
        if (braces) {
            const size_t close = word.find('}', end);
            if (close == std::string::npos) return word;
            if (word.compare(end, 2, ":-") == 0) otherwise = word.substr(end + 2, close - end - 2);
            end = close + 1;
        }
        const auto known = variables_.find(name);
        text += known == variables_.end() ? otherwise : known->second;
        i = end;
    }
    return text;
}

std::string Script::product(const std::string& factors) const {
    const auto value_of = [&](std::string factor) {
        if (!factor.empty() && factor[0] != '$' && (std::isalpha(static_cast<unsigned char>(factor[0])) != 0))
            factor = "$" + factor;
        return expanded(factor);
    };
    const std::optional<int64_t> product = product_of(factors, value_of);
    return product ? std::to_string(*product) : concat("$((", factors, "))");
}

Values Script::options() const {
    Values values;
    for (size_t i = 0; i < words_.size(); ++i) {
        if (!is_option(words_[i])) continue;
        const size_t equals = words_[i].find('=');
        std::string name = words_[i].substr(0, equals), value;
        if (equals != std::string::npos)
            value = words_[i].substr(equals + 1);
        else if (i + 1 < words_.size() && !is_option(words_[i + 1]))
            value = words_[i + 1];
        std::replace(name.begin(), name.end(), '_', '-');
        values[name] = value;
    }
    return values;
}

}  // namespace tutti::peers
