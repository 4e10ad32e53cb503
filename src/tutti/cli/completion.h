// cli/completion.h: the table of commands as answers to shells that complete a command line, and as the manual page.
// Commands are offered, options, the values of Choices and Suggestions, and file names where a value is a path.
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

struct Candidate {
    std::string word, help;
};
// What the last of `words`, the beginning of a word or "", may become; `tutti __complete WORD...` prints a line for
// each, word and help with a tab between. The word ":files": names of files too.
std::vector<Candidate> complete(const Command& program, std::vector<std::string> words);
// For bash, zsh or fish: asks `tutti __complete`.
std::string completion_script(const std::string& shell);

// The manual page tutti(1), as source for man: the macros of man(7).
std::string manual_page(const Command& program, const std::string& version);

}  // namespace tutti::cli
