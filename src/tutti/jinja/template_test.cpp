// jinja/template_test.cpp: renderings against jinja2's (testdata/vectors.json, by tests/peer/make_template_vectors.py),
// where the characters come from, and what a hostile template can do.
#include "tutti/jinja/template.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::jinja {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;

const std::filesystem::path kTestdata = std::filesystem::path(__FILE__).parent_path() / "testdata";
constexpr std::tm kDay{.tm_mday = 1, .tm_year = 126, .tm_wday = 4};  // 1 January 2026, as in the vectors

Json vectors() { return Json::parse(read_file((kTestdata / "vectors.json").string())); }

Rendered render(std::string_view source, const Json& input = Json::object(), int64_t steps = RenderOptions().steps) {
    return Template("chat template", source).render(input, {.now = kDay, .steps = steps});
}

Json input_of(const Json& all, const std::string& conversation) {
    Json input = all["tokens"];
    input.update(all["conversations"][conversation]);
    return input;
}

// Compares with one answer of jinja2: a text with its generated ranges, a refusal with its message, or some error.
void expect_as(const Json& expected, std::string_view source, const Json& input) {
    if (!expected.contains("text")) {
        try {
            FAIL() << "rendered: " << render(source, input).text << "\njinja2: " << expected;
        } catch (const Refused& refused) {
            EXPECT_EQ(refused.reason, expected.value("refused", "")) << source;
        } catch (const TemplateError& error) {
            EXPECT_FALSE(expected.contains("refused")) << error.what();
        }
        return;
    }
    const Rendered rendered = render(source, input);
    EXPECT_EQ(rendered.text, expected["text"].text()) << source;
    Ranges ranges;
    for (const Json& range : expected["generation"])
        ranges.emplace_back(range[0].get<size_t>(), range[1].get<size_t>());
    EXPECT_EQ(rendered.generation, ranges) << source;
}

TEST(Jinja, RendersTheTemplatesOfModelsAsJinja2Does) {
    const Json all = vectors();
    EXPECT_GE(all["templates"].items().size(), 15U);
    for (const auto& [file, renderings] : all["templates"].items()) {
        const std::string source = read_file((kTestdata / file).string());
        EXPECT_EQ(renderings.size(), 12U);
        for (const Json& expected : renderings) {
            SCOPED_TRACE(file + ", " + expected["conversation"].text());
            expect_as(expected, source, input_of(all, expected["conversation"].text()));
        }
    }
}

TEST(Jinja, EvaluatesExpressionsAsJinja2Does) {
    const Json all = vectors();
    EXPECT_GE(all["expressions"].size(), 100U);
    for (const Json& expected : all["expressions"]) expect_as(expected, expected["template"].text(), Json::object());
}

// Every letter of one answer becomes another letter: exactly the characters that change must be those that the
// rendering says come from this answer.
TEST(Jinja, KnowsWhichCharactersComeFromWhichText) {
    const Json all = vectors();
    int answers = 0;
    for (const auto& [file, renderings] : all["templates"].items()) {
        const Template parsed(file, read_file((kTestdata / file).string()));
        const Json input = input_of(all, "turns");
        const Rendered rendered = parsed.render(input, {.now = kDay});
        size_t covered = 0;
        for (const Rendered::Span& span : rendered.spans) {
            EXPECT_EQ(span.begin, covered) << file;
            covered = span.end;
        }
        EXPECT_EQ(covered, rendered.text.size()) << file;
        for (size_t message = 0; message < input["messages"].size(); ++message) {
            Json other = input;
            std::string text = input["messages"][message]["content"].text();
            for (char& c : text)
                if (std::isalpha(c)) c = c == 'q' ? 'z' : 'q';
            other["messages"][message]["content"] = text;
            const Rendered changed = parsed.render(other, {.now = kDay});
            ASSERT_EQ(changed.text.size(), rendered.text.size()) << file;
            const std::string path = concat("/messages/", message, "/content");
            for (const Rendered::Span& span : rendered.spans)
                for (size_t i = span.begin; i < span.end; ++i) {
                    const bool letter = std::isalpha(static_cast<unsigned char>(rendered.text[i]));
                    EXPECT_EQ(changed.text[i] != rendered.text[i], letter && span.source == path)
                        << file << ", byte " << i << " of " << rendered.text;
                    answers += span.source == path;
                }
        }
    }
    EXPECT_GT(answers, 200);
}

TEST(Jinja, TextsKeepTheirOriginThroughFiltersAndMethods) {
    const Json input = {{"a", " one, two"}, {"d", {{"k", "v\n"}}}, {"n", 5}};
    const auto spans = [&](const char* source) { return render(source, input).spans; };
    using Spans = std::vector<Rendered::Span>;
    EXPECT_EQ(spans("<{{ a.strip().split(', ')[1] | upper }}>"), (Spans{{0, 1, ""}, {1, 4, "/a"}, {4, 5, ""}}));
    EXPECT_EQ(spans("{{ a | replace('one', 'é') }}"), (Spans{{0, 1, "/a"}, {1, 3, ""}, {3, 8, "/a"}}));
    EXPECT_EQ(spans("{{ d | tojson }}"),
              (Spans{{0, 2, ""}, {2, 3, "/d/k"}, {3, 7, ""}, {7, 10, "/d/k"}, {10, 12, ""}}));
    EXPECT_EQ(spans("{% macro m(x) %}{{ x[1:4] }}{% endmacro %}{{ [m(a)] }}"),
              (Spans{{0, 2, ""}, {2, 5, "/a"}, {5, 7, ""}}));
    EXPECT_EQ(spans("{{ n }}"), (Spans{{0, 1, ""}}));
}

