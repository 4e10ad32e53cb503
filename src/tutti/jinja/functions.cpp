// jinja/functions.cpp: filters and tests (github.com/pallets/jinja, src/jinja2/filters.py and tests.py; tojson as in
// transformers, src/transformers/utils/chat_template_utils.py).
#include "tutti/jinja/functions.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/digits.h"
#include "tutti/base/to_size.h"

namespace tutti::jinja {

namespace {

using Values = std::vector<Value>;

template <size_t N>
const Builtin* find_row(const Builtin (&rows)[N], std::string_view name) {
    const auto* row = std::find_if(rows, rows + N, [&](const Builtin& r) { return name == r.name; });
    return row == rows + N ? nullptr : row;
}

// The value at "a.b.0" of `value`.
Value at_path(const Value& value, const Value& path) {
    if (!path.text()) return subscript(value, path);
    const Text dot = from_utf8(".");
    Value found = value;
    for (Text& name : split(*path.text(), &dot, -1)) {
        const std::string word = to_utf8(name);
        const std::optional<int64_t> index = word.starts_with('-') ? std::nullopt : parse_number<int64_t>(word);
        found = subscript(found, index ? Value(*index) : Value(std::move(name)));
    }
    return found;
}

Value lowered(const Value& value, bool case_sensitive) {
    return value.text() && !case_sensitive ? Value(with_case(*value.text(), Letters::lower)) : value;
}

// What values are ordered and compared by: an attribute, without case.
struct Key {
    const Value* path;
    bool case_sensitive;
    Value operator()(const Value& value) const { return lowered(path ? at_path(value, *path) : value, case_sensitive); }
};

Key key_of(const Bound& a, size_t case_sensitive, size_t path) {
    return {a.has(path) && !a[path].is_none() ? &a[path] : nullptr, a.flag(case_sensitive)};
}

// Stable; comparisons of values without an order are a Problem.
template <class Of>
Value sorted(Values values, bool reverse, const Of& key) {
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& value : values) {
        Value by = key(value);
        keyed.emplace_back(std::move(by), std::move(value));
    }
    // A comparison that throws may leave an element moved away; nothing reads the list then.
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
        return reverse ? less(y.first, x.first) : less(x.first, y.first);
    });
    Values result;
    for (auto& one : keyed) result.push_back(std::move(one.second));
    return Value::list(std::move(result));
}

template <Letters letters>
Value change_case(const Value& self, const Bound&) {
    return with_case(to_text(self), letters);
}

// Jinja's title: what follows white space, a hyphen or an opening bracket is a capital.
Value title(const Value& self, const Bound&) {
    Text text = with_case(to_text(self), Letters::lower);
    bool first = true;
    for (Char& c : text) {
        const char32_t code = c.code;
        if (first && code >= 'a' && code <= 'z') c.code = code - 0x20;
        first = is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    }
    return text;
}

Value absolute(const Value& self, const Bound&) {
    check<Problem>(self.is_number(), "abs: required a number, got ", shown(self));
    return self.integer() ? Value(std::abs(*self.integer())) : Value(std::abs(self.number()));
}

Value or_default(const Value& self, const Bound& a) {
    const bool takes = self.is_undefined() || (a.flag(1) && !truth(self));
    return !takes ? self : a.has(0) ? a[0] : Value("");
}

Value dict_sorted(const Value& self, const Bound& a) {
    check<Problem>(self.dict() != nullptr, "dictsort: required a dict, got ", shown(self));
    const bool by_value = a.has(1) && equal(a[1], "value");
    check<Problem>(by_value || !a.has(1) || equal(a[1], "key"), "dictsort: by must be key or value");
    Values items;
    for (const auto& [key, value] : self.dict()->items) items.push_back(Value::list({key, value}, true));
    const auto key = [&](const Value& item) { return lowered(item.list()->elements[by_value ? 1 : 0], a.flag(0)); };
    return sorted(std::move(items), a.flag(2), key);
}

