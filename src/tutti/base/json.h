// base/json.h: a JSON value with a strict parser and a printer. Only json.cpp includes the library behind them,
// nlohmann, whose header costs each file 1.4 s of compile time (decision 4).
//
// A wrong type, a missing member or a number out of range is a DataError that shows the value.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti {

// The text is not JSON, has a key twice in one object, or is nested too deeply. The message starts with the offset of
// the error.
class JsonError : public DataError {
  public:
    JsonError(size_t at, const std::string& why) : DataError(concat("byte ", at, ": ", why)), byte(at), reason(why) {}
    size_t byte;  // offset in the text, from 0
    std::string reason;
};

// Null, a boolean, a 64-bit integer, a double, a text, a list, or an object, whose members keep their order.
class Json {
  public:
    struct Member;
    using Array = std::vector<Json>;
    using Object = std::vector<Member>;
    enum class InvalidUtf8 { refuse, replace };  // replace: by U+FFFD

    Json(std::nullptr_t = nullptr) {}
    template <class T>
    requires std::integral<T> || std::floating_point<T> Json(T value) {
        if constexpr (std::same_as<T, bool>)
            value_ = value;
        else if constexpr (std::floating_point<T>)
            value_ = static_cast<double>(value);
        else if (std::in_range<int64_t>(+value))
            value_ = static_cast<int64_t>(value);
        else
            value_ = static_cast<uint64_t>(value);
    }
    Json(std::string text) : value_(std::move(text)) {}
    Json(std::string_view text) : value_(std::string(text)) {}
    Json(const char* text) : value_(std::string(text)) {}
    template <class T>
    Json(const std::vector<T>& elements) : value_(Array(elements.begin(), elements.end())) {}
    template <class T>
    Json(const std::map<std::string, T>& members);
    // An object if all values are pairs that begin with a text, else a list: {{"a", 1}, {"b", {1, 2}}}.
    Json(Array elements) : value_(std::move(elements)) {}
    Json(std::initializer_list<Json> values);
    static Json array(std::initializer_list<Json> values = {}) { return Array(values); }
    static Json object();

    // JsonError if the text is not JSON or has a NUL byte. A byte order mark is skipped.
    static Json parse(std::string_view text, int max_depth = 100);
    static std::optional<Json> try_parse(std::string_view text);  // nullopt where parse() throws
    // The JSON text, on one line or with `indent` spaces per level. Doubles have the fewest digits from which the same
    // bits are read; NaN and infinity become null. DataError if a text is not UTF-8 and `invalid` is `refuse`.
    std::string dump(int indent = -1, InvalidUtf8 invalid = InvalidUtf8::refuse) const;
    std::string shown() const;  // for messages: one line of at most 200 bytes

    bool is_null() const { return is<std::monostate>(); }
    bool is_boolean() const { return is<bool>(); }
    bool is_integer() const { return is<int64_t>() || is<uint64_t>(); }  // -0 is not: it is a double
    bool is_integer(int64_t low, int64_t high) const;
    bool is_number() const { return is_integer() || is<double>(); }
    bool is_string() const { return is<std::string>(); }
    bool is_array() const { return is<Array>(); }
    bool is_object() const { return is<Object>(); }
    const char* type_name() const;

    // T is bool, a number, std::string, or a vector or map from std::string of such. A double that is a whole number
    // converts to an integer.
    template <class T>
    T get() const;
    const std::string& text() const { return as<std::string>("a text"); }
    const Array& elements() const { return as<Array>("a list"); }
    const Object& items() const { return as<Object>("an object"); }

    size_t size() const;  // of a list or object; 0 for null, 1 for other values
    bool empty() const { return size() == 0; }

    bool contains(std::string_view key) const { return find(key) != nullptr; }
    const Json* find(std::string_view key) const;  // null: no such member, or not an object
    const Json& at(std::string_view key) const;
    const Json& operator[](std::string_view key) const { return at(key); }
    Json& operator[](std::string_view key);  // appends a missing member; null becomes an object
    template <class T>
    T value(std::string_view key, T otherwise) const;  // the member's value, or `otherwise`
    std::string value(std::string_view key, const char* otherwise) const { return value(key, std::string(otherwise)); }
    void erase(std::string_view key);
    void update(const Json& object);  // sets all members of `object`

    const Json& at(size_t index) const;
    template <std::integral I>
    const Json& operator[](I index) const {
        return at(to_size(index));
    }
    template <std::integral I>
    Json& operator[](I index) {
        return const_cast<Json&>(at(to_size(index)));
    }
    const Json& front() const { return at(size_t{0}); }
    const Json& back() const { return at(size() - 1); }
    Json& back() { return (*this)[size() - 1]; }
    Json& push_back(Json element);  // returns the element; null becomes a list
    Array::const_iterator begin() const { return elements().begin(); }
    Array::const_iterator end() const { return elements().end(); }

    // Compares numbers by value, and objects without regard to the order of members.
    friend bool operator==(const Json& a, const Json& b);
    friend std::ostream& operator<<(std::ostream& out, const Json& json);

  private:
    template <class T>
    bool is() const {
        return std::holds_alternative<T>(value_);
    }
    template <class T>
    const T& as(const char* required) const {
        if (!is<T>()) refuse(required);
        return std::get<T>(value_);
    }
    [[noreturn]] void refuse(const char* required) const;
    int64_t integer(int64_t low, int64_t high) const;
    uint64_t natural(uint64_t high) const;
    double number() const;
    void print(std::string& out, int indent, int level, InvalidUtf8 invalid) const;
    friend class JsonBuilder;  // of json.cpp

    std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
    std::string key;
    Json value;
    bool operator==(const Member&) const = default;
};

template <class T>
Json::Json(const std::map<std::string, T>& members) : Json(object()) {
    for (const auto& [key, value] : members) (*this)[key] = value;
}

template <class T>
T Json::get() const {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::same_as<T, bool>) {
        return as<bool>("true or false");
    } else if constexpr (std::unsigned_integral<T>) {
        return static_cast<T>(natural(Limits::max()));
    } else if constexpr (std::integral<T>) {
        return static_cast<T>(integer(Limits::min(), Limits::max()));
    } else if constexpr (std::floating_point<T>) {
        return static_cast<T>(number());
    } else if constexpr (std::same_as<T, std::string>) {
        return text();
    } else if constexpr (requires { typename T::mapped_type; }) {
        T result;
        for (const Member& member : items()) result[member.key] = member.value.get<typename T::mapped_type>();
        return result;
    } else {
        T result;
        for (const Json& element : elements()) result.push_back(element.get<typename T::value_type>());
        return result;
    }
}

template <class T>
T Json::value(std::string_view key, T otherwise) const {
    const Json* member = find(key);
    return member == nullptr ? otherwise : member->get<T>();
}

}  // namespace tutti
