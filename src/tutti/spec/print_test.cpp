// Printing: what is printed reads back equal, and docs/config.md says what the code says.
#include "tutti/spec/print.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/toml.h"

namespace tutti::spec {
namespace {

// Gives every field a value that is not its default and lies in its range.
struct Change {
    int n = 0;
    void operator()(const Field& field, int64_t& value) {
        value = static_cast<int64_t>(std::max(1.0, field.range.low)) + ++n;
        if (field.key == "zero") value = 3;
    }
    void operator()(const Field&, double& value) { value = 1.0 / (3.0 + ++n); }
    void operator()(const Field&, bool& value) { value = !value; }
    void operator()(const Field& field, std::string& value) {
        if (field.key == "preset" || field.key == "hf") return;  // must exist, and one of the two
        value = field.range.choices.empty() ? "tab\t \"quoted\" back\\slash\nline \x7f é " + std::to_string(++n)
                                            : field.range.choices.back();
    }
    void operator()(const Field&, std::vector<std::string>& value) { value = {"a b.txt", "ü", std::to_string(++n)}; }
    void operator()(const Field&, Family& value) { value = Family::gpt2; }
};

TEST(ToToml, ReadsBackEqual) {
    EXPECT_EQ(parse_text(to_toml(RunSpec{}), "default"), RunSpec{});

    RunSpec changed;
    Change change;
    for_each_field(changed, [&](const Field& field, auto& value) { change(field, value); });
    const RunSpec defaults;
    EXPECT_FALSE(changed.data == defaults.data || changed.train == defaults.train ||
                 changed.optimizer == defaults.optimizer || changed.parallel == defaults.parallel ||
                 changed.recompute == defaults.recompute || changed.offload == defaults.offload ||
                 changed.precision == defaults.precision || changed.checkpoint == defaults.checkpoint ||
                 changed.log == defaults.log || changed.comm == defaults.comm);
    EXPECT_EQ(parse_text(to_toml(changed), "changed"), changed);

    for (const std::string& name : preset_names()) {
        RunSpec run;
        run.model = preset(name);
        EXPECT_EQ(parse_text(to_toml(run), name), run);
        run.model.preset = "";  // then every size must have been printed
        EXPECT_EQ(parse_text(to_toml(run), name), run);
    }
}

TEST(ToToml, LooksLikeAConfig) {
    const std::string text = to_toml(RunSpec{});
    EXPECT_EQ(text.substr(0, 55), "[model]\npreset = \"llama-tiny\"\nhf = \"\"\nfamily = \"llama\"\n");
    EXPECT_NE(text.find("\n\n[optimizer]\nname = \"adamw\"\nlr = 3e-4\n"), std::string::npos) << text;
    EXPECT_NE(text.find("train = []\n"), std::string::npos);
}

TEST(TomlText, DoublesAreShortAndExact) {
    EXPECT_EQ(toml_text(1.0), "1.0");
    EXPECT_EQ(toml_text(0.1), "0.1");
    EXPECT_EQ(toml_text(3e-4), "3e-4");
    EXPECT_EQ(toml_text(-1e100), "-1e100");
    EXPECT_EQ(toml_text(1e-8), "1e-8");
    for (const double x : {0.1 + 0.2, 1.0 / 3.0, 5e-324, std::numeric_limits<double>::max(), 123456789.0, -0.0, 1e22}) {
        const RunSpec run = parse_text("[optimizer]\nlr = " + toml_text(std::abs(x)) + "\n", "x");
        EXPECT_EQ(run.optimizer.lr, std::abs(x)) << toml_text(x);
    }
}

TEST(Reference, HasEveryKeyOnce) {
    const std::string markdown = reference_markdown(), help = reference_text();
    int64_t keys = 0, rows = 0;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto&) {
        ++keys;
        EXPECT_NE(help.find(field.path() + "  "), std::string::npos) << field.path();
        EXPECT_FALSE(field.help.empty()) << field.path();
    });
    std::istringstream lines(markdown);
    for (std::string line; std::getline(lines, line);) rows += line.starts_with("| `");
    EXPECT_EQ(rows, keys);
    EXPECT_NE(markdown.find("| `device` | text | `\"auto\"` | auto \\| cpu \\| cuda | where the tensors are; auto: a "
                            "GPU if there is one |"),
              std::string::npos);
    EXPECT_NE(markdown.find("| `clip` | number | `1.0` | >= 0 | largest global gradient norm; 0: off |"),
              std::string::npos);
}

std::filesystem::path document_path() {
    return std::filesystem::path(__FILE__).parent_path() / "../../../docs/config.md";
}

std::string document_text() {
    std::ifstream file(document_path());
    EXPECT_TRUE(file.good()) << document_path();
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// 984192 -> "984,192"
std::string with_commas(int64_t n) {
    std::string digits = std::to_string(n);
    for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<size_t>(at), 1, ',');
    return digits;
}

TEST(Reference, TheDocumentHasThePresets) {
    const std::string document = document_text();
    for (const std::string& name : preset_names()) {
        const std::string row = concat("| `", name, "` | ", with_commas(parameter_count(preset(name))), " |");
        EXPECT_NE(document.find(row), std::string::npos) << row;
    }
}

// docs/config.md ends with the tables. TUTTI_UPDATE_DOCS=1 rewrites them from the code.
TEST(Reference, IsWhatTheDocumentSays) {
    const auto path = document_path();
    const std::string document = document_text();
    const size_t tables = document.find("## [model]");
    ASSERT_NE(tables, std::string::npos);
    if (std::getenv("TUTTI_UPDATE_DOCS")) {
        std::ofstream(path) << document.substr(0, tables) << reference_markdown();
        return;
    }
    EXPECT_TRUE(document.substr(tables) == reference_markdown())
        << "docs/config.md differs from spec/fields.h; rewrite it: TUTTI_UPDATE_DOCS=1 spec_tests "
           "--gtest_filter=Reference.IsWhatTheDocumentSays";
}

}  // namespace
}  // namespace tutti::spec
