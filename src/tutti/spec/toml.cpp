// spec/toml.cpp: TOML and --set into a RunSpec, any TOML as JSON, and a RunSpec as text, by visitors of the fields. The
// only file that includes toml++.
#include "tutti/spec/toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/spec/families.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/stages.h"

namespace tutti::spec {

namespace {

// One `--set section.key=value`.
struct Override {
    std::string source;  // "--set train.steps=5"
    uint32_t order = 0;
    toml::table document = {};  // `value = 5`, so that file and command line have one set of types
    const toml::node& value() const { return *document.get("value"); }
};
using Overrides = std::map<std::string, Override>;  // by path

// Problems in the order of the file, then of the command line.
class FileProblems {
  public:
    explicit FileProblems(std::string source_name) : source_name_(std::move(source_name)) {}

    void add(const toml::source_region& region, const std::string& text) {
        const auto& at = region.begin;
        entries_.push_back({at.line, at.column, concat(source_name_, ":", at.line, ":", at.column, ": ", text)});
    }
    void add(const Override& override, const std::string& text) {
        constexpr auto kAfterFile = std::numeric_limits<uint32_t>::max();
        entries_.push_back({kAfterFile, override.order, concat(override.source, ": ", text)});
    }
    void throw_if_any() {
        if (entries_.empty()) return;
        std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
            return std::pair(a.line, a.column) < std::pair(b.line, b.column);
        });
        throw UsageError(joined(entries_, "\n", &Entry::text));
    }

  private:
    struct Entry {
        uint32_t line, column;
        std::string text;
    };
    std::string source_name_;
    std::vector<Entry> entries_;
};

// "the text "abc"", "the number 1.5", "a list": the given value, for a message.
std::string describe(const toml::node& node) {
    if (const auto* text = node.as_string()) return concat("the text ", toml_text(text->get()));
    if (const auto* integer = node.as_integer()) return concat("the integer ", toml_text(integer->get()));
    if (const auto* number = node.as_floating_point()) return concat("the number ", toml_text(number->get()));
    if (const auto* boolean = node.as_boolean()) return concat("the boolean ", toml_text(boolean->get()));
    if (node.is_array()) return "a list";
    if (node.is_table()) return "a table";
    return "a date or time";
}

// --- One value. Each returns a problem, or sets the field. ------------------------------------------------------

using Wrong = std::optional<std::string>;

const char* kind_of(int64_t) { return "an integer"; }
const char* kind_of(double) { return "a number"; }
const char* kind_of(bool) { return "true or false"; }
const char* kind_of(const std::string&) { return "a text"; }
const char* kind_of(const std::vector<std::string>&) { return "a list of texts"; }
const char* kind_of(Family) { return "a text"; }
const char* kind_of(const std::vector<ParameterGroup>&) { return "a list of tables"; }
const char* kind_of(const std::vector<StageSpec>&) { return "a list of tables, each [[stage]]"; }

template <class T>
std::string wrong_type(const Field& field, const T& value, const std::string& came) {
    return concat(field.name(), ": required ", kind_of(value), ", got ", came);
}

Wrong assign(const Field& field, const toml::node& node, int64_t& value) {
    if (const auto* integer = node.as_integer()) return value = integer->get(), std::nullopt;
    std::string problem = wrong_type(field, value, describe(node));
    if (const auto* number = node.as_floating_point()) {
        const double x = number->get();
        const bool whole = x == std::floor(x) && std::abs(x) < 1e15;
        if (whole && !range_problem(field, static_cast<int64_t>(x)))
            problem += concat("; write ", static_cast<int64_t>(x));
    }
    return problem;
}

Wrong assign(const Field& field, const toml::node& node, double& value) {
    if (const auto* number = node.as_floating_point()) return value = number->get(), std::nullopt;
    if (const auto* integer = node.as_integer()) return value = static_cast<double>(integer->get()), std::nullopt;
    return wrong_type(field, value, describe(node));
}

