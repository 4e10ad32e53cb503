// spec/toml_test.cpp: what a config may hold, and the exact message of everything else; what is printed reads back
// equal, and docs/config.md says what the code says.
#include "tutti/spec/toml.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

RunSpec parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return parse_text(text, "c.toml", overrides);
}

// The message of the UsageError that parsing throws; "" when it throws none.
std::string problems_of_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
        parse(text, overrides);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(Toml, EmptyFileGivesTheDefaults) { EXPECT_EQ(parse(""), RunSpec{}); }

TEST(Toml, FormerNamesOfKeysAreRead) {
    EXPECT_EQ(parse("[comm]\nengine = \"tcp\"").comm.backend, "tcp");
    EXPECT_EQ(parse("", {"comm.engine=mpi"}).comm.backend, "mpi");
    EXPECT_EQ(parse("[comm]\nengine = \"tcp\"", {"comm.backend=mpi"}).comm.backend, "mpi");
    EXPECT_EQ(problems_of_text("[comm]\nengine = 1"),
              "c.toml:2:10: [comm] backend: required a text, got the integer 1");
    EXPECT_EQ(problems_of_text("[comm]\nengine = \"tcp\"\nbackend = \"tcp\""),
              "c.toml:2:1: unknown key [comm] engine; the nearest is [comm] backend");
}

TEST(Toml, ReadsEveryKindOfValue) {
    const RunSpec run = parse(R"(
[data]
train = ["a.txt", 'b.txt']
valid = "held out.txt"
[train]
steps = 1_000
[optimizer]
lr = 1e-2
weight_decay = 0
[parallel]
sequence_parallel = false
[precision]
compute = "f32"
)");
    EXPECT_EQ(run.data.train, (std::vector<std::string>{"a.txt", "b.txt"}));
    EXPECT_EQ(run.data.valid, (std::vector<std::string>{"held out.txt"}));
    EXPECT_EQ(run.train.steps, 1000);
    EXPECT_EQ(run.optimizer.lr, 0.01);
    EXPECT_EQ(run.optimizer.weight_decay, 0.0);
    EXPECT_FALSE(run.parallel.sequence_parallel);
    EXPECT_EQ(run.precision.compute, "f32");
    EXPECT_EQ(run.train.seq_len, 256);  // not given: the default
}

TEST(Toml, PresetIsWhereTheModelStarts) {
    // The order in the file does not matter: the preset comes first.
    const RunSpec run = parse("[model]\nlayers = 2\npreset = \"gpt2-124m\"\n");
    EXPECT_EQ(run.model.preset, "gpt2-124m");
    EXPECT_EQ(run.model.family, Family::gpt2);
    EXPECT_EQ(run.model.vocab, 50257);
    EXPECT_EQ(run.model.layers, 2);
    // --set replaces the preset; the field of the file still counts.
    const RunSpec other = parse("[model]\nlayers = 2\npreset = \"gpt2-124m\"\n", {"model.preset=llama3-8b"});
    EXPECT_EQ(other.model.family, Family::llama);
    EXPECT_EQ(other.model.width, 4096);
    EXPECT_EQ(other.model.layers, 2);
}

TEST(Toml, RopeScalingAsTableOrDotted) {
    const RunSpec table = parse("[model.rope_scaling]\nfactor = 8\noriginal_max_positions = 4096\n");
    const RunSpec dotted = parse("[model]\nrope_scaling.factor = 8.0\nrope_scaling.original_max_positions = 4096\n");
    const RunSpec set = parse("", {"model.rope_scaling.factor=8", "model.rope_scaling.original_max_positions=4096"});
    EXPECT_EQ(table.model.rope_scaling, (RopeScaling{.type = "llama3", .factor = 8, .original_max_positions = 4096}));
    EXPECT_EQ(dotted, table);
    EXPECT_EQ(set, table);
}

TEST(Toml, ModelFromNothingNeedsItsSizes) {
    EXPECT_EQ(
        problems_of_text("[model]\npreset = \"\"\nfamily = \"llama\"\nvocab = 300\nwidth = 64\n"),
        "c.toml:2:10: [model] preset = \"\" starts from nothing: it also needs layers, heads, kv_heads, head_dim, "
        "ffn, max_positions");
    EXPECT_EQ(problems_of_text("", {"model.preset="}),
              "--set model.preset=: [model] preset = \"\" starts from nothing: it also needs family, width, layers, "
              "vocab, heads, kv_heads, head_dim, ffn, max_positions");
    const RunSpec mlp = parse("[model]\npreset = \"\"\nfamily = \"mlp\"\nwidth = 64\nlayers = 3\n");
    EXPECT_EQ(mlp.model.layers, 3);
    EXPECT_EQ(mlp.model.width, 64);
    EXPECT_EQ(mlp.model.preset, "");
}

