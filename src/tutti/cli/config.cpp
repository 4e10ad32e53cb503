// cli/config.cpp: `tutti config`: the keys of a config, by section or one by one.
#include <algorithm>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"

namespace tutti::cli {

namespace {

struct Key {
    std::string section, path, type, value, range, help;
    bool fixed;
};

std::vector<Key> all_keys() {
    std::vector<Key> keys;
    const spec::RunSpec defaults{};
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto& value) {
        keys.push_back({std::string(field.section), field.path(), spec::type_name(value), spec::toml_text(value),
                        field.range.text(), std::string(field.help), field.identity != spec::Identity::never});
    });
    return keys;
}

std::string sentence(const Key& key) {
    if (key.range.empty()) return key.help;
    return key.range.starts_with('[') || key.range.starts_with('(') ? concat(key.help, ", in ", key.range)
                                                                    : concat(key.help, " (", key.range, ")");
}

// The names of the keys of each section.
std::string overview(const std::vector<Key>& keys) {
    constexpr size_t kIndent = 14;
    std::string text, names, section;
    const auto flush = [&] {
        if (!names.empty()) text += left(section, kIndent) + wrapped(names, kIndent) + "\n";
    };
    for (const Key& key : keys) {
        if (key.section != section) flush(), names.clear(), section = key.section;
        names += (names.empty() ? "" : " ") + key.path.substr(section.size() + 1);
    }
    flush();
    return text;
}

std::string table(const std::vector<Key>& keys) {
    size_t path = 0, value = 0;
    for (const Key& key : keys) {
        path = std::max(path, key.path.size());
        value = std::max(value, std::min<size_t>(key.value.size(), 24));
    }
    std::string text;
    for (const Key& key : keys)
        text += left(key.path, path + 2) + left(key.value, value + 2) + wrapped(sentence(key), path + value + 4) + "\n";
    return text;
}

std::string description(const Key& key) {
    std::string text = concat(key.path, " = ", key.value, "   # the default\n", wrapped(key.help), "\n\n", key.type,
                              key.range.empty() ? "" : concat(", ", key.range), "\n",
                              key.fixed ? "fixed: a run continues a checkpoint only with the value of that checkpoint\n"
                                        : "may change when a run is continued\n",
                              "set it: --set ", key.path, "=VALUE, or in the file: [", key.section, "] ",
                              key.path.substr(key.section.size() + 1), " = VALUE\n");
    if (key.path == "model.preset") text += "\npresets: " + wrapped(joined(spec::preset_names()), 9) + "\n";
    return text;
}

Json describe(const std::vector<Key>& keys) {
    auto list = Json::array();
    for (const Key& key : keys)
        list.push_back({{"key", key.path},
                        {"type", key.type},
                        {"default", key.value},
                        {"range", key.range},
                        {"fixed", key.fixed},
                        {"help", key.help}});
    return {{"keys", list}};
}

}  // namespace

int config(const ConfigArguments& arguments, const Io& io) {
    std::vector<Key> keys = all_keys();
    const std::string& name = arguments.name;
    if (name.empty()) {
        io.text() << overview(keys) << "\n`tutti config SECTION` explains the keys of a section, "
                  << "`tutti config SECTION.KEY` one key.\ndocs/config.md has them all." << std::endl;
        io.print(describe(keys));
        return 0;
    }
    std::vector<std::string> names;
    for (const Key& key : keys) {
        if (names.empty() || names.back() != key.section) names.push_back(key.section);
    }
    for (const Key& key : keys) names.push_back(key.path);
    // "train", "train.steps", or the part of a name after its section: "rope_scaling", "steps".
    const auto is_asked = [&](const Key& key) {
        const std::string below = "." + key.path.substr(key.section.size() + 1) + ".";
        return key.section == name || key.path == name || key.path.starts_with(name + ".") ||
               below.starts_with("." + name + ".");
    };
    std::erase_if(keys, [&](const Key& key) { return !is_asked(key); });
    check<UsageError>(!keys.empty(), "tutti config ", name, ": no such key or section; the nearest is ",
                      spec::nearest(name, names));
    io.text() << (keys.size() == 1 ? description(keys.front()) : table(keys)) << std::flush;
    io.print(describe(keys));
    return 0;
}

}  // namespace tutti::cli