Wrong assign(const Field& field, const toml::node& node, bool& value) {
    if (const auto* boolean = node.as_boolean()) return value = boolean->get(), std::nullopt;
    return wrong_type(field, value, describe(node));
}

Wrong assign(const Field& field, const toml::node& node, std::string& value) {
    const auto* text = node.as_string();
    if (const auto number = node.value<double>(); !text && number && field.range.or_power_of_two) {
        const bool whole = *number == std::floor(*number) && std::abs(*number) < 0x1p53;
        return value = whole ? toml_text(static_cast<int64_t>(*number)) : toml_text(*number), std::nullopt;
    }
    if (!text) return wrong_type(field, value, describe(node));
    value = text->get();
    if (field.path() != "model.preset" || value.empty()) return std::nullopt;
    try {
        preset(value);  // the model itself was started from it before
    } catch (const UsageError& error) {
        return concat(field.name(), ": ", error.what());
    }
    return std::nullopt;
}

Wrong assign(const Field& field, const toml::node& node, std::vector<std::string>& value) {
    if (const auto* text = node.as_string()) return value = {text->get()}, std::nullopt;
    const toml::array* list = node.as_array();
    if (!list) return wrong_type(field, value, describe(node));
    std::vector<std::string> items;
    for (const toml::node& item : *list) {
        const auto* text = item.as_string();
        if (!text) return wrong_type(field, value, concat(describe(item), " as element ", items.size() + 1));
        items.push_back(text->get());
    }
    return value = std::move(items), std::nullopt;
}

Wrong assign(const Field& field, const toml::node& node, Family& value) {
    const auto* text = node.as_string();
    if (!text) return wrong_type(field, value, describe(node));
    for (const Family family : kFamilies) {
        if (text->get() == name_of(family)) return value = family, std::nullopt;
    }
    return range_problem(field, text->get());  // the text is no choice of the field
}

Wrong assign(const Field& field, const toml::node& node, ParameterGroup& group) {
    constexpr const char* kForm = "required a table {match = TEXT, weight_decay = NUMBER, lr_scale = NUMBER}, got ";
    const toml::table* table = node.as_table();
    if (!table) return concat(field.name(), ": ", kForm, describe(node));
    for (const auto& [key, value] : *table) {
        if (key == "match" && value.is_string())
            group.match = *value.value<std::string>();
        else if (key == "weight_decay" && value.is_number())
            group.weight_decay = value.value<double>();
        else if (key == "lr_scale" && value.is_number())
            group.lr_scale = *value.value<double>();
        else
            return concat(field.name(), ": ", kForm, key.str(), " = ", describe(value));
    }
    if (!table->contains("match")) return concat(field.name(), ": ", kForm, "one without match");
    return std::nullopt;
}

Wrong assign(const Field& field, const toml::node& node, std::vector<ParameterGroup>& value) {
    const toml::array* list = node.as_array();
    if (!list) return wrong_type(field, value, describe(node));
    std::vector<ParameterGroup> groups;
    for (const toml::node& item : *list)
        if (const Wrong problem = assign(field, item, groups.emplace_back())) return problem;
    return value = std::move(groups), std::nullopt;
}

Wrong assign(const Field& field, const toml::node& node, std::vector<StageSpec>& value);

template <class T>
Wrong assign_in_range(const Field& field, const toml::node& node, T& value) {
    if (Wrong problem = assign(field, node, value)) return problem;
    return range_problem(field, value);
}