TEST(Jinja, ErrorsHaveLineAndColumn) {
    const auto message = [](const char* source, const Json& input = Json::object()) {
        return message_of<TemplateError>([&] { render(source, input); });
    };
    EXPECT_EQ(message("a\n{{ 'é' | nothing }}"), "chat template, line 2, column 10: no filter is named nothing");
    EXPECT_EQ(message("{{ 1 is nothing }}"), "chat template, line 1, column 9: no test is named nothing");
    EXPECT_EQ(message("x {% do f() %}"), "chat template, line 1, column 6: no tag is named do here");
    EXPECT_EQ(message("{{ 'x'.zfill(3) }}"),
              "chat template, line 1, column 7: the method zfill of texts is not supported");
    EXPECT_EQ(message("\n\n  {{ missing + 1 }}"), "chat template, line 3, column 14: 'missing' is undefined");
    EXPECT_EQ(message("{{ f(1) }}"), "chat template, line 1, column 5: required a function: 'f' is undefined");
    EXPECT_EQ(message("{{ m.a.b }}", {{"m", {{"c", 1}}}}),
              "chat template, line 1, column 7: 'dict object' has no attribute 'a'");
    EXPECT_EQ(message_of<Refused>([] { render("{{ raise_exception('No!') }}"); }),
              "chat template, line 1, column 19: No!");
    EXPECT_EQ(message("{% if 1 %}\n{{ 2 }}"), "chat template, line 2, column 1: the tag has no endif");
    EXPECT_EQ(message("{{ [].append(1) }}"),
              "chat template, line 1, column 13: required a function: append() would change a list, which a chat "
              "template may not");
    EXPECT_EQ(message("{{ '\xff' }}"), "chat template, line 1, column 1: byte 4 is not UTF-8");
    EXPECT_EQ(
        message("{{ 'Σ' | lower }}"),
        "chat template, line 1, column 10: lower case of the Greek letter sigma, which depends on its word, is not "
        "supported");
}

TEST(Jinja, AHostileTemplateEndsWithAnError) {
    const auto repeated = [](const std::string& text, int times) {
        std::string all;
        for (int i = 0; i < times; ++i) all += text;
        return all;
    };
    const std::string loops = repeated("{% for i in range(99999) %}", 9) + repeated("{% endfor %}", 9);
    const std::string sources[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n ~ n) ~ f(n) }}{% endmacro %}{{ f('x') }}",
        loops,
        "{% set ns = namespace(t='x') %}{% for i in range(99999) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a }}",
        "{{ 'x' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ ('x' * 9999).replace('x', 'y' * 9999) }}",
        "{{ ('y' * 9999).join('x' * 9999) }}",
        "{{ [[[[1]]]] | tojson(indent=999999999999) | length ~ ('x' * 99999999) }}",
        "{{ strftime_now('%c' * 9999) }}",
        "{{ 2 ** 999999999999 }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ 99999999999999999999 }}",
        "{{ range(0, 9223372036854775807, 9223372036854775806)[5] + 1 }}",
        repeated("{{ (", 1) + repeated("(", 100000),
        "{{ " + repeated("not ", 100000) + "1 }}",
        "{{ " + repeated("- ", 100000) + "1 }}",
        "{{ 1" + repeated(" + 1", 100000) + " }}",
        "{{ a" + repeated(".a", 100000) + " }}",
        "{{ 1" + repeated(" | abs", 100000) + " }}",
        "{{ 1" + repeated(" is odd", 100000) + " }}",
        repeated("{% if 1 %}", 100000),
        "{{ " + repeated("[", 100000),
        "{{ " + repeated("{1:", 100000),
        "{{ 1" + repeated(" if 1 else 1", 100000) + " }}"};
    for (const std::string& source : sources)
        EXPECT_THROW(render(source, Json::object(), 2'000'000), TemplateError) << source.substr(0, 200);
}

TEST(Jinja, ALongConversationIsNoHostileTemplate) {
    const Json all = vectors();
    Json input = input_of(all, "turns");
    auto messages = Json::array();
    for (int i = 0; i < 400; ++i)
        messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'x')}});
    input["messages"] = messages;
    for (const auto& [file, renderings] : all["templates"].items()) {
        const Template parsed(file, read_file((kTestdata / file).string()));
        EXPECT_GE(parsed.render(input, {.now = kDay}).text.size(), 400U * 2000U) << file;
    }
}

}  // namespace
}  // namespace tutti::jinja
