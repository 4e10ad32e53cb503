// tutti_peer_render: renders chat templates for test_templates.py. Each line of standard input is {"template",
// "input"}; each line of standard output {"text", "spans", "generation"} or {"error"}. The date is 1 January 2026.
#include <iostream>
#include <string>

#include "tutti/jinja/template.h"

int main() {
    using namespace tutti;
    const std::tm day{.tm_mday = 1, .tm_year = 126, .tm_wday = 4};
    for (std::string line; std::getline(std::cin, line);) {
        const Json request = Json::parse(line);
        Json answer = Json::object();
        try {
            const jinja::Template parsed("template", request["template"].text());
            const jinja::Rendered rendered = parsed.render(request["input"], {.now = day});
            answer["text"] = rendered.text;
            auto spans = Json::array(), generation = Json::array();
            for (const auto& span : rendered.spans) spans.push_back(Json::array({span.begin, span.end, span.source}));
            for (const auto& [begin, end] : rendered.generation) generation.push_back(Json::array({begin, end}));
            answer["spans"] = spans;
            answer["generation"] = generation;
        } catch (const jinja::Refused& refused) {
            answer["refused"] = refused.reason;
        } catch (const DataError& error) {
            answer["error"] = error.what();
        }
        std::cout << answer.dump() << '\n';
    }
}