// Sets what `table` has below `before`, "" or "model.rope_scaling.", in the stage.
Wrong assign_keys(const toml::table& table, const std::string& before, StageSpec& stage) {
    for (const auto& [key, node] : table) {
        const std::string path = before + std::string(key.str());
        Wrong wrong;
        bool found = false;
        RunSpec scratch;
        for_each_field(scratch, [&, &node = node]<class T>(const Field& field, T& value) {
            if constexpr (kMayBeInStage<T>) {
                if (field.path() != path || !field.in_stage) return;
                found = true;
                wrong = assign_in_range(field, node, value);
                stage.set[path] = value;
            }
        });
        const toml::table* below = node.as_table();
        if (!found && below) wrong = assign_keys(*below, path + ".", stage);
        if (!found && !below)
            wrong = concat(path, " is no key that a stage may set; the nearest is ",
                           nearest_dotted(path, stage_keys()).front(), " of until, ", joined(stage_keys()));
        if (wrong) return wrong;
    }
    return std::nullopt;
}

Wrong assign(const Field& field, const toml::node& node, std::vector<StageSpec>& value) {
    const toml::array* list = node.as_array();
    if (!list) return wrong_type(field, value, describe(node));
    std::vector<StageSpec> stages;
    for (const toml::node& item : *list) {
        const toml::table* table = item.as_table();
        if (!table) return wrong_type(field, value, concat(describe(item), " as element ", stages.size() + 1));
        toml::table keys = *table;
        StageSpec& stage = stages.emplace_back();
        if (const toml::node* until = keys.get("until")) {
            const auto* integer = until->as_integer();
            if (!integer || integer->get() < 1)
                return concat(field.name(), " ", stages.size(), ": until: required a step, at least 1, got ",
                              describe(*until));
            stage.until = integer->get();
            keys.erase("until");
        }
        if (const Wrong wrong = assign_keys(keys, "", stage))
            return concat(field.name(), " ", stages.size(), ": ", *wrong);
    }
    return value = std::move(stages), std::nullopt;
}

// --- Former names ---------------------------------------------------------------------------------------------------

struct FormerKey {
    const char *section, *key, *now;
};
constexpr FormerKey kFormerKeys[] = {{"comm", "engine", "backend"}};

std::string present_path(const std::string& path) {
    for (const auto& [section, key, now] : kFormerKeys)
        if (path == concat(section, '.', key)) return concat(section, '.', now);
    return path;
}

// Gives keys of a file their present names. With both names in the file the former one is an unknown key.
void rename_former_keys(toml::table& root) {
    for (const auto& [section, key, now] : kFormerKeys) {
        toml::table* table = root[section].as_table();
        if (!table || !table->contains(key) || table->contains(now)) continue;
        table->get(key)->visit([&](auto& value) { table->insert(now, std::move(value)); });  // keeps the line number
        table->erase(key);
    }
}

// --- Unknown names --------------------------------------------------------------------------------------------------

// Walks one section: `inside` is the dotted path below it, "" at its top.
void report_unknown_keys(const toml::table& table, const std::string& section, const std::string& inside,
                         const Names& names, FileProblems& problems) {
    for (const auto& [key, node] : table) {
        const std::string dotted = inside + std::string(key.str());
        const std::string path = concat(section, '.', dotted);
        const bool quoted_dot = key.str().find('.') != std::string_view::npos;  // "a.b" = 1 is not a.b = 1
        if (names.is_key(path) && !quoted_dot) continue;
        if (!names.is_table(path) || quoted_dot) {
            const std::string now = present_path(path);
            problems.add(key.source(),
                         concat("unknown key [", section, "] ", quoted_dot ? toml_text(dotted) : dotted,
                                "; the nearest is ", bracketed(now != path ? now : names.meant_by(section, dotted))));
        } else if (const toml::table* below = node.as_table()) {
            report_unknown_keys(*below, section, dotted + ".", names, problems);
        } else {
            problems.add(node.source(), concat(bracketed(path), ": required a table, got ", describe(node)));
        }
    }
}

