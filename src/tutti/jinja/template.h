// jinja/template.h: Jinja templates as transformers renders the chat templates of models: its filters and functions,
// trim_blocks and lstrip_blocks, loop controls, the generation tag, lists and dicts that never change.
//
// A template is untrusted input. It reads its input and nothing else; its steps, its nesting and the length of its
// texts are bounded. What Jinja has and this interpreter lacks is an error with its place, never ignored.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/jinja/tree.h"

namespace tutti::jinja {

// The template refuses its input by raise_exception(); `reason` is its message.
class Refused : public TemplateError {
  public:
    using TemplateError::TemplateError;
};

// A text that a template made, and where its parts came from.
struct Rendered {
    struct Span {
        size_t begin = 0, end = 0;  // bytes of `text`
        std::string source;         // JSON pointer into the input, such as /messages/1/content; "": the template
        bool operator==(const Span&) const = default;
    };
    std::string text;
    std::vector<Span> spans;                            // cover the text in order
    std::vector<std::pair<size_t, size_t>> generation;  // bytes inside {% generation %}, in order
};

struct RenderOptions {
    std::tm now = {};            // what strftime_now() formats
    int64_t steps = 64'000'000;  // operations, and characters that they make
};
std::tm local_time();  // now

class Template {
  public:
    // `name`: for errors. TemplateError.
    Template(std::string name, std::string_view source);
    // The members of the object `input` are the template's variables. TemplateError, Refused.
    Rendered render(const Json& input, const RenderOptions& options) const;

  private:
    std::string name_;
    std::vector<Statement> body_;
};

}  // namespace tutti::jinja