template <bool last>
Value end_of(const Value& self, const Bound&) {
    const Values values = elements_of(self);
    if (values.empty()) return Undefined{concat("No ", last ? "last" : "first", " item, sequence was empty.")};
    return last ? values.back() : values.front();
}

std::optional<double> number_of(const Value& value) {
    if (value.is_number()) return value.number();
    if (!value.text()) return std::nullopt;
    const std::string text = to_utf8(strip(*value.text(), Side::both));
    return parse_number<double>(std::string_view(text).substr(text.starts_with('+') ? 1 : 0));
}

Value to_float(const Value& self, const Bound& a) {
    const auto number = number_of(self);
    return number ? Value(*number) : a.has(0) ? a[0] : Value(0.0);
}

Value to_int(const Value& self, const Bound& a) {
    if (self.integer()) return *self.integer();
    const auto number = number_of(self);
    if (!number || !std::isfinite(*number)) return a.has(0) ? a[0] : Value(int64_t{0});
    check<Problem>(std::abs(*number) < 9e15, "int: ", shown(self), " is beyond the exact integers of 64 bits");
    return static_cast<int64_t>(std::trunc(*number));
}

Value indented(const Value& self, const Bound& a) {
    Text space;
    if (a.has(0) && a[0].text())
        space = a.text(0);
    else
        for (int64_t i = 0; i < std::min<int64_t>(a.integer(0, 4), 1000); ++i) append(space, " ");
    Text text = to_text(self);
    append(text, "\n");
    Text result;
    bool first = true;
    for (const Text& line : split_lines(text, false)) {
        if (!first) append(result, "\n");
        if (first ? a.flag(1) : a.flag(2) || !line.empty()) append(result, space);
        append(result, line);
        first = false;
    }
    return result;
}

Value items_of(const Value& self, const Bound&) {
    if (self.is_undefined()) return Value::list({});
    check<Problem>(self.dict() != nullptr, "items: required a dict, got ", shown(self));
    Values items;
    for (const auto& [key, value] : self.dict()->items) items.push_back(Value::list({key, value}, true));
    return Value::list(std::move(items));
}

Value join(const Value& self, const Bound& a) {
    Text result;
    const Text between = a.has(0) ? to_text(a[0]) : Text();
    bool first = true;
    for (const Value& value : elements_of(self)) {
        if (!std::exchange(first, false)) append(result, between);
        append(result, to_text(a.has(1) && !a[1].is_none() ? at_path(value, a[1]) : value));
    }
    return result;
}

Value length(const Value& self, const Bound&) { return static_cast<int64_t>(length_of(self)); }
Value as_list(const Value& self, const Bound&) { return Value::list(elements_of(self)); }
Value same(const Value& self, const Bound&) { return self; }  // safe: nothing is escaped
Value as_text(const Value& self, const Bound&) { return to_text(self); }

// The arguments from `first` on, for the filter or test that another one names.
Arguments rest_of(const Arguments& given, size_t first) {
    const auto begin = given.values.begin() + static_cast<std::ptrdiff_t>(std::min(first, given.values.size()));
    return {{begin, given.values.end()}, given.named};
}

std::string name_in(const char* filter, const Arguments& given, size_t index) {
    check<Problem>(index < given.values.size() && given.values[index].text(), filter, ": required the name of a ",
                   index == 0 && filter != std::string_view("map") ? "test" : "filter or test", " as a text");
    return to_utf8(*given.values[index].text());
}

Value map(const Value& self, const Bound& a) {
    const Value *path = nullptr, *otherwise = nullptr;
    for (const auto& [name, value] : a.given.named) {
        if (name == "attribute") path = &value;
        if (name == "default") otherwise = &value;
    }
    Values result;
    if (path && a.given.values.empty()) {
        for (const Value& value : elements_of(self)) {
            Value found = at_path(value, *path);
            result.push_back(found.is_undefined() && otherwise ? *otherwise : std::move(found));
        }
        return Value::list(std::move(result));
    }
    const std::string name = name_in("map", a.given, 0);
    const Builtin* filter = find_filter(name);
    check<Problem>(filter != nullptr, "map: no filter is named ", name);
    for (const Value& value : elements_of(self)) result.push_back(call_builtin(*filter, value, rest_of(a.given, 1)));
    return Value::list(std::move(result));
}

