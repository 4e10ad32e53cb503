#include "tutti/cli/completion.h"

#include <map>
#include <sstream>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::cli {

namespace {

std::string replaced(std::string text, const std::map<char, std::string>& replacements) {
    std::string result;
    for (const char c : text) {
        const auto found = replacements.find(c);
        found == replacements.end() ? result += c : result += found->second;
    }
    return result;
}

// One word of bash and zsh.
std::string quoted(const std::string& text) { return concat('\'', replaced(text, {{'\'', "'\\''"}}), '\''); }

// The candidates for the value of an option, or for an argument without a name.
Suggestions offered(const Option& option) {
    if (const auto* choices = std::get_if<Choices>(&option.rule)) return {.words = *choices};
    if (const auto* suggestions = std::get_if<Suggestions>(&option.rule)) return *suggestions;
    return {};
}

// The options of a command by their names, --help and --version among them.
std::vector<std::string> option_names(const NamedCommand& command, const Command& program) {
    std::vector<std::string> names = {"--help"};
    if (command.command == &program) names.emplace_back("--version");
    for (const Option& option : command.command->options)
        if (!is_positional(option))
            for (const std::string& name : names_of(option)) names.push_back(name);
    return names;
}

std::vector<std::string> names_below(const Command& command) {
    std::vector<std::string> names;
    for (const Command& below : command.commands) names.push_back(below.name);
    return names;
}

// Candidates for a positional argument of a command: its subcommands, or values of its positional options.
Suggestions offered_in_place(const Command& command) {
    Suggestions all = {.words = names_below(command)};
    for (const Option& option : command.options) {
        if (!is_positional(option)) continue;
        const Suggestions more = offered(option);
        all.words.insert(all.words.end(), more.words.begin(), more.words.end());
        all.files = all.files || more.files;
    }
    return all;
}

// All commands but the program, as a pattern of `case` in bash and fish.
std::vector<std::string> command_patterns(const std::vector<NamedCommand>& commands) {
    std::vector<std::string> patterns;
    for (size_t i = 1; i < commands.size(); ++i) patterns.push_back(quoted(commands[i].words));
    return patterns;
}

constexpr const char* kBashBegin = R"(
_tutti() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=tutti words='' files='' options='' i
    # bash cuts --option=value at the =.
    if [[ $current == = ]]; then
        current=''
    elif [[ $previous == = ]] && ((COMP_CWORD > 2)); then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
        [[ $previous == -* ]] || return
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$command ${COMP_WORDS[i]}" in
)";
constexpr const char* kBashEnd = R"(    esac
    if [[ $current == -* || -z $words$files ]]; then
        words=$options files=''
    fi
    _tutti_offer
}
# Fills COMPREPLY from the caller's current, words and files.
_tutti_offer() {
    COMPREPLY=()
    [[ -z $words ]] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    if [[ -n $files ]]; then
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null
    fi
    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -F _tutti tutti
)";

std::string bash_offer(const Suggestions& offer) {
    return concat("words=", quoted(joined(offer.words, " ")), offer.files ? " files=yes" : "");
}

// Escapes text for zsh inside '[...]' and between colons.
std::string zsh_text(const std::string& text) {
    return replaced(text, {{'\\', "\\\\"}, {'[', "\\["}, {']', "\\]"}, {':', "\\:"}});
}

std::string zsh_action(const Suggestions& offer) {
    const std::string words = joined(offer.words, " ");
    if (offer.files) return words.empty() ? "_files" : concat("_tutti_names_or_files ", words);
    if (words.ends_with('=')) return concat(" compadd -S '' -- ", words);
    return words.empty() ? " " : concat("(", words, ")");
}

std::string zsh_function_name(std::string words) { return "_" + replaced(std::move(words), {{' ', "_"}}); }

// The lines of a call of _arguments.
std::string zsh_arguments(const NamedCommand& command, const Command& program) {
    std::vector<std::string> specs = {"'--help[show help]'"};
    if (command.command == &program) specs.emplace_back("'--version[show the version]'");
    for (const Option& option : command.command->options) {
        const bool list = std::holds_alternative<std::vector<std::string>*>(option.target);
        const std::string what = zsh_text(option.value_name.empty() ? option.name : option.value_name);
        if (is_positional(option)) {
            specs.push_back(
                quoted(concat(list ? "*" : "", ":", zsh_text(option.name), ":", zsh_action(offered(option)))));
            continue;
        }
        const std::vector<std::string> names = names_of(option);
        for (const std::string& name : names) {
            const std::string others = names.size() > 1 && !list ? concat('(', joined(names, " "), ')') : "";
            const std::string value = takes_value(option) ? concat(":", what, ":", zsh_action(offered(option))) : "";
            specs.push_back(quoted(concat(list ? "*" : others, name, takes_value(option) ? "=" : "", "[",
                                          zsh_text(option.help), "]", value)));
        }
    }
    return joined(specs, " \\\n        ");
}

