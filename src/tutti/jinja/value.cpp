#include "tutti/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ostream>

namespace tutti::jinja {

namespace {

constexpr int kDeepestValue = 200;

int depth_of(const Value& value) { return value.list() ? value.list()->depth : value.dict() ? value.dict()->depth : 0; }

int checked_depth(int deepest) {
    check<Problem>(deepest < kDeepestValue, "lists and dicts are nested deeper than ", kDeepestValue);
    return deepest + 1;
}

// float.__repr__(): the fewest digits that read back, with an exponent below 1e-4 and from 1e16 on.
std::string digits_of(double x) {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
    char buffer[64];
    const bool plain = x == 0 || (std::abs(x) >= 1e-4 && std::abs(x) < 1e16);
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, x,
                                   plain ? std::chars_format::fixed : std::chars_format::scientific)
                         .ptr;
    std::string digits(buffer, end);
    if (plain && digits.find('.') == std::string::npos) digits += ".0";
    return digits;
}

std::string scalar_text(const Value& value) {
    if (const bool* flag = value.get<bool>()) return *flag ? "True" : "False";
    if (const int64_t* integer = value.get<int64_t>()) return std::to_string(*integer);
    if (const double* number = value.get<double>()) return digits_of(*number);
    if (value.is_none()) return "None";
    throw Problem(concat("a ", type_name(value), " has no text"));
}

void put_hex(Text& out, const char* prefix, char32_t code, int digits, uint32_t source) {
    append(out, prefix, source);
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        out.push_back({static_cast<char32_t>("0123456789abcdef"[code >> shift & 15]), source});
}

// What repr() escapes outside of ASCII: controls, separators, what is no character. Other unassigned code points are
// shown as they are.
bool is_printable(char32_t c) {
    return !(c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD || (c != ' ' && is_space(c)) ||
             (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
             (c >= 0xE000 && c <= 0xF8FF) || c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) || c >= 0xE0000);
}

void put_repr(Text& out, const Text& text) {
    const auto has = [&](char32_t c) { return std::find(text.begin(), text.end(), c) != text.end(); };
    const char32_t quote = has('\'') && !has('"') ? '"' : '\'';
    out.push_back({quote});
    for (const Char& c : text) {
        if (c.code == quote || c.code == '\\')
            append(out, {{'\\', c.source, c.generated}, c});
        else if (c.code == '\n' || c.code == '\r' || c.code == '\t')
            append(out, c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t", c.source);
        else if (is_printable(c.code))
            out.push_back(c);
        else
            put_hex(out,
                    c.code < 0x100     ? "\\x"
                    : c.code < 0x10000 ? "\\u"
                                       : "\\U",
                    c.code,
                    c.code < 0x100     ? 2
                    : c.code < 0x10000 ? 4
                                       : 8,
                    c.source);
    }
    out.push_back({quote});
}

void put_repr(Text& out, const Value& value) {
    if (const Text* text = value.text()) {
        put_repr(out, *text);
    } else if (const List* list = value.list()) {
        append(out, list->tuple ? "(" : "[");
        for (size_t i = 0; i < list->elements.size(); ++i) {
            if (i > 0) append(out, ", ");
            put_repr(out, list->elements[i]);
        }
        append(out, !list->tuple ? "]" : list->elements.size() == 1 ? ",)" : ")");
    } else if (const Dict* dict = value.dict()) {
        append(out, "{");
        for (size_t i = 0; i < dict->items.size(); ++i) {
            if (i > 0) append(out, ", ");
            put_repr(out, dict->items[i].first);
            append(out, ": ");
            put_repr(out, dict->items[i].second);
        }
        append(out, "}");
    } else {
        append(out, value.is_undefined() ? "Undefined" : scalar_text(value));
    }
}

// json.dumps() of a text, with quotes.
void put_json(Text& out, const Text& text, bool ascii) {
    append(out, "\"");
    for (const Char& c : text) {
        constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
        const size_t special = c.code < 0x80 ? kSpecial.find(static_cast<char>(c.code)) : std::string_view::npos;
        if (special != std::string_view::npos) {
            append(out, std::string{'\\', kLetters[special]}, c.source);
        } else if (c.code < 0x20 || (ascii && c.code >= 0x7F && c.code < 0x10000)) {
            put_hex(out, "\\u", c.code, 4, c.source);
        } else if (ascii && c.code >= 0x10000) {  // as a surrogate pair
            put_hex(out, "\\u", 0xD800 + ((c.code - 0x10000) >> 10), 4, c.source);
            put_hex(out, "\\u", 0xDC00 + ((c.code - 0x10000) & 0x3FF), 4, c.source);
        } else {
            out.push_back(c);
        }
    }
    append(out, "\"");
}

std::string json_scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* flag = value.get<bool>()) return *flag ? "true" : "false";
    if (const double* number = value.get<double>())
        return std::isnan(*number)   ? "NaN"
               : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                     : digits_of(*number);
    if (value.get<int64_t>()) return scalar_text(value);
    throw Problem(concat("tojson: a value of type ", type_name(value), " is not JSON"));
}