void report_unknown_names(const toml::table& root, const Names& names, FileProblems& problems) {
    for (const auto& [key, node] : root) {
        const std::string name(key.str());
        const toml::table* table = node.as_table();
        if (names.is_key(name)) continue;  // [[stage]]
        if (names.is_section(name) && table) {
            report_unknown_keys(*table, name, "", names, problems);
        } else if (names.is_section(name)) {
            problems.add(node.source(), concat("[", name, "] is a section: required a table, got ", describe(node)));
        } else if (table || node.is_array_of_tables()) {
            problems.add(key.source(),
                         concat("unknown section [", name, "]; the nearest is [", nearest(name, names.sections), "]"));
        } else {
            problems.add(key.source(), concat("unknown key ", name, " outside of a section; the nearest is ",
                                              bracketed(names.meant_by("", name))));
        }
    }
}

// --- Overrides ------------------------------------------------------------------------------------------------------

// For a text field, a value that does not begin like a TOML text or list is taken literally.
template <class T>
toml::table value_document(const std::string& value, const T&) {
    constexpr bool kList = std::is_same_v<T, std::vector<std::string>>;
    constexpr bool kText = kList || std::is_same_v<T, std::string> || std::is_same_v<T, Family>;
    const char first = value.empty() ? ' ' : value[0];
    const bool quoted = first == '"' || first == '\'' || (kList && first == '[');
    return toml::parse("value = " + (kText && !quoted ? toml_text(value) : value));
}

// Fills override.document for the field at `path`; false when the value is no TOML, which is reported.
bool read_value(const std::string& path, const std::string& value, Override& override, FileProblems& problems) {
    bool ok = false;
    const RunSpec run{};
    for_each_field(run, [&](const Field& field, const auto& member) {
        if (field.path() != path) return;
        try {
            override.document = value_document(value, member);
            ok = override.document.size() == 1;  // a line break could smuggle in a second key
        } catch (const toml::parse_error&) {
            // ok stays false
        }
        if (!ok) problems.add(override, wrong_type(field, member, value.empty() ? "nothing" : value));
    });
    return ok;
}

// The last override of each key. Those that name no key or have no value are reported here.
Overrides read_overrides(const std::vector<std::string>& texts, const Names& names, FileProblems& problems) {
    Overrides by_path;
    uint32_t order = 0;
    for (const std::string& text : texts) {
        Override override{"--set " + text, order++};
        const size_t equals = text.find('=');
        const std::string path = present_path(std::string(trimmed(text.substr(0, equals))));
        if (equals == std::string::npos || path.empty()) {
            problems.add(override, concat("required section.key=value, got no ", path.empty() ? "key" : "\"=\""));
        } else if (names.is_key(path)) {
            if (read_value(path, std::string(trimmed(text.substr(equals + 1))), override, problems))
                by_path[path] = override;
        } else if (names.is_table(path)) {
            problems.add(override, concat(path, " is a table: required ", path, ".key=value"));
        } else {
            const size_t dot = path.find('.');
            const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
            const std::string meant = names.meant_by(section, section.empty() ? path : path.substr(dot + 1));
            problems.add(override, concat("unknown key ", path, "; the nearest is ", meant));
        }
    }
    return by_path;
}

// --- The model that the other fields of [model] start from ----------------------------------------------------------

// A text of [model] as --set or the file gives it; nothing when it is absent or of another type (reported elsewhere).
std::optional<std::string> model_text(const char* key, const toml::table& root, const Overrides& overrides) {
    const auto override = overrides.find(concat("model.", key));
    if (override != overrides.end()) return override->second.value().value<std::string>();
    return root["model"][key].value<std::string>();
}

// The sizes that a model needs and that are not given: "layers, heads".
std::string left_out(const toml::table& root, const Overrides& overrides) {
    std::vector<std::string> needed = {"family", "width", "layers"};
    if (model_text("family", root, overrides) != "mlp") {
        needed.insert(needed.end(), {"vocab", "heads", "kv_heads", "head_dim", "ffn", "max_positions"});
    }
    if (model_text("family", root, overrides) == "lfm2") {
        needed.insert(needed.end(), {"conv_layers", "conv_kernel"});
    }
    std::erase_if(needed,
                  [&](const std::string& key) { return root["model"][key] || overrides.contains("model." + key); });
    return joined(needed);
}