// Names the command below that is chosen, and completes what follows it.
std::string zsh_group(const NamedCommand& command, const Command& program) {
    std::ostringstream out;
    out << "    local curcontext=$curcontext state line\n    _arguments -C " << zsh_arguments(command, program)
        << " \\\n        '1: :->command' '*:: :->arguments'\n    case $state in\n        command)\n"
        << "            local -a commands=(\n";
    for (const Command& below : command.command->commands)
        out << "                " << quoted(concat(below.name, ":", zsh_text(below.description))) << '\n';
    out << "            )\n            _describe command commands ;;\n        arguments)\n"
        << "            case $line[1] in\n";
    for (const Command& below : command.command->commands)
        out << "                " << below.name << ") " << zsh_function_name(concat(command.words, ' ', below.name))
            << " ;;\n";
    out << "            esac ;;\n    esac\n";
    return out.str();
}

// One word of fish: between single quotes, only \ and ' are special there.
std::string fish_quoted(const std::string& text) {
    return concat('\'', replaced(text, {{'\\', "\\\\"}, {'\'', "\\'"}}), '\'');
}

}  // namespace

std::vector<NamedCommand> all_commands(const Command& program) {
    std::vector<NamedCommand> all = {{program.name, &program}};
    for (const Command& below : program.commands)
        for (NamedCommand& command : all_commands(below))
            all.push_back({concat(program.name, ' ', command.words), command.command});
    return all;
}

std::vector<std::string> names_of(const Option& option) {
    std::vector<std::string> names;
    std::istringstream list(option.name);
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
    return names;
}

bool is_positional(const Option& option) { return !option.name.starts_with('-'); }

bool takes_value(const Option& option) { return !std::holds_alternative<bool*>(option.target); }

std::string bash_completion(const Command& program) {
    const std::vector<NamedCommand> commands = all_commands(program);
    std::map<std::string, std::vector<std::string>> patterns_of;  // by the candidates for the value
    for (const NamedCommand& command : commands)
        for (const Option& option : command.command->options)
            if (!is_positional(option) && takes_value(option))
                for (const std::string& name : names_of(option))
                    patterns_of[bash_offer(offered(option))].push_back(quoted(concat(command.words, ' ', name)));

    std::ostringstream out;
    out << "# bash completion of tutti, made from its table of commands by `tutti completion bash`." << kBashBegin
        << "            " << joined(command_patterns(commands), " | \\\n            ")
        << ") command+=\" ${COMP_WORDS[i]}\" ;;\n        esac\n    done\n    case \"$command $previous\" in\n";
    for (const auto& [offer, patterns] : patterns_of)
        out << "        " << joined(patterns, " | \\\n        ") << ")\n            " << offer
            << "\n            _tutti_offer\n            return ;;\n";
    out << "    esac\n    case $command in\n";
    for (const NamedCommand& command : commands)
        out << "        " << quoted(command.words) << ")\n            "
            << bash_offer(offered_in_place(*command.command))
            << "\n            options=" << quoted(joined(option_names(command, program), " ")) << " ;;\n";
    out << kBashEnd;
    return out.str();
}

std::string zsh_completion(const Command& program) {
    std::ostringstream out;
    out << "#compdef tutti\n# zsh completion of tutti, made from its table of commands by `tutti completion zsh`.\n\n"
        << "_tutti_names_or_files() { _alternative \"names:name:($*)\" 'files:file:_files' }\n\n";
    for (const NamedCommand& command : all_commands(program)) {
        out << zsh_function_name(command.words) << "() {\n";
        if (command.command->commands.empty())
            out << "    _arguments " << zsh_arguments(command, program) << '\n';
        else
            out << zsh_group(command, program);
        out << "}\n\n";
    }
    out << "# Read by the completion system as a function of its own, or sourced.\n"
        << "if [[ $funcstack[1] == _tutti ]]; then _tutti \"$@\"; else compdef _tutti tutti; fi\n";
    return out.str();
}

