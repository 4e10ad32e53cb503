// jinja/value.h: the values of a template, which behave as Python's: equality, order, truth, str(), repr() and
// json.dumps(). Texts, lists and dicts never change; only a namespace does.
//
// What Python answers with an exception is a Problem; Template::render() adds the place.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/jinja/text.h"

namespace tutti::jinja {

class Problem : public DataError {
  public:
    using DataError::DataError;
};

class Value;
using Named = std::vector<std::pair<std::string, Value>>;

struct Undefined {
    std::string reason;  // "'tools' is undefined"
};
struct List;
struct Dict;
struct Namespace;  // of the namespace() function; lives as long as the rendering
struct Loop;       // the variable `loop`; the same

struct Arguments {
    std::vector<Value> values;
    Named named;
};
struct Function {
    std::string name;
    std::function<Value(const Arguments&)> call;
};

class Value {
  public:
    Value() = default;  // undefined
    Value(Undefined undefined) : value_(std::move(undefined)) {}
    Value(std::nullptr_t) : value_(nullptr) {}
    Value(bool value) : value_(value) {}
    Value(int64_t value) : value_(value) {}
    Value(double value) : value_(value) {}
    Value(Text text) : value_(std::make_shared<const Text>(std::move(text))) {}
    Value(std::string_view utf8) : Value(from_utf8(utf8)) {}
    Value(const char* ascii) : Value(std::string_view(ascii)) {}
    Value(Function function) : value_(std::make_shared<const Function>(std::move(function))) {}
    Value(Namespace* space) : value_(space) {}
    Value(const Loop* loop) : value_(loop) {}
    // Problem when the elements are nested too deeply.
    static Value list(std::vector<Value> elements, bool tuple = false);
    static Value dict(std::vector<std::pair<Value, Value>> items);

    bool is_undefined() const { return get<Undefined>() != nullptr; }
    bool is_none() const { return get<std::nullptr_t>() != nullptr; }
    bool is_number() const { return get<bool>() || get<int64_t>() || get<double>(); }  // True is 1
    const Text* text() const { return pointer<Text>(); }
    const List* list() const { return pointer<List>(); }
    const Dict* dict() const { return pointer<Dict>(); }
    const Function* function() const { return pointer<Function>(); }
    Namespace* space() const { return raw<Namespace*>(); }
    const Loop* loop() const { return raw<const Loop*>(); }
    template <class T>
    const T* get() const {
        return std::get_if<T>(&value_);
    }
    // An integer, True or False.
    std::optional<int64_t> integer() const;
    double number() const;  // of is_number()

  private:
    template <class T>
    const T* pointer() const {
        const auto* shared = std::get_if<std::shared_ptr<const T>>(&value_);
        return shared ? shared->get() : nullptr;
    }
    template <class T>
    T raw() const {
        const T* found = std::get_if<T>(&value_);
        return found ? *found : nullptr;
    }

    std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const Text>,
                 std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<const Function>, Namespace*,
                 const Loop*>
        value_;
};

struct List {
    std::vector<Value> elements;
    bool tuple = false;
    int depth = 1;
};
struct Dict {
    std::vector<std::pair<Value, Value>> items;  // in the order of insertion
    int depth = 1;
    const Value* find(const Value& key) const;
    const Value* find(std::string_view key) const;
};
struct Namespace {
    Named items;
};
struct Loop {
    const std::vector<Value>* elements = nullptr;
    size_t index = 0;
};

// The value of an input. `sources[n - 1]` becomes the JSON pointer (RFC 6901) of the text that is source n.
Value from_json(const Json& json, const std::string& path, std::vector<std::string>& sources);

const char* type_name(const Value& value);  // "str", "NoneType"
// For messages: the type of a value, and repr() of at most 60 bytes, made only when it is printed.
struct Shown {
    const Value& value;
    friend std::ostream& operator<<(std::ostream& out, const Shown& shown);
};
inline Shown shown(const Value& value) { return {value}; }
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);          // Problem for values without an order
bool contains(const Value& in, const Value& what);  // what in in
// The elements of a list, the keys of a dict, the characters of a text; none of an undefined value.
std::vector<Value> elements_of(const Value& value);
size_t length_of(const Value& value);

Text to_text(const Value& value);  // str()
Text repr(const Value& value);

struct JsonStyle {
    bool ascii = false, sorted = false;
    std::optional<std::string> indent;  // one level
    std::string item_separator = ", ", key_separator = ": ";
};
Text to_json(const Value& value, const JsonStyle& style);  // json.dumps()

}  // namespace tutti::jinja
