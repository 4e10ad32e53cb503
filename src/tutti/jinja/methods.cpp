// jinja/methods.cpp: attributes, elements, and the methods of Python's str, list and dict.
#include <algorithm>
#include <iterator>

#include "tutti/base/to_size.h"
#include "tutti/jinja/functions.h"

namespace tutti::jinja {

namespace {

using Elements = std::vector<Value>;

const Text* separator_of(const Bound& a) {
    if (!a.has(0) || a[0].is_none()) return nullptr;
    check<Problem>(!a.text(0).empty(), "split: the separator is empty");
    return &a.text(0);
}

Value list_of(std::vector<Text> texts) {
    Elements elements;
    for (Text& text : texts) elements.emplace_back(std::move(text));
    return Value::list(std::move(elements));
}

template <Side side>
Value strip_side(const Value& self, const Bound& a) {
    return strip(*self.text(), side, a.has(0) && !a[0].is_none() ? &a.text(0) : nullptr);
}

// startswith and endswith: of a text, or of any of a tuple of texts.
template <bool (*fits)(const Text&, const Text&)>
Value has_affix(const Value& self, const Bound& a) {
    if (!a[0].list() || !a[0].list()->tuple) return fits(*self.text(), a.text(0));
    const Elements& all = a[0].list()->elements;
    return std::any_of(all.begin(), all.end(), [&](const Value& one) {
        check<Problem>(one.text() != nullptr, "required a text, got ", shown(one));
        return fits(*self.text(), *one.text());
    });
}

template <Letters letters>
Value text_case(const Value& self, const Bound&) {
    return with_case(*self.text(), letters);
}

Value join_with(const Value& self, const Bound& a) {
    Text result;
    bool first = true;
    for (const Value& value : elements_of(a[0])) {
        check<Problem>(value.text() != nullptr, "join: required texts, got ", shown(value));
        if (!std::exchange(first, false)) append(result, *self.text());
        append(result, *value.text());
    }
    return result;
}

Value find_text(const Value& self, const Bound& a) {
    const size_t at = find(*self.text(), a.text(0));
    return at == kNowhere ? int64_t{-1} : static_cast<int64_t>(at);
}

Value count_text(const Value& self, const Bound& a) {
    const Text &text = *self.text(), &word = a.text(0);
    int64_t count = 0;
    if (word.empty()) return static_cast<int64_t>(text.size()) + 1;
    for (size_t at = 0; (at = find(text, word, at)) != kNowhere; at += word.size()) ++count;
    return count;
}

template <bool (*holds)(char32_t)>
Value all_are(const Value& self, const Bound&) {
    const Text& text = *self.text();
    return !text.empty() && std::all_of(text.begin(), text.end(), [](const Char& c) { return holds(c.code); });
}
bool is_ascii_digit(char32_t c) {
    check<Problem>(c < 0x80, "isdigit: a character outside of ASCII");
    return c >= '0' && c <= '9';
}

Value without_prefix(const Value& self, const Bound& a) {
    const Text& text = *self.text();
    return starts_with(text, a.text(0)) ? Value(part(text, a.text(0).size(), text.size())) : self;
}
Value without_suffix(const Value& self, const Bound& a) {
    const Text& text = *self.text();
    return ends_with(text, a.text(0)) ? Value(part(text, 0, text.size() - a.text(0).size())) : self;
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", "", text_case<Letters::capitalize>},
    {"count", "sub", count_text},
    {"endswith", "suffix", has_affix<ends_with>},
    {"find", "sub", find_text},
    {"isdigit", "", all_are<is_ascii_digit>},
    {"isspace", "", all_are<is_space>},
    {"join", "iterable", join_with},
    {"lower", "", text_case<Letters::lower>},
    {"lstrip", "chars?", strip_side<Side::left>},
    {"removeprefix", "prefix", without_prefix},
    {"removesuffix", "suffix", without_suffix},
    {"replace", "old new count?",
     [](const Value& self, const Bound& a) -> Value {
         return replaced(*self.text(), a.text(0), a.text(1), a.integer(2, -1));
     }},
    {"rsplit", "sep? maxsplit?",
     [](const Value& self, const Bound& a) -> Value {
         return list_of(split_from_right(*self.text(), separator_of(a), a.integer(1, -1)));
     }},
    {"rstrip", "chars?", strip_side<Side::right>},
    {"split", "sep? maxsplit?",
     [](const Value& self, const Bound& a) -> Value {
         return list_of(split(*self.text(), separator_of(a), a.integer(1, -1)));
     }},
    {"splitlines", "keepends?",
     [](const Value& self, const Bound& a) -> Value { return list_of(split_lines(*self.text(), a.flag(0))); }},
    {"startswith", "prefix", has_affix<starts_with>},
    {"strip", "chars?", strip_side<Side::both>},
    {"title", "", text_case<Letters::title>},
    {"upper", "", text_case<Letters::upper>}};

template <bool keys, bool values>
Value parts_of(const Value& self, const Bound&) {
    Elements parts;
    for (const auto& [key, value] : self.dict()->items)
        parts.push_back(keys && values ? Value::list({key, value}, true) : keys ? key : value);
    return Value::list(std::move(parts));
}

constexpr Builtin kDictMethods[] = {{"copy", "", [](const Value& self, const Bound&) -> Value { return self; }},
                                    {"get", "key default?",
                                     [](const Value& self, const Bound& a) -> Value {
                                         const Value* found = self.dict()->find(a[0]);
                                         return found ? *found : a.has(1) ? a[1] : Value(nullptr);
                                     }},
                                    {"items", "", parts_of<true, true>},
                                    {"keys", "", parts_of<true, false>},
                                    {"values", "", parts_of<false, true>}};

constexpr Builtin kListMethods[] = {
    {"copy", "", [](const Value& self, const Bound&) -> Value { return self; }},
    {"count", "value",
     [](const Value& self, const Bound& a) -> Value {
         const Elements& all = self.list()->elements;
         return static_cast<int64_t>(
             std::count_if(all.begin(), all.end(), [&](const Value& one) { return equal(one, a[0]); }));
     }},
    {"index", "value", [](const Value& self, const Bound& a) -> Value {
         const Elements& all = self.list()->elements;
         const auto found = std::find_if(all.begin(), all.end(), [&](const Value& one) { return equal(one, a[0]); });
         check<Problem>(found != all.end(), "index: ", shown(a[0]), " is not in the list");
         return static_cast<int64_t>(found - all.begin());
     }}};

// Attributes that Python's types have and that are no row above: a request for one must not look undefined. Those that
// change a list or dict are undefined in transformers' sandbox.
constexpr std::string_view kOtherTextMethods =
    " casefold center encode expandtabs format format_map index isalnum isalpha isascii isdecimal isidentifier islower "
    "isnumeric isprintable istitle isupper ljust maketrans partition rfind rindex rjust rpartition swapcase translate "
    "zfill ";
constexpr std::string_view kChanging = " append clear extend insert pop popitem remove reverse setdefault sort update ";

bool is_word_of(std::string_view words, const std::string& name) {
    return words.find(" " + name + " ") != std::string_view::npos;
}

Value loop_attribute(const Loop& loop, const std::string& name) {
    const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.elements->size());
    const auto neighbour = [&](size_t at, const char* which) {
        return at < loop.elements->size() ? (*loop.elements)[at]
                                          : Value(Undefined{concat("there is no ", which, " item")});
    };
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return length - index;
    if (name == "revindex0") return length - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == length;
    if (name == "length") return length;
    if (name == "depth") return int64_t{1};  // of recursive loops, which the parser refuses
    if (name == "depth0") return int64_t{0};
    if (name == "previtem") return neighbour(loop.index - 1, "previous");  // of the first: a huge index
    if (name == "nextitem") return neighbour(loop.index + 1, "next");
    if (name == "cycle")
        return Function{"cycle", [at = loop.index](const Arguments& a) {
                            check<Problem>(!a.values.empty(), "cycle: required values to choose from");
                            return a.values[at % a.values.size()];
                        }};
    check<Problem>(name != "changed", "loop.changed() is not supported");
    return Undefined{concat("loop has no attribute ", name)};
}

Value bound_method(const Builtin& method, const Value& self) {
    return Function{method.name, [&method, self](const Arguments& a) { return call_builtin(method, self, a); }};
}

const char* object_name(const Value& self) {
    return self.dict() ? "dict" : self.list() ? "list" : self.text() ? "str" : type_name(self);
}

Value missing(const Value& self, const std::string& name) {
    return Undefined{concat("'", object_name(self), " object' has no attribute '", name, "'")};
}

// self.name without the elements of a dict.
std::optional<Value> own_attribute(const Value& self, const std::string& name) {
    if (self.loop()) return loop_attribute(*self.loop(), name);
    if (self.space()) {
        for (const auto& [key, value] : self.space()->items)
            if (key == name) return value;
        return std::nullopt;
    }
    if (const Builtin* method = find_method(self, name)) return bound_method(*method, self);
    check<Problem>(!self.text() || !is_word_of(kOtherTextMethods, name), "the method ", name,
                   " of texts is not supported");
    if ((self.dict() || self.list()) && is_word_of(kChanging, name))
        return Undefined{concat(name, "() would change a ", object_name(self), ", which a chat template may not")};
    return std::nullopt;
}

std::optional<Value> element(const Value& self, const Value& key) {
    if (self.dict()) {
        const Value* found = self.dict()->find(key);
        return found ? std::optional(*found) : std::nullopt;
    }
    if ((!self.list() && !self.text()) || !key.integer()) return std::nullopt;
    const auto size = static_cast<int64_t>(length_of(self));
    const int64_t index = *key.integer() < 0 ? *key.integer() + size : *key.integer();
    if (index < 0 || index >= size) return std::nullopt;
    const auto at = to_size(index);
    return self.list() ? self.list()->elements[at] : Value(Text{(*self.text())[at]});
}

}  // namespace