std::string fish_completion(const Command& program) {
    const std::vector<NamedCommand> commands = all_commands(program);
    std::ostringstream out;
    out << "# fish completion of tutti, made from its table of commands by `tutti completion fish`.\n\n"
        << "# Whether the words so far name this command, as in: tutti bench gemm.\n"
        << "function __fish_tutti_at\n    set -l command tutti\n    for word in (commandline -opc)[2..-1]\n"
        << "        switch \"$command $word\"\n            case " << joined(command_patterns(commands), " ")
        << "\n                set command \"$command $word\"\n        end\n    end\n"
        << "    test \"$command\" = \"$argv\"\nend\n\ncomplete -c tutti -f\n";
    for (const NamedCommand& command : commands) {
        const std::string at = concat("complete -c tutti -n ", quoted("__fish_tutti_at " + command.words));
        const auto offer_of = [](const Suggestions& offer) {
            return concat(offer.words.empty() ? "" : " -a " + fish_quoted(joined(offer.words, " ")),
                          offer.files ? " -F" : "");
        };
        out << '\n' << at << " -l help -d 'show help'\n";
        if (command.command == &program) out << at << " -l version -d 'show the version'\n";
        for (const Command& below : command.command->commands)
            out << at << " -a " << below.name << " -d " << fish_quoted(below.description) << '\n';
        for (const Option& option : command.command->options) {
            if (is_positional(option)) {
                out << at << offer_of(offered(option)) << " -d " << fish_quoted(option.help) << '\n';
                continue;
            }
            out << at;
            for (const std::string& name : names_of(option)) out << " -l " << name.substr(2);
            const Suggestions offer = offered(option);
            if (takes_value(option)) out << (offer.files ? " -r" : " -x") << offer_of(offer);
            out << " -d " << fish_quoted(option.help) << '\n';
        }
    }
    return out.str();
}

int completion(const CompletionArguments& a, const Io& io) {
    Arguments arguments;
    const Command table = program(arguments, io);
    const std::string script = a.shell == "bash"  ? bash_completion(table)
                               : a.shell == "zsh" ? zsh_completion(table)
                                                  : fish_completion(table);
    io.print(Json{{"shell", a.shell}, {"script", script}});
    if (!io.json) io.out << script;
    return 0;
}

namespace {

// Text that troff shows unchanged: no character begins an escape or becomes a typographic one.
std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) switch (c) {
            case '\\': result += "\\e"; break;
            case '-': result += "\\-"; break;
            case '\'': result += "\\(aq"; break;
            case '`': result += "\\(ga"; break;
            case '^': result += "\\(ha"; break;
            case '~': result += "\\(ti"; break;
            case '"': result += "\\(dq"; break;
            default: result += c;
        }
    return result;
}

// A line of text, which must not begin with the dot of a request.
std::string line_of(std::string_view text) { return concat(text.starts_with('.') ? "\\&" : "", escaped(text), '\n'); }

std::string bold(std::string_view text) { return concat("\\fB", escaped(text), "\\fR"); }
std::string italic(std::string_view text) { return concat("\\fI", escaped(text), "\\fR"); }

// Lines that stay as they are.
std::string literal(const std::string& text) {
    std::string result = ".PP\n.nf\n";
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) result += line_of(line);
    return result + ".fi\n";
}

std::string tagged(const std::string& tag, const std::string& text) { return ".TP\n" + tag + "\n" + line_of(text); }

std::string synopsis_of(const NamedCommand& command) {
    std::string text = bold(command.words);
    if (command.command->run == nullptr) return text + " " + italic("COMMAND") + " ...";
    for (const Option& option : command.command->options) {
        if (!is_positional(option) && !option.required) continue;
        std::string shown = is_positional(option) ? italic(option.name + (option.value_name == "..." ? "..." : ""))
                                                  : bold(names_of(option)[0]) + " " + italic(option.value_name);
        text += " " + (option.required ? shown : "[" + shown + "]");
    }
    return text + " [" + italic("OPTION") + "]...";
}

std::string describe(const Option& option) {
    std::string tag = joined(names_of(option), ", ", is_positional(option) ? italic : bold);
    if (!option.value_name.empty()) tag += " " + italic(option.value_name);
    const std::string shown = option.default_text.empty() ? "" : concat(" [", option.default_text, "]");
    return tagged(tag, option.help + shown + (option.required ? " (required)" : ""));
}

std::string describe(const NamedCommand& command) {
    std::string text = concat(".SS ", escaped(command.words), "\n", synopsis_of(command), "\n.PP\n",
                              line_of(command.command->description));
    for (const Option& option : command.command->options) text += describe(option);
    if (!command.command->footer.empty()) text += literal(command.command->footer);
    return text;
}

}  // namespace

std::string manual_page(const Command& program, const std::string& version) {
    std::string page = concat(".\\\" Made from the table of commands by `tutti man`.\n.TH TUTTI 1 \"\" \"",
                              program.name, ' ', version, "\" \"User Commands\"\n.SH NAME\n", program.name, " \\- ",
                              line_of(program.description), ".SH SYNOPSIS\n");
    const std::vector<NamedCommand> commands = all_commands(program);
    page += synopsis_of(commands[0]) + "\n.br\n" + bold(program.name) + " " + bold("--version") + "\n";
    page += concat(".SH DESCRIPTION\n", line_of(program.description), literal(program.footer), ".SH COMMANDS\n");
    for (size_t i = 1; i < commands.size(); ++i) page += describe(commands[i]);
    return page;
}

int manual(const Io& io) {
    Arguments arguments;
    const std::string page = manual_page(program(arguments, io), build_info().version);
    io.print(Json{{"page", page}});
    if (!io.json) io.out << page;
    return 0;
}

}  // namespace tutti::cli
