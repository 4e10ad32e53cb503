#include "tutti/cli/manual.h"

#include <sstream>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/completion.h"

namespace tutti::cli {

namespace {

// Text that troff shows as it is: no character begins an escape, and none is turned into a typographic one.
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
    std::string tag;
    for (const std::string& name : names_of(option))
        tag += (tag.empty() ? "" : ", ") + (is_positional(option) ? italic(name) : bold(name));
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

int manual(const ManualArguments& a, const Io& io) {
    Arguments arguments;
    const std::string page = manual_page(program(arguments, io), build_info().version);
    if (a.json)
        io.out << Json{{"page", page}}.dump(2) << '\n';
    else
        io.out << page;
    return 0;
}

}  // namespace tutti::cli
