// cli/completion.h: the table of commands as completion scripts for bash, zsh and fish, and as the manual page. The
// scripts offer commands, options, the values of Choices and Suggestions, and file names where a value is a path.
#pragma once

#include <string>
#include <vector>

#include "tutti/cli/command.h"

namespace tutti::cli {

// A command with the words that name it: "tutti bench gemm".
struct NamedCommand {
    std::string words;
    const Command* command;
};
// `program`, and all commands below it in the order of --help.
std::vector<NamedCommand> all_commands(const Command& program);

// "--comm", "--latency" of "--comm,--latency".
std::vector<std::string> names_of(const Option& option);
// Whether the option has no name on the command line, only a place.
bool is_positional(const Option& option);
bool takes_value(const Option& option);

std::string bash_completion(const Command& program);
std::string zsh_completion(const Command& program);
std::string fish_completion(const Command& program);

// The manual page tutti(1), as source for man: the macros of man(7).
std::string manual_page(const Command& program, const std::string& version);

}  // namespace tutti::cli
