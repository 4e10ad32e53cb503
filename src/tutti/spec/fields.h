// spec/fields.h: what the program knows of a key of the config file: section, key, member, range, help, and whether it
// is part of a run's identity. Reading, printing, --set, range checks, `tutti config`, docs/config.md and identity.h
// are visitors of for_each_field(). The list of all keys is field_list.cpp: a new key is one line there.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// The legal values of one field; rules between fields are in validate.cpp.
struct Range {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool low_open = false, high_open = false;
    std::vector<std::string> choices;  // of a text: the values that this build has
    bool or_power_of_two = false;      // of a text: besides its choices
    std::string text() const;          // ">= 1", "[0, 1)", "cpu | cuda"; "" when any value is allowed
};

// The values of data.format, of which jsonl alone is no format of token files and text (data/token_source.h).
inline std::vector<std::string> data_formats() {
    return {"auto", "text", "jsonl", "megatron", "nanogpt", "llmc", "llmq"};
}

// Whether two runs must agree on a key for one to continue the checkpoints of the other (identity.h).
enum class Identity {
    never,
    unless_default,  // a key that older checkpoints lack: they mean its default, which must never change
    always,          // a key that every checkpoint states
};

struct Field {
    std::string_view section;
    std::string_view key;  // with a dot in a sub-table: "rope_scaling.factor"; "": the section is a list of tables
    Range range;
    std::string_view help;
    Identity identity;
    bool in_stage;             // a [[stage]] may set the key
    std::string name() const;  // "[train] steps", "[[stage]]"
    std::string path() const;  // "train.steps", "stage"
};

// The kind of a value, for people: "integer", "number", "boolean", "text", "list of text", "list of tables".
inline const char* type_name(int64_t) { return "integer"; }
inline const char* type_name(double) { return "number"; }
inline const char* type_name(bool) { return "boolean"; }
inline const char* type_name(const std::string&) { return "text"; }
inline const char* type_name(const std::vector<std::string>&) { return "list of text"; }
inline const char* type_name(Family) { return "text"; }
inline const char* type_name(const std::vector<ParameterGroup>&) { return "list of tables"; }
inline const char* type_name(const std::vector<StageSpec>&) { return "list of tables"; }

// The types of keys that a stage may set.
template <class T>
constexpr bool kMayBeInStage = std::is_constructible_v<StageSpec::Value, std::in_place_type_t<T>>;

// The value as TOML writes it. Doubles have the fewest digits that read back to the same bits.
std::string toml_text(int64_t value);
std::string toml_text(double value);
std::string toml_text(bool value);
std::string toml_text(const std::string& value);
std::string toml_text(const std::vector<std::string>& value);
std::string toml_text(Family value);
std::string toml_text(const std::vector<ParameterGroup>& value);  // [{match = "norm", weight_decay = 0.0}]
std::string toml_text(const StageSpec::Value& value);
std::string toml_text(const std::vector<StageSpec>& value);    // [{until = 5, train.seq_len = 8}]
std::string toml_tables(const std::vector<StageSpec>& value);  // the same, each as a table [[stage]]

// x = 2^k, a normal number of f32; otherwise those on both sides, for the end of an error: "; nearest: 512 or 1024".
bool is_power_of_two(double x);
std::string nearest_powers_of_two(double x);

// The message when the value is out of its own range: "[train] steps = 0: must be >= 1". Doubles must be finite.
std::optional<std::string> range_problem(const Field& field, int64_t value);
std::optional<std::string> range_problem(const Field& field, double value);
std::optional<std::string> range_problem(const Field& field, bool value);
std::optional<std::string> range_problem(const Field& field, const std::string& value);
std::optional<std::string> range_problem(const Field& field, const std::vector<std::string>& value);
std::optional<std::string> range_problem(const Field& field, Family value);
std::optional<std::string> range_problem(const Field& field, const std::vector<ParameterGroup>& value);
std::optional<std::string> range_problem(const Field& field, const std::vector<StageSpec>& value);

// The value of a field in a run.
using Member = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*, Family*,
                            std::vector<ParameterGroup>*, std::vector<StageSpec>*>;
using FieldVisitor = std::function<void(const Field&, Member)>;

void list_fields(RunSpec& run, const FieldVisitor& visit);  // field_list.cpp

// visit(field, value) for every key in the order of the file. Run is RunSpec or const RunSpec.
template <class Run, class Visit>
void for_each_field(Run& run, const Visit& visit) {
    list_fields(const_cast<RunSpec&>(run), [&](const Field& field, Member member) {
        std::visit(
            [&]<class T>(T* value) {
                std::conditional_t<std::is_const_v<Run>, const T, T>& given = *value;
                visit(field, given);
            },
            member);
    });
}

}  // namespace tutti::spec
