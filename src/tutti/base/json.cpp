#include "tutti/base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_set>

#include "tutti/base/to_size.h"

namespace tutti {

namespace {

using Library = nlohmann::json;

// The iterator through which the library reads the text. It advances *at, so that the library's position is known.
struct TextIterator {
    using value_type = char;
    using difference_type = ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;
    using iterator_category = std::input_iterator_tag;

    const char** at;
    const char* end = nullptr;  // set in the end iterator
    reference operator*() const { return **at; }
    TextIterator& operator++() {
        ++*at;
        return *this;
    }
    bool operator==(const TextIterator& other) const { return *at == other.end; }
    bool operator!=(const TextIterator& other) const { return !(*this == other); }
};

// "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error ..." -> "syntax error ..."
std::string reason_of(const std::exception& error) {
    constexpr size_t kMaxMessage = 300;  // the message quotes the token, which may be long
    std::string_view what = error.what();
    what.remove_prefix(what.find(' ') + 1);
    if (what.starts_with("parse error at line")) what.remove_prefix(what.find(": ") + 2);
    return std::string(what.substr(0, kMaxMessage));
}

std::string printed_number(double value) {
    if (!std::isfinite(value)) return "null";
    return Library(value).dump();
}

void print_text(std::string& out, const std::string& text, Json::InvalidUtf8 invalid) {
    const auto plain = [](char c) { return c >= ' ' && c != '"' && c != '\\' && c != '\x7f'; };
    if (std::all_of(text.begin(), text.end(), plain)) {
        out.append(1, '"').append(text).append(1, '"');
        return;
    }
    try {
        const bool replace = invalid == Json::InvalidUtf8::replace;
        out += Library(text).dump(-1, ' ', false,
                                  replace ? Library::error_handler_t::replace : Library::error_handler_t::strict);
    } catch (const Library::exception&) {
        throw DataError(concat("'", text, "' is not UTF-8"));
    }
}

}  // namespace

// Builds a value from the library's events. Refuses duplicate keys, NUL bytes and deep nesting, which the library
// accepts.
class JsonBuilder {
  public:
    JsonBuilder(std::string_view text, int max_depth) : text_(text), at_(text.data()), max_depth_(max_depth) {}

    Json build() {
        const size_t zero = text_.find('\0');  // for the library, the end of the text
        if (zero != std::string_view::npos) throw JsonError(zero, "a NUL byte");
        const char* end = text_.data() + text_.size();
        Library::sax_parse(TextIterator{&at_}, TextIterator{&at_, end}, this);
        return std::move(root_);
    }

    bool null() { return put(nullptr); }
    bool boolean(bool value) { return put(value); }
    bool number_integer(int64_t value) { return value == 0 ? put(-0.0) : put(value); }
    bool number_unsigned(uint64_t value) { return put(value); }
    bool number_float(double value, const std::string&) { return put(value); }
    bool string(std::string& value) { return put(std::move(value)); }
    bool binary(Library::binary_t&) { return false; }  // of other formats
    bool start_object(size_t) {
        keys_.emplace_back();
        return open(Json::object());
    }
    bool key(std::string& name) {
        if (!keys_.back().insert(name).second) fail(Json(name).shown() + " occurs twice");
        auto& members = std::get<Json::Object>(open_.back()->value_);
        members.push_back({std::move(name), nullptr});
        return true;
    }
    bool end_object() {
        keys_.pop_back();
        return end_array();
    }
    bool start_array(size_t) { return open(Json::array()); }
    bool end_array() {
        open_.pop_back();
        return true;
    }
    bool parse_error(size_t position, const std::string&, const std::exception& error) {
        throw JsonError(position > 0 ? position - 1 : 0, reason_of(error));
    }

  private:
    [[noreturn]] void fail(const std::string& reason) const {
        throw JsonError(to_size(at_ - text_.data()) - 1, reason);  // the last byte that was read
    }
    Json& place(Json value) {
        if (open_.empty()) return root_ = std::move(value);
        if (auto* elements = std::get_if<Json::Array>(&open_.back()->value_))
            return elements->emplace_back(std::move(value));
        return std::get<Json::Object>(open_.back()->value_).back().value = std::move(value);
    }
    bool put(Json value) {
        place(std::move(value));
        return true;
    }
    bool open(Json empty) {
        if (static_cast<int>(open_.size()) == max_depth_) fail(concat("nested more than ", max_depth_, " levels deep"));
        open_.push_back(&place(std::move(empty)));
        return true;
    }