// A problem of a key of [model] that is given on the command line or in the file.
void add_at_model_key(const char* key, const toml::table& root, const Overrides& overrides, FileProblems& problems,
                      const std::string& text) {
    const auto override = overrides.find(concat("model.", key));
    if (override != overrides.end())
        problems.add(override->second, text);
    else
        problems.add(root["model"][key].node()->source(), text);
}

// The sizes of a model that starts from nothing must all be given; the other fields have their usual values.
ModelSpec model_from_nothing(const toml::table& root, const Overrides& overrides, FileProblems& problems) {
    const std::string family = model_text("family", root, overrides).value_or("");
    ModelSpec model = preset(family == "gpt2"   ? "gpt2-124m"
                             : family == "lfm2" ? "lfm2-tiny"
                             : family == "mlp"  ? "mlp-8192"
                                                : "llama-tiny");
    const std::string missing = left_out(root, overrides);
    if (!missing.empty())
        add_at_model_key("preset", root, overrides, problems,
                         concat("[model] preset = \"\" starts from nothing: it also needs ", missing));
    return model;
}

// From config.json, if the file exists or a size is not given. A resolved config has all fields: it reads the same when
// the directory is gone.
ModelSpec model_from_directory(const std::string& directory, const toml::table& root, const Overrides& overrides,
                               FileProblems& problems) {
    const std::string config = directory + "/config.json";
    const bool is_there = std::filesystem::exists(config);
    check<DataError>(is_there || left_out(root, overrides).empty(), std::filesystem::absolute(config).string(),
                     ": there is no such file; required: the directory of a stored model, or all sizes in [model], as "
                     "in the config.toml of a run that began from it");
    ModelSpec model = is_there ? model_from_hf(directory) : model_from_nothing(root, overrides, problems);
    model.preset.clear();
    model.hf = directory;
    return model;
}

// The value of data.tokenizer for a model of `directory` where none is named. A directory that is gone is named all the
// same: opening it fails, and no other tokenizer takes its place.
std::string tokenizer_of_directory(const std::string& directory) {
    namespace fs = std::filesystem;
    const bool has_one = fs::exists(directory + "/tokenizer.json") || fs::exists(directory + "/tokenizer.model");
    return has_one || !fs::exists(directory) ? directory : DataSpec{}.tokenizer;
}

// A model starts from one of preset and hf: one of them on the command line replaces the other one in the file.
void keep_one_start(toml::table& root, const Overrides& overrides) {
    toml::table* model = root["model"].as_table();
    if (model == nullptr) return;
    const auto replaces = [&](const char* key, const char* other) {
        const bool given = overrides.contains(concat("model.", key)) && !model_text(key, root, overrides)->empty();
        if (given && !overrides.contains(concat("model.", other))) model->erase(other);
    };
    replaces("hf", "preset");
    replaces("preset", "hf");
}

ModelSpec starting_model(const toml::table& root, const Overrides& overrides, FileProblems& problems) {
    const std::optional<std::string> name = model_text("preset", root, overrides);
    const std::string directory = model_text("hf", root, overrides).value_or("");
    if (!directory.empty() && (!name || name->empty()))
        return model_from_directory(directory, root, overrides, problems);
    if (!directory.empty())
        add_at_model_key("hf", root, overrides, problems,
                         concat("[model] hf = ", toml_text(directory), " and preset = ", toml_text(*name),
                                ": a model starts from one of the two"));
    if (name && name->empty()) return model_from_nothing(root, overrides, problems);
    const std::vector<std::string> names = preset_names();
    if (name && std::find(names.begin(), names.end(), *name) != names.end()) return preset(*name);
    ModelSpec model;  // an unknown name is reported when the field is assigned
    const std::string family = model_text("family", root, overrides).value_or("");
    const auto* known = std::ranges::find(kFamilies, family, [](Family each) { return name_of(each); });
    if (name || known == std::end(kFamilies) || *known == model.family) return model;
    // Another family than the default preset's starts from its sizes, as far as the family has them.
    model.preset.clear();
    model.family = *known;
    clear_unused(model);
    return model;
}