// select, reject, selectattr, rejectattr.
template <bool keeps, bool by_attribute>
Value chosen(const Value& self, const Bound& a) {
    const size_t index = by_attribute ? 1 : 0;
    if (by_attribute) check<Problem>(!a.given.values.empty(), "selectattr: required the name of an attribute");
    const Builtin* test = nullptr;
    if (index < a.given.values.size()) {
        const std::string name = name_in("select", a.given, index);
        test = find_test(name);
        check<Problem>(test != nullptr, "select: no test is named ", name);
    }
    Values result;
    for (const Value& value : elements_of(self)) {
        const Value subject = by_attribute ? at_path(value, a.given.values[0]) : value;
        const bool passes = truth(test ? call_builtin(*test, subject, rest_of(a.given, index + 1)) : subject);
        if (passes == keeps) result.push_back(value);
    }
    return Value::list(std::move(result));
}

template <bool most>
Value extreme(const Value& self, const Bound& a) {
    const Values values = elements_of(self);
    if (values.empty()) return Undefined{"No aggregated item, sequence was empty."};
    const Key key = key_of(a, 0, 1);
    const Value* best = &values[0];
    for (const Value& value : values)
        if (most ? less(key(*best), key(value)) : less(key(value), key(*best))) best = &value;
    return *best;
}

Value replace(const Value& self, const Bound& a) {
    return replaced(to_text(self), to_text(a[0]), to_text(a[1]), a.integer(2, -1));
}

Value reversed(const Value& self, const Bound&) {
    if (self.text()) return Text(self.text()->rbegin(), self.text()->rend());
    Values values = elements_of(self);
    std::reverse(values.begin(), values.end());
    return Value::list(std::move(values));
}

Value sort(const Value& self, const Bound& a) { return sorted(elements_of(self), a.flag(0), key_of(a, 1, 2)); }

Value sum(const Value& self, const Bound& a) {
    int64_t integers = 0;
    double reals = 0;
    bool exact = true;
    const auto add = [&](const Value& value) {
        check<Problem>(value.is_number(), "sum: required numbers, got ", shown(value));
        exact = exact && value.integer().has_value();
        reals += value.number();
        if (exact)
            check<Problem>(!__builtin_add_overflow(integers, *value.integer(), &integers), "sum: beyond 64 bits");
    };
    if (a.has(1)) add(a[1]);
    for (const Value& value : elements_of(self)) add(a.has(0) && !a[0].is_none() ? at_path(value, a[0]) : value);
    return exact ? Value(integers) : Value(reals);
}

Value unique(const Value& self, const Bound& a) {
    const Key key = key_of(a, 0, 1);
    Values seen, result;
    for (const Value& value : elements_of(self)) {
        Value by = key(value);
        if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return equal(v, by); })) continue;
        seen.push_back(std::move(by));
        result.push_back(value);
    }
    return Value::list(std::move(result));
}

Value trim(const Value& self, const Bound& a) {
    const Text text = to_text(self);
    return strip(text, Side::both, a.has(0) && !a[0].is_none() ? &a.text(0) : nullptr);
}

Value json(const Value& self, const Bound& a) {
    JsonStyle style{.ascii = a.flag(0), .sorted = a.flag(3)};
    if (a.has(1) && !a[1].is_none()) {
        style.indent = a[1].text() ? to_utf8(a.text(1)) : "";
        if (!a[1].text()) style.indent->resize(to_size(std::clamp<int64_t>(a.integer(1), 0, 1000)), ' ');
        style.item_separator = ",";
    }
    if (a.has(2) && !a[2].is_none()) {
        const List* pair = a[2].list();
        check<Problem>(pair && pair->elements.size() == 2 && pair->elements[0].text() && pair->elements[1].text(),
                       "tojson: separators must be two texts, got ", shown(a[2]));
        style.item_separator = to_utf8(*pair->elements[0].text());
        style.key_separator = to_utf8(*pair->elements[1].text());
    }
    return to_json(self, style);
}