// Keys of the default preset that the family does not use need no zeros; a value that is given is refused.
TEST(Toml, AFamilyAloneNeedsNoKeysThatItDoesNotUse) {
    for (const Family family : {Family::mlp, Family::gpt2}) {
        const RunSpec run = parse(concat("[model]\nfamily = \"", name_of(family), "\"\nwidth = 128\nlayers = 3\n"));
        EXPECT_EQ(run.model.family, family);
        EXPECT_EQ(run.model.preset, "");
        EXPECT_EQ(run.model.rope_theta, 0);
        EXPECT_EQ(run.model.heads, family == Family::mlp ? 0 : 4);
        EXPECT_TRUE(model_problems(run.model).empty()) << joined(model_problems(run.model));
        EXPECT_EQ(parse(to_toml(run)), run);
        EXPECT_EQ(parse("", {concat("model.family=", name_of(family)), "model.layers=3"}).model, run.model);
    }
    const RunSpec run = parse("[model]\nfamily = \"mlp\"\nwidth = 64\nheads = 4\nrope_theta = 1e4\n");
    EXPECT_EQ(joined(model_problems(run.model)),
              "[model] heads = 4: the family mlp does not use it; it must be 0, "
              "[model] rope_theta = 10000.0: the family mlp does not use it; it must be 0.0");
}

TEST(TomlErrors, UnknownNamesHaveAPlaceAndTheNearest) {
    EXPECT_EQ(problems_of_text("[train]\nstpes = 5\n"),
              "c.toml:2:1: unknown key [train] stpes; the nearest is [train] steps");
    EXPECT_EQ(problems_of_text("[train]\n  lr = 1.0\n"),
              "c.toml:2:3: unknown key [train] lr; the nearest is [optimizer] lr");
    EXPECT_EQ(problems_of_text("[optimiser]\nlr = 1.0\n"),
              "c.toml:1:2: unknown section [optimiser]; the nearest is [optimizer]");
    EXPECT_EQ(problems_of_text("steps = 5\n"),
              "c.toml:1:1: unknown key steps outside of a section; the nearest is [train] steps");
    EXPECT_EQ(problems_of_text("[model]\nrope_scaling.factr = 8\n"),
              "c.toml:2:14: unknown key [model] rope_scaling.factr; the nearest is [model] rope_scaling.factor");
    // A quoted dot is part of one key, not a path: it must not be taken for the key, nor passed over.
    EXPECT_EQ(problems_of_text("[model]\n\"rope_scaling.factor\" = 8\n"),
              "c.toml:2:1: unknown key [model] \"rope_scaling.factor\"; the nearest is [model] rope_scaling.factor");
}

TEST(TomlText, ALossScaleIsANumberOrAWord) {
    const auto given = [](const std::string& value) {
        return parse_text("[precision]\nloss_scale = " + value + "\n", "c.toml").precision.loss_scale;
    };
    EXPECT_EQ(given("1024"), "1024");
    EXPECT_EQ(given("1024.0"), "1024");
    EXPECT_EQ(given("0.5"), "0.5");
    EXPECT_EQ(given("\"dynamic\""), "dynamic");
    RunSpec run;
    run.precision.loss_scale = given("4096");
    EXPECT_EQ(parse_text(to_toml(run), "again"), run);
}