    std::string_view text_;
    const char* at_;
    int max_depth_;
    Json root_;
    std::vector<Json*> open_;  // pointers stay valid, since only the innermost value grows
    std::vector<std::unordered_set<std::string>> keys_;
};

Json Json::parse(std::string_view text, int max_depth) { return JsonBuilder(text, max_depth).build(); }

std::optional<Json> Json::try_parse(std::string_view text) {
    try {
        return parse(text);
    } catch (const JsonError&) {
        return std::nullopt;
    }
}

Json::Json(std::initializer_list<Json> values) {
    const auto is_member = [](const Json& value) {
        return value.is_array() && value.size() == 2 && value.front().is_string();
    };
    if (!std::all_of(values.begin(), values.end(), is_member)) {
        value_ = Array(values);
        return;
    }
    value_ = Object();
    for (const Json& pair : values) (*this)[pair.front().text()] = pair.back();
}

Json Json::object() {
    Json json;
    json.value_ = Object();
    return json;
}

void Json::print(std::string& out, int indent, int level, InvalidUtf8 invalid) const {
    const auto new_line = [&](int at_level) {
        if (indent >= 0) out.append(1, '\n').append(to_size(indent * at_level), ' ');
    };
    const auto list = [&](char open, char close, const auto& values, auto print_one) {
        out += open;
        for (const auto& value : values) {
            if (&value != &values.front()) out += ',';
            new_line(level + 1);
            print_one(value);
        }
        if (!values.empty()) new_line(level);
        out += close;
    };
    if (is_null()) out += "null";
    if (is_boolean()) out += std::get<bool>(value_) ? "true" : "false";
    if (const auto* integer = std::get_if<int64_t>(&value_)) out += std::to_string(*integer);
    if (const auto* natural = std::get_if<uint64_t>(&value_)) out += std::to_string(*natural);
    if (const auto* real = std::get_if<double>(&value_)) out += printed_number(*real);
    if (is_string()) print_text(out, text(), invalid);
    if (is_array())
        list('[', ']', elements(), [&](const Json& element) { element.print(out, indent, level + 1, invalid); });
    if (is_object())
        list('{', '}', items(), [&](const Member& member) {
            print_text(out, member.key, invalid);
            out += indent >= 0 ? ": " : ":";
            member.value.print(out, indent, level + 1, invalid);
        });
}

std::string Json::dump(int indent, InvalidUtf8 invalid) const {
    std::string out;
    print(out, indent, 0, invalid);
    return out;
}

std::string Json::shown() const {
    constexpr size_t kMaxBytes = 200;
    std::string all = dump(-1, InvalidUtf8::replace);
    return all.size() <= kMaxBytes ? all : all.substr(0, kMaxBytes) + "...";
}

std::ostream& operator<<(std::ostream& out, const Json& json) {
    return out << json.dump(-1, Json::InvalidUtf8::replace);
}

const char* Json::type_name() const {
    return is_null()      ? "null"
           : is_boolean() ? "boolean"
           : is_number()  ? "number"
           : is_string()  ? "string"
           : is_array()   ? "array"
                          : "object";
}

void Json::refuse(const char* required) const { throw DataError(concat("required ", required, ", got ", shown())); }

bool Json::is_integer(int64_t low, int64_t high) const {
    const auto* value = std::get_if<int64_t>(&value_);
    return value != nullptr && *value >= low && *value <= high;
}

int64_t Json::integer(int64_t low, int64_t high) const {
    const auto* whole = std::get_if<int64_t>(&value_);
    const auto* real = std::get_if<double>(&value_);
    const bool fits = real != nullptr && *real == std::trunc(*real) && *real >= -0x1p63 && *real < 0x1p63;
    if (whole == nullptr && !fits) refuse("a whole number");
    const int64_t value = whole ? *whole : static_cast<int64_t>(*real);
    if (value < low || value > high) refuse(concat("a whole number from ", low, " to ", high).c_str());
    return value;
}

uint64_t Json::natural(uint64_t high) const {
    const auto* large = std::get_if<uint64_t>(&value_);
    const uint64_t value = large ? *large : static_cast<uint64_t>(integer(0, INT64_MAX));
    if (value > high) refuse(concat("a whole number up to ", high).c_str());
    return value;
}

double Json::number() const {
    if (const auto* whole = std::get_if<int64_t>(&value_)) return static_cast<double>(*whole);
    if (const auto* large = std::get_if<uint64_t>(&value_)) return static_cast<double>(*large);
    return as<double>("a number");
}

size_t Json::size() const { return is_array() ? elements().size() : is_object() ? items().size() : is_null() ? 0 : 1; }

const Json* Json::find(std::string_view key) const {
    if (!is_object()) return nullptr;
    for (const Member& member : items())
        if (member.key == key) return &member.value;
    return nullptr;
}

const Json& Json::at(std::string_view key) const {
    if (!is_object()) refuse("an object");
    const Json* value = find(key);
    check<DataError>(value != nullptr, "\"", key, "\" is missing");
    return *value;
}

const Json& Json::at(size_t index) const {
    check<DataError>(index < elements().size(), "element ", index, " of a list of ", size());
    return elements()[index];
}

Json& Json::operator[](std::string_view key) {
    if (is_null()) value_ = Object();
    items();
    for (Member& member : std::get<Object>(value_))
        if (member.key == key) return member.value;
    return std::get<Object>(value_).emplace_back(Member{std::string(key), nullptr}).value;
}

void Json::erase(std::string_view key) {
    items();
    std::erase_if(std::get<Object>(value_), [&](const Member& member) { return member.key == key; });
}

void Json::update(const Json& object) {
    for (const Member& member : object.items()) (*this)[member.key] = member.value;
}

Json& Json::push_back(Json element) {
    if (is_null()) value_ = Array();
    elements();
    return std::get<Array>(value_).emplace_back(std::move(element));
}

bool operator==(const Json& a, const Json& b) {
    if (a.is_number() && b.is_number() && a.value_.index() != b.value_.index()) return a.number() == b.number();
    if (!a.is_object() || !b.is_object()) return a.value_ == b.value_;
    const auto same = [&](const Json::Member& member) {
        const Json* other = b.find(member.key);
        return other != nullptr && *other == member.value;
    };
    return a.size() == b.size() && std::all_of(a.items().begin(), a.items().end(), same);
}

}  // namespace tutti