void put_json(Text& out, const Value& value, const JsonStyle& style, int level);

// The elements between `open` and `close`.
void put_json(Text& out, size_t count, const char* brackets, const JsonStyle& style, int level,
              const std::function<void(size_t)>& put) {
    out.push_back({static_cast<char32_t>(brackets[0])});
    const auto new_line = [&](int levels) {
        if (!style.indent || count == 0) return;
        append(out, "\n");
        for (int i = 0; i < levels; ++i) append(out, *style.indent);
    };
    for (size_t i = 0; i < count; ++i) {
        if (i > 0) append(out, from_utf8(style.item_separator));
        new_line(level + 1);
        put(i);
    }
    new_line(level);
    out.push_back({static_cast<char32_t>(brackets[1])});
}

void put_json(Text& out, const Value& value, const JsonStyle& style, int level) {
    if (const Text* text = value.text()) return put_json(out, *text, style.ascii);
    if (const List* list = value.list())
        return put_json(out, list->elements.size(), "[]", style, level,
                        [&](size_t i) { put_json(out, list->elements[i], style, level + 1); });
    const Dict* dict = value.dict();
    if (!dict) return append(out, json_scalar(value));
    auto items = dict->items;
    if (style.sorted)
        std::stable_sort(items.begin(), items.end(),
                         [](const auto& a, const auto& b) { return less(a.first, b.first); });
    put_json(out, items.size(), "{}", style, level, [&](size_t i) {
        const Value& key = items[i].first;
        Text name;
        if (key.text())
            name = *key.text();
        else
            append(name, json_scalar(key));
        put_json(out, name, style.ascii);
        append(out, from_utf8(style.key_separator));
        put_json(out, items[i].second, style, level + 1);
    });
}

}  // namespace

Value Value::list(std::vector<Value> elements, bool tuple) {
    int deepest = 0;
    for (const Value& element : elements) deepest = std::max(deepest, depth_of(element));
    Value value;
    value.value_ = std::make_shared<const List>(List{std::move(elements), tuple, checked_depth(deepest)});
    return value;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
    int deepest = 0;
    Dict made;
    for (auto& [key, element] : items) {
        check<Problem>(!key.list() && !key.dict() && !key.space(), "a ", type_name(key),
                       " cannot be the key of a dict");
        deepest = std::max(deepest, depth_of(element));
        if (const Value* there = made.find(key))
            *const_cast<Value*>(there) = std::move(element);
        else
            made.items.emplace_back(std::move(key), std::move(element));
    }
    made.depth = checked_depth(deepest);
    Value value;
    value.value_ = std::make_shared<const Dict>(std::move(made));
    return value;
}

std::optional<int64_t> Value::integer() const {
    if (const bool* flag = get<bool>()) return *flag ? 1 : 0;
    if (const int64_t* integer = get<int64_t>()) return *integer;
    return std::nullopt;
}

double Value::number() const {
    const double* real = get<double>();
    return real ? *real : static_cast<double>(*integer());
}

const Value* Dict::find(const Value& key) const {
    for (const auto& [name, value] : items)
        if (equal(name, key)) return &value;
    return nullptr;
}

const Value* Dict::find(std::string_view key) const { return find(Value(key)); }

Value from_json(const Json& json, const std::string& path, std::vector<std::string>& sources) {
    const auto source = [&] {
        sources.push_back(path);
        return static_cast<uint32_t>(sources.size());
    };
    if (json.is_null()) return nullptr;
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_integer()) return json.get<int64_t>();
    if (json.is_number()) return json.get<double>();
    if (json.is_string()) return from_utf8(json.text(), source());
    if (json.is_array()) {
        std::vector<Value> elements;
        for (size_t i = 0; i < json.size(); ++i) elements.push_back(from_json(json[i], concat(path, '/', i), sources));
        return Value::list(std::move(elements));
    }
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, value] : json.items()) {
        std::string escaped;
        for (const char c : key) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string{c};
        sources.push_back(concat(path, '/', escaped));
        Value name = from_utf8(key, static_cast<uint32_t>(sources.size()));
        items.emplace_back(std::move(name), from_json(value, concat(path, '/', escaped), sources));
    }
    return Value::dict(std::move(items));
}