TEST(TomlErrors, WrongTypesSayWhatCame) {
    const auto steps = [](const std::string& value) { return problems_of_text("[train]\nsteps = " + value + "\n"); };
    EXPECT_EQ(steps("\"5\""), "c.toml:2:9: [train] steps: required an integer, got the text \"5\"");
    EXPECT_EQ(steps("1e3"), "c.toml:2:9: [train] steps: required an integer, got the number 1000.0; write 1000");
    EXPECT_EQ(steps("1.5"), "c.toml:2:9: [train] steps: required an integer, got the number 1.5");
    EXPECT_EQ(steps("true"), "c.toml:2:9: [train] steps: required an integer, got the boolean true");
    EXPECT_EQ(steps("[5]"), "c.toml:2:9: [train] steps: required an integer, got a list");
    EXPECT_EQ(steps("{a = 5}"), "c.toml:2:9: [train] steps: required an integer, got a table");
    EXPECT_EQ(steps("2024-01-01"), "c.toml:2:9: [train] steps: required an integer, got a date or time");
    EXPECT_EQ(problems_of_text("[optimizer]\nlr = \"x\"\n"),
              "c.toml:2:6: [optimizer] lr: required a number, got the text \"x\"");
    EXPECT_EQ(problems_of_text("[log]\ntrace = 1\n"),
              "c.toml:2:9: [log] trace: required true or false, got the integer 1");
    EXPECT_EQ(problems_of_text("[train]\ndevice = 1\n"),
              "c.toml:2:10: [train] device: required a text, got the integer 1");
    EXPECT_EQ(problems_of_text("[data]\ntrain = 1\n"),
              "c.toml:2:9: [data] train: required a list of texts, got the integer 1");
    EXPECT_EQ(problems_of_text("[data]\ntrain = [\"a\", 2]\n"),
              "c.toml:2:9: [data] train: required a list of texts, got the integer 2 as element 2");
    EXPECT_EQ(problems_of_text("train = 5\n"), "c.toml:1:9: [train] is a section: required a table, got the integer 5");
    EXPECT_EQ(problems_of_text("[[train]]\nsteps = 5\n").substr(9),
              "1: [train] is a section: required a table, got a list");
    EXPECT_EQ(problems_of_text("[model]\nrope_scaling = 8\n"),
              "c.toml:2:16: [model] rope_scaling: required a table, got the integer 8");
}

TEST(TomlErrors, ValuesOutOfRange) {
    EXPECT_EQ(problems_of_text("[train]\nsteps = 0\n"),
              "c.toml:2:9: [train] steps = 0: must be in [1, 1000000000000000]");
    EXPECT_EQ(problems_of_text("[log]\nevery = 0\n"), "c.toml:2:9: [log] every = 0: must be >= 1");
    EXPECT_EQ(problems_of_text("[model]\ndropout = 1.0\n"), "c.toml:2:11: [model] dropout = 1.0: must be in [0, 1)");
    EXPECT_EQ(problems_of_text("[model]\ndropout = 0.99\n"), "");
    EXPECT_EQ(problems_of_text("[optimizer]\nlr = nan\n"), "c.toml:2:6: [optimizer] lr = nan: must be a finite number");
    EXPECT_EQ(problems_of_text("[optimizer]\nclip = inf\n"),
              "c.toml:2:8: [optimizer] clip = inf: must be a finite number");
    EXPECT_EQ(problems_of_text("[optimizer]\neps = 0\n"), "c.toml:2:7: [optimizer] eps = 0.0: must be > 0");
    EXPECT_EQ(problems_of_text("[train]\ndevice = \"cdua\"\n"),
              "c.toml:2:10: [train] device = \"cdua\": must be one of auto | cpu | cuda; the nearest is \"cuda\"");
    // Values that the build refuses are not suggested.
    EXPECT_EQ(problems_of_text("[precision]\nreduce = \"b16\""),
              "c.toml:2:10: [precision] reduce = \"b16\": must be one of auto | f32 | bf16; the nearest is \"bf16\"");
    EXPECT_EQ(
        problems_of_text("[model]\nfamily = \"lama\"\n"),
        "c.toml:2:10: [model] family = \"lama\": must be one of gpt2 | llama | lfm2 | mlp; the nearest is \"llama\"");
    EXPECT_EQ(problems_of_text("[data]\ntrain = \"\"\n"),
              "c.toml:2:9: [data] train = [\"\"]: an element is empty; every element must name a file");
    EXPECT_EQ(problems_of_text("[model]\npreset = \"llama-tny\"\n").substr(0, 81),
              "c.toml:2:10: [model] preset: unknown preset \"llama-tny\"; the nearest is \"llama-ti");
}

TEST(TomlErrors, AllAtOnceInTheOrderOfTheFile) {
    EXPECT_EQ(
        problems_of_text("[train]\nsteps = \"a\"\nsed = 1\n[log]\nevery = -1\n[nolog]\n", {"stes=1", "train.seed=a"}),
        "c.toml:2:9: [train] steps: required an integer, got the text \"a\"\n"
        "c.toml:3:1: unknown key [train] sed; the nearest is [train] seed\n"
        "c.toml:5:9: [log] every = -1: must be >= 1\n"
        "c.toml:6:2: unknown section [nolog]; the nearest is [log]\n"
        "--set stes=1: unknown key stes; the nearest is train.steps\n"
        "--set train.seed=a: [train] seed: required an integer, got a");
}