constexpr Builtin kFilters[] = {{"abs", "", absolute},
                                {"capitalize", "", change_case<Letters::capitalize>},
                                {"count", "", length},
                                {"d", "default_value? boolean?", or_default},
                                {"default", "default_value? boolean?", or_default},
                                {"dictsort", "case_sensitive? by? reverse?", dict_sorted},
                                {"first", "", end_of<false>},
                                {"float", "default?", to_float},
                                {"indent", "width? first? blank?", indented},
                                {"int", "default?", to_int},
                                {"items", "", items_of},
                                {"join", "d? attribute?", join},
                                {"last", "", end_of<true>},
                                {"length", "", length},
                                {"list", "", as_list},
                                {"lower", "", change_case<Letters::lower>},
                                {"map", "...", map},
                                {"max", "case_sensitive? attribute?", extreme<true>},
                                {"min", "case_sensitive? attribute?", extreme<false>},
                                {"reject", "...", chosen<false, false>},
                                {"rejectattr", "...", chosen<false, true>},
                                {"replace", "old new count?", replace},
                                {"reverse", "", reversed},
                                {"safe", "", same},
                                {"select", "...", chosen<true, false>},
                                {"selectattr", "...", chosen<true, true>},
                                {"sort", "reverse? case_sensitive? attribute?", sort},
                                {"string", "", as_text},
                                {"sum", "attribute? start?", sum},
                                {"title", "", title},
                                {"tojson", "ensure_ascii? indent? separators? sort_keys?", json},
                                {"trim", "chars?", trim},
                                {"unique", "case_sensitive? attribute?", unique},
                                {"upper", "", change_case<Letters::upper>}};

// A test that compares with its argument by `holds`.
template <bool (*holds)(const Value&, const Value&)>
Value compares(const Value& self, const Bound& a) {
    return holds(self, a[0]);
}
bool differs(const Value& a, const Value& b) { return !equal(a, b); }
bool more(const Value& a, const Value& b) { return less(b, a); }
bool at_least(const Value& a, const Value& b) { return less(b, a) || equal(a, b); }
bool at_most(const Value& a, const Value& b) { return less(a, b) || equal(a, b); }
bool is_in(const Value& a, const Value& b) { return contains(b, a); }

int64_t remainder(const char* test, const Value& self, int64_t by) {
    check<Problem>(self.integer() && by != 0 && by != -1, test, ": required an integer and a divisor, got ",
                   shown(self));
    return *self.integer() % by;
}

template <class T>
bool holds(const Value& value) {
    return value.get<T>() != nullptr;
}
template <bool (*is)(const Value&)>
Value asks(const Value& self, const Bound&) {
    return is(self);
}
bool iterates(const Value& v) { return v.is_undefined() || v.text() || v.list() || v.dict() || v.loop(); }
bool is_sequence(const Value& v) { return v.is_undefined() || v.text() || v.list() || v.dict(); }
template <bool value>
bool is_flag(const Value& v) {
    return v.get<bool>() && *v.get<bool>() == value;
}
template <Letters letters>
bool in_case(const Value& v) {
    const Text text = to_text(v);
    return text == with_case(text, letters) && std::any_of(text.begin(), text.end(), [](const Char& c) {
               return (c.code | 0x20) >= 'a' && (c.code | 0x20) <= 'z';
           });
}

