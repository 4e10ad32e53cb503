// cli/config.cpp: `tutti config`: the keys of a config, by section or one by one.
#include <algorithm>
#include <set>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/peers/peers.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"

namespace tutti::cli {

namespace {

struct ConfigArguments {
    std::string name;  // a section, a key or a part of its name; "": all. With `from`: a file of that trainer
    std::string from;  // a trainer (peers/peers.h); "": none
};

struct Key {
    std::string section, path, type, value, range, help;
    bool fixed, in_stage;
};

std::vector<Key> all_keys() {
    std::vector<Key> keys;
    const spec::RunSpec defaults{};
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto& value) {
        keys.push_back({std::string(field.section), field.path(), spec::type_name(value), spec::toml_text(value),
                        field.range.text(), std::string(field.help), field.identity != spec::Identity::never,
                        field.in_stage});
    });
    return keys;
}

// "steps" of train.steps; the whole of a section that is a list of tables.
std::string own_name(const Key& key) {
    return key.path == key.section ? key.path : key.path.substr(key.section.size() + 1);
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
        names += (names.empty() ? "" : " ") + own_name(key);
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
                              "set it: --set ", key.path, "=VALUE, or in the file: ",
                              key.path == key.section ? concat("[[", key.path, "]], with keys by their whole names")
                                                      : concat("[", key.section, "] ", own_name(key), " = VALUE"),
                              "\n", key.in_stage ? "a [[stage]] may set it\n" : "");
    if (key.path == "stage") text += "\na stage may set: " + wrapped(joined(spec::stage_keys()), 17) + "\n";
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
                        {"in_stage", key.in_stage},
                        {"help", key.help}});
    return {{"keys", list}};
}

// Another trainer's options beside the keys.
int show_options(peers::Peer peer, const std::string& name, const Io& io) {
    const std::vector<peers::Option> options = peers::options_of(peer);
    auto list = Json::array();
    size_t width = 0;
    for (const peers::Option& option : options) width = std::max(width, std::min<size_t>(option.theirs.size(), 48));
    for (const peers::Option& option : options) {
        io.text() << left(option.theirs, width) << "  " << wrapped(option.ours, width + 2) << '\n';
        list.push_back({{"theirs", option.theirs}, {"ours", option.ours}});
    }
    io.text() << std::flush;
    io.next({concat("tutti config --from ", name, " FILE   # a run of it as a config"),
             concat("tutti plan --from-", name, " FILE --cluster h100   # its layout beside the best")});
    io.print({{"trainer", name}, {"options", list}});
    return 0;
}

// The keys that a file of another trainer sets, as a config.
int convert_config(peers::Peer peer, const std::string& file, const Io& io) {
    const peers::TheirRun read = peers::read(peer, read_file(file), file);
    std::vector<std::string> set = read.set;
    std::set<std::string> given;
    for (const std::string& one : set) given.insert(one.substr(0, one.find('=')));
    if (given.contains("model.layers") && read.preset().empty())
        set.insert(set.begin(), "model.preset="), given.insert("model.preset");
    const spec::RunSpec run = spec::parse_text("", file, set);
    std::string text = concat("# The run of ", file, read.ranks > 0 ? concat(", --ranks ", read.ranks) : "",
                              "; keys that it does not set have their defaults\n");
    for (const std::string& note : read.notes) text += concat("# ", note, '\n');
    if (!read.ignored.empty())
        text += concat("# without effect on the layout, not taken over: ", joined(read.ignored), '\n');
    if (!read.unknown.empty()) text += concat("# not known here: ", joined(read.unknown), '\n');
    std::string section;
    spec::for_each_field(run, [&](const spec::Field& field, const auto& value) {
        if (!given.contains(field.path()) || field.key.empty()) return;
        if (field.section != section) text += concat("\n[", field.section, "]\n");
        section = field.section;
        text += concat(field.key, " = ", spec::toml_text(value), '\n');
    });
    io.text() << text << std::flush;
    io.print({{"config", text},
              {"set", read.set},
              {"ranks", read.ranks},
              {"notes", read.notes},
              {"ignored", read.ignored},
              {"unknown", read.unknown}});
    return 0;
}

int config(const ConfigArguments& arguments, const Io& io) {
    const std::string& name = arguments.name;
    if (!arguments.from.empty()) {
        const peers::Peer peer = peers::named(arguments.from);
        return name.empty() ? show_options(peer, arguments.from, io) : convert_config(peer, name, io);
    }
    std::vector<Key> keys = all_keys();
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
        const std::string below = "." + own_name(key) + ".";
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

}  // namespace

Command config_command(Arguments& all, const Io& io) {
    auto& a = all.add<ConfigArguments>();
    std::vector<std::string> names;
    const spec::RunSpec defaults{};
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto&) {
        if (names.empty() || names.back().substr(0, names.back().find('.')) != field.section)
            names.emplace_back(field.section);
        if (!field.key.empty()) names.push_back(field.path());
    });
    const Options options = {
        {"NAME", "", "", "a section, a key or a group of keys [all sections]; with --from a file", &a.name,
         Suggestions{names, true}},
        {"--from", "TRAINER", "",
         concat("show the options of ", joined(peers::names()), " beside our keys; with a file, its run as a config"),
         &a.from, peers::names()}};
    return command_of("config", "explain the keys of a config", a, io, config, options,
                      "Examples:\n"
                      "  tutti config train\n"
                      "  tutti config optimizer.lr\n"
                      "  tutti config model.rope_scaling\n"
                      "  tutti config --from megatron\n"
                      "  tutti config --from megatron pretrain.sh > run.toml");
}

}  // namespace tutti::cli
