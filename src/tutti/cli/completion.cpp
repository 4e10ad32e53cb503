#include "tutti/cli/completion.h"

#include <algorithm>
#include <sstream>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/strings.h"

namespace tutti::cli {

namespace {

// What may stand in one place of a command line.
struct Offer {
    std::vector<Candidate> candidates;
    bool files = false;

    void add(const Option& option) {  // its values
        if (const auto* choices = std::get_if<Choices>(&option.rule)) add(*choices);
        const auto* suggestions = std::get_if<Suggestions>(&option.rule);
        if (suggestions == nullptr) return;
        add(suggestions->words);
        files = files || suggestions->files;
    }
    void add(const std::vector<std::string>& words) {
        for (const std::string& word : words) candidates.push_back({word, ""});
    }
};

// The options of a command by their names, --help and --version among them.
Offer options_of(const Command& command, const Command& program) {
    Offer offer{{{"--help", "show help"}}};
    if (&command == &program) offer.candidates.push_back({"--version", "show the version"});
    for (const Option& option : command.options)
        if (!is_positional(option))
            for (const std::string& name : names_of(option)) offer.candidates.push_back({name, shown_help(option)});
    return offer;
}

// Subcommands, and the values of positional options.
Offer places_of(const Command& command) {
    Offer offer;
    for (const Command& below : command.commands) offer.candidates.push_back({below.name, below.description});
    for (const Option& option : command.options)
        if (is_positional(option)) offer.add(option);
    return offer;
}

// Nullptr: the command has no option of this name, or the option takes no value.
const Option* option_with_value(const Command& command, const std::string& name) {
    for (const Option& option : command.options) {
        const std::vector<std::string> names = names_of(option);
        if (!is_positional(option) && takes_value(option) && std::find(names.begin(), names.end(), name) != names.end())
            return &option;
    }
    return nullptr;
}

// Each asks `tutti __complete` with the words so far, the one before the cursor last; a candidate that ends with = is
// not followed by a space.
constexpr const char* kBash = R"(# bash completion of tutti, by `tutti completion bash`.
_tutti() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]#=}")
            compopt -o filenames 2>/dev/null
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -F _tutti tutti
)";
constexpr const char* kZsh = R"(#compdef tutti
# zsh completion of tutti, by `tutti completion zsh`.
_tutti() {
    local line
    local -a explained plain keys
    for line in "${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            [[ $PREFIX != --*=* ]] || compset -P '*='
            _files
        elif [[ $line == *$'\t'* ]]; then
            explained+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        elif [[ $line == *= ]]; then
            keys+=($line)
        else
            plain+=($line)
        fi
    done
    (( ! $#keys )) || compadd -S '' -- "${keys[@]}"
    (( ! $#plain )) || compadd -- "${plain[@]}"
    (( ! $#explained )) || _describe tutti explained
}
# Read by the completion system as a function of its own, or sourced.
if [[ $funcstack[1] == _tutti ]]; then _tutti "$@"; else compdef _tutti tutti; fi
)";
constexpr const char* kFish = R"(# fish completion of tutti, by `tutti completion fish`.
function __fish_tutti
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in (command $words[1] __complete $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$current"
        else
            echo $line
        end
    end
end
complete -c tutti -f -a '(__fish_tutti)'
)";

}  // namespace

std::vector<NamedCommand> all_commands(const Command& program) {
    std::vector<NamedCommand> all = {{program.name, &program}};
    for (const Command& below : program.commands)
        for (NamedCommand& command : all_commands(below))
            all.push_back({concat(program.name, ' ', command.words), command.command});
    return all;
}

std::vector<Candidate> complete(const Command& program, std::vector<std::string> words) {
    if (words.empty()) words.emplace_back();
    std::string current = words.back(), prefix;
    words.pop_back();
    // The value of --name=value, which bash cuts into three words.
    if (current == "=")
        current.clear();
    else if (!words.empty() && words.back() == "=")
        words.pop_back();
    else if (current.starts_with("--") && current.find('=') != std::string::npos) {
        prefix = current.substr(0, current.find('=') + 1);
        words.push_back(prefix.substr(0, prefix.size() - 1));
        current.erase(0, prefix.size());
    }
    const Command& command = command_named(program, words);
    Offer offer;
    if (const Option* option = words.empty() ? nullptr : option_with_value(command, words.back())) {
        offer.add(*option);
    } else if (prefix.empty()) {
        if (!current.starts_with('-')) offer = places_of(command);
        if (offer.candidates.empty() && !offer.files) offer = options_of(command, program);
    }
    std::erase_if(offer.candidates, [&](const Candidate& c) { return !c.word.starts_with(current); });
    for (Candidate& candidate : offer.candidates) candidate.word.insert(0, prefix);
    if (offer.files) offer.candidates.push_back({":files", ""});
    return std::move(offer.candidates);
}

std::string completion_script(const std::string& shell) {
    return shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish;
}

namespace {

struct CompletionArguments {
    std::string shell;  // bash, zsh or fish
};

int completion(const CompletionArguments& a, const Io& io) {
    const std::string script = completion_script(a.shell);
    io.print(Json{{"shell", a.shell}, {"script", script}});
    if (!io.json) io.out << script;
    return 0;
}

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
    return tagged(tag, shown_help(option) + shown_default(option) + (option.required ? " (required)" : ""));
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

Command completion_command(Arguments& all, const Io& io) {
    auto& a = all.add<CompletionArguments>();
    const Options options = {
        required({"SHELL", "", "", "bash, zsh or fish", &a.shell, Choices{"bash", "zsh", "fish"}})};
    return command_of("completion", "print a script that completes command lines in a shell", a, io, completion,
                      options,
                      "The packages install these scripts. Examples elsewhere:\n"
                      "  source <(tutti completion bash)     # in ~/.bashrc\n"
                      "  source <(tutti completion zsh)      # in ~/.zshrc, after compinit\n"
                      "  tutti completion fish | source      # in ~/.config/fish/config.fish");
}

}  // namespace tutti::cli