Json json_of(const toml::node& node, FileProblems& problems) {
    if (const auto* table = node.as_table()) {
        Json object = Json::object();
        for (const auto& [key, value] : *table) object[key.str()] = json_of(value, problems);
        return object;
    }
    if (const auto* array = node.as_array()) {
        Json list = Json::array();
        for (const toml::node& element : *array) list.push_back(json_of(element, problems));
        return list;
    }
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* integer = node.as_integer()) return integer->get();
    if (const auto* number = node.as_floating_point()) return number->get();
    if (const auto* flag = node.as_boolean()) return flag->get();
    problems.add(node.source(), "a date or a time, which no key here takes");
    return {};
}

}  // namespace

RunSpec parse_text(std::string_view text, const std::string& source_name, const std::vector<std::string>& overrides) {
    FileProblems problems(source_name);
    const Names names = known_names();
    const Overrides override_of = read_overrides(overrides, names, problems);
    toml::table root;
    try {
        root = toml::parse(text);
    } catch (const toml::parse_error& error) {
        problems.add(error.source(), std::string(error.description()));
        problems.throw_if_any();
    }
    rename_former_keys(root);
    report_unknown_names(root, names, problems);
    keep_one_start(root, override_of);

    RunSpec run;
    run.model = starting_model(root, override_of, problems);
    for_each_field(run, [&](const Field& field, auto& value) {
        if (const toml::node* node = root.at_path(field.path()).node()) {
            if (const Wrong wrong = assign_in_range(field, *node, value)) problems.add(node->source(), *wrong);
        }
        const auto override = override_of.find(field.path());
        if (override != override_of.end()) {
            const Wrong wrong = assign_in_range(field, override->second.value(), value);
            if (wrong) problems.add(override->second, *wrong);
        }
    });
    // The ids of a stored model are those of its own tokenizer; another one has to be named.
    const bool named = root.at_path("data.tokenizer").node() != nullptr || override_of.contains("data.tokenizer");
    if (!named && !run.model.hf.empty()) run.data.tokenizer = tokenizer_of_directory(run.model.hf);
    problems.throw_if_any();
    return run;
}

Json parse_toml(std::string_view text, const std::string& source_name) {
    FileProblems problems(source_name);
    Json document;
    try {
        document = json_of(toml::parse(text), problems);
    } catch (const toml::parse_error& error) {
        problems.add(error.source(), std::string(error.description()));
    }
    problems.throw_if_any();
    return document;
}

RunSpec parse_file(const std::string& path, const std::vector<std::string>& overrides) {
    std::error_code ignored;
    const std::string of_run = path + "/config.toml";
    check<UsageError>(!std::filesystem::is_directory(path, ignored), "cannot read the config ", path,
                      ": is a directory; required: a TOML file",
                      std::filesystem::exists(of_run, ignored) ? concat(", such as ", of_run) : "");
    std::string text;
    try {
        text = read_file(path);
    } catch (const DataError& error) {
        throw UsageError(concat("cannot read the config ", error.what()));
    }
    return parse_text(text, path, overrides);
}

std::string to_toml(const RunSpec& run) {
    std::string out;
    std::string_view section;
    for_each_field(run, [&]<class T>(const Field& field, const T& value) {
        if constexpr (std::is_same_v<T, std::vector<StageSpec>>) {
            out += toml_tables(value);
            return;
        }
        if (field.section != section) out += concat(section.empty() ? "" : "\n", "[", field.section, "]\n");
        section = field.section;
        out += concat(field.key, " = ", toml_text(value), "\n");
    });
    return out;
}

}  // namespace tutti::spec
