// tests/fuzz/jinja.cpp: any bytes as a chat template. Either TemplateError, or a text whose spans cover it.
#include <cstdint>
#include <cstdlib>

#include "tutti/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    static const Json input = Json::parse(
        R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hé "},
            {"role": "assistant", "content": "<think>\na\n</think>\n\nb", "tool_calls": [{"type": "function", "id": "abcdefghi",
             "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
            {"role": "tool", "name": "f", "content": "{}"}, {"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object",
             "properties": {"x": {"type": "array"}}}}}], "add_generation_prompt": true, "bos_token": "<s>"})");
    try {
        const jinja::Template parsed("input", {reinterpret_cast<const char*>(data), size});
        const jinja::Rendered rendered = parsed.render(input, {.now = {}, .steps = 50'000});
        size_t covered = 0;
        for (const auto& span : rendered.spans) {
            if (span.begin != covered || span.end <= span.begin) std::abort();
            covered = span.end;
        }
        if (covered != rendered.text.size()) std::abort();
        for (const auto& [begin, end] : rendered.generation)
            if (begin >= end || end > covered) std::abort();
    } catch (const jinja::TemplateError&) {  // the answer to damage
    }
    return 0;
}