TEST(TomlErrors, SyntaxHasAPlace) {
    EXPECT_EQ(problems_of_text("[train]\nsteps = = 5\n").substr(0, 12), "c.toml:2:9: ");
    EXPECT_EQ(problems_of_text("[train]\nsteps = 5\nsteps = 6\n").substr(0, 9), "c.toml:3:");  // given twice
    EXPECT_EQ(problems_of_text("[train]\nsteps = 99999999999999999999\n").substr(0, 9), "c.toml:2:");
}

TEST(Overrides, AreTyped) {
    const RunSpec run =
        parse("[train]\nsteps = 7\n", {"train.steps = 5", "optimizer.lr=1", "log.trace=true", "data.train=my text.txt",
                                       "train.device=\"cpu\"", "data.valid=[\"a\", \"b\"]", "model.family=gpt2"});
    EXPECT_EQ(run.train.steps, 5);
    EXPECT_EQ(run.optimizer.lr, 1.0);
    EXPECT_TRUE(run.log.trace);
    EXPECT_EQ(run.data.train, (std::vector<std::string>{"my text.txt"}));
    EXPECT_EQ(run.train.device, "cpu");
    EXPECT_EQ(run.data.valid, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(run.model.family, Family::gpt2);
    EXPECT_EQ(parse("", {"train.steps=5", "train.steps=6"}).train.steps, 6);       // the last counts
    EXPECT_EQ(parse("", {"checkpoint.dir=a=b\\c\""}).checkpoint.dir, "a=b\\c\"");  // taken as it stands
    EXPECT_EQ(parse("", {"checkpoint.dir="}).checkpoint.dir, "");
}

TEST(Overrides, ErrorsNameTheOverride) {
    EXPECT_EQ(problems_of_text("", {"train.stpes=5"}),
              "--set train.stpes=5: unknown key train.stpes; the nearest is train.steps");
    EXPECT_EQ(problems_of_text("", {"trian.steps=5"}),
              "--set trian.steps=5: unknown key trian.steps; the nearest is train.steps");
    EXPECT_EQ(problems_of_text("", {"steps=5"}), "--set steps=5: unknown key steps; the nearest is train.steps");
    EXPECT_EQ(problems_of_text("", {"train=5"}), "--set train=5: train is a table: required train.key=value");
    EXPECT_EQ(problems_of_text("", {"train.steps"}), "--set train.steps: required section.key=value, got no \"=\"");
    EXPECT_EQ(problems_of_text("", {"=3"}), "--set =3: required section.key=value, got no key");
    EXPECT_EQ(problems_of_text("", {"train.steps=1e3"}),
              "--set train.steps=1e3: [train] steps: required an integer, got the number 1000.0; write 1000");
    EXPECT_EQ(problems_of_text("", {"train.steps=many"}),
              "--set train.steps=many: [train] steps: required an integer, got many");
    EXPECT_EQ(problems_of_text("", {"train.steps="}),
              "--set train.steps=: [train] steps: required an integer, got nothing");
    EXPECT_EQ(problems_of_text("", {"train.steps=5\nseed = 1"}),
              "--set train.steps=5\nseed = 1: [train] steps: required an integer, got 5\nseed = 1");
    EXPECT_EQ(problems_of_text("", {"log.every=0"}), "--set log.every=0: [log] every = 0: must be >= 1");
    // An override does not hide that the file is wrong.
    EXPECT_EQ(problems_of_text("[log]\nevery = true\n", {"log.every=1"}),
              "c.toml:2:9: [log] every: required an integer, got the boolean true");
}

TEST(File, IsReadOrNamed) {
    const std::string path = testing::TempDir() + "toml_test_config.toml";
    std::ofstream(path) << "[train]\nsteps = 12\n";
    EXPECT_EQ(parse_file(path, {"train.seed=3"}).train.steps, 12);
    std::ofstream(path) << "[train]\nstep = 12\n";
    const auto message = [](const std::string& file) -> std::string {
        try {
            parse_file(file);
        } catch (const UsageError& error) {
            EXPECT_EQ(error.exit_code(), 2);
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message(path), path + ":2:1: unknown key [train] step; the nearest is [train] steps");
    std::remove(path.c_str());
    EXPECT_EQ(message(path), "cannot read the config " + path + ": cannot open: No such file or directory (errno 2)");
    const ScratchFolder folder;
    const std::string is_directory =
        "cannot read the config " + folder.path() + ": is a directory; required: a TOML file";
    EXPECT_EQ(message(folder.path()), is_directory);
    folder.write("config.toml", "");
    EXPECT_EQ(message(folder.path()), is_directory + ", such as " + folder.path("config.toml"));
}

TEST(Nearest, CountsEdits) {
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
    EXPECT_EQ(edit_distance("stpes", "steps"), 1);  // a swap is one edit
    EXPECT_EQ(edit_distance("", "abc"), 3);
    EXPECT_EQ(edit_distance("same", "same"), 0);
    EXPECT_EQ(nearest("cosin", {"linear", "cosine", "wsd"}), "cosine");
    EXPECT_EQ(nearest("x", {}), "");
}

// Gives every field a value that is not its default and lies in its range.
struct Change {
    int n = 0;
    void operator()(const Field& field, int64_t& value) {
        value = static_cast<int64_t>(std::min(std::max(1.0, field.range.low) + ++n, field.range.high));
        if (field.key == "zero") value = 3;
    }
    void operator()(const Field& field, double& value) { value = std::max(0.0, field.range.low) + 1.0 / (3.0 + ++n); }
    void operator()(const Field&, bool& value) { value = !value; }
    void operator()(const Field& field, std::string& value) {
        if (field.key == "preset" || field.key == "hf") return;  // must exist, and one of the two
        value = field.range.choices.empty() ? "tab\t \"quoted\" back\\slash\nline \x7f é " + std::to_string(++n)
                                            : field.range.choices.back();
    }
    void operator()(const Field&, std::vector<std::string>& value) { value = {"a b.txt", "ü", std::to_string(++n)}; }
    void operator()(const Field&, Family& value) { value = Family::gpt2; }
    void operator()(const Field&, std::vector<ParameterGroup>& value) { value = {{"a|b", 0.5, 2}, {"c", {}, 1.0 / 3}}; }
    void operator()(const Field&, std::vector<StageSpec>& value) {
        value = {{4, {{"train.seq_len", int64_t{7}}, {"data.train", std::vector<std::string>{"ü", "\"b\""}}}}, {}};
    }
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
                 changed.log == defaults.log || changed.comm == defaults.comm || changed.stages == defaults.stages);
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

// A table cell ends at "|".
std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
    return out;
}

// One Markdown table per section: key, type, default, range, whether it is part of a run's identity, help.
std::string reference_markdown() {
    const RunSpec defaults{};
    std::string out;
    std::string_view section;
    for_each_field(defaults, [&](const Field& field, const auto& value) {
        if (field.section != section) {
            out += concat(section.empty() ? "" : "\n", "## ",
                          field.key.empty() ? field.name() : concat("[", field.section, "]"), "\n\n",
                          "| key | type | default | range | fixed | meaning |\n|---|---|---|---|---|---|\n");
        }
        section = field.section;
        const bool tables = field.key.empty();
        out +=
            concat("| `", tables ? field.section : field.key, "` | ", type_name(value), " | `", cell(toml_text(value)),
                   "` | ", cell(field.range.text()), " | ", field.identity == Identity::never ? "" : "yes", " | ",
                   cell(field.help), tables ? concat(". Keys of a stage: ", joined(stage_keys())) : "", " |\n");
    });
    return out;
}

TEST(Reference, HasEveryKeyOnce) {
    const std::string markdown = reference_markdown();
    int64_t keys = 0, rows = 0;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto&) {
        ++keys;
        EXPECT_FALSE(field.help.empty()) << field.path();
    });
    std::istringstream lines(markdown);
    for (std::string line; std::getline(lines, line);) rows += line.starts_with("| `");
    EXPECT_EQ(rows, keys);
    EXPECT_NE(markdown.find("| `device` | text | `\"auto\"` | auto \\| cpu \\| cuda |  | device that computes; auto: a "
                            "GPU if there is one |"),
              std::string::npos);
    EXPECT_NE(markdown.find("| `clip` | number | `1.0` | >= 0 |  | largest global gradient norm; 0: off |"),
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
        << "docs/config.md differs from spec/field_list.cpp; rewrite it: TUTTI_UPDATE_DOCS=1 spec_tests "
           "--gtest_filter=Reference.IsWhatTheDocumentSays";
}

}  // namespace
}  // namespace tutti::spec