const Builtin* find_method(const Value& self, std::string_view name) {
    const auto in = [&](const auto& rows) -> const Builtin* {
        const auto* row =
            std::find_if(std::begin(rows), std::end(rows), [&](const Builtin& r) { return name == r.name; });
        return row == std::end(rows) ? nullptr : row;
    };
    if (self.text()) return in(kTextMethods);
    if (self.dict()) return in(kDictMethods);
    return self.list() ? in(kListMethods) : nullptr;
}

Value attribute(const Value& self, const std::string& name) {
    if (const Undefined* undefined = self.get<Undefined>()) throw Problem(undefined->reason);
    if (auto own = own_attribute(self, name)) return *std::move(own);
    if (auto found = self.dict() ? element(self, std::string_view(name)) : std::nullopt) return *std::move(found);
    return missing(self, name);
}

Value subscript(const Value& self, const Value& key) {
    if (const Undefined* undefined = self.get<Undefined>()) throw Problem(undefined->reason);
    if (auto found = element(self, key)) return *std::move(found);
    const std::string name = key.text() ? to_utf8(*key.text()) : to_utf8(to_text(key.is_number() ? key : Value("?")));
    if (key.text())
        if (auto own = own_attribute(self, name)) return *std::move(own);
    return missing(self, name);
}

}  // namespace tutti::jinja