const char* type_name(const Value& value) {
    return value.is_undefined()   ? "Undefined"
           : value.is_none()      ? "NoneType"
           : value.get<bool>()    ? "bool"
           : value.get<int64_t>() ? "int"
           : value.get<double>()  ? "float"
           : value.text()         ? "str"
           : value.dict()         ? "dict"
           : value.function()     ? "function"
           : value.space()        ? "Namespace"
           : value.loop()         ? "LoopContext"
           : value.list()->tuple  ? "tuple"
                                  : "list";
}

std::ostream& operator<<(std::ostream& out, const Shown& shown) {
    const Value& value = shown.value;
    if (const Undefined* undefined = value.get<Undefined>()) return out << undefined->reason;
    if (value.function() || value.space() || value.loop()) return out << "a " << type_name(value);
    std::string text = to_utf8(repr(value));
    if (text.size() > 60) {
        size_t end = 57;
        while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
        text = text.substr(0, end) + "...";
    }
    return out << "the " << type_name(value) << ' ' << text;
}

bool truth(const Value& value) {
    if (value.is_undefined() || value.is_none()) return false;
    if (value.is_number()) return value.number() != 0;
    if (value.text()) return !value.text()->empty();
    if (value.list()) return !value.list()->elements.empty();
    if (value.dict()) return !value.dict()->items.empty();
    return true;
}

bool equal(const Value& a, const Value& b) {
    if (a.integer() && b.integer()) return *a.integer() == *b.integer();
    if (a.is_number() && b.is_number()) return a.number() == b.number();
    if (a.text() && b.text()) return a.text() == b.text() || *a.text() == *b.text();
    if (a.list() && b.list())
        return a.list()->tuple == b.list()->tuple &&
               std::equal(a.list()->elements.begin(), a.list()->elements.end(), b.list()->elements.begin(),
                          b.list()->elements.end(), equal);
    if (a.dict() && b.dict()) {
        const auto& items = a.dict()->items;
        return items.size() == b.dict()->items.size() && std::all_of(items.begin(), items.end(), [&](const auto& item) {
                   const Value* other = b.dict()->find(item.first);
                   return other && equal(item.second, *other);
               });
    }
    if (a.space() || b.space()) return a.space() == b.space();
    if (a.loop() || b.loop()) return a.loop() == b.loop();
    if (a.function() || b.function()) return a.function() == b.function();
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
    if (a.integer() && b.integer()) return *a.integer() < *b.integer();
    if (a.is_number() && b.is_number()) return a.number() < b.number();
    const auto before = [](const Char& x, const Char& y) { return x.code < y.code; };
    if (a.text() && b.text())
        return std::lexicographical_compare(a.text()->begin(), a.text()->end(), b.text()->begin(), b.text()->end(),
                                            before);
    if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
        const auto &left = a.list()->elements, &right = b.list()->elements;
        for (size_t i = 0; i < left.size() && i < right.size(); ++i)
            if (!equal(left[i], right[i])) return less(left[i], right[i]);
        return left.size() < right.size();
    }
    throw Problem(concat("no order between ", shown(a), " and ", shown(b)));
}

bool contains(const Value& in, const Value& what) {
    if (in.text()) {
        check<Problem>(what.text() != nullptr, "in: required a text on the left of a text, got ", shown(what));
        return find(*in.text(), *what.text()) != kNowhere;
    }
    if (in.dict()) return in.dict()->find(what) != nullptr;
    const std::vector<Value> elements = elements_of(in);
    return std::any_of(elements.begin(), elements.end(), [&](const Value& one) { return equal(one, what); });
}

std::vector<Value> elements_of(const Value& value) {
    std::vector<Value> elements;
    if (value.list()) return value.list()->elements;
    if (value.dict()) {
        for (const auto& item : value.dict()->items) elements.push_back(item.first);
    } else if (value.text()) {
        for (const Char& c : *value.text()) elements.emplace_back(Text{c});
    } else {
        check<Problem>(value.is_undefined(), "required a list, a dict or a text, got ", shown(value));
    }
    return elements;
}

size_t length_of(const Value& value) {
    if (value.text()) return value.text()->size();
    if (value.list()) return value.list()->elements.size();
    if (value.dict()) return value.dict()->items.size();
    if (value.loop()) return value.loop()->elements->size();
    check<Problem>(value.is_undefined(), "length: required a list, a dict or a text, got ", shown(value));
    return 0;
}

Text to_text(const Value& value) {
    if (value.text()) return *value.text();
    if (value.is_undefined()) return {};
    return repr(value);
}

Text repr(const Value& value) {
    Text out;
    put_repr(out, value);
    return out;
}

Text to_json(const Value& value, const JsonStyle& style) {
    Text out;
    put_json(out, value, style, 0);
    return out;
}

}  // namespace tutti::jinja
