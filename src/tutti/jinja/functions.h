// jinja/functions.h: what a template calls by name: filters, tests, and the methods of texts, lists and dicts, each one
// a row of a table. Their meaning is that of Jinja's builtins and of Python.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/jinja/value.h"

namespace tutti::jinja {

// The arguments of a call by their parameters; absent ones are null.
struct Bound {
    std::vector<const Value*> values;
    const Arguments& given;

    const Value& operator[](size_t i) const { return *values[i]; }
    bool has(size_t i) const { return values[i] != nullptr; }
    bool flag(size_t i, bool otherwise = false) const { return has(i) ? truth(*values[i]) : otherwise; }
    const Text& text(size_t i) const;  // Problem for another type
    int64_t integer(size_t i) const;
    int64_t integer(size_t i, int64_t otherwise) const {
        return has(i) && !values[i]->is_none() ? integer(i) : otherwise;
    }
};

struct Builtin {
    const char* name;
    const char* parameters;  // "old new count?": those with ? may be absent. "...": `given` has them all
    Value (*call)(const Value& self, const Bound& arguments);
};
const Builtin* find_filter(std::string_view name);  // null: there is none
const Builtin* find_test(std::string_view name);
const Builtin* find_method(const Value& self, std::string_view name);
Value call_builtin(const Builtin& builtin, const Value& self, const Arguments& arguments);
// Matches arguments with the names of parameters. Problem for too many, too few, or an unknown name.
Bound bound_to(const std::string& function, std::string_view parameters, const Arguments& arguments);

// self.name and self[key] as Jinja has them: an attribute or method first, or an element first; undefined when there is
// neither. Problem when `self` is undefined, and for a method of Python that does not exist here.
Value attribute(const Value& self, const std::string& name);
Value subscript(const Value& self, const Value& key);

}  // namespace tutti::jinja