constexpr Builtin kTests[] = {
    {"!=", "other", compares<differs>},
    {"<", "other", compares<less>},
    {"<=", "other", compares<at_most>},
    {"==", "other", compares<equal>},
    {">", "other", compares<more>},
    {">=", "other", compares<at_least>},
    {"boolean", "", asks<holds<bool>>},
    {"callable", "", [](const Value& v, const Bound&) -> Value { return v.function() != nullptr; }},
    {"defined", "", [](const Value& v, const Bound&) -> Value { return !v.is_undefined(); }},
    {"divisibleby", "num",
     [](const Value& v, const Bound& a) -> Value { return remainder("divisibleby", v, a.integer(0)) == 0; }},
    {"eq", "other", compares<equal>},
    {"equalto", "other", compares<equal>},
    {"even", "", [](const Value& v, const Bound&) -> Value { return remainder("even", v, 2) == 0; }},
    {"false", "", asks<is_flag<false>>},
    {"float", "", asks<holds<double>>},
    {"ge", "other", compares<at_least>},
    {"greaterthan", "other", compares<more>},
    {"gt", "other", compares<more>},
    {"in", "seq", compares<is_in>},
    {"integer", "", asks<holds<int64_t>>},
    {"iterable", "", asks<iterates>},
    {"le", "other", compares<at_most>},
    {"lessthan", "other", compares<less>},
    {"lower", "", asks<in_case<Letters::lower>>},
    {"lt", "other", compares<less>},
    {"mapping", "", [](const Value& v, const Bound&) -> Value { return v.dict() != nullptr; }},
    {"ne", "other", compares<differs>},
    {"none", "", [](const Value& v, const Bound&) -> Value { return v.is_none(); }},
    {"number", "", [](const Value& v, const Bound&) -> Value { return v.is_number(); }},
    {"odd", "", [](const Value& v, const Bound&) -> Value { return remainder("odd", v, 2) != 0; }},
    {"sequence", "", asks<is_sequence>},
    {"string", "", [](const Value& v, const Bound&) -> Value { return v.text() != nullptr; }},
    {"true", "", asks<is_flag<true>>},
    {"undefined", "", [](const Value& v, const Bound&) -> Value { return v.is_undefined(); }},
    {"upper", "", asks<in_case<Letters::upper>>}};

}  // namespace

const Text& Bound::text(size_t i) const {
    const Value nothing = Undefined{"nothing"};
    check<Problem>(has(i) && (*this)[i].text(), "required a text, got ", shown(has(i) ? (*this)[i] : nothing));
    return *(*this)[i].text();
}

int64_t Bound::integer(size_t i) const {
    const Value nothing = Undefined{"nothing"};
    check<Problem>(has(i) && (*this)[i].integer(), "required an integer, got ", shown(has(i) ? (*this)[i] : nothing));
    return *(*this)[i].integer();
}

const Builtin* find_filter(std::string_view name) { return find_row(kFilters, name); }
const Builtin* find_test(std::string_view name) { return find_row(kTests, name); }

Bound bound_to(const std::string& function, std::string_view parameters, const Arguments& arguments) {
    Bound bound{{}, arguments};
    if (parameters == "...") return bound;
    size_t given = 0, named = 0;
    for (size_t begin = 0; begin < parameters.size();) {
        size_t end = std::min(parameters.find(' ', begin), parameters.size());
        std::string_view name = parameters.substr(begin, end - begin);
        begin = end + 1;
        const bool optional = name.ends_with('?');
        if (optional) name.remove_suffix(1);
        const Value* value = given < arguments.values.size() ? &arguments.values[given++] : nullptr;
        for (const auto& [word, other] : arguments.named) {
            if (word != name) continue;
            check<Problem>(!value, function, ": the argument ", name, " is given twice");
            value = &other;
            ++named;
        }
        check<Problem>(value || optional, function, ": the argument ", name, " is missing");
        bound.values.push_back(value);
    }
    check<Problem>(given == arguments.values.size() && named == arguments.named.size(), function, "(",
                   joined(std::vector<std::string>{std::string(parameters)}), "): unknown or too many arguments");
    return bound;
}

Value call_builtin(const Builtin& builtin, const Value& self, const Arguments& arguments) {
    return builtin.call(self, bound_to(builtin.name, builtin.parameters, arguments));
}

}  // namespace tutti::jinja
