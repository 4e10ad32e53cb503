// spec/identity.cpp: keys are compared by their values, so that order and spelling of a text do not matter.
#include "tutti/spec/identity.h"

#include <map>

#include "tutti/spec/fields.h"
#include "tutti/spec/toml.h"

namespace tutti::spec {
namespace {

// StagePlace::sample_shift, which is no key.
constexpr const char* kShift = "stage.sample_shift";

using Values = std::map<std::string, Json>;  // by path: "model.rope_scaling.factor"

void collect(const Json& table, const std::string& before, Values& values) {
    for (const Json::Member& member : table.items()) {
        if (member.value.is_object())
            collect(member.value, concat(before, member.key, '.'), values);
        else
            values[before + member.key] = member.value;
    }
}

Values values_of(const std::string& toml) {
    Values values;
    collect(parse_toml(toml, "the checkpoint's config"), "", values);
    return values;
}

// As TOML writes it.
std::string text_of(const Json& value) {
    return value.is_number() && !value.is_integer() ? toml_text(value.get<double>()) : value.dump();
}

}  // namespace

std::string identity_of(const RunSpec& run) {
    const Values usual = values_of(to_toml(RunSpec{})), now = values_of(to_toml(run));
    std::string text;
    for_each_field(run, [&](const Field& field, const auto& value) {
        const std::string path = field.path();
        const bool stated = field.identity == Identity::always ||
                            (field.identity == Identity::unless_default && now.at(path) != usual.at(path));
        if (stated) text += concat(path, " = ", toml_text(value), '\n');
    });
    if (run.place.sample_shift != 0) text += concat(kShift, " = ", run.place.sample_shift, '\n');
    return text;
}

std::vector<std::string> identity_problems(const RunSpec& run, const std::string& identity) {
    const Values usual = values_of(to_toml(RunSpec{})), now = values_of(to_toml(run));
    Values then = values_of(identity);
    std::vector<std::string> problems;
    const auto stated_shift = then.extract(kShift);
    const int64_t shift = stated_shift.empty() ? 0 : stated_shift.mapped().get<int64_t>();
    if (shift != run.place.sample_shift)
        problems.push_back(concat(kShift, " = ", run.place.sample_shift, ", in the checkpoint ", shift,
                                  ": the stages before this one read another number of samples"));
    for_each_field(run, [&](const Field& field, const auto&) {
        const std::string path = field.path();
        const auto stated = then.extract(path);
        if (field.identity == Identity::never) return;
        const std::string given = concat(path, " = ", text_of(now.at(path)));
        if (stated.empty() && field.identity == Identity::always)
            return problems.push_back(concat(given, ", which the checkpoint does not state"));
        const Json& was = stated.empty() ? usual.at(path) : stated.mapped();
        if (was != now.at(path)) problems.push_back(concat(given, ", in the checkpoint ", text_of(was)));
    });
    for (const auto& [path, was] : then)
        problems.push_back(
            concat(path, " = ", text_of(was), " in the checkpoint, a key that this version does not have"));
    return problems;
}

std::string changed_keys(const RunSpec& run, const std::string& config) {
    const Values before = values_of(config), now = values_of(to_toml(run));
    std::vector<std::string> changes;
    for (const auto& [path, value] : now) {
        const auto was = before.find(path);
        if (was != before.end() && was->second != value)
            changes.push_back(concat(path, " = ", text_of(value), " (was ", text_of(was->second), ")"));
    }
    return joined(changes);
}

}  // namespace tutti::spec
