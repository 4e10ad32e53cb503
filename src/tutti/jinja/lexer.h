// jinja/lexer.h: the source of a template as tokens: its texts with white space already trimmed, and what stands in
// tags.
//
// White space is that of transformers' chat templates: trim_blocks and lstrip_blocks of Jinja, no newline at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/jinja/value.h"

namespace tutti::jinja {

struct Place {
    int line = 1, column = 1;  // in characters, from 1
};

// The template is not Jinja, or its rendering fails. The message has line and column.
class TemplateError : public DataError {
  public:
    TemplateError(const std::string& name, Place place, const std::string& why)
        : DataError(concat(name, ", line ", place.line, ", column ", place.column, ": ", why)),
          at(place),
          reason(why) {}
    Place at;
    std::string reason;
};

struct Token {
    enum class Kind { data, output_begin, output_end, tag_begin, tag_end, name, text, number, sign, end };
    Kind kind = Kind::end;
    Place at;
    std::string word;  // of a name or a sign
    Value value;       // of data, a text or a number

    bool is(Kind k, std::string_view w) const { return kind == k && word == w; }
    std::string described() const;
};

// `name`: of the template, for errors.
std::vector<Token> tokens_of(const std::string& name, std::string_view source);

}  // namespace tutti::jinja
