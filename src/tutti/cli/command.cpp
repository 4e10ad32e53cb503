#include "tutti/cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/units.h"
#include "tutti/spec/nearest.h"

namespace tutti::cli {

namespace {

// A T from `low` to `high`, in decimal digits: CLI11 reads 010 as 8, 0x10 as 16, and skips a blank before them.
template <class T>
CLI::Validator number_in(Between range) {
    const auto low = static_cast<T>(range.low), high = static_cast<T>(range.high);
    const auto to_decimal = [low, high](std::string& text) {
        const std::optional<T> x = parse_number<T>(text);
        const char* kind = std::is_integral_v<T> ? "a whole number" : "a number";
        if (!x || !(*x >= low && *x <= high))  // nan is not inside
            return concat("required ", kind, " from ", low, " to ", high, ", got ", text);
        if constexpr (std::is_integral_v<T>) text = std::to_string(*x);
        return std::string();
    };
    return {to_decimal, concat("in [", low, " - ", high, "]"), "number_in"};
}

// Rejects "", as of an unset shell variable, which the commands could not tell from an option that is not given.
CLI::Validator not_empty() {
    const auto problem = [](const std::string& text) {
        return text.empty() ? std::string("required a value, got an empty text") : "";
    };
    return {problem, "", "not_empty"};
}

CLI::Validator expanded() {
    const auto problem = [](const std::string& path) {
        if (!begins_at_home(path)) return std::string();
        return concat("a shell expands ~ at the begin of a word and outside of quotes alone; ",
                      "write $HOME, or ./~ for a directory of this name, got ", path);
    };
    return {problem, "", "expanded"};
}

CLI::Validator one_of(const Choices& choices) {
    const auto problem = [choices](const std::string& text) {
        const bool is_one = std::find(choices.begin(), choices.end(), text) != choices.end();
        return is_one ? "" : concat("required one of ", joined(choices), ", got ", text);
    };
    return {problem, "", "one_of"};
}

CLI::Validator byte_count() {
    const auto to_bytes = [](std::string& text) {
        const std::string given = text;
        const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
        try {
            if (const auto number = parse_number<uint64_t>(given.substr(0, end))) {
                text = concat(*number, given.substr(end));
                if (CLI::AsSizeValue(true)(text).empty()) return std::string();
            }
        } catch (const CLI::ValidationError&) {
        }
        return concat("required a size in bytes, or in KB, MB or GB such as 500MB, got ", given);
    };
    return {to_bytes, "", "byte_count"};
}

constexpr size_t kHelpColumn = 32;  // where the help of an option begins

// Without the indentation of continued lines, which CLI11 adds.
std::string help_lines(const std::string& help) {
    std::string lines = wrapped(help, kHelpColumn);
    const std::string indent = '\n' + std::string(kHelpColumn, ' ');
    for (size_t at = lines.find(indent); at != std::string::npos; at = lines.find(indent, at + 1))
        lines.erase(at + 1, kHelpColumn);
    return lines;
}

void add_option(CLI::App& command, const Option& option) {
    const std::string help = help_lines(shown_help(option));
    CLI::Option* added = std::visit(
        [&]<class T>(T* target) {
            if constexpr (std::same_as<T, bool>)
                return command.add_flag(option.name, *target, help);
            else
                return command.add_option(option.name, *target, help);
        },
        option.target);
    added->option_text(option.value_name + shown_default(option) + (option.value_name.empty() ? " " : ""));
    added->required(option.required);
    if (std::holds_alternative<std::vector<std::string>*>(option.target) && !is_positional(option))
        added->allow_extra_args(false);

    if (const auto* choices = std::get_if<Choices>(&option.rule)) added->check(one_of(*choices));
    if (const auto* known = std::get_if<Suggestions>(&option.rule); known != nullptr && known->files)
        added->check(expanded());
    if (std::holds_alternative<ByteCount>(option.rule)) added->transform(byte_count());
    if (const auto* range = std::get_if<Between>(&option.rule)) {
        const bool whole = !std::holds_alternative<double*>(option.target);
        added->transform(whole ? number_in<int64_t>(*range) : number_in<double>(*range));
    }
    added->transform(not_empty());  // before the checks
}

// Adds the options and subcommands of `command`; parsing a command that runs sets `chosen` to it.
void fill(CLI::App& app, const Command& command, const Command*& chosen) {
    for (const Option& option : command.options) add_option(app, option);
    if (command.run) app.callback([&command, &chosen] { chosen = &command; });
    if (!command.footer.empty()) app.footer(command.footer);  // before subcommands, which inherit it
    for (const Command& below : command.commands)
        fill(*app.add_subcommand(below.name, below.description), below, chosen);
    if (!command.commands.empty()) app.require_subcommand(1);
}

const CLI::App* chosen_command(const CLI::App* app) {
    while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
    return app;
}

std::string words_of(const CLI::App* command) {
    std::string words = command->get_name();
    for (const CLI::App* p = command->get_parent(); p != nullptr; p = p->get_parent())
        words = concat(p->get_name(), ' ', words);
    return words;
}

std::vector<std::string> options_of(const CLI::App* command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

// The name of the option in the command line, of its several names of which `first` is the first.
std::string name_given(const CLI::App* command, const std::string& first, const std::vector<std::string>& words) {
    const CLI::Option* option = command->get_option_no_throw(first);
    for (const std::string& word : words) {
        const std::string name = word.substr(0, word.starts_with("--") ? word.find('=') : 2);
        if (option != nullptr && name.starts_with('-') && option->check_name(name)) return name;
    }
    return first;
}

// The problem of a command line, as a message with the nearest valid name.
std::string describe(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
    const CLI::App* command = chosen_command(&app);
    const std::vector<std::string> unknown = app.remaining(true);
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
    std::vector<std::string> names;
    for (const CLI::App* c : command->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(c->get_name());
    const auto word = std::find_if_not(unknown.begin(), unknown.end(), is_option);
    if (!names.empty() && word != unknown.end())
        return concat("unknown command `", *word, "` of `", words_of(command), "`; the nearest is `",
                      spec::nearest(*word, names), "` of ", joined(names));
    const auto option = std::find_if(unknown.begin(), unknown.end(), is_option);
    if (option != unknown.end()) {
        const std::string name = option->substr(0, option->find('='));
        return concat("unknown option ", name, " of `", words_of(command), "`; the nearest is ",
                      spec::nearest(name, options_of(command)));
    }
    if (word != unknown.end()) return concat("`", words_of(command), "` takes no argument ", *word);
    if (!names.empty()) return concat("`", words_of(command), "` needs a command: ", joined(names));
    std::string text = error.what();  // of CLI11: "--ranks: At Most 1 required but received 2"
    const std::string first = text.substr(0, text.find(':')), name = name_given(command, first, words);
    text.replace(0, first.size(), name);
    if (text.find(": At Most 1 ") != std::string::npos) return concat(name, " is given more than once; give it once");
    if (text.find(" required ") != std::string::npos && text.ends_with(" missing"))
        return concat(name, " needs a value");
    return text;
}

std::string first_name(const Option& option) { return names_of(option).front(); }

struct File {
    std::string option, path;
    bool written;
};

// The files and directories that the command line names.
std::vector<File> files_of(const CLI::App& app, const Command& command, const std::vector<std::string>& words) {
    std::vector<File> files;
    for (const Option& option : command.options)
        if (const auto* rule = std::get_if<Suggestions>(&option.rule); rule != nullptr && rule->files)
            for (const std::string& path : app.get_option(first_name(option))->results())
                files.push_back({name_given(&app, first_name(option), words), path, rule->written});
    return files;
}

// Refuses to write a file that the command line also reads, or writes twice.
void check_apart(const std::vector<File>& files) {
    for (size_t i = 0; i < files.size(); ++i)
        for (size_t j = 0; j < i; ++j)
            check<UsageError>(!(files[i].written || files[j].written) || !are_one_file(files[i].path, files[j].path),
                              files[j].option, " and ", files[i].option, " are one file, ", files[i].path,
                              ", whose content would be lost; give ",
                              files[i].written ? files[i].option : files[j].option, " another name");
}

// Refuses an option that has no effect on this command line.
void check_relations(const CLI::App& app, const Command& command, const std::vector<std::string>& words) {
    const auto given = [&](const std::string& name) { return app.get_option(name)->count() > 0; };
    for (const Option& option : command.options) {
        if (!given(first_name(option))) continue;
        const std::string name = name_given(&app, first_name(option), words);
        for (const std::string& other : option.without)
            check<UsageError>(!given(other), name, " and ", name_given(&app, other, words),
                              " exclude each other; leave one of them out");
        check<UsageError>(option.beside.empty() || std::any_of(option.beside.begin(), option.beside.end(), given), name,
                          " has an effect only with ", joined(option.beside, " or "), "; give that too, or leave ",
                          name, " out");
    }
}

}  // namespace

std::vector<std::string> names_of(const Option& option) {
    const auto names = split(option.name, ',');
    return {names.begin(), names.end()};
}

bool is_positional(const Option& option) { return !option.name.starts_with('-'); }

bool takes_value(const Option& option) { return !std::holds_alternative<bool*>(option.target); }

std::string shown_default(const Option& option) {
    return option.default_text.empty() ? "" : concat(" [", option.default_text, "]");
}

std::string shown_help(const Option& option) {
    return option.beside.empty() ? option.help : concat("with ", joined(option.beside, " or "), ": ", option.help);
}

const Command& command_named(const Command& program, const std::vector<std::string>& words) {
    const Command* command = &program;
    for (const std::string& word : words) {
        const auto below = std::ranges::find(command->commands, word, &Command::name);
        if (below != command->commands.end()) command = &*below;
    }
    return *command;
}

Parsed parse(const Command& program, const std::string& version, int argc, const char* const* argv) {
    CLI::App app(program.description, program.name);
    app.set_version_flag("--version", version);
    app.get_formatter()->column_width(kHelpColumn);
    Parsed parsed;
    fill(app, program, parsed.command);
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& asked) {  // --help, --version
        std::ostringstream text;
        app.exit(asked, text, text);
        return {nullptr, text.str()};
    } catch (const CLI::ParseError& error) {
        if (argc < 2) return {nullptr, app.help()};
        throw UsageError(concat(describe(app, error, words), "\ntry: ", words_of(chosen_command(&app)), " --help"));
    }
    if (parsed.command != nullptr) {
        const CLI::App& command = *chosen_command(&app);
        const std::vector<File> files = files_of(command, *parsed.command, words);
        check_apart(files);
        check_relations(command, *parsed.command, words);
        for (const File& file : files)
            if (file.written) check_place(file.option, file.path);
    }
    return parsed;
}

}  // namespace tutti::cli
